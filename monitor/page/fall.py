"""An incident's fall as a chart for messages, readable on a phone: SVG, and PNG with the extra `charts`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from monitor.errors import InputError
from monitor.messages.words import brief
from monitor.page.chart import COLOURS, Frame, Line, Plot, Shade, date_of, ticks_of
from monitor.page.words import TEMPLATES, number
from monitor.service.fall import Fall

WIDTH, HEIGHT = 900, 720
"""Pixels; a phone shows less than half of them, so no letter is lower than 24."""

HEAD, ROW = 126, 38
"""Height of the headings, and of a row of keys."""

ZONE = "; times in UTC"
LONGEST_TITLE, LONGEST_LINE, LONGEST_MARK = 40, 58, 30
"""Characters of a title, of a line below it, and of a mark's words."""

COLOUR = {
    "measured": COLOURS[0],
    "expected": COLOURS[2],
    "limit": COLOURS[3],
    "since": "#b91c1c",
    "began": "#fbbf24",
    "bad": "#9ca3af",
    "edge": "#1d2330",
    "mark": "#7c3aed",
}

Key = tuple[str, str, str]
"""Symbol, colour and words."""


def draw_fall(fall: Fall) -> str:
    """The SVG document; text is escaped. Raises InputError: no value is known."""
    if all(p.value is None for p in fall.points):
        raise InputError(f"{fall.monitor}: nothing is stored of {fall.judged} in these days")
    at, value, lower, upper, expected, limit = zip(*fall.points, strict=True)
    since, incident = fall.since, fall.incident
    of_since = [] if since is None else [(v,) * len(at) for v in since[2:] if v is not None]
    limits = [("", values) for values in (expected, limit, *of_since)]
    shown = Plot("", "", "", Line("", at, value, lower, upper), fall.step, limits)
    keys = _rows([*_series(fall), *_marks(fall), *_done(fall)])
    frame = Frame(WIDTH, HEIGHT, at[0], at[-1], *shown.scale, (100, 30, HEAD + ROW * len(keys), 56))
    ticks, edges = ticks_of(at[0], at[-1]), () if incident is None else (incident.opened_at, incident.closed_at)
    return TEMPLATES.get_template("fall.svg").render(
        f=frame,
        title=_cut(fall.monitor, LONGEST_TITLE),
        subtitle=f"{_cut(brief(fall.judged), LONGEST_LINE - len(ZONE))}{ZONE}",
        keys=[(HEAD + 8 + ROW * i, row) for i, row in enumerate(keys)],
        ticks=[(t, date_of(t, ticks.step)) for t in ticks],
        bad=[frame.edges(Shade(*period, "")) for period in fall.bad],
        began=None if fall.began is None else frame.edges(Shade(*fall.began, "")),
        since=None if since is None else (since, frame.edges(Shade(since.since, since.until, ""))),
        marks=[frame.x(mark.at) for mark in fall.marks],
        edges=[frame.x(t) for t in edges if t is not None and at[0] <= t <= at[-1]],
        band=frame.bands(shown.line, fall.step),
        lines=[
            ("expected", frame.paths(at, expected, fall.step), 4, "14 8"),
            ("limit", frame.paths(at, limit, fall.step), 3, "4 8"),
            ("measured", frame.paths(at, value, fall.step), 6, ""),
        ],
        colour=COLOUR,
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _rows(keys: Iterable[Key]) -> list[list[Key]]:
    rows: list[list[Key]] = [[]]
    for key in keys:
        if sum(len(words) + 4 for _, _, words in [*rows[-1], key]) > LONGEST_LINE:
            rows.append([])
        rows[-1].append(key)
    return rows


def _series(fall: Fall) -> Iterator[Key]:
    points = fall.points
    last = next(p for p in reversed(points) if p.value is not None)
    more = ", with 95 % interval" if any(p.lower is not None for p in points) else ""
    yield "━", COLOUR["measured"], f"measured {number(last.value)}{more}"
    if any(p.expected is not None for p in points):
        yield "┅", COLOUR["expected"], "expected" + f" {number(last.expected)}" * (last.expected is not None)
    if any(p.limit is not None for p in points):
        yield "┅", COLOUR["limit"], "rule fires" + f" at {number(last.limit)}" * (last.limit is not None)
    if fall.bad:
        yield "█", COLOUR["bad"], "bad data"


def _marks(fall: Fall) -> Iterator[Key]:
    if fall.incident is None or fall.began is None:
        return
    first, last = map(_time, fall.began)
    until = "" if first == last else f" to {last.removeprefix(first[:-5])}"
    yield "█", COLOUR["began"], f"began {first}{until}"
    if fall.since is not None:
        until = "since then" if fall.incident.is_open else f"until {_time(fall.since.until)}"
        yield "━", COLOUR["since"], f"mean {until} {number(fall.since.value)}"
    opened, closed = fall.incident.opened_at, fall.incident.closed_at
    yield "┃", COLOUR["edge"], f"opened {_time(opened)}" + ("" if closed is None else f", closed {_time(closed)}")


def _done(fall: Fall) -> Iterator[Key]:
    for mark in fall.marks:
        yield "┃", COLOUR["mark"], f"{_cut(mark.words, LONGEST_MARK)} {_time(mark.at)}"


def _time(instant: int) -> str:
    at = datetime.fromtimestamp(instant, UTC)
    return f"{at.day} {at:%b %H:%M}"
