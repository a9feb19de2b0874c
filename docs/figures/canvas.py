"""SVG as plain text: shapes with the colours of a light and of a dark page, and axes for figures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

# Each colour on a light page and on a dark one. A picture brings its own background, so that it is legible anywhere.
# Blue, orange, green, violet and grey are told apart with any colour vision (tests/test_docs.py).
COLOURS = {
    "page": ("#ffffff", "#0d1117"),
    "edge": ("#d0d7de", "#30363d"),
    "ink": ("#1f2328", "#e6edf3"),
    "red": ("#cf222e", "#ff7b72"),
    "faint": ("#59636e", "#9198a1"),
    "panel": ("#f3f5f8", "#1a2028"),
    "blue": ("#1b50cd", "#2763ee"),
    "orange": ("#ca741a", "#f98326"),
    "green": ("#1a9c62", "#39b87f"),
    "violet": ("#3c1755", "#c880e0"),
    "grey": ("#aeb6c0", "#464a4e"),
}
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


def _rules(which: int) -> str:
    fills = (f".{name}{{fill:{pair[which]}}}.{name}-line{{stroke:{pair[which]}}}" for name, pair in COLOURS.items())
    return "".join(fills)


class Canvas:
    """A picture of `width` by `height` pixels; `title` is what it shows, for those who do not see it."""

    def __init__(self, width: int, height: int, title: str):
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def rectangle(
        self, x: float, y: float, width: float, height: float, fill: str, line: str = "", round_by: float = 4
    ) -> None:
        stroke = f' {line}-line" stroke-width="1.2' if line else ""
        self.parts.append(
            f'<rect class="{fill}{stroke}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{round_by:g}"/>'
        )

    def text(
        self, x: float, y: float, words: str, size: int = 13, fill: str = "ink", at: str = "start", bold: bool = False
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text class="{fill}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{at}"{weight}>'
            f"{escape(words, quote=False)}</text>"
        )

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, width: float = 1.5, dashed: bool = False
    ) -> None:
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline class="{colour}-line" points="{path}" fill="none" stroke-width="{width:g}" '
            f'stroke-linejoin="round"{dash}/>'
        )

    def arrow(self, start: tuple[float, float], end: tuple[float, float], colour: str = "faint") -> None:
        """A straight arrow along one axis, or close to it."""
        (x, y), (to_x, to_y) = start, end
        length = max(((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5, 1e-9)
        ux, uy = (to_x - x) / length, (to_y - y) / length
        back_x, back_y = to_x - 8 * ux, to_y - 8 * uy
        self.line([(x, y), (back_x, back_y)], colour, 1.6)
        corners = ((to_x, to_y), (back_x - 4 * uy, back_y + 4 * ux), (back_x + 4 * uy, back_y - 4 * ux))
        tip = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        self.parts.append(f'<polygon class="{colour}" points="{tip}"/>')

    def circle(self, x: float, y: float, radius: float, fill: str) -> None:
        self.parts.append(f'<circle class="{fill}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>')

    def key(self, x: float, y: float, entries: Sequence[tuple[str, str]], step: float) -> None:
        """Squares of colour with what they stand for, in a row."""
        for number, (colour, words) in enumerate(entries):
            self.rectangle(x + number * step, y - 10, 11, 11, colour, round_by=2)
            self.text(x + number * step + 16, y, words, 12, "faint")

    def svg(self) -> str:
        style = (
            f"<style>text{{font-family:{FONT}}}{_rules(0)}@media (prefers-color-scheme: dark){{{_rules(1)}}}</style>"
        )
        title = escape(self.title)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label="{title}">'
        )
        card = (
            f'<rect class="page edge-line" x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8" '
            'stroke-width="1"/>'
        )
        return "\n".join([head, f"<title>{title}</title>", style, card, *self.parts, "</svg>", ""])


class Axes:
    """A plot whose left lower corner is at `place`; it maps `x_range` and `y_range` to `size` in pixels."""

    def __init__(
        self,
        canvas: Canvas,
        place: tuple[float, float],
        size: tuple[float, float],
        x_range: tuple[float, float],
        y_range: tuple[float, float],
    ):
        self.canvas, self.place, self.size, self.x_range, self.y_range = canvas, place, size, x_range, y_range

    def at(self, x: float, y: float) -> tuple[float, float]:
        (left, bottom), (width, height) = self.place, self.size
        across = (x - self.x_range[0]) / (self.x_range[1] - self.x_range[0])
        up = (y - self.y_range[0]) / (self.y_range[1] - self.y_range[0])
        return left + across * width, bottom - up * height

    def frame(self, x_ticks: dict[float, str], y_ticks: dict[float, str], x_title: str) -> None:
        left, right = self.place[0], self.place[0] + self.size[0]
        for value, words in y_ticks.items():
            y = self.at(self.x_range[0], value)[1]
            self.canvas.line([(left, y), (right, y)], "edge", 1)
            self.canvas.text(left - 8, y + 4, words, 12, "faint", "end")
        for value, words in x_ticks.items():
            x = self.at(value, self.y_range[0])[0]
            self.canvas.text(x, self.place[1] + 18, words, 12, "faint", "middle")
        self.canvas.text((left + right) / 2, self.place[1] + 38, x_title, 12, "faint", "middle")

    def curve(self, points: Sequence[tuple[float, float]], colour: str, width: float = 2, dashed: bool = False) -> None:
        self.canvas.line([self.at(*point) for point in points], colour, width, dashed)
