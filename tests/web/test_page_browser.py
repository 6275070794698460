"""The page in a real browser: no outside requests, no console complaints, by keyboard and on a phone."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from monitor.clock import ReplayClock
from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.measures.measure import parse
from monitor.messages.notification import About
from monitor.service.app import App
from monitor.types import Monitor
from tests.support import hackernews
from tests.support.browser import FOCUSABLE, Browser, browser
from tests.support.monitors import DAY, config, hacker_news, new_store
from tests.support.pages import START, fell, fill, watched
from tests.support.tallies import HOUR

LAST = int(datetime(2022, 3, 14, tzinfo=UTC).timestamp())
DROP = Rule(
    "drop", parse("ndcg@10"), DAY, Drop(0.07, 0.04, True, Baseline(trailing=21 * DAY)), DAY, 3 * DAY, 10, "critical"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Two monitors with made-up buckets; one of them fires."""
    folder, end = tmp_path_factory.mktemp("small"), START + 20 * DAY
    monitors = [watched("a-search"), watched("b.search", runbook_url="https://wiki.example.com/search")]
    store = new_store(f"sqlite:///{folder}/store.db")
    for monitor, by in zip(monitors, (0.0, 0.2), strict=True):
        fill(store, monitor, range(START, end, HOUR), fell(end - DAY, end, by))
    store.close()
    app = App(config(folder, {"shop": f"sqlite:///{folder}/none.db"}, monitors), ReplayClock(end, 0))
    app.prepare()
    for runner in app.runners.values():
        assert runner.run().error is not None  # the source is gone; only stored data remains
    app.web.start()
    yield app
    app.stop()


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """A monitor with two incidents; a wide screen has room for both captions."""
    folder, end = tmp_path_factory.mktemp("twice"), START + 30 * DAY
    monitor, store = watched(), new_store(f"sqlite:///{folder}/store.db")
    first, second = (fell(START + day * DAY, START + (day + 1) * DAY) for day in (9, 26))
    fill(store, monitor, range(START, end, HOUR), lambda start, device: min(f(start, device) for f in (first, second)))
    store.close()
    app = App(config(folder, {"shop": f"sqlite:///{folder}/none.db"}, [monitor]), ReplayClock(end, 0))
    app.prepare()
    assert app.runners["search"].run().error is not None
    app.web.start()
    yield app
    app.stop()


@pytest.fixture(scope="module")
def front_page(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Six weeks of Hacker News, read and judged by a daemon."""
    folder = tmp_path_factory.mktemp("hn")
    url = f"sqlite:///{folder}/hn.db"
    hackernews.fill(url, shared / hackernews.FILE)
    monitor: Monitor = replace(hacker_news(url), alerts=(DROP,), lookback=43 * DAY)
    app = App(config(folder, {"hn": url}, [monitor]), ReplayClock(LAST + 3 * HOUR, 0))
    app.prepare()
    assert app.runners["hn"].run().error is None
    app.web.start()
    yield app
    app.stop()


@pytest.fixture(params=["small", "front_page"])
def app(request: pytest.FixtureRequest) -> App:
    found: App = request.getfixturevalue(request.param)
    return found


def open_page(chromium: Browser, app: App, path: str = "", **how: int) -> None:
    chromium.requested.clear()
    chromium.complaints.clear()
    chromium.open(app.web.url + path, **how)


def test_the_page_loads_nothing_from_elsewhere_and_logs_no_complaint(chromium: Browser, app: App) -> None:
    open_page(chromium, app)
    assert {urlsplit(url).netloc for url in chromium.requested} - {""} == {f"127.0.0.1:{app.web.port}"}
    assert chromium.complaints == []
    assert chromium.see("document.querySelectorAll('svg.plot').length") >= 1


def test_the_page_is_smaller_than_200_kb(chromium: Browser, app: App) -> None:
    open_page(chromium, app)
    assert chromium.see("performance.getEntriesByType('navigation')[0].decodedBodySize") < 200_000


@pytest.mark.parametrize("width", [360, 1100])
def test_the_page_does_not_scroll_sideways(chromium: Browser, app: App, width: int) -> None:
    open_page(chromium, app, width=width)
    chromium.see("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert chromium.see("document.documentElement.scrollWidth") == width
    chromium.see("window.scrollTo(500, 0)")
    assert chromium.see("window.scrollX") == 0


WORDS = """[...document.querySelector('.plot').querySelectorAll('.words')].map(e => e.getBoundingClientRect())
    .filter(r => r.width).map(r => [r.left, r.right]).sort((a, b) => a[0] - b[0])"""


@pytest.mark.parametrize(("width", "many"), [(360, 1), (390, 1), (641, 1), (768, 1), (900, 2), (1100, 2)])
def test_incident_captions_never_overlap_and_the_newest_always_shows(
    chromium: Browser, twice: App, width: int, many: int
) -> None:
    open_page(chromium, twice, width=width)
    seen = chromium.see(WORDS)
    assert len(seen) == many
    assert all(left[1] < right[0] for left, right in pairwise(seen))
    assert 0 <= seen[0][0] < seen[-1][1] <= width
    newest = chromium.see("[...document.querySelectorAll('.plot .words')].pop().textContent")
    assert newest.startswith("incident on 27 Jan")


def test_the_tab_key_reaches_everything_in_page_order(chromium: Browser, app: App) -> None:
    open_page(chromium, app)
    chromium.see("document.querySelectorAll('details').forEach(e => e.open = true)")
    count = chromium.see(f"document.querySelectorAll(`{FOCUSABLE}`).length")
    reached = [at for at in chromium.tabbed() if at != "-1"]
    assert count > 5
    assert reached == [str(i) for i in range(count)]


def test_the_focus_is_visible(chromium: Browser, app: App) -> None:
    open_page(chromium, app)
    for _ in range(4):
        chromium.press("Tab", 9)
        assert chromium.see("getComputedStyle(document.activeElement).outlineStyle") == "solid"


CONTRAST = """
(() => {
  const channel = c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  const parsed = text => text.match(/[\\d.]+/g).map(Number);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const colour = parsed(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const ratios = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
    const isDrawn = e instanceof SVGElement;
    if (isDrawn && e.tagName !== 'text') continue;
    const style = getComputedStyle(e), a = light(parsed(isDrawn ? style.fill : style.color)), b = light(ground(e));
    ratios.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.trim().slice(0, 40)]);
  }
  return ratios.sort((a, b) => a[0] - b[0])[0];
})()
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_contrast_meets_wcag_aa(chromium: Browser, app: App, dark: bool) -> None:
    open_page(chromium, app, dark=dark)
    ratio, text = chromium.see(CONTRAST)
    assert ratio >= 4.5, text


def test_the_overview_leads_to_the_monitor(chromium: Browser, small: App) -> None:
    open_page(chromium, small, "#b.search")
    assert chromium.see("document.querySelector(':target').tagName") == "ARTICLE"
    assert chromium.see("Math.abs(document.querySelector(':target').getBoundingClientRect().top) < 900")
    assert "Firing since" in chromium.see("document.querySelector(':target').innerText")


def test_notifications_lead_to_the_monitors_own_page(chromium: Browser, small: App) -> None:
    about = About("b.search", page=small.page_url)
    assert about.url().startswith(small.web.url)
    open_page(chromium, small, about.url().removeprefix(small.web.url))
    assert chromium.see("document.querySelectorAll('article').length") == 1
    assert chromium.complaints == []
    assert chromium.see("[...document.links].map(a => a.href)[1]") == small.web.url
    chromium.open(small.web.url + "monitors/none")
    assert "no such monitor" in chromium.see("document.body.innerText")


# ---- the fall of February 2022 ---------------------------------------------------------------------------------------


def drawn(chromium: Browser, name: str) -> list[tuple[float, float]]:
    """Points of the path with this class in the first plot, in the plot's units."""
    path = chromium.see(f"document.querySelector('svg.plot .{name}').getAttribute('d')")
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]


def place(app: App, instant: datetime) -> float:
    """Horizontal position of an instant on the first plot, in the plot's units."""
    points = app.board.snapshots["hn"].histories[0].drawn
    first, last = points[0].end, points[-1].end
    return 1000 * (instant.timestamp() - first) / (last - first)


def test_the_fall_of_february_2022_is_visible_at_a_glance(chromium: Browser, front_page: App) -> None:
    open_page(chromium, front_page)
    line = drawn(chromium, "value")
    lowest = max(line, key=lambda p: p[1])  # y grows downwards on the screen
    begin, end = (place(front_page, datetime(2022, 2, day, tzinfo=UTC)) for day in (24, 27))
    assert begin < lowest[0] < end
    before = [y for x, y in line if x < begin]
    assert lowest[1] - sum(before) / len(before) > 0.25 * 300  # falls by a quarter of the plot's height
    threshold = drawn(chromium, "threshold")
    nearest = min(threshold, key=lambda p: abs(p[0] - lowest[0]))
    assert lowest[1] - nearest[1] > 0.1 * 300


def test_the_incident_of_february_2022_is_shaded_and_captioned(chromium: Browser, front_page: App) -> None:
    open_page(chromium, front_page)
    box = "document.querySelector('svg.plot rect.incident')"
    left, width = (float(chromium.see(f"{box}.getAttribute('{name}')")) for name in ("x", "width"))
    assert left == pytest.approx(place(front_page, datetime(2022, 2, 24, 7, tzinfo=UTC)), abs=5)
    assert left + width == pytest.approx(place(front_page, datetime(2022, 3, 9, 11, tzinfo=UTC)), abs=5)
    assert (
        chromium.see("document.querySelector('svg.plot .words').textContent")
        == "incident on 24 Feb 07:00, lasted 13 d 4 h"
    )
    assert chromium.see(f"{box}.getBoundingClientRect().width") > 100
    assert chromium.see(f"{box}.getBoundingClientRect().height") > 150
