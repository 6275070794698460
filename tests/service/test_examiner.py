"""The daily check of where people look, from a log in SQLite to the notification."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import yaml

import monitor.cli as cli
from monitor.clock import ManualClock
from monitor.config import load
from monitor.errors import SourceError
from monitor.page import render
from monitor.service import examiner
from monitor.service.app import App
from monitor.service.examiner import Examiner
from monitor.service.snapshot import take_snapshot
from monitor.units import DAY, HOUR
from tests.support.drawn_log import DEPTH, Log, draw
from tests.support.pages import PageSource

START = 1_767_225_600  # 2026-01-01
DAYS = 22


def write(logs: Mapping[str, Log], path: Path) -> None:
    """Writes the log of each device to tables, with requests spread over the day."""
    rng = np.random.default_rng(0)
    shown: list[tuple[int, int, str, str, int, str]] = []
    clicked: list[tuple[int, str, int]] = []
    for device, log in logs.items():
        first = len(shown)
        at = (START + log.day * DAY + rng.integers(0, DAY, len(log.day))).tolist()
        shown += [
            (first + number, at[number], f"q{log.query[number]}", f"i{log.query[number]}-{item}", place + 1, device)
            for number in range(len(at))
            for place, item in enumerate(log.items[number].tolist())
        ]
        hits = zip(shown[first:], log.clicks.ravel().tolist(), strict=True)
        clicked += [(row[0], row[3], row[1] + 5) for row, is_clicked in hits if is_clicked]
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TABLE shown (request INTEGER, at INTEGER, query TEXT, item TEXT, place INTEGER, device TEXT)"
        )
        db.execute("CREATE TABLE clicks (request INTEGER, item TEXT, at INTEGER)")
        db.executemany("INSERT INTO shown VALUES (?,?,?,?,?,?)", shown)
        db.executemany("INSERT INTO clicks VALUES (?,?,?)", clicked)


def configured(folder: Path, measures: list[str]) -> Path:
    epoch = {"column": "at", "format": "epoch_s"}
    events = {"table": "clicks", "request": "request", "item": "item", "time": epoch}
    rankings = {"table": "shown", "request": "request", "item": "item", "position": "place", "query": "query"}
    monitor = {
        "name": "search",
        "source": "log",
        "rankings": {**rankings, "time": epoch},
        "relevance": {"events": {**events, "rules": [{"grade": 1}], "attribution": "1h"}},
        "measures": measures,
        "windows": ["24h"],
        "drift": {},
        **({"slices": ["device"]} if "device" in measures[-1] else {}),
    }
    found = {
        "store": {"url": f"sqlite:///{folder}/store.db"},
        "sources": {"log": {"url": f"sqlite:///{folder}/log.db"}},
        "monitors": [monitor],
    }
    path = folder / "rankmon.yaml"
    path.write_text(yaml.safe_dump(found), encoding="utf-8")
    return path


@pytest.fixture
def app(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    """A daemon on day 18 of a log. The test chooses the measures, and the examination and noise of each device."""
    measures, changes = request.param
    changes = changes if "pc" in changes else {"pc": changes}
    write({name: draw(3, DAYS, **of_it) for name, of_it in changes.items()}, tmp_path / "log.db")
    path = configured(tmp_path, measures)
    assert cli.run(["backfill", "--from", "2026-01-01", "--to", "2026-01-19", "-c", str(path)]) == 0
    made = App(load(path, {}), ManualClock(START + 18 * DAY))
    made.prepare()
    yield made
    made.close()


CORRECTED = ["ndcg@5", "dcg(examination={1:1,2:0.5,3:0.33,4:0.25,5:0.2})@5"]


def live(app: App, day: int) -> dict[str, float]:
    """Runs the daemon every six hours until noon of a day; returns condition -> day on which it fired."""
    assert isinstance(app.clock, ManualClock)
    while app.clock.time < START + day * DAY + DAY // 2:
        app.clock.time += 6 * HOUR
        assert app.runners["search"].run().error is None
    steps = app.store.alerts.transitions("search")
    return {step.rule: (step.at - START) / DAY for step in steps if step.became == "firing"}


@pytest.mark.parametrize("app", [(CORRECTED, {"steep": {19: 0.4}})], indirect=True)
def test_a_new_page_fires_examination_changed_and_stores_its_check(app: App) -> None:
    fired = live(app, 21)
    assert fired.keys() == {"examination_changed"}
    assert fired["examination_changed"] <= 21.5
    found = app.store.verdicts.newest_check("search")
    assert found is not None
    assert found.at == START + 21 * DAY
    assert found.known_until <= START + 19 * DAY
    assert found.now.requests > found.now.clicks.max() > 0
    assert len(found.now.value) == DEPTH
    assert found.changed_since is not None
    assert [one.lower for one in app.store.verdicts.examined("search")] == [None] * 4  # until three days are whole


@pytest.mark.parametrize("app", [(CORRECTED, {"steep": {18: 0.4}})], indirect=True)
def test_accepting_a_new_page_closes_its_incident_with_the_next_run(
    app: App, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live(app, 20)
    (found,) = app.store.alerts.incidents(state="firing")
    given = ["-c", str(tmp_path / "rankmon.yaml")]
    mixed = [f"--to=2026-01-{day}" for day in ("21", "16")]
    for command in (["examination", "fit", "search"], ["judgments", "search", "-o", str(tmp_path / "a.csv")]):
        for to, warned in zip(mixed, (1, 0), strict=True):
            assert cli.run([*command, "--depth", "5", to, *given]) == 0
            assert capsys.readouterr().err.count("search: people look at other ranks since about 2026-01-") == warned
    assert cli.run(["incidents", "ack", found.incident.id, "--new-baseline", "--by", "ada", *given]) == 0
    (baseline,) = app.store.verdicts.baselines("search")
    assert baseline.since == found.incident.began_at
    assert app.runners["search"].run().error is None
    assert app.store.alerts.watched() == []
    live(app, 21)
    assert app.store.verdicts.examined("search")[-1].at == START + 21 * DAY
    assert app.store.alerts.watched() == [], "the same page stays accepted"


@pytest.mark.parametrize(
    "app", [(CORRECTED, {"noise": {19: 2.0}}), (CORRECTED[:1], {"noise": {19: 2.0}})], indirect=True
)
def test_a_corrected_measure_tells_worse_lists_from_lost_clicks(app: App) -> None:
    fired = live(app, 21)
    is_corrected = len(app.config.monitors[0].measures) > 1
    assert "examination_changed" not in fired
    assert bool(app.store.verdicts.examined("search")) is is_corrected
    assert (fired.get("degraded", DAYS) < 20.5) is is_corrected  # the check after the first bad day is at 20


@pytest.mark.parametrize("app", [(CORRECTED, {})], indirect=True)
def test_days_of_a_downtime_are_checked_after_it(app: App) -> None:
    live(app, 18)
    assert isinstance(app.clock, ManualClock)
    app.clock.time = START + 21 * DAY + DAY // 4
    assert app.runners["search"].run().error is None
    assert [(one.at - START) // DAY for one in app.store.verdicts.examined("search")] == [18, 19, 20, 21]
    assert (found := app.runners["search"]._examiner) is not None
    assert not found.due(app.clock.time)


@pytest.mark.parametrize("app", [(CORRECTED, {})], indirect=True)
def test_days_with_a_source_failure_are_checked_the_next_day(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live(app, 18)
    assert isinstance(app.clock, ManualClock)
    runner = app.runners["search"]
    with monkeypatch.context() as broken:
        broken.setattr(examiner, "counts_by_table", Mock(side_effect=SourceError("too slow", "timeout")))
        for hour in (6, 12):
            app.clock.time = START + 20 * DAY + hour * HOUR
            assert runner.run().error is None
    assert caplog.text.count("on the day until 2026-01-20 00:00 UTC failed: too slow; will retry tomorrow") == 1
    app.clock.time = START + 21 * DAY + DAY // 4
    assert runner.run().error is None
    assert [(one.at - START) // DAY for one in app.store.verdicts.examined("search")] == [18, 19, 20, 21]


@pytest.mark.parametrize(("lookback", "days"), [(12 * HOUR, [21]), (DAY, [21]), (2 * DAY, [20, 21])])
@pytest.mark.parametrize("app", [(CORRECTED, {})], indirect=True)
def test_days_beyond_the_lookback_are_skipped_except_the_newest(app: App, lookback: int, days: list[int]) -> None:
    known = Mock(settled_end=Mock(return_value=START + 21 * DAY + HOUR))
    known.verdicts.newest_check.return_value = Mock(at=START + 18 * DAY, changed_since=None)
    known.verdicts.baselines.return_value = []
    monitor = replace(app.config.monitors[0], lookback=lookback)
    found = Examiner(monitor, known, Mock()).due(START + 21 * DAY + 2 * HOUR)
    assert [(at - START) // DAY for at in found] == days


@pytest.mark.parametrize("app", [(CORRECTED, {"lost": {19: 0.3}})], indirect=True)
def test_lost_clicks_still_fire_labels_suspect(app: App) -> None:
    fired = live(app, 21)
    assert fired.keys() == {"labels_suspect"}


@pytest.mark.parametrize("app", [(CORRECTED, {"views": 4})], indirect=True)
def test_too_few_swaps_are_logged_and_harm_nothing(app: App, caplog: pytest.LogCaptureFixture) -> None:
    live(app, 18)
    told = [r.getMessage() for r in caplog.records if "where people looked on the day until" in r.getMessage()]
    assert 1 <= len(told) <= 2  # of the two days that end
    assert "is unknown: no clicks on the 12 items shown at rank 2; check" in told[0]
    assert app.store.verdicts.newest_check("search") is None


LOOKS = "{1:1,2:0.5,3:0.33,4:0.25,5:0.2}"
BY_DEVICE = ["ndcg@5", f"dcg(examination={LOOKS},examination[device=tv]={LOOKS},examination[device=watch]={LOOKS})@5"]


TV = {"people": 1, "steep": {0: 1.6}, "views": {0: 350, 19: 1400}}


@pytest.mark.parametrize("app", [(BY_DEVICE, {"pc": {}, "tv": {"people": 1}})], indirect=True)
def test_examination_is_fitted_for_each_slice_with_a_table_and_swaps(app: App) -> None:
    assert not live(app, 19)
    found = app.store.verdicts.newest_check("search")
    assert found is not None
    assert found.now.parts.keys() == found.known.parts.keys() == {("device", "tv"), ("device", "other")}
    one = found.now.parts["device", "tv"]
    truth = 1 / np.arange(1, DEPTH + 1)
    assert one.requests == pytest.approx(found.now.requests / 2, rel=0.01)
    assert np.mean((one.lower <= truth) & (truth <= one.upper)) >= 0.8
    assert (one.upper / one.lower)[1:].min() > (found.now.upper / found.now.lower)[1:].min()


@pytest.mark.parametrize("app", [(BY_DEVICE, {"pc": {}, "tv": TV})], indirect=True)
def test_a_shift_between_devices_is_not_a_new_page(app: App) -> None:
    assert "examination_changed" not in live(app, 21)
    assert len(app.store.verdicts.examined("search")) == 4


@pytest.mark.parametrize("app", [(BY_DEVICE, {"pc": {}, "tv": {"people": 1, "steep": {19: 0.4}}})], indirect=True)
def test_a_new_page_on_one_device_is_reported_with_the_device(app: App) -> None:
    fired = live(app, 21)
    assert fired.keys() == {"examination_changed"}
    shown = render(PageSource.of(app.clock.now(), take_snapshot(app.config.monitors[0], app.store, app.clock.now())))
    assert "people look elsewhere on device=tv: rank " in shown
    assert "<p><b>Where:</b> device=tv" in shown
    assert shown.count('<span class="baseline">before</span>') == 3  # of all traffic, tv and the others
