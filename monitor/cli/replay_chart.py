"""A replay as a picture: observed and expected, where it would have paged, and what was masked."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.drift.verdicts import first_whole
from monitor.evaluation.replay import Replay, Stretch
from monitor.page.chart import Lane, Line, Shade, draw

ALARM, MASKED, MIX = "#dc2626", "#6b7280", "#b8860b"


def picture(found: Replay) -> str:
    """The replay as an SVG document, with a lane for each way of judging below it.

    Raises:
        ValueError: there is no value to draw.
    """
    if not found.verdicts:
        raise ValueError("without `drift:` there is nothing expected to draw; rankmon series draws the values")
    at = [v.end for v in found.verdicts]
    first = first_whole(at, [v.observed for v in found.verdicts], found.step)
    drawn = [None] * first, found.verdicts[first:]
    lines = [
        Line("observed", at, [*drawn[0], *(v.observed for v in drawn[1])]),
        Line("expected", at, [*drawn[0], *(v.expected for v in drawn[1])]),
    ]
    title = f"{found.monitor} · {found.measure} of the last 24 h: pages red, bad data grey"
    return draw(title, lines, shades=list(_shades(found)), lanes=list(_lanes(found)))


def _shades(found: Replay) -> Iterator[Shade]:
    yield from (Shade(*_ends(found, s), MASKED) for s in found.masked)
    for one in found.incidents:
        since = one.incident.opened_at if one.incident.matter == "quality" else one.on_call_at
        if since is not None:
            yield Shade(*_ends(found, Stretch(since, one.incident.closed_at)), ALARM)


def _lanes(found: Replay) -> Iterator[Lane]:
    for method in found.methods:
        yield Lane(method.name, tuple(Shade(*_ends(found, s), ALARM) for s in method.stretches))
    yield Lane("bad data", tuple(Shade(*_ends(found, s), MASKED) for s in found.masked))
    yield Lane("mix shift", tuple(Shade(*_ends(found, s), MIX) for s in found.mix))


def _ends(found: Replay, stretch: Stretch) -> tuple[int, int]:
    return max(stretch.since, found.since), found.until if stretch.until is None else stretch.until
