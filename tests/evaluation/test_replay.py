"""`rankmon replay` judges the past as if live, next to plain thresholds, and equals the live run."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

import monitor.cli.commands.replay as replay_command
from monitor import cli
from monitor.conditions.incident import Incident
from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.config import load
from monitor.drift.verdicts import Verdict
from monitor.evaluation.labelled import Agreement, _best
from monitor.evaluation.replay import Replay, replay, try_rules
from monitor.evaluation.run import judge_past
from monitor.measures.measure import parse
from monitor.page.chart import Line
from monitor.service.cycle import BatchSize, run_backfill
from monitor.store import Store
from monitor.store.alerts import Judgement, StoredIncident
from monitor.types import Drift, Events, Monitor
from tests.evaluation.test_hn_incident import Daemon
from tests.support.drift import Ranking, day
from tests.support.monitors import DAY, new_store, pull
from tests.support.monitors import shop as shop_monitor
from tests.support.simulated import configured, put
from tests.support.tallies import rows

HOUR = 3600
RULES = """\
    drift: {}
    alerts:
      - {name: steep, measure: ndcg@10, drop: 30%, baseline: {trailing: 7d}}
      - {name: touchy, measure: ndcg@10, drop: 3%, baseline: {trailing: 2d}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 40 days: worse from day 32 to 35, with most labels missing for ten hours of day 37."""
    made = tmp_path_factory.mktemp("replay")
    config = configured(made, RULES)
    drawn = Ranking.of(40, peak=900).since(32, 35, mean=0.88).since(37, 37 + 10 / 24, coverage=0.3).draw()
    store = new_store(config.store.url)
    put(store, config.monitors[0], drawn)
    store.close()
    return made


def run(folder: Path, *arguments: str, config: str = "rankmon.yaml", command: str = "replay") -> int:
    return cli.run([command, "--config", str(folder / config), *arguments])


def printed(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str, config: str = "rankmon.yaml") -> str:
    assert run(folder, *arguments, config=config) == 0
    return capsys.readouterr().out


def iso(number: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(day(number), UTC).strftime("%Y-%m-%dT%H:%M")


SPAN = ("--from", iso(30), "--to", iso(40))


def test_replay_says_when_why_how_long_and_by_what_it_would_have_paged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = json.loads(printed(folder, capsys, *SPAN, "--format", "json"))
    quality = [i for i in found["incidents"] if i["matter"] == "quality" and "verdict degraded" in i["by"]]
    (incident,) = quality
    assert day(32) < incident["opened_at"] <= day(33)
    assert day(35) < incident["closed_at"] <= day(36)
    assert incident["lasted"] == incident["closed_at"] - incident["began_at"]
    assert "ndcg(empty=zero)@10" in incident["why"]
    assert not incident["open_before"]
    (data,) = [i for i in found["incidents"] if i["matter"] == "data"]
    assert day(37) < data["opened_at"] <= day(37.3)
    assert data["by"] == ["verdict labels suspect"]
    assert found["data_incidents"] == 1


def test_replay_also_shows_what_each_rule_and_plain_thresholds_would_page(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = json.loads(printed(folder, capsys, *SPAN, "--format", "json"))
    pages = {m["name"]: m["pages"] for m in found["methods"]}
    assert list(pages) == ["rankmon", "drift", "rule steep", "rule touchy", "fixed threshold", "trailing threshold"]
    assert pages["drift"] == 1
    assert pages["rankmon"] == found["pages"]
    assert pages["rule touchy"] > 1  # to it, the label outage is a drop
    assert pages["fixed threshold"] == 2
    assert found["verdict_hours"]["healthy"] + found["verdict_hours"]["degraded"] > 200


def test_labelled_pages_serve_as_truth_and_propose_a_budget(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One page about the fall is called right, one about nothing wrong. Any budget finds the fall."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "rankmon.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace(str(folder), str(tmp_path)), encoding="utf-8")
    fell = Incident("search", day(32) + 4 * HOUR, day(32) + 8 * HOUR, "resolved", closed_at=day(35))
    nothing = replace(fell, began_at=day(31), opened_at=day(31) + HOUR, closed_at=day(31) + 9 * HOUR)
    lost = replace(fell, matter="data")  # it paged nobody, however people label it
    store = Store(load(path, {}).store.url)
    with store.hold("search") as lease:
        incidents = [StoredIncident(one) for one in (fell, nothing, lost)]
        store.alerts.save(lease, Judgement("search", day(36), {}, incidents), 1.0)
    store.alerts.label(fell.id, "right", "ada", "")
    store.alerts.label(nothing.id, "wrong", "ada", "")
    assert lost.id != fell.id
    store.alerts.label(lost.id, "right", "ada", "")
    store.close()
    said = printed(tmp_path, capsys, *SPAN)
    assert "people called 1 page right and 1 wrong; of these would page again, or be open before:" in said
    assert re.search(r"^drift +1 of 1 +0 of 1$", said, re.MULTILINE)
    assert re.search(r"^1 \(now\) +1 of 1 +0 of 1$", said, re.MULTILINE)
    assert "false_alarm_budget: 1 agrees best with people, as it is" in said
    (found,) = json.loads(printed(tmp_path, capsys, *SPAN, "--format", "json"))
    assert [budget for budget, _ in found["people_said"]["budgets"]] == [0.25, 0.5, 1.0, 2.0, 4.0]
    later = printed(tmp_path, capsys, "--from", iso(33), "--to", iso(34))
    assert "would never have paged" in later
    assert "already open at the start, so not counted as a page: verdict degraded" in later
    assert "people called" not in later, "both pages came earlier"


def test_the_proposed_budget_keeps_right_pages_and_sends_fewest_wrong_ones() -> None:
    def tried(*pages: tuple[int, int]) -> list[tuple[float, Agreement]]:
        return [(budget, Agreement("drift", *some)) for budget, some in zip((0.5, 1.0, 2.0), pages, strict=True)]

    assert _best(tried((3, 0), (3, 2), (3, 5)), 1.0) == 0.5
    assert _best(tried((2, 0), (3, 2), (3, 2)), 1.0) == 1.0
    assert _best(tried((1, 0), (2, 0), (3, 4)), 1.0) == 2.0


def test_days_before_the_first_request_do_not_count_as_past(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path, RULES)
    drawn = Ranking.of(40, peak=900).draw()
    names = ("requests", "total", "squares", "labelled", "unlabelled")
    some = {name: getattr(drawn, name) * (drawn.starts >= day(12))[:, None] for name in names}
    store = new_store(config.store.url)
    put(store, config.monitors[0], replace(drawn, **some))
    assert {tried.since for tried in try_rules(config.monitors[0], store)} == {day(12)}
    whole = replay(config.monitors[0], store)
    store.close()
    assert (whole.first, whole.since) == (day(12), day(12))
    assert sum(whole.hours.values()) == 28 * 24
    assert f"10 % below the mean of 18 d from {iso(12)[:10]} " in printed(tmp_path, capsys, *SPAN)
    lines: list[Line] = []
    monkeypatch.setattr(replay_command, "draw", lambda title, drawn, **_: lines.extend(drawn) or "<svg/>")
    judged = next(v.end for v in whole.verdicts if v.observed is not None)
    for since in (day(12), judged - HOUR, judged + 2 * HOUR, day(39)):
        lines.clear()
        replay_command.picture(replace(whole, verdicts=_after(whole, since)))
        known = [at for at, value in zip(lines[0].at, lines[0].value, strict=True) if value is not None]
        assert known[0] == max(judged + DAY - HOUR, since + HOUR), "means of the first day cover less than a day"


def _after(whole: Replay, since: int) -> tuple[Verdict, ...]:
    return tuple(v for v in whole.verdicts if v.end > since)


def test_the_text_output_reports_the_same_findings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(folder, capsys, *SPAN)
    assert re.search(r"would have paged (\d+ times|twice)", shown)
    assert "would have notified the data owners once" in shown
    assert re.search(r"UTC  critical, bad since .*, lasted .*; by .*verdict degraded", shown)
    assert "hours by verdict: healthy" in shown
    assert re.search(r"drift +verdict degraded, 1 in 90 d +1 +\d+ h", shown)
    assert "no mix shifts" in shown


def test_labels_lost_for_a_day_notify_on_call_and_replay_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path, "    drift: {data_channels: [log]}\n")
    store = new_store(config.store.url)
    put(store, config.monitors[0], Ranking.of(40, peak=900).since(35, 37, coverage=0.2).draw())
    store.close()
    (found,) = json.loads(printed(tmp_path, capsys, *SPAN, "--format", "json"))
    (incident,) = found["incidents"]
    assert incident["matter"] == "data"
    assert incident["severity"] == "critical"
    assert incident["opened_at"] + DAY - 2 * HOUR <= incident["on_call_told_at"] <= day(36.2)
    assert (found["pages"], found["data_incidents"], found["told_on_call_of_data"]) == (0, 1, 1)
    (gone,) = [m for m in found["methods"] if m["name"] == "labels gone"]
    assert (gone["pages"], gone["incidents"][0]["since"]) == (1, incident["on_call_told_at"])
    shown = printed(tmp_path, capsys, *SPAN, "--chart", str(tmp_path / "past.svg"))
    assert "would never have paged, but would have notified on-call of broken data once\n" in shown
    assert re.search(
        r"critical, bad since .*, lasted .*, notified on-call \d{4}-\d\d-\d\d \d\d:\d\d UTC; by verdict labels susp",
        shown,
    )
    drawn = ET.fromstring((tmp_path / "past.svg").read_text(encoding="utf-8"))
    shades = [e.get("fill") for e in drawn.iter("{http://www.w3.org/2000/svg}rect") if e.get("fill-opacity")]
    assert "#dc2626" in shades
    late = ("--from", iso(35.5), "--to", iso(40))
    shown = printed(tmp_path, capsys, *late)
    assert "would never have paged, but would have notified on-call of broken data once\n" in shown
    assert re.search(r"already open at the start, so not counted as a page: .*, notified on-call", shown)


def test_replay_writes_nothing_to_the_store(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def stored() -> dict[str, list[tuple[object, ...]]]:
        store = Store(configured(folder, RULES).store.url)
        found = rows(store)
        store.close()
        return found

    before = stored()
    printed(folder, capsys, *SPAN, "--chart", str(tmp_path / "past.svg"))
    after = stored()
    assert after == before
    assert after["outbox"] == after["incidents"] == after["verdicts"] == []


def test_the_chart_shows_observed_expected_alarms_and_masked_times(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    printed(folder, capsys, *SPAN, "--chart", str(tmp_path / "past.svg"))
    drawn = ET.fromstring((tmp_path / "past.svg").read_text(encoding="utf-8"))
    names = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"observed", "expected", "drift", "bad data", "mix shift", "fixed threshold"} <= set(names)
    shades = [e.get("fill") for e in drawn.iter("{http://www.w3.org/2000/svg}rect") if e.get("fill-opacity")]
    assert {"#dc2626", "#6b7280"} == set(shades)


def test_another_configuration_can_be_tried_on_the_same_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configured(
        folder, "    alerts: [{name: wild, measure: ndcg@10, drop: 1%, baseline: {trailing: 1d}}]\n", "other.yaml"
    )
    (found,) = json.loads(printed(folder, capsys, *SPAN, "--format", "json", config="other.yaml"))
    assert [m["name"] for m in found["methods"]] == ["rule wild", "fixed threshold", "trailing threshold"]
    assert found["pages"] > 2
    assert found["verdict_hours"] == {}


def test_the_store_of_another_configuration_can_be_named(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    configured(tmp_path, "    drift: {false_alarm_budget: 20}\n")
    shown = printed(tmp_path, capsys, *SPAN, "--store-of", str(folder / "rankmon.yaml"))
    assert "verdict degraded, 20 in 90 d" in shown


def test_an_incident_open_at_the_start_of_the_span_is_not_counted_as_a_page(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = json.loads(printed(folder, capsys, "--from", iso(34), "--to", iso(36.5), "--format", "json"))
    assert [i["open_before"] for i in found["incidents"] if "verdict degraded" in i["by"]] == [True]
    assert next(m["pages"] for m in found["methods"] if m["name"] == "drift") == 0
    assert "already open at the start" in printed(folder, capsys, "--from", iso(34), "--to", iso(36.5))


def test_a_shorter_span_knows_nothing_of_a_later_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (whole,) = json.loads(printed(folder, capsys, *SPAN, "--format", "json"))
    (part,) = json.loads(printed(folder, capsys, "--from", iso(30), "--to", iso(33.5), "--format", "json"))
    first = next(i for i in whole["incidents"] if i["matter"] == "quality")
    assert part["incidents"][0] | {"closed_at": 0, "lasted": 0, "state": "", "by": []} == first | {
        "closed_at": 0,
        "lasted": 0,
        "state": "",
        "by": [],
    }
    assert part["incidents"][0]["closed_at"] is None or part["incidents"][0]["closed_at"] <= day(33.5)


def test_hours_before_a_baseline_have_not_enough_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(printed(folder, capsys, "--to", iso(12), "--format", "json"))
    assert list(found["verdict_hours"]) == ["not_enough_data"]
    assert found["since"] == day(0)


def test_a_method_with_too_little_past_says_so_instead_of_no_pages(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = json.loads(printed(folder, capsys, "--to", iso(12), "--format", "json"))
    could = {method["name"]: method["could_judge"] for method in found["methods"]}
    assert (could["drift"], could["fixed threshold"], could["trailing threshold"]) == (False, False, True)
    (row,) = [line for line in printed(folder, capsys, "--to", iso(12)).splitlines() if line.startswith("fixed")]
    assert "could not judge" in row
    (whole,) = json.loads(printed(folder, capsys, *SPAN, "--format", "json"))
    assert all(method["could_judge"] for method in whole["methods"])


def test_replay_warns_of_slices_without_stored_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = RULES.replace("{trailing: 7d}}", "{trailing: 7d}, slices: [gadget]}")
    path = folder / "gadget.yaml"
    text = (folder / "rankmon.yaml").read_text(encoding="utf-8").replace(RULES, rules)
    path.write_text(text.replace("slices: [device]", "slices: [{column: device, as: gadget}]"), encoding="utf-8")
    assert run(folder, *SPAN, config="gadget.yaml") == 0
    said = capsys.readouterr().err
    assert said.startswith(
        "rankmon: search: nothing is stored by gadget, so verdicts judge only all traffic and no rule"
    )
    assert "run rankmon backfill --monitor search --from DATE --again with this configuration" in said
    assert run(folder, *SPAN) == 0
    assert capsys.readouterr().err == ""


def test_check_config_never_mixes_verdicts_by_model_version(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "rankmon.yaml").read_text(encoding="utf-8")
    assert "slices: [device]" in text
    versions = text.replace("time: time}", "time: time, model_version: model}", 1)
    (folder / "versions.yaml").write_text(versions.replace("slices: [device]", "slices: [model]"), encoding="utf-8")
    for config, of in (("rankmon.yaml", "and of each device"), ("versions.yaml", "only: no slice can be `mix_by`")):
        assert run(folder, config=config, command="check-config") == 0
        assert f"verdicts: ndcg(empty=zero)@10 of all traffic {of}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "config", "said"),
    [
        (("--monitor", "shpo"), RULES, "there is no monitor 'shpo'; known are search"),
        (("--from", iso(50)), RULES, "nothing final is stored after .*, only .* to .*; take a span of that, or run"),
        (("--from", iso(3), "--to", iso(2)), RULES, "--from must be before --to"),
        ((), "", "search has neither `drift:` nor `alerts:`, so nothing is judged; add `drift: {}`"),
        ((), "    drift: {}\n    bucket: 30m\n", "nothing is stored of traffic, ndcg@10 as this .*rankmon backfill"),
        (("--chart", "/nowhere/at/all.svg"), RULES, "cannot write /nowhere/at/all.svg: No such file"),
        (("--chart", "past.png"), RULES, "a chart is drawn as SVG: use a file name that ends in .svg, not past.png"),
    ],
)
def test_impossible_requests_are_refused_with_a_remedy(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], config: str, said: str
) -> None:
    configured(folder, config, "asked.yaml")
    assert run(folder, *arguments, config="asked.yaml") == 2
    assert re.search(said.replace("{}", r"\{\}"), capsys.readouterr().err)


def test_a_monitor_without_stored_data_does_not_block_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = (
        "  - {name: new, source: shop, measures: [ndcg@10], drift: {}, relevance: {column: {grade: grade}}, "
        "rankings: {table: other, request: request, item: item, position: position, time: time}}\n"
    )
    configured(folder, RULES + other, "two.yaml")
    assert run(folder, *SPAN, config="two.yaml") == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("search: ")
    assert "new: nothing is stored of traffic, ndcg@10" in shown.err
    assert run(folder, *SPAN, "--chart", "past.svg", config="two.yaml") == 2
    assert "a chart shows one monitor: name it with --monitor, one of search, new" in capsys.readouterr().err


def test_a_span_that_starts_too_early_starts_with_the_stored_past(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = json.loads(printed(folder, capsys, "--from", "2020-01-01", "--to", iso(5), "--format", "json"))
    assert found["since"] == found["judged_from"] == day(0)


def test_a_missing_or_empty_store_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(tmp_path)
    assert run(tmp_path) == 4
    assert "there is no store" in capsys.readouterr().err
    new_store(config.store.url).close()
    assert run(tmp_path) == 2
    assert "nothing is stored of traffic" in capsys.readouterr().err


# ---- against a live run ----------------------------------------------------------------------------------------------

BEGIN = 1_770_000_000 // DAY * DAY
DAYS, LIVE_FROM, WORSE_FROM = 20, 15, 16
LATE = 2 * HOUR
VIEWS = (
    "CREATE TABLE clock (now INTEGER)",
    "INSERT INTO clock VALUES (0)",
    "CREATE VIEW rankings AS SELECT * FROM every_ranking WHERE arrived_at <= (SELECT now FROM clock)",
    "CREATE VIEW events AS SELECT * FROM every_event WHERE arrived_at <= (SELECT now FROM clock)",
)


@dataclass
class World:
    """A source in which rows appear when they arrive, and a monitor of it.

    Labels arrive up to two hours late. One in fifty arrives days later, when its bucket is final.
    """

    url: str
    monitor: Monitor

    def tell_time(self, now: float) -> None:
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE clock SET now = :now"), {"now": int(now)})
        engine.dispose()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    url = f"sqlite:///{tmp_path_factory.mktemp('world')}/source.db"
    engine, rng = sa.create_engine(url), np.random.default_rng(5)
    shown, happened = [], []
    for request in range(DAYS * 24 * 12):
        at = BEGIN + request * 300 + int(rng.integers(200))
        shown += [(request, item, item + 1, iso_time(at), at + int(rng.integers(60))) for item in range(3)]
        odds = [0.7, 0.2, 0.1] if at < BEGIN + WORSE_FROM * DAY else [0.4, 0.3, 0.3]
        if rng.random() < 0.9:
            then = at + int(rng.integers(HOUR))
            late = int(rng.integers(LATE)) if rng.random() < 0.98 else 3 * DAY
            happened.append((request, int(rng.choice(3, p=odds)), "click", iso_time(then), then + late))
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE every_ranking (request_id INTEGER, item_id INTEGER, position INTEGER, served_at TEXT, "
            "arrived_at INTEGER)"
        )
        connection.exec_driver_sql(
            "CREATE TABLE every_event (request_id INTEGER, item_id INTEGER, type TEXT, occurred_at TEXT, "
            "arrived_at INTEGER)"
        )
        connection.exec_driver_sql("CREATE INDEX ranking_time ON every_ranking (served_at)")
        connection.exec_driver_sql("CREATE INDEX event_time ON every_event (occurred_at)")
        connection.exec_driver_sql("INSERT INTO every_ranking VALUES (?, ?, ?, ?, ?)", shown)
        connection.exec_driver_sql("INSERT INTO every_event VALUES (?, ?, ?, ?, ?)", happened)
        for statement in VIEWS:
            connection.exec_driver_sql(statement)
    engine.dispose()
    return World(url, watched())


def iso_time(instant: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def watched() -> Monitor:
    rule = Rule("drop", parse("ndcg@3"), DAY, Drop(0.05, 0.03, True, Baseline(trailing=7 * DAY)), 6 * HOUR, 6 * HOUR)
    made = shop_monitor(
        ["ndcg@3"], slices=(), alerts=(rule,), drift=Drift(parse("ndcg@3")), lateness=LATE, lookback=DAY
    )
    assert isinstance(made.recipe, Events)
    return replace(made, recipe=replace(made.recipe, attribution=HOUR))


def fill(world: World, store: Store, until: int, now: int) -> None:
    """Backfill what is missing as of `now`."""
    world.tell_time(now)
    with store.hold("shop") as lease:
        source = pull(world.monitor, world.url)
        for _ in run_backfill(world.monitor, now, (BEGIN, until), source, store, lease, BatchSize()):
            pass


def live(world: World, store: Store, since: int, until: int) -> None:
    """A daemon that runs every six hours."""
    daemon = Daemon(world.monitor, world.url, store)
    for now in range(since, until, 6 * HOUR):
        world.tell_time(now)
        daemon.live(now, now + 1, HOUR)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    made = new_store(f"sqlite:///{tmp_path}/one.db"), new_store(f"sqlite:///{tmp_path}/two.db")
    yield made
    for store in made:
        store.close()


def recorded(store: Store) -> list[tuple[str, int, str, str]]:
    return [(t.rule, t.at, t.was, t.became) for t in store.alerts.transitions("shop", most=10_000)]


def test_a_replay_equals_the_live_run_with_late_labels_restarts_and_gaps(
    world: World, stores: tuple[Store, Store]
) -> None:
    store, other = stores
    begin, middle, end = (BEGIN + n * DAY for n in (LIVE_FROM, 17, DAYS))
    fill(world, store, begin - DAY // 2, begin)
    live(world, store, begin, end)
    lived = store.verdicts.between("shop", 0, end)
    assert {"not_enough_data", "healthy", "degraded"} <= {v.kind for v in lived}
    # As in the live run: labels that came after their bucket was final were never counted.
    found = judge_past(world.monitor, store, end)
    assert found is not None
    assert found.verdicts == lived
    assert sorted((p.change.name[0], p.change.at, p.change.was, p.change.became) for p in found.placed) == sorted(
        recorded(store)
    )
    assert [s.incident for s in found.incidents] == [s.incident for s in store.alerts.incidents()[::-1]]
    told = replay(world.monitor, store, begin, end)
    assert list(told.verdicts) == [v for v in lived if v.end > begin]
    # The same with a daemon that was down for a day, backfilled by hand and restarted.
    fill(world, other, begin - DAY // 2, begin)
    live(world, other, begin, middle)
    fill(world, other, middle + DAY - 6 * HOUR, middle + DAY)
    live(world, other, middle + DAY, end)
    again = judge_past(world.monitor, other, end)
    assert again is not None
    assert again.verdicts == other.verdicts.between("shop", 0, end)
    assert [v.end for v in again.verdicts] == [v.end for v in lived]
    assert sorted(recorded(other)) == sorted(
        (p.change.name[0], p.change.at, p.change.was, p.change.became) for p in again.placed
    )
