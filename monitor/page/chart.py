"""Series as plain SVG: a picture that stands alone, and plots that take width, colours and fonts from a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar
from xml.sax.saxutils import escape

T = TypeVar("T")

COLOURS = ("#2458b3", "#c2410c", "#14803c", "#8b2fc9", "#b8860b", "#0e7490", "#be185d", "#4b5563")
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 48, 120, 34, 26
LANE = 15
"""Height of a row below the picture."""


@dataclass(frozen=True)
class Line:
    """One line: `at` in seconds since 1970 rising, `value` (None leaves a gap), and bounds where there are any."""

    name: str
    at: Sequence[int]
    value: Sequence[float | None]
    lower: Sequence[float | None] = ()
    upper: Sequence[float | None] = ()


@dataclass(frozen=True)
class Shade:
    """A span of time to be coloured, [since, until] in seconds since 1970."""

    since: int
    until: int
    colour: str


@dataclass(frozen=True)
class Lane:
    """A row below the picture with bars in it."""

    name: str
    bars: Sequence[Shade]


@dataclass(frozen=True)
class _Frame:
    width: int
    height: int
    since: int
    until: int
    low: float
    high: float
    margins: tuple[int, int, int, int] = (MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM)

    def x(self, at: float) -> float:
        left, right, _, _ = self.margins
        share = (at - self.since) / max(self.until - self.since, 1)
        return left + share * (self.width - left - right)

    def y(self, value: float) -> float:
        _, _, top, bottom = self.margins
        share = (value - self.low) / (self.high - self.low)
        return self.height - bottom - share * (self.height - top - bottom)


def draw(
    title: str,
    lines: Sequence[Line],
    width: int = 860,
    height: int = 300,
    shades: Sequence[Shade] = (),
    lanes: Sequence[Lane] = (),
) -> str:
    """The picture as an SVG document, higher by its lanes. All text in it is escaped.

    Raises:
        ValueError: no line has a value.
    """
    values = [v for line in lines for column in (line.value, line.lower, line.upper) for v in column if v is not None]
    if not values:
        raise ValueError("there is no value to draw")
    low, high, step = _scale(min(values), max(values))
    times = [t for line in lines for t in line.at]
    height += LANE * len(lanes)
    margins = (MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM + LANE * len(lanes))
    frame = _Frame(width, height, min(times), max(times), low, high, margins)
    body = [_shade(frame, shade) for shade in shades]
    body += [*_grid(frame, step), *_dates(frame), _band(frame, lines[0])]
    for i, line in enumerate(lines):
        body += _line(frame, line, COLOURS[i % len(COLOURS)], 2.2 if i == 0 else 1.3)
    body += [*_names(frame, lines), *_lanes(frame, lanes)]
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


def _shade(frame: _Frame, shade: Shade) -> str:
    left, right = _edges(frame, ShadedPeriod(shade.since, shade.until, ""))
    top, bottom = frame.y(frame.high), frame.y(frame.low)
    box = f'x="{left:.1f}" width="{max(right - left, 1):.1f}" y="{top:.1f}" height="{bottom - top:.1f}"'
    return f'<rect {box} fill="{shade.colour}" fill-opacity=".14"/>'


def _lanes(frame: _Frame, lanes: Sequence[Lane]) -> list[str]:
    found, right = [], frame.width - MARGIN_RIGHT
    for i, lane in enumerate(lanes):
        y = frame.y(frame.low) + LANE * i + 5
        found.append(f'<rect x="{MARGIN_LEFT}" width="{right - MARGIN_LEFT}" y="{y:.1f}" height="8" fill="#f1f3f7"/>')
        for bar in lane.bars:
            left, end = _edges(frame, ShadedPeriod(bar.since, bar.until, ""))
            box = f'x="{left:.1f}" width="{max(end - left, 1.5):.1f}" y="{y:.1f}" height="8"'
            found.append(f'<rect {box} fill="{bar.colour}"/>')
        found.append(f'<text x="{right + 6}" y="{y + 8:.1f}" fill="#1d2330">{escape(lane.name)}</text>')
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


# ---- within a page ---------------------------------------------------------------------------------------------------

PLOT_WIDTH, PLOT_HEIGHT = 1000, 300
"""Units of a plot. A page stretches them to the room there is; text and the width of lines stay as they are."""

STRIP = 10
"""Height of a strip along the bottom of a plot, in the same units."""

_NO_MARGINS = (0, 0, 0, 0)
_HOUR, _DAY = 3600, 86_400
_TICKS = (_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY)
_MOST_TICKS = 6


@dataclass(frozen=True)
class ShadedPeriod:
    """A span of time to be shaded, [since, until] in seconds since 1970, with the words over it.

    Attributes:
        kind: class of the shade; that of a `mix` is a strip along the bottom.
    """

    since: int
    until: int
    words: str
    kind: str = "incident"


@dataclass(frozen=True)
class Plot:
    """What a plot shows.

    Attributes:
        ident: of the element, unique on the page.
        title, summary: for those who do not see it.
        step: seconds between neighbours; values further apart are not joined.
        limits: (class of the line, values at the same instants), such as a baseline.
        provisional: (seconds, value) that may still change.
    """

    ident: str
    title: str
    summary: str
    line: Line
    step: int
    limits: Sequence[tuple[str, Sequence[float | None]]] = ()
    stretches: Sequence[ShadedPeriod] = ()
    provisional: tuple[int, float] | None = None

    @property
    def values(self) -> list[float]:
        """All that has to fit in."""
        columns = [self.line.value, self.line.lower, self.line.upper, *(values for _, values in self.limits)]
        extra = [] if self.provisional is None else [self.provisional[1]]
        return [v for column in columns for v in column if v is not None] + extra

    @property
    def scale(self) -> tuple[float, float, float]:
        """(lower end, upper end, step) of the vertical axis. What hardly moves is not blown up to fill it."""
        low, high = min(self.values), max(self.values)
        room = max(0.0, max(0.02 * abs(high), 0.001) - (high - low)) / 2
        return _scale(low - room, high + room)

    @property
    def span(self) -> tuple[int, int]:
        """First and last instant, seconds."""
        return self.line.at[0], max(self.line.at[-1], self.provisional[0] if self.provisional else 0)


def plot(shown: Plot) -> str:
    """An `svg` element for a page. All text in it is escaped; colours come by the classes of its parts.

    Raises:
        ValueError: there is no value to draw.
    """
    if not shown.values:
        raise ValueError("there is no value to draw")
    low, high, step = shown.scale
    frame = _Frame(PLOT_WIDTH, PLOT_HEIGHT, *shown.span, low, high, _NO_MARGINS)
    inside = [*_rows(frame, step), *_columns(frame), *_shades(frame, shown), *_shapes(frame, shown)]
    ident = escape(shown.ident, {'"': "&quot;"})
    return (
        f'<svg class="plot" role="img" aria-labelledby="{ident}-title {ident}-desc">'
        f'<title id="{ident}-title">{escape(shown.title)}</title><desc id="{ident}-desc">{escape(shown.summary)}</desc>'
        f'<svg viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" preserveAspectRatio="none">{"".join(inside)}</svg>'
        f'<g aria-hidden="true">{"".join(_labels(frame, step, shown))}</g></svg>'
    )


def spark(values: Sequence[float | None], low: float, high: float, words: str) -> str:
    """A line without axes, from `low` to `high`; `words` are what it says to those who do not see it."""
    last = max(len(values) - 1, 1)
    frame = _Frame(100, 24, 0, last, low, high if high > low else low + 1, (1, 1, 2, 2))
    line = Line("", range(len(values)), values)
    inside = [f'<path class="value" d="{d}"/>' for d in _runs(frame, line.at, line.value, 1)]
    known = [(i, v) for i, v in enumerate(values) if v is not None]
    if known:
        inside.append(_dot(frame, *known[-1], "last"))
    label = escape(words, {'"': "&quot;"})
    return (
        f'<svg class="spark" role="img" aria-label="{label}" viewBox="0 0 100 24" preserveAspectRatio="none">'
        f"{''.join(inside)}</svg>"
    )


def _rows(frame: _Frame, step: float) -> list[str]:
    ys = (frame.y(frame.low + i * step) for i in range(round((frame.high - frame.low) / step) + 1))
    return [f'<path class="grid" d="M0 {y:.1f}H{frame.width}"/>' for y in ys]


def _columns(frame: _Frame) -> list[str]:
    return [f'<path class="grid" d="M{frame.x(at):.1f} 0V{frame.height}"/>' for at in _ticks(frame.since, frame.until)]


def _ticks(since: int, until: int) -> range:
    """Instants at even hours or days, at most six."""
    every = next((e for e in _TICKS if (until - since) / e <= _MOST_TICKS), -(-(until - since) // _MOST_TICKS))
    return range(-(-since // every) * every, until + 1, max(every, 1))


def _shades(frame: _Frame, shown: Plot) -> list[str]:
    found = []
    for stretch in shown.stretches:
        left, right = _edges(frame, stretch)
        width, height = max(right - left, 2), frame.height if stretch.kind != "mix" else STRIP
        box = f'x="{left:.1f}" width="{width:.1f}" y="{frame.height - height}" height="{height}"'
        found.append(f'<rect class="{stretch.kind}" {box}/>')
    return found


def _shapes(frame: _Frame, shown: Plot) -> list[str]:
    line = shown.line
    found = [f'<path class="band" d="{d}"/>' for d in _bands(frame, line, shown.step)]
    for name, values in shown.limits:
        found += [f'<path class="{name}" d="{d}"/>' for d in _runs(frame, line.at, values, shown.step)]
    found += [f'<path class="value" d="{d}"/>' for d in _runs(frame, line.at, line.value, shown.step)]
    known = [(t, v) for t, v in zip(line.at, line.value, strict=True) if v is not None]
    if known:
        found.append(_dot(frame, *known[-1], "last"))
    if shown.provisional is not None:
        found.append(_dot(frame, *shown.provisional, "provisional"))
    return found


def _dot(frame: _Frame, at: float, value: float, name: str) -> str:
    # A line without length and with round ends stays round however the plot is stretched.
    return f'<path class="{name}" d="M{frame.x(at):.1f} {frame.y(value):.1f}h0"/>'


def _runs(frame: _Frame, at: Sequence[int], values: Sequence[float | None], step: int) -> list[str]:
    """One path for each run of neighbours that have a value."""
    known = [(t, v) for t, v in zip(at, values, strict=True) if v is not None]
    return [
        "M" + "L".join(f"{frame.x(t):.0f} {frame.y(v):.1f}" for t, v in run) + ("h0" if len(run) == 1 else "")
        for run in _joined(known, step)
    ]


def _bands(frame: _Frame, line: Line, step: int) -> list[str]:
    columns = zip(line.at, line.lower, line.upper, strict=False)
    known = [(t, (lo, hi)) for t, lo, hi in columns if lo is not None and hi is not None]
    found = []
    for run in _joined(known, step):
        edge = [f"{frame.x(t):.0f} {frame.y(hi):.1f}" for t, (_, hi) in run]
        edge += [f"{frame.x(t):.0f} {frame.y(lo):.1f}" for t, (lo, _) in reversed(run)]
        found.append(f"M{'L'.join(edge)}Z")
    return found


def _joined(known: Sequence[tuple[int, T]], step: int) -> list[list[tuple[int, T]]]:
    """Runs of instants that are at most `step` apart.

    >>> _joined([(0, "a"), (10, "b"), (30, "c")], 10)
    [[(0, 'a'), (10, 'b')], [(30, 'c')]]
    """
    runs: list[list[tuple[int, T]]] = []
    for at, value in known:
        if not runs or at - runs[-1][-1][0] > step:
            runs.append([])
        runs[-1].append((at, value))
    return runs


def _labels(frame: _Frame, step: float, shown: Plot) -> list[str]:
    """Numbers and dates beside the plot, and the words over its stretches; placed in per cent of its size."""
    found = []
    for i in range(round((frame.high - frame.low) / step) + 1):
        value = frame.low + i * step
        y = 100 * frame.y(value) / frame.height
        found.append(f'<text class="y" x="0" dx="-6" y="{y:.1f}%" dy=".35em">{value:.6g}</text>')
    ticks = _ticks(frame.since, frame.until)
    for i, at in enumerate(ticks):
        x, form = 100 * frame.x(at) / frame.width, "%H:%M" if ticks.step < _DAY and at % _DAY else "%d %b"
        anchor, date = ' text-anchor="end"' if x > 94 else "", f"{datetime.fromtimestamp(at, UTC):{form}}"
        other = " other" if (len(ticks) - i) % 2 == 0 else ""  # is left out where there is no room for all
        found.append(f'<text class="x{other}" x="{x:.1f}%" y="100%" dy="1.3em"{anchor}>{date}</text>')
    told = [stretch for stretch in shown.stretches if stretch.words]
    return found + [_words(frame, stretch, stretch is told[-1]) for stretch in told]


def _words(frame: _Frame, stretch: ShadedPeriod, is_newest: bool) -> str:
    """Over the middle of a stretch, or from its outer edge where there would be no room."""
    x, anchor = _anchor(*(x / frame.width for x in _edges(frame, stretch)))
    words, other = escape(stretch.words), "" if is_newest else " other"
    return f'<text class="words{other}" x="{100 * x:.1f}%" y="0" dy="-.5em" text-anchor="{anchor}">{words}</text>'


def _anchor(left: float, right: float) -> tuple[float, str]:
    """Where the words over a stretch stand, as shares of the width."""
    middle = (left + right) / 2
    return (left, "start") if middle < 0.25 else (right, "end") if middle > 0.75 else (middle, "middle")


def room_for_words(left: float, right: float, width: float) -> tuple[float, float]:
    """From where to where the words over a stretch stand that are so wide, as shares of a plot's width.

    >>> [room_for_words(*ends, 0.25) for ends in ((0, 0.125), (0.375, 0.625), (0.75, 1))]
    [(0.0, 0.25), (0.375, 0.625), (0.75, 1.0)]
    """
    x, anchor = _anchor(left, right)
    begin = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
    return begin, begin + width


def _edges(frame: _Frame, stretch: ShadedPeriod) -> tuple[float, float]:
    """Where a stretch begins and ends within the frame."""
    since, until = (frame.x(min(max(t, frame.since), frame.until)) for t in (stretch.since, stretch.until))
    return since, until
