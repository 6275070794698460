"""Series as plain SVG: standalone pictures, and plots that take width, colours and fonts from a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from monitor.page.words import TEMPLATES
from monitor.units import DAY, HOUR

T = TypeVar("T")
Values = Sequence[float | None]

COLOURS = ("#2458b3", "#c2410c", "#14803c", "#8b2fc9", "#b8860b", "#0e7490", "#be185d", "#4b5563")
MARGINS = (48, 120, 34, 26)
"""Left, right, top and bottom of a picture."""

WIDTH, HEIGHT = 860, 300
"""Of a picture without lanes, in pixels."""

LANE = 15
"""Height of a row below the picture."""

PLOT_WIDTH, PLOT_HEIGHT = 1000, 300
"""Units of a plot. A page stretches it; text and line widths stay as they are."""

STRIP = 10
"""Height of a strip along the bottom of a plot, in plot units."""

_TICKS = (*(n * HOUR for n in (1, 2, 3, 6, 12)), *(n * DAY for n in (1, 2, 4, 7, 14, 28)))
_MAX_TICKS = 6


@dataclass(frozen=True)
class Line:
    """One line: `at` rising seconds since 1970, `value` (None leaves a gap), and bounds if any."""

    name: str
    at: Sequence[int]
    value: Values
    lower: Values = ()
    upper: Values = ()

    @property
    def bounds(self) -> list[tuple[int, tuple[float, float]]]:
        """(instant, (lower, upper)) where both are known."""
        columns = zip(self.at, self.lower, self.upper, strict=False)
        return [(t, (lo, hi)) for t, lo, hi in columns if lo is not None and hi is not None]


@dataclass(frozen=True)
class Shade:
    """A coloured time span, [since, until] in seconds since 1970."""

    since: int
    until: int
    colour: str


@dataclass(frozen=True)
class Lane:
    """A row of bars below the picture."""

    name: str
    bars: Sequence[Shade]


@dataclass(frozen=True)
class ShadedPeriod:
    """A shaded time span of a plot, with words over it; `kind` is its class, a `mix` a strip at the bottom, and the
    words of a `mark` go into the legend.
    """

    since: int
    until: int
    words: str
    kind: str = "incident"


@dataclass(frozen=True)
class Frame:
    """Maps instants and values to coordinates; `step` is between the horizontal lines."""

    width: int
    height: int
    since: int
    until: int
    low: float
    high: float
    step: float = 1.0
    margins: tuple[int, int, int, int] = (0, 0, 0, 0)

    def x(self, at: float) -> float:
        left, right, _, _ = self.margins
        return left + (at - self.since) / max(self.until - self.since, 1) * (self.width - left - right)

    def y(self, value: float) -> float:
        _, _, top, bottom = self.margins
        return self.height - bottom - (value - self.low) / (self.high - self.low) * (self.height - top - bottom)

    @property
    def rows(self) -> list[float]:
        """Values of the horizontal lines."""
        return [self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)]

    def edges(self, period: Shade | ShadedPeriod) -> tuple[float, float]:
        """Start and end of a period within the frame."""
        since, until = (self.x(min(max(t, self.since), self.until)) for t in (period.since, period.until))
        return since, until

    def paths(self, at: Sequence[int], values: Values, step: float) -> list[str]:
        """A path for each run of instants at most `step` apart that have values; a dot for a run of one."""
        known = [(t, v) for t, v in zip(at, values, strict=True) if v is not None]
        runs = (
            ["L".join(f"{self.x(t):.0f} {self.y(v):.1f}" for t, v in run), len(run)] for run in _joined(known, step)
        )
        return [f"M{points}h0" if count == 1 else f"M{points}" for points, count in runs]

    def bands(self, line: Line, step: float) -> list[str]:
        """A path for each run of bounds."""
        found = []
        for run in _joined(line.bounds, step):
            edge = [f"{self.x(t):.0f} {self.y(hi):.1f}" for t, (_, hi) in run]
            edge += [f"{self.x(t):.0f} {self.y(lo):.1f}" for t, (lo, _) in reversed(run)]
            found.append(f"M{'L'.join(edge)}Z")
        return found


def draw(
    title: str,
    lines: Sequence[Line],
    shades: Sequence[Shade] = (),
    lanes: Sequence[Lane] = (),
) -> str:
    """The picture as an SVG document, taller by its lanes; text is escaped. Raises ValueError: no line has a value."""
    values = [v for line in lines for column in (line.value, line.lower, line.upper) for v in column if v is not None]
    if not values:
        raise ValueError("there is no value to draw")
    times, below = [t for line in lines for t in line.at], LANE * len(lanes)
    left, right, top, bottom = MARGINS
    scale, margins = _scale(min(values), max(values)), (left, right, top, bottom + below)
    frame = Frame(WIDTH, HEIGHT + below, min(times), max(times), *scale, margins)
    every = max(1, math.ceil((frame.until - frame.since) / DAY / 8)) * DAY
    days = range(-(-frame.since // DAY) * DAY, frame.until + 1, every)
    return TEMPLATES.get_template("picture.svg").render(
        f=frame,
        title=title,
        dates=[(at, f"{datetime.fromtimestamp(at, UTC):%d %b}") for at in days],
        lines=[(_unbroken(line), COLOURS[i % len(COLOURS)]) for i, line in enumerate(lines)],
        band=lines[0].bounds,
        names=_names(frame, lines),
        shades=shades,
        lanes=lanes,
        lane=LANE,
    )


def _unbroken(line: Line) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = [[]]
    for at, value in zip(line.at, line.value, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]


def _names(frame: Frame, lines: Sequence[Line]) -> list[tuple[float, str, str]]:
    """(height, name, colour) of each line's end, pushed apart where they would overlap."""
    ends = []
    for i, line in enumerate(lines):
        last = next((v for v in reversed(line.value) if v is not None), None)
        if last is not None:
            ends.append((frame.y(last), line.name, COLOURS[i % len(COLOURS)]))
    found, below = [], -math.inf
    for y, name, colour in sorted(ends):
        below = max(y, below + 13)
        found.append((below, name, colour))
    return found


def _scale(low: float, high: float) -> tuple[float, float, float]:
    """(lower end, upper end, step) of the vertical axis at round numbers.

    >>> _scale(0.61, 0.86)
    (0.6, 0.9, 0.05)
    """
    spread = max(high - low, 1e-6)
    power = 10 ** math.floor(math.log10(spread / 4))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= spread / 5.5)
    return round(math.floor(low / step) * step, 9), round(math.ceil(high / step) * step, 9), round(step, 9)


# ---- within a page --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plot:
    """A plot's content; `ident` is unique on the page, `title` and `summary` are for screen readers.

    Attributes:
        step: seconds between neighbours; values further apart are not joined.
        limits: (class of the line, values at the same instants), such as a baseline.
        provisional: (seconds, value) that may still change.
        is_by_rank: the instants are ranks, and the values chances, shown from 0 on.
    """

    ident: str
    title: str
    summary: str
    line: Line
    step: int
    limits: Sequence[tuple[str, Values]] = ()
    stretches: Sequence[ShadedPeriod] = ()
    provisional: tuple[int, float] | None = None
    is_by_rank: bool = False

    @property
    def values(self) -> list[float]:
        """All values that must fit in."""
        columns = [self.line.value, self.line.lower, self.line.upper, *(values for _, values in self.limits)]
        extra = [] if self.provisional is None else [self.provisional[1]]
        return [v for column in columns for v in column if v is not None] + extra

    @property
    def scale(self) -> tuple[float, float, float]:
        """(lower end, upper end, step) of the vertical axis; tiny movements are not magnified to fill it."""
        low, high = 0.0 if self.is_by_rank else min(self.values), max(self.values)
        room = max(0.0, max(0.02 * abs(high), 0.001) - (high - low)) / 2
        return _scale(low - room, high + room)


def plot(shown: Plot) -> str:
    """An `svg` element for a page; text is escaped, colours come from classes. Raises ValueError without values."""
    if not shown.values:
        raise ValueError("there is no value to draw")
    at, line = shown.line.at, shown.line
    until = max(at[-1], shown.provisional[0] if shown.provisional else 0)
    frame = Frame(PLOT_WIDTH, PLOT_HEIGHT, at[0], until, *shown.scale)
    known = [(t, v) for t, v in zip(at, line.value, strict=True) if v is not None]
    dots = [("last", known[-1])] if known else []
    ticks = range(at[0], until + 1) if shown.is_by_rank else ticks_of(frame.since, frame.until)
    named = [period for period in shown.stretches if period.words and period.kind != "mark"]
    return TEMPLATES.get_template("plot.svg").render(
        f=frame,
        shown=shown,
        strip=STRIP,
        paths=[
            *(("band", path) for path in frame.bands(line, shown.step)),
            *((name, path) for name, values in shown.limits for path in frame.paths(at, values, shown.step)),
            *(("value", path) for path in frame.paths(at, line.value, shown.step)),
        ],
        dots=dots if shown.provisional is None else [*dots, ("provisional", shown.provisional)],
        ticks=[
            (at, str(at) if shown.is_by_rank else date_of(at, ticks.step), (len(ticks) - i) % 2 == 0)
            for i, at in enumerate(ticks)
        ],
        words=[(*_anchor(*(x / frame.width for x in frame.edges(p))), p.words, p is named[-1]) for p in named],
    )


def date_of(at: int, step: int) -> str:
    """A tick's label, UTC: the day, or the time of day between days."""
    return f"{datetime.fromtimestamp(at, UTC):{'%H:%M' if step < DAY and at % DAY else '%d %b'}}"


def spark(values: Values, low: float, high: float, words: str) -> str:
    """A line without axes, from `low` to `high`; `words` are for screen readers."""
    frame = Frame(100, 24, 0, max(len(values) - 1, 1), low, high if high > low else low + 1)
    frame = replace(frame, margins=(1, 1, 2, 2))
    known = [(i, v) for i, v in enumerate(values) if v is not None]
    paths = frame.paths(range(len(values)), values, 1)
    return TEMPLATES.get_template("spark.svg").render(f=frame, words=words, paths=paths, last=known[-1:])


def ticks_of(since: int, until: int) -> range:
    """Round instants of an axis, seconds."""
    every = next((e for e in _TICKS if (until - since) / e <= _MAX_TICKS), -(-(until - since) // _MAX_TICKS))
    return range(-(-since // every) * every, until + 1, max(every, 1))


def _joined(known: Sequence[tuple[int, T]], step: float) -> list[list[tuple[int, T]]]:
    """
    >>> _joined([(0, "a"), (10, "b"), (30, "c")], 10)
    [[(0, 'a'), (10, 'b')], [(30, 'c')]]
    """
    runs: list[list[tuple[int, T]]] = []
    for at, value in known:
        if not runs or at - runs[-1][-1][0] > step:
            runs.append([])
        runs[-1].append((at, value))
    return runs


def _anchor(left: float, right: float) -> tuple[float, str]:
    """Where a period's words stand, as shares of the width: its middle, or its outer edge."""
    middle = (left + right) / 2
    return (left, "start") if middle < 0.25 else (right, "end") if middle > 0.75 else (middle, "middle")


def room_for_words(left: float, right: float, width: float) -> tuple[float, float]:
    """(left, right) of words `width` wide over a period; all are shares of the plot's width.

    >>> [room_for_words(*ends, 0.25) for ends in ((0, 0.125), (0.375, 0.625), (0.75, 1))]
    [(0.0, 0.25), (0.375, 0.625), (0.75, 1.0)]
    """
    x, anchor = _anchor(left, right)
    begin = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
    return begin, begin + width
