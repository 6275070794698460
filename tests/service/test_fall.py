"""The chart of a fall: what it shows, and that phones and machines without fonts can show it."""

from __future__ import annotations

import math
import random
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from monitor.conditions.incident import Incident
from monitor.errors import InputError
from monitor.measures.measure import parse
from monitor.page import fall as fall_page
from monitor.page.fall import draw_fall
from monitor.page.png import as_png, can_draw
from monitor.series.retention import DRAWN
from monitor.service.fall import Fall, fall_of
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.types import OVERALL, Drift, Monitor
from tests.support.monitors import new_store
from tests.support.notices import SLICE, of_kind
from tests.support.pages import DAY, RULE, START, fill, watched
from tests.support.requirements import missing
from tests.support.tallies import HOUR

FELL = START + 39 * DAY + 18 * HOUR
END = FELL + 4 * HOUR
JUDGED = Drift(parse("ndcg@10"), mix_by="device")


def noisy(start: int, device: str) -> float:
    """0.7 with a daily rhythm; on mobile 0.12 less once it has fallen."""
    noise = random.Random(f"{start} {device}").gauss(0, 0.02)
    return 0.7 + 0.02 * math.sin(start % DAY / DAY * 6.28) + noise - 0.12 * (device == "mobile" and start >= FELL)


@pytest.fixture(scope="module")
def search() -> Monitor:
    return watched(alerts=(replace(RULE, window=HOUR, lasting=0),), drift=JUDGED)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, search: Monitor) -> Iterator[Store]:
    """Verdicts and a rule, four hours after a fall."""
    made = new_store(f"sqlite:///{tmp_path_factory.mktemp('fall')}/store.db")
    fill(made, search, range(START, END, HOUR), noisy)
    yield made
    made.close()


@pytest.fixture
def opened(filled: Store) -> StoredIncident:
    (found,) = (s for s in filled.alerts.incidents() if s.incident.is_open)
    return found


@pytest.fixture
def extra() -> None:
    if not can_draw():
        missing("resvg-py is not installed")


def by(opened: StoredIncident, *findings: object) -> StoredIncident:
    """Another incident at the same time, with only these findings."""
    about = opened.incident
    other = Incident(about.monitor, about.began_at, about.opened_at + 1, firing={}, matter=about.matter)
    return replace(opened, incident=other, findings=tuple(findings))  # type: ignore[arg-type]


# ---- what it shows -------------------------------------------------------------------------------------------------


def test_a_verdict_chart_shows_the_judged_values_and_their_interval(
    search: Monitor, filled: Store, opened: StoredIncident
) -> None:
    (alarm,) = (f for f in opened.findings if f.name == ("degraded", *OVERALL))
    fall = fall_of(search, filled, by(opened, alarm))
    told = {v.end: (v.observed, v.expected) for v in filled.verdicts.drawn("search", 0, END)}
    assert {p.end: (p.value, p.expected) for p in fall.points} == {p.end: told[p.end] for p in fall.points}
    assert (fall.points[-1].end, fall.points[0].end, fall.step) == (END, END - 7 * DAY, HOUR)
    assert all(p.lower < p.value < p.upper for p in fall.points[-24:])  # type: ignore[operator]
    assert fall.began == alarm.began_within  # type: ignore[attr-defined]
    assert fall.began[0] <= FELL < fall.began[1]  # type: ignore[index]
    assert fall.since is not None
    assert (fall.since.value, fall.since.until) == (alarm.value, END)
    assert fall.since.value < (fall.points[-1].value or 0) - 0.03, "a whole day shows little of it yet"


def test_a_rule_chart_shows_its_baseline_and_threshold(search: Monitor, filled: Store, opened: StoredIncident) -> None:
    (drop,) = (f for f in opened.findings if f.rule == "drop" and not f.dimension)
    fall = fall_of(search, filled, by(opened, drop))
    last = fall.points[-1]
    assert (last.value, last.expected, last.limit) == (drop.value, drop.before, drop.threshold)  # type: ignore[attr-defined]
    assert fall.judged == "ndcg@10 over 1h"
    assert END - fall.points[0].end == 56 * HOUR, "windows of an hour need no week"
    assert (fall.began, fall.since) == ((opened.incident.began_at,) * 2, None)


def test_a_slice_chart_shows_the_values_of_that_slice(search: Monitor, filled: Store, opened: StoredIncident) -> None:
    (alarm,) = (f for f in opened.findings if f.name == ("degraded", "device", "mobile"))
    fall = fall_of(search, filled, by(opened, alarm))
    fell = [noisy(t, "mobile") for t in range(END - DAY, END, HOUR)]
    assert fall.points[-1].value == pytest.approx(sum(fell) / 24)
    assert next(p.end for p in fall.points if p.expected is not None) == alarm.since
    assert fall.points[-1].expected == alarm.before
    assert fall.judged == "device=mobile: ndcg(empty=zero)@10 over 24h"


def test_a_chart_without_an_incident_shows_the_last_days(search: Monitor, filled: Store) -> None:
    for monitor in (search, replace(search, drift=None)):
        fall = fall_of(monitor, filled)
        assert (fall.incident, fall.began, fall.points[-1].end) == (None, None, END)
        assert "opened" not in draw_fall(fall)


def test_the_chart_of_an_old_incident_is_limited_in_length(
    search: Monitor, filled: Store, opened: StoredIncident
) -> None:
    old = replace(opened, incident=replace(opened.incident, began_at=START - 90 * DAY))
    fall = fall_of(search, filled, old)
    assert fall.points[0].end >= END - DRAWN
    assert len(fall.points) <= 201
    ElementTree.fromstring(draw_fall(fall))


def test_a_chart_that_cannot_be_drawn_says_why(
    search: Monitor, filled: Store, store: Store, opened: StoredIncident
) -> None:
    about_data = replace(opened, incident=replace(opened.incident, matter="data"))
    gone = by(opened, replace(SLICE, rule="removed"))
    for monitor, where, one, said in (
        (search, filled, about_data, "is about the data"),
        (search, store, None, "nothing is judged yet"),
        (search, filled, gone, "removed no longer judges anything"),
        (replace(search, drift=None, alerts=()), filled, None, "nothing judges quality for all traffic"),
    ):
        with pytest.raises(InputError, match=said):
            fall_of(monitor, where, one)
    of_nobody = by(opened, of_kind("degraded", SLICE, slice="nobody"))
    with pytest.raises(InputError, match="nothing is stored of"):
        draw_fall(fall_of(search, filled, of_nobody))


def test_hours_with_bad_data_are_marked(search: Monitor, store: Store) -> None:
    fill(store, search, range(START, FELL, HOUR), noisy)
    fill(store, search, range(FELL, END, HOUR), lambda start, device: 0.01, labelled=0.02)
    fall = fall_of(search, store)
    ((since, until),) = fall.bad
    assert FELL <= since < until == END
    assert "bad data" in draw_fall(fall)


# ---- the picture ---------------------------------------------------------------------------------------------------


@pytest.fixture
def fall(search: Monitor, filled: Store, opened: StoredIncident) -> Fall:
    return fall_of(search, filled, by(opened, *(f for f in opened.findings if f.name == ("degraded", *OVERALL))))


def test_the_chart_labels_series_and_incident_readably_on_a_phone(fall: Fall) -> None:
    svg = draw_fall(fall)
    root = ElementTree.fromstring(svg)
    said = " ".join("".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text"))
    for words in (
        r"measured 0\.\d+, with 95 % interval",
        r"expected 0\.\d+",
        r"mean since then 0\.\d+",
        "times in UTC",
    ):
        assert re.search(words, said), words
    assert "began 9 Feb 17:00 to 20:00" in said
    assert "opened 9 Feb 19:00" in said
    assert int(root.attrib["width"]) <= 1200
    assert min(map(int, re.findall(r'font-size="(\d+)"', svg))) >= 24, "a phone shows it at half its size or less"
    assert 'fill="#fff"/>' in svg


def test_the_end_of_an_incident_is_marked(fall: Fall) -> None:
    assert fall.incident is not None
    over = replace(fall, incident=replace(fall.incident, closed_at=END, state="resolved"))
    assert "closed 9 Feb 22:00" in draw_fall(over)
    assert ("mean until " in draw_fall(over)) == (over.since is not None)
    assert "mean since then" not in draw_fall(over)


def test_outside_text_is_escaped_in_the_chart(fall: Fall) -> None:
    svg = draw_fall(replace(fall, judged=f"ndcg@10 of a=<script>&\"'{'x' * 90}"))
    assert "<script>" not in svg
    ElementTree.fromstring(svg)


def size(png: bytes) -> tuple[int, int]:
    """Decodes a PNG; returns its width and height."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = dict[bytes, bytes](), 8
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        body, (crc,) = png[at + 8 : at + 8 + length], struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert zlib.crc32(kind + body) == crc
        chunks[kind], at = chunks.get(kind, b"") + body, at + 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 6), "RGBA"
    assert len(zlib.decompress(chunks[b"IDAT"])) == height * (1 + 4 * width)
    return width, height


@pytest.mark.usefixtures("extra")
def test_a_png_shows_text_without_system_fonts(fall: Fall) -> None:
    svg = draw_fall(fall)
    png = as_png(svg)
    assert size(png) == (900, 720)
    assert len(png) > 1.2 * len(as_png(re.sub("<text.*?</text>", "", svg, flags=re.DOTALL)))


def test_the_error_for_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(InputError, match=r"pip install 'rankmon\[charts\]', or write an SVG"):
        as_png("<svg/>")


@pytest.mark.usefixtures("extra")
def test_the_font_has_every_character_of_a_chart() -> None:
    def drawn(text: str) -> bytes:
        said = f'<text x="5" y="40" font-family="DejaVu Sans">{text}</text>'
        return as_png(f'<svg xmlns="http://www.w3.org/2000/svg" width="60" height="60">{said}</svg>')

    signs = set(re.findall(r"[^\x00-\x7f]", Path(fall_page.__file__).read_text(encoding="utf-8")))
    assert {"━", "┃"} <= signs
    assert [sign for sign in signs if drawn(sign) == drawn("")] == []
