"""Plots as inline SVG: a line over time, and bars of a histogram. Colours are the page's, by class.

Each plot says in words what it shows, for who cannot see it. No text of a row comes into one.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from .sketches import HistogramSketch

_WIDTH, _HEIGHT = 460, 150
_STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
"""Round numbers that axes end at, up to 10 and in every power of 10."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 12, 26


def line_plot(name: str, points: Sequence[tuple[float, float]], time: str) -> Markup:
    """A value over seconds, each of the time since the point before it. `time`: the plot's whole width in words."""
    points = [(0.0, points[0][1]), *points] if points else []
    top = _rounded(max((value for _, value in points), default=0.0))
    end = max((at for at, _ in points), default=0.0) or 1.0
    places = " ".join(f"{_x(at / end):.1f},{_y(value / top):.1f}" for at, value in points)
    most = max((value for _, value in points), default=0.0)
    told = f"{name} over {time}: at most {_number(most)}"
    last = _x(points[-1][0] / end) if points else _LEFT
    first = _x(points[0][0] / end) if points else _LEFT
    area = f'<polygon class="area" points="{first:.1f},{_y(0):.1f} {places} {last:.1f},{_y(0):.1f}"/>'
    line = f'<polyline class="line" points="{places}"/>'
    return _svg(told, Markup(area + line) + _axes(top, "0:00", time))


def bar_plot(name: str, counted: HistogramSketch, unit: str) -> Markup:
    """How many rows have which number of something; the bins grow with the number."""
    bars = counted.bars()
    top = _rounded(max((bar.rows for bar in bars), default=0))
    width = (_WIDTH - _LEFT - _RIGHT) / max(len(bars), 1)
    drawn = Markup("")
    for index, bar in enumerate(bars):
        height = (_HEIGHT - _TOP - _BOTTOM) * bar.rows / top
        upto = f"{bar.low:,}" if bar.high == bar.low + 1 else f"{bar.low:,} to {bar.high - 1:,}"
        drawn += Markup(
            '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
        ).format(
            _LEFT + index * width + 0.5,
            _HEIGHT - _BOTTOM - height,
            max(min(width - 1, 40), 0.5),
            height,
            f"{upto} {unit}: {bar.rows:,}",
        )
    told = (
        f"{name}: {counted.least:,} to {counted.most:,} {unit}, on average {counted.mean:,.1f}, "
        f"half of the rows at most about {counted.quantile(0.5):,}"
    )
    low, high = (f"{bars[0].low:,}", f"{counted.most:,} {unit}") if bars else ("0", unit)
    return _svg(told, drawn + _axes(top, low, high))


def _svg(told: str, inner: Markup) -> Markup:
    return (
        Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(_WIDTH, _HEIGHT, told)
        + inner
        + Markup("</svg>")
    )


def _axes(top: float, left: str, right: str) -> Markup:
    base = _HEIGHT - _BOTTOM
    lines = (
        f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{_WIDTH - _RIGHT}" y2="{base}"/>'
        f'<line class="grid" x1="{_LEFT}" y1="{_TOP}" x2="{_WIDTH - _RIGHT}" y2="{_TOP}"/>'
    )
    return (
        Markup(lines)
        + _label(_LEFT - 6, _TOP + 4, _number(top), "end")
        + _label(_LEFT - 6, base + 4, "0", "end")
        + _label(_LEFT, base + 18, left, "start")
        + _label(_WIDTH - _RIGHT, base + 18, right, "end")
    )


def _label(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text class="label" x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, escape(text))


def _x(part: float) -> float:
    return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)


def _y(part: float) -> float:
    return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def _rounded(value: float) -> float:
    """The next round number that is not below."""
    scale = 1.0
    while value > 10 * scale:
        scale *= 10
    while 0 < value <= scale / 10:
        scale /= 10
    return next((scale * step for step in _STEPS if scale * step >= value), 10 * scale)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:,.2g}"
