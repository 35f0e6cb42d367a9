"""Parts of the pictures of deploy/tools: letters, colours, panels, and labels that do not overlap."""

COLORS = ("#1f5fa8", "#d1691b", "#6b6b6b", "#2a8a57", "#8a4fa3", "#b3344a")
TEXT = 'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#333"'
# The panels are one above the other, so that the words can be read on a narrow screen.
WIDTH, HEIGHT = 480, 560
LEFT, TOPS, PANEL_HEIGHT = 52, (44, 316), 190


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


class Panel:
    """A diagram whose vertical axis goes from `low` to 1 and whose horizontal axis goes from 0 to the last of `steps`, its marks.
    `parts` are the elements of the SVG so far."""

    def __init__(self, top, title, axis, steps, width, low=0, padding=0):
        self.top, self.last_step, self.width, self.low, self.padding = top, steps[-1], width, low, padding
        self.parts = [f'<text x="{LEFT}" y="{top - 16}" {TEXT} font-weight="bold">{title}</text>']
        for tick in (low + (1 - low) * quarter / 4 for quarter in range(5)):
            y = self.y(tick)
            self.parts.append(f'<line x1="{LEFT}" x2="{LEFT + width}" y1="{y}" y2="{y}" stroke="#ddd"/>'
                              f'<text x="{LEFT - 6}" y="{y + 4}" {TEXT} text-anchor="end">{100 * tick:g}%</text>')
        for step in steps:
            self.parts.append(f'<text x="{self.x(step):.1f}" y="{top + PANEL_HEIGHT + 18}" {TEXT} '
                              f'text-anchor="middle">{step}</text>')
        self.parts.append(f'<text x="{LEFT + width / 2}" y="{top + PANEL_HEIGHT + 36}" {TEXT} '
                          f'text-anchor="middle">{axis}</text>')

    def x(self, step):
        return LEFT + self.padding + (self.width - 2 * self.padding) * step / max(1, self.last_step)

    def y(self, value):
        return round(self.top + PANEL_HEIGHT * (1 - value) / (1 - self.low), 1)

    def line(self, points, color, dashed=False, shift=0):
        """Draws a line through `points`, [(step, value)], which is moved to the right by `shift`."""
        path = " ".join(f"{self.x(step) + shift:.1f},{self.y(value)}" for step, value in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')

    def labels(self, ends):
        """Writes `ends`, [(value, text, color)], beside the lines' ends."""
        for (_, text, color), y in zip(ends, spread([self.y(value) for value, _, _ in ends], 15, self.top + PANEL_HEIGHT)):
            self.parts.append(f'<text x="{LEFT + self.width + 8}" y="{y + 4}" {TEXT} style="fill:{color}">{text}</text>')


def page(panels):
    """Returns the SVG file with these panels on a white card."""
    body = "\n".join(part for panel in panels for part in panel.parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="white" stroke="#c9d1d9"/>\n{body}\n</svg>\n')
