"""A series as a plain SVG picture: the value, its 95 % interval, and slices beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.sax.saxutils import escape

COLOURS = ("#2458b3", "#c2410c", "#14803c", "#8b2fc9", "#b8860b", "#0e7490", "#be185d", "#4b5563")
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 48, 120, 34, 26


@dataclass(frozen=True)
class Line:
    """One line: `at` in seconds since 1970 rising, `value` (None leaves a gap), and bounds where there are any."""

    name: str
    at: Sequence[int]
    value: Sequence[float | None]
    lower: Sequence[float | None] = ()
    upper: Sequence[float | None] = ()


@dataclass(frozen=True)
class _Frame:
    width: int
    height: int
    since: int
    until: int
    low: float
    high: float

    def x(self, at: float) -> float:
        share = (at - self.since) / max(self.until - self.since, 1)
        return MARGIN_LEFT + share * (self.width - MARGIN_LEFT - MARGIN_RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.height - MARGIN_BOTTOM - share * (self.height - MARGIN_TOP - MARGIN_BOTTOM)


def draw(title: str, lines: Sequence[Line], width: int = 860, height: int = 300) -> str:
    """The picture as an SVG document. All text in it is escaped.

    Raises:
        ValueError: no line has a value.
    """
    values = [v for line in lines for column in (line.value, line.lower, line.upper) for v in column if v is not None]
    if not values:
        raise ValueError("there is no value to draw")
    low, high, step = _scale(min(values), max(values))
    times = [t for line in lines for t in line.at]
    frame = _Frame(width, height, min(times), max(times), low, high)
    body = [*_grid(frame, step), *_dates(frame), _band(frame, lines[0])]
    for i, line in enumerate(lines):
        body += _line(frame, line, COLOURS[i % len(COLOURS)], 2.2 if i == 0 else 1.3)
    body += _names(frame, lines)
    label = escape(title, {'"': "&quot;"})
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}" font-family="system-ui, sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{MARGIN_LEFT}" y="20" font-size="13" font-weight="600" fill="#1d2330">{escape(title)}</text>'
        + "".join(body)
        + "</svg>\n"
    )


def _scale(low: float, high: float) -> tuple[float, float, float]:
    """(lower end, upper end, step) of the vertical axis at round numbers.

    >>> _scale(0.61, 0.86)
    (0.6, 0.9, 0.05)
    """
    spread = max(high - low, 1e-6)
    power = 10 ** math.floor(math.log10(spread / 4))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= spread / 5.5)
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    return round(bottom, 9), round(top, 9), round(step, 9)


def _grid(frame: _Frame, step: float) -> list[str]:
    count = round((frame.high - frame.low) / step)
    found = []
    for i in range(count + 1):
        value = frame.low + i * step
        y, right = frame.y(value), frame.width - MARGIN_RIGHT
        found.append(
            f'<line x1="{MARGIN_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e7ee"/>'
            f'<text x="{MARGIN_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#5b6475">{value:.6g}</text>'
        )
    return found


def _dates(frame: _Frame) -> list[str]:
    day = 86_400
    every = max(1, math.ceil((frame.until - frame.since) / day / 8)) * day
    first = -(-frame.since // day) * day
    return [
        f'<text x="{frame.x(at):.1f}" y="{frame.height - 8}" text-anchor="middle" fill="#5b6475">'
        f"{datetime.fromtimestamp(at, UTC):%d %b}</text>"
        for at in range(first, frame.until + 1, every)
    ]


def _band(frame: _Frame, line: Line) -> str:
    columns = zip(line.at, line.lower, line.upper, strict=False)
    bounds = [(t, lo, hi) for t, lo, hi in columns if lo is not None and hi is not None]
    if not bounds:
        return ""
    edge = [f"{frame.x(t):.1f},{frame.y(hi):.1f}" for t, _, hi in bounds]
    edge += [f"{frame.x(t):.1f},{frame.y(lo):.1f}" for t, lo, _ in reversed(bounds)]
    return f'<polygon points="{" ".join(edge)}" fill="{COLOURS[0]}" fill-opacity=".13"/>'


def _line(frame: _Frame, line: Line, colour: str, width: float) -> list[str]:
    runs: list[list[str]] = [[]]
    for at, value in zip(line.at, line.value, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{frame.x(at):.1f},{frame.y(value):.1f}")
    return [
        f'<polyline points="{" ".join(run)}" fill="none" stroke="{colour}" stroke-width="{width}" '
        'stroke-linejoin="round" stroke-linecap="round"/>'
        for run in runs
        if run
    ]


def _names(frame: _Frame, lines: Sequence[Line]) -> list[str]:
    """Each line's name at its end, pushed apart where they would overlap."""
    ends = []
    for i, line in enumerate(lines):
        last = next((v for v in reversed(line.value) if v is not None), None)
        if last is not None:
            ends.append((frame.y(last), line.name, COLOURS[i % len(COLOURS)]))
    found, below = [], -math.inf
    for y, name, colour in sorted(ends):
        below = max(y, below + 13)
        x = frame.width - MARGIN_RIGHT + 6
        found.append(f'<text x="{x}" y="{below + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return found
