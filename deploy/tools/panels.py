"""Draws the panels of a Grafana dashboard as SVG: title, axes with the panel's unit, lines, legend."""

import html
import math
import re

COLUMN, ROW, GAP, HEADING, MARGIN = 312, 196, 8, 30, 12
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 26, 20  # margins around the lines, without the legend
LEGEND_LINE, LEGEND_CHAR = 14, 5.6
COLORS = ("#3b7dbf", "#d9822b", "#4a9e5c", "#b5485d", "#8365b0", "#8a7444", "#3aa6a6", "#6b6b6b")
FONT = 'font-family="Helvetica, Arial, sans-serif"'
DECIMAL = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1, ""))
UNITS = {
    "short": DECIMAL,
    "reqps": tuple((size, f"{name}/s") for size, name in DECIMAL),
    "bytes": ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B")),
    "s": ((60, " min"), (1, " s"), (1e-3, " ms"), (1e-6, " us")),
    "percentunit": ((0.01, "%"),),
    "watt": ((1, " W"),),
}


def unit_of(values, unit):
    """Returns (size, name) of the unit for the largest of the values."""
    largest = max(map(abs, values))
    return next((each for each in UNITS[unit] if largest >= each[0] * (1 - 1e-9)), UNITS[unit][-1])


def round_step(distance, count, factors=(1, 2, 5, 10)):
    """Returns the smallest round number that fits into the distance at most `count` times."""
    power = 10 ** math.floor(math.log10(distance / count))
    return next(power * factor for factor in factors if power * factor * count >= distance * (1 - 1e-9))


def ticks(values, unit):
    """Returns [(value, text)] of round numbers around all values, in the unit of the largest."""
    size, name = unit_of(values, unit)
    low, high = min(values) / size, max(values) / size
    if high == low:
        low, high = (0, 1) if low == 0 else (min(low, 0), max(low, 0))
    step = round_step(high - low, 4)
    digits = max(0, math.ceil(-math.log10(step) - 1e-9))
    marks = [i * step for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]
    if digits > 3:
        return [(mark * size, f"{mark:.1e}".replace("e-0", "e-") if mark else "0") for mark in marks]
    return [(mark * size, f"{mark:.{digits}f}{name}" if mark else "0" + name * (unit == "percentunit")) for mark in marks]


def time_ticks(seconds):
    """Returns round seconds and minutes from the start."""
    step = next(each for each in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 10**9) if seconds / each <= 5)
    return [(at, f"{at // 60}:{at % 60:02}") for at in range(0, int(seconds) + 1, step)]


def legend_text(form, labels):
    text = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), form).strip()
    return text if len(text) <= 34 else text[:31] + "..."


def text(x, y, content, size=11, anchor="start", color="#444", bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return (f'<text x="{x:.1f}" y="{y:.1f}" {FONT} font-size="{size}" fill="{color}" text-anchor="{anchor}"{weight}>'
            f"{html.escape(content)}</text>")


def legend_lines(names, width):
    """Distributes the names over the lines of the legend."""
    lines, used = [[]], 0.0
    for name in names:
        needed = 18 + len(name) * LEGEND_CHAR
        if lines[-1] and used + needed > width:
            lines.append([])
            used = 0.0
        lines[-1].append(name)
        used += needed
    return lines


class Panel:
    """One panel at its place. `series`: [(name, [(seconds, value)])]; a value of None interrupts the line."""

    def __init__(self, x, y, title, unit, series, seconds):
        self.x, self.y, self.title, self.unit, self.seconds = x, y, title, unit, seconds
        self.series = [(name, points) for name, points in series if any(value is not None for _, value in points)]
        self.legend = legend_lines([name for name, _ in self.series], COLUMN - 20)
        self.bottom = y + ROW - BOTTOM - LEGEND_LINE * max(1, len(self.legend)) - 2

    def at(self, seconds, value, low, high):
        x = self.x + LEFT + (COLUMN - LEFT - RIGHT) * seconds / self.seconds
        y = self.bottom - (self.bottom - self.y - TOP) * (value - low) / (high - low)
        return x, y

    def axes(self):
        values = [value for _, points in self.series for _, value in points if value is not None]
        marks = ticks(values, self.unit)
        low, high = marks[0][0], marks[-1][0]
        parts = []
        for mark, words in marks:
            _, y = self.at(0, mark, low, high)
            parts.append(f'<line x1="{self.x + LEFT}" x2="{self.x + COLUMN - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
            parts.append(text(self.x + LEFT - 4, y + 3.5, words, 10, "end", "#777"))
        for seconds, words in time_ticks(self.seconds):
            x, _ = self.at(seconds, low, low, high)
            # At the right edge, inside the panel.
            anchor = "end" if x > self.x + COLUMN - RIGHT - 8 else "middle"
            parts.append(text(x, self.bottom + 13, words, 10, anchor, "#777"))
        return parts, low, high

    def lines(self, low, high):
        for (_, points), color in zip(self.series, COLORS * len(self.series)):
            pieces, piece = [], []
            for seconds, value in [*points, (0, None)]:
                if value is None:
                    pieces += [piece] if piece else []
                    piece = []
                else:
                    piece.append("{:.1f},{:.1f}".format(*self.at(seconds, value, low, high)))
            path = "".join("M" + " ".join(piece if len(piece) > 1 else piece * 2) for piece in pieces)
            yield f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"/>'

    def draw(self):
        parts = [f"<g><title>{html.escape(self.title)}</title>",
                 f'<rect x="{self.x}" y="{self.y}" width="{COLUMN}" height="{ROW}" rx="3" fill="white" stroke="#d5d8dc"/>',
                 text(self.x + 8, self.y + 16, self.title, 12, bold=True, color="#222")]
        if not self.series:
            return [*parts, text(self.x + COLUMN / 2, self.y + ROW / 2, "No data", 12, "middle", "#999"), "</g>"]
        axes, low, high = self.axes()
        parts += [*axes, *self.lines(low, high)]
        index = 0
        for i, names in enumerate(self.legend):
            x, y = self.x + 10, self.bottom + 30 + LEGEND_LINE * i
            for name in names:
                color = COLORS[index % len(COLORS)]
                parts.append(f'<rect x="{x:.1f}" y="{y - 5}" width="10" height="3" fill="{color}"/>')
                parts.append(text(x + 13, y, name, 10))
                x += 18 + len(name) * LEGEND_CHAR
                index += 1
        return [*parts, "</g>"]


def draw(board, query, seconds):
    """Returns the SVG of a dashboard. `query`: expression -> [(labels, [(seconds, value or None)])]."""
    parts, y, column = [], MARGIN + 34, 0
    for panel in board["panels"]:
        if panel["type"] == "row":
            y += (ROW + GAP) * (column > 0)
            column = 0
            parts.append(text(MARGIN, y + 20, panel["title"], 14, color="#222", bold=True))
            y += HEADING
            continue
        series = [(legend_text(target["legendFormat"], labels), points)
                  for target in panel["targets"] for labels, points in query(target["expr"])]
        parts += Panel(MARGIN + column * (COLUMN + GAP), y, panel["title"],
                       panel["fieldConfig"]["defaults"]["unit"], series, seconds).draw()
        column = (column + 1) % 3
        y += (ROW + GAP) * (column == 0)
    y += (ROW + GAP) * (column > 0)
    width, height = 2 * MARGIN + 3 * COLUMN + 2 * GAP, y + MARGIN
    head = text(MARGIN, MARGIN + 20, board["title"], 18, color="#111", bold=True)
    body = "\n".join([head, *parts])
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
            f'<rect width="{width}" height="{height}" fill="#f4f5f7"/>\n{body}\n</svg>\n')
