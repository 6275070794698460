"""An incident's page: it shows what is known, fits a phone, and its buttons work for authorized users only."""

from __future__ import annotations

import http.client
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

import bcrypt
import pytest

from monitor.clock import ReplayClock
from monitor.conditions.checkpoint import Announcement
from monitor.config.values import AccessConfig
from monitor.service.app import App
from monitor.service.incident_desk import PAGES_AT_ONCE
from monitor.store.alerts import StoredIncident
from tests.support.browser import Browser, browser
from tests.support.monitors import config, new_store
from tests.support.pages import DAY, START, fell, fill, watched
from tests.support.tallies import HOUR

PHONE = 390
FORM = "application/x-www-form-urlencoded"
END = START + 20 * DAY


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """One open incident with a deployment announced before it."""
    monitor, store = (
        watched("search", runbook_url="https://wiki.example.com/s"),
        new_store(f"sqlite:///{tmp_path}/store.db"),
    )
    fill(store, monitor, range(START, END, HOUR), fell(END - DAY, END, 0.2))
    store.verdicts.announce("search", Announcement(END - DAY - HOUR, END - DAY, "ada", "ranker <v8>", False), 1.0)
    store.close()
    made = App(config(tmp_path, {"shop": f"sqlite:///{tmp_path}/none.db"}, [monitor]), ReplayClock(END, 0))
    made.prepare()
    assert made.runners["search"].run().error is not None
    made.web.start()
    yield made
    made.stop()


def incident(app: App) -> StoredIncident:
    (found,) = app.store.alerts.incidents()
    return found


def path(app: App) -> str:
    return f"/incidents/{incident(app).incident.id}"


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    headers: dict[str, str]


def ask(app: App, path: str, method: str = "GET", form: dict[str, str] | None = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", app.web.port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = None if form is None else urlencode(form)
    connection.request(method, path, body, named if form is None else {"Content-Type": FORM, **named})
    answer = connection.getresponse()
    found = Answer(answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()})
    connection.close()
    return found


def test_the_incident_page_holds_what_messages_say_and_more(app: App) -> None:
    found = ask(app, path(app))
    it = incident(app).incident
    assert found.status == 200
    for words in (it.id, "What to do:", "Where:", "Since", "Open the runbook", "mobile", "ranker &lt;v8&gt;", "<svg"):
        assert words in found.text
    assert "<v8>" not in found.text
    assert ask(app, "/incidents/nothing").status == 404


def test_the_incident_page_explains_in_tables_without_repetition(app: App) -> None:
    text = ask(app, path(app)).text
    for title in ("By contribution to the change, against ", "Labels and traffic, against "):
        assert f"<h4>{title}" in text
    assert re.search(r'<th scope="row"><span>device=<wbr>mobile</span></th><td>0\.\d{4}</td><td>0\.\d{4}</td>', text)
    lines = re.findall(r"<(?:p|h4|li)[^>]*>([^<]{25,})</", text)
    sentences = [said for line in lines for said in re.split(r"(?<=[.;:]) ", line)]
    assert len(sentences) > 8
    assert [said for said, times in Counter(sentences).items() if times > 1] == []
    assert "more on the page" not in text


def test_an_incidents_chart_has_its_own_address(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", app.web.port, timeout=20)
    connection.request("GET", f"{path(app)}/chart.png")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "image/png")
    assert answer.read().startswith(b"\x89PNG")
    assert ask(app, "/incidents/nothing/chart.png").status == 404
    monkeypatch.setattr("monitor.service.incident_desk.can_draw", lambda: False)
    assert ask(app, f"{path(app)}/chart.png").status == 404


def test_the_monitors_charts_mark_versions_and_announcements(app: App) -> None:
    known = app.board.snapshots["search"]
    noted = (Announcement(END - 2 * DAY, END - DAY, "ada", "a <sale>", False),)
    app.board.publish(replace(known, came=((END - DAY, "v8"),), noted=noted))
    page = ask(app, "/monitors/search").text
    for words in ("version v8, 2022-01-20 00:00 UTC", "a &lt;sale&gt;, 2022-01-19 00:00 UTC"):
        assert f'<span class="mark">{words}</span>' in page
    assert page.count('<rect class="mark"') >= 2


@pytest.mark.parametrize("width", [320, PHONE, 1100])
def test_everything_fits_the_screen_and_buttons_fit_a_thumb(
    chromium: Browser, app: App, width: int, tmp_path: Path
) -> None:
    chromium.requested.clear()
    chromium.complaints.clear()
    chromium.open(app.web.url.rstrip("/") + path(app), width=width, height=844)
    chromium.photograph(tmp_path / "incident.png")
    assert chromium.complaints == []
    assert chromium.see("document.documentElement.scrollWidth") == width
    boxes = chromium.see(
        "[...document.querySelectorAll('form button, form input, form select')].map(e => e.getBoundingClientRect())"
        ".map(r => [r.left, r.top, r.right, r.bottom])"
    )
    assert len(boxes) == 8
    broken = "r => (r.selectNodeContents(e), r.getClientRects().length > 1)"
    assert chromium.see(f"[...document.querySelectorAll('td')].filter(e => ({broken})(new Range())).length") == 0
    assert all(bottom - top >= 44 and right - left >= 44 for left, top, right, bottom in boxes)
    assert all(left >= 0 and right <= width for left, _, right, _ in boxes)
    apart = [
        (a, b)
        for number, a in enumerate(boxes)
        for b in boxes[:number]
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]
    assert apart == [], "buttons overlap"
    assert chromium.see("document.querySelector('.chart svg').getBoundingClientRect().right") <= width


def press(chromium: Browser, words: str) -> None:
    """Press a button and wait for the next page to load."""
    chromium._loaded = False
    chromium.see(f"[...document.querySelectorAll('button')].find(e => e.textContent == `{words}`).click()")
    while not chromium._loaded:
        chromium._note(chromium._next())


def test_the_buttons_acknowledge_silence_and_label(chromium: Browser, app: App) -> None:
    chromium.open(app.web.url.rstrip("/") + path(app), width=PHONE)
    chromium.see("document.querySelector('input[name=note]').value = 'rolling back'")
    press(chromium, "Acknowledge")
    assert chromium.see("location.pathname") == path(app)
    assert "by page" in chromium.see("document.querySelector('.lines').textContent")
    press(chromium, "Silence search")
    press(chromium, "Known")
    it = incident(app)
    assert (it.acknowledged_by, it.note, it.label, it.labelled_by) == ("page", "rolling back", "known", "page")
    assert "search is silenced" in chromium.see("document.querySelector('.lines').textContent")
    assert chromium.complaints == []


FOREIGN: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site", "Origin": "http://127.0.0.1"},
    {"Host": "evil.example"},
    {"X_Forwarded_For": "10.0.0.9"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("what", ["acknowledge", "silence", "label"])
def test_pages_of_other_sites_and_other_machines_change_nothing(app: App, what: str, headers: dict[str, str]) -> None:
    found = ask(app, f"{path(app)}/{what}", "POST", {"for": "1h", "label": "wrong"}, **headers)
    assert found.status in (403, 421)
    it = incident(app)
    assert (it.acknowledged_at, it.label, app.store.alerts.silences(0.0)) == (None, None, [])


def test_invalid_requests_change_nothing(app: App) -> None:
    for what, form in (("label", {"label": "maybe"}), ("silence", {"for": "9y"}), ("delete", {}), ("label", {})):
        assert ask(app, f"{path(app)}/{what}", "POST", form).status == 404
    assert ask(app, "/incidents/nothing/acknowledge", "POST", {}).status == 404
    assert ask(app, f"{path(app)}/acknowledge", "POST", {"note": "x" * 5000}).status == 413
    assert ask(app, f"{path(app)}/acknowledge").status == 405
    assert incident(app).acknowledged_at is None


def test_an_acknowledgement_needs_the_password_and_records_the_user(app: App) -> None:
    app.access.adopt(
        replace(app.config.web, access=AccessConfig(users=(("ada", bcrypt.hashpw(b"secret", bcrypt.gensalt(4))),)))
    )
    assert ask(app, f"{path(app)}/acknowledge", "POST", {}).status == 401
    basic = f"Basic {b64encode(b'ada:secret').decode()}"
    by = {"Authorization": basic, "X_Forwarded_For": "10.0.0.9"}
    found = ask(app, f"{path(app)}/acknowledge", "POST", {"note": "on it"}, **by)
    assert (found.status, found.headers["location"]) == (303, f"../{incident(app).incident.id}")
    assert (incident(app).acknowledged_by, incident(app).note) == ("ada", "on it")


def test_a_reader_without_rights_sees_the_commands_instead_of_forms(app: App) -> None:
    found = ask(app, path(app), X_Forwarded_For="10.0.0.9")
    assert "<form" not in found.text
    assert f"rankmon incidents ack {incident(app).incident.id}" in found.text


def test_pages_that_wait_for_the_store_do_not_block_metrics(app: App) -> None:
    for _ in range(PAGES_AT_ONCE):
        assert app.desk._free.acquire(blocking=False)
    assert ask(app, path(app)).status == 503
    assert ask(app, "/metrics").status == 200
