"""What the pictures of deploy/tools share: letters, colours, and labels that do not overlap."""

COLORS = ("#1f5fa8", "#d1691b", "#6b6b6b", "#2a8a57", "#8a4fa3", "#b3344a")
TEXT = 'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#333"'


def spread(positions, distance, limit):
    """Moves positions apart, in their order, so that neighbours differ by at least `distance` and none exceeds `limit`."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    moved = list(positions)
    for before, here in zip(order, order[1:]):
        moved[here] = max(moved[here], moved[before] + distance)
    for here in reversed(order):  # back up from the limit
        moved[here] = min(moved[here], limit)
        limit = moved[here] - distance
    return moved


def page(width, height, body):
    """Returns the SVG file with this body on a white card."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
            f'<rect width="{width}" height="{height}" rx="10" fill="white" stroke="#c9d1d9"/>\n{body}\n</svg>\n')
