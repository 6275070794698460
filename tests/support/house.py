"""The picture of the house, part of `make docs`: the rooms of `monitor/`, what flows between them, and which way.

    python -m tests.support.house       writes docs/explanation/house.svg

Each arrow names the class that carries what flows; drawing fails where that class, or its use in both rooms, is gone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from html import escape
from math import hypot
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "explanation" / "house.svg"

ACROSS, DOWN, WIDTH, HEIGHT, MARGIN, APART = 290, 120, 140, 52, 16, 7

PLACES = {
    "your database": (0, 0),
    "source": (1, 0),
    "series": (2, 0),
    "service": (3, 0),
    "page": (4, 0),
    "config": (0, 1),
    "measures": (1, 1),
    "store": (2, 1),
    "causes": (3, 1),
    "web": (4, 1),
    "drift": (0, 2),
    "conditions": (1, 2),
    "evaluation": (2, 2),
    "messages": (3, 2),
    "notify": (4, 2),
}
"""Column and row of each room, and of the database that is not ours."""


class Flow(NamedTuple):
    """`what` goes from `giver` to `taker`, carried by the class `carrier` (`room.module:Class`)."""

    giver: str
    taker: str
    what: str
    carrier: str


FLOWS = (
    Flow("config", "source", "monitors", "types:Monitor"),
    Flow("source", "series", "requests, aggregates", "series.readings:Reading"),
    Flow("measures", "series", "measures", "measures.measure:Measure"),
    Flow("series", "store", "partials", "series.partials:Partials"),
    Flow("store", "evaluation", "windows", "series.windows:History"),
    Flow("drift", "conditions", "verdicts", "drift.verdicts:Verdict"),
    Flow("conditions", "evaluation", "conditions", "conditions.thresholds:Change"),
    Flow("evaluation", "store", "events, incidents", "store.alerts:AlertState"),
    Flow("evaluation", "messages", "incidents", "conditions.incident:Incident"),
    Flow("messages", "notify", "notifications", "messages.notification:Notification"),
    Flow("causes", "service", "diagnoses", "causes.sample:RequestSample"),
    Flow("store", "service", "what is stored", "store.store:Store"),
    Flow("service", "page", "snapshots", "service.snapshot:MonitorSnapshot"),
    Flow("page", "web", "HTML", "page.pages:render"),
)


@cache
def _words(room: str) -> frozenset[str]:
    """Every name that a room's code mentions."""
    found: set[str] = set()
    for path in (ROOT / "monitor" / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.alias | ast.ClassDef | ast.FunctionDef):
                found.add(node.name)
    return frozenset(found)


def mistakes() -> list[str]:
    """What the picture says and the code does not."""
    wrong = []
    for flow in FLOWS:
        module, _, name = flow.carrier.partition(":")
        path = ROOT / "monitor" / (module.replace(".", "/") + ".py")
        if not path.exists() or f" {name}" not in path.read_text(encoding="utf-8"):
            wrong.append(f"{flow.carrier} does not exist")
        wrong += [f"{room} does not know {name}" for room in (flow.giver, flow.taker) if name not in _words(room)]
    rooms = {path.parent.name for path in (ROOT / "monitor").glob("*/__init__.py")}
    wrong += [f"there is no room {room}" for room in PLACES if room != "your database" and room not in rooms]
    return wrong


def picture() -> str:
    """The picture as SVG."""
    width, height = 4 * ACROSS + WIDTH + 2 * MARGIN, 2 * DOWN + HEIGHT + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
            "<title>The rooms of rankmon and what flows between them</title>",
            '<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">',
            '<path d="M0,0L8,4L0,8z" fill="#567"/></marker>',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            _arrow("your database", "source", "rows"),
            *(_arrow(flow.giver, flow.taker, flow.what) for flow in FLOWS),
            *(part for name in PLACES for part in _box(name)),
            "</svg>\n",
        ]
    )


def _box(name: str) -> Iterator[str]:
    x, y = _middle(name)
    fill = "#eee" if name == "your database" else "#e4eef8"
    at = f'x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}"'
    yield f'<rect {at} width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{fill}" stroke="#567"/>'
    yield f'<text x="{x:g}" y="{y + 5:g}" font-size="15" text-anchor="middle">{escape(name)}</text>'


def _arrow(giver: str, taker: str, what: str) -> str:
    (x0, y0), (x1, y1) = _middle(giver), _middle(taker)
    far = hypot(x1 - x0, y1 - y0)
    along, down = (x1 - x0) / far, (y1 - y0) / far
    edge = min(WIDTH / 2 / abs(along) if along else far, HEIGHT / 2 / abs(down) if down else far)
    right, below = -down * APART, along * APART
    ends = (x0 + along * edge, y0 + down * edge, x1 - along * edge, y1 - down * edge)
    shifted = (end - by for end, by in zip(ends, (right, below, right, below), strict=True))
    line = 'x1="{:.0f}" y1="{:.0f}" x2="{:.0f}" y2="{:.0f}"'.format(*shifted)
    anchor = "middle" if not down else "start" if right < 0 else "end"
    where = f'x="{(x0 + x1) / 2 - 2.2 * right:.0f}" y="{(y0 + y1) / 2 - 2 * below + 4 * abs(down):.0f}"'
    words = f'<text {where} font-size="12" fill="#345" text-anchor="{anchor}">{escape(what)}</text>'
    return f'<line {line} stroke="#567" marker-end="url(#end)"/>{words}'


def _middle(name: str) -> tuple[float, float]:
    column, row = PLACES[name]
    return MARGIN + WIDTH / 2 + column * ACROSS, MARGIN + HEIGHT / 2 + row * DOWN


if __name__ == "__main__":
    if wrong := mistakes():
        raise SystemExit("the picture is wrong: " + "; ".join(wrong))
    PICTURE.write_text(picture(), encoding="utf-8")
