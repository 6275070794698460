"""`rankmon baseline`, `incidents ack --new-baseline` and `power`: the baseline of verdicts, and how it restarts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from monitor import cli
from monitor.conditions.checkpoint import BaselineReset
from monitor.config import load
from monitor.drift.series import Hours
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import judge_monitor
from monitor.messages.words import utc
from monitor.series.partials import Partials
from monitor.store import Store
from monitor.store.schema import incidents, outbox
from monitor.types import OVERALL, Monitor
from tests.support.drift import START, Ranking, day
from tests.support.monitors import DAY, new_store
from tests.support.simulated import configured, put
from tests.support.tallies import rows

HOUR = 3600
DRAWN = Ranking.of(60, peak=900).since(32, mean=0.88).draw()
"""Worse from day 32 on, for good."""


@dataclass
class Bench:
    """A folder with a configuration and a store, driven as a daemon would."""

    folder: Path
    store: Store
    monitor: Monitor
    told: float = 0.0

    def live(self, until: float, current: bool = True) -> None:
        """Stores and judges up to a day; after a first long step, six hours at a time."""
        first = self.store.newest_bucket(self.monitor.traffic)
        since = START if first is None else first + HOUR
        for begin in range(since, day(until), 6 * HOUR if first is not None else 40 * DAY):
            end = min(begin + (6 * HOUR if first is not None else 40 * DAY), day(until))
            put(self.store, self.monitor, of(begin, end))
            self.judge(end, current)

    def judge(self, now: float, current: bool = True) -> None:
        with self.store.hold("search") as lease:
            judge_monitor(self.monitor, now, self.store, lease, Recipients({"log": ("log",)}, "", time.time(), current))

    def run(self, *arguments: str) -> int:
        command, *rest = arguments
        first = [command, rest.pop(0)] if command in ("baseline", "incidents") else [command]
        return cli.run([*first, "--config", str(self.folder / "rankmon.yaml"), *rest])

    @property
    def notices(self) -> list[str]:
        with self.store.reading() as connection:
            return list(connection.scalars(sa.select(outbox.c.kind).order_by(outbox.c.id)))

    @property
    def kinds(self) -> list[str]:
        """The kinds of the newest day of verdicts."""
        newest = self.store.verdicts.newest("search")
        assert newest is not None
        return [v.kind for v in self.store.verdicts.between("search", newest.end - DAY, newest.end)]


def of(since: int, until: int) -> Hours:
    return DRAWN.rows((since - START) // HOUR, (until - START) // HOUR)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    config = configured(tmp_path)
    store = new_store(config.store.url)
    yield Bench(tmp_path, store, config.monitors[0])
    store.close()


def iso(number: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(day(number), UTC).strftime("%Y-%m-%dT%H:%M")


# ---- showing ---------------------------------------------------------------------------------------------------------


def test_baseline_show_names_the_period_it_was_fitted_on(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(33)
    assert bench.run("baseline", "show", "search") == 0
    shown = capsys.readouterr().out
    assert re.search(r"fitted on 2022-01-08 00:00 UTC to 2022-02-05 00:00 UTC: 28 days, \d{3},\d{3} requests", shown)
    assert re.search(r"device=slice 1 +[\d,]+ +0\.5\d+ +[+-]\d\.\d %", shown)
    assert "still needs" not in shown
    assert "started again" not in shown


def test_baseline_show_says_what_it_still_needs(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(9)
    assert bench.run("baseline", "show", "search") == 0
    assert "no baseline yet: it still needs a first reference: 8 of 14 days to begin with" in capsys.readouterr().out
    bench.live(16)
    assert bench.run("baseline", "show", "search") == 0
    assert "still needs a whole reference" in capsys.readouterr().out


def test_no_baseline_exists_before_the_first_final_bucket(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("baseline", "show", "search") == 0
    assert "no baseline yet: it still needs a first final bucket" in capsys.readouterr().out


def test_json_has_every_series(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(30)
    assert bench.run("baseline", "show", "search", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["slice"] for one in found["series"]] == ["", "slice 0", "slice 1", "slice 2"]
    assert found["fitted_since"] == START
    assert found["series"][0]["level"] == pytest.approx(0.55, rel=0.02)
    assert found["is_better_on_offer"] is False


def test_baseline_show_reports_a_slow_decay(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    steady = Ranking.of(160, peak=900)
    lost = np.clip((steady.starts - START - 30 * DAY) / (100 * DAY), 0, 1)[:, None] * 0.07
    put(bench.store, bench.monitor, replace(steady, mean=steady.mean * (1 - lost)).draw())
    assert bench.run("baseline", "show", "search") == 0
    told = re.search(r"has fallen by (\d\.\d) % since the reference, too slowly for an alarm", capsys.readouterr().out)
    assert told is not None
    assert float(told[1]) == pytest.approx(7, abs=1)
    assert bench.run("baseline", "show", "search", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["has_decayed"]
    assert found["level_change"] == pytest.approx(-0.07, abs=0.01)


def test_baseline_show_offers_a_restart_after_a_lasting_improvement(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    better = Ranking.of(42, peak=900).since(31, mean=1.08).draw()
    put(bench.store, bench.monitor, better)
    assert bench.run("baseline", "show", "search") == 0
    assert "the level has been above it for a week: rankmon baseline begin search" in capsys.readouterr().out


def test_baseline_show_refits_for_a_changed_configuration_without_writing(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.live(30)
    configured(bench.folder, "    drift: {false_alarm_budget: 3}\n")
    before = rows(bench.store)
    assert bench.run("baseline", "show", "search") == 0
    assert "28 days" in capsys.readouterr().out
    assert rows(bench.store) == before


# ---- restarting ------------------------------------------------------------------------------------------------------


def test_an_acknowledged_new_baseline_withdraws_the_alarm_and_stays_quiet(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.live(34)
    (opened,) = bench.store.alerts.incidents(state="firing")
    assert bench.notices == ["firing"]
    arguments = ("ack", opened.incident.id, "--new-baseline", "--by", "ada", "--note", "fewer adverts")
    assert bench.run("incidents", *arguments) == 0
    said = capsys.readouterr().out
    assert "acknowledged by ada" in said
    assert "baseline restarts at" in said
    bench.judge(day(34))
    assert bench.store.alerts.watched() == []
    assert bench.notices == ["firing", "withdrawn"]
    bench.live(35)
    assert set(bench.kinds) == {"not_enough_data"}
    bench.live(36)
    assert set(bench.kinds) == {"healthy"}
    assert bench.run("baseline", "show", "search") == 0
    assert "still needs a whole reference since the new level began: 3 of 28 days" in capsys.readouterr().out
    bench.live(50)
    assert bench.notices == ["firing", "withdrawn"]
    assert set(bench.kinds) == {"healthy"}
    assert bench.run("baseline", "show", "search") == 0
    assert re.search(r"started again at 2022-02-0\d \d\d:00 UTC by ada: fewer adverts", capsys.readouterr().out)


def test_a_new_baseline_is_refused_for_closed_and_data_incidents(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.live(34)
    (opened,) = bench.store.alerts.incidents(state="firing")
    with bench.store.writing() as connection:
        connection.execute(sa.update(incidents).values(state="resolved", closed_at=day(34)))
    assert bench.run("incidents", "ack", opened.incident.id, "--new-baseline", "--by", "ada") == 2
    assert "is over, so there is no new level to accept" in capsys.readouterr().err
    with bench.store.writing() as connection:
        connection.execute(sa.update(incidents).values(state="firing", closed_at=None, matter="data"))
    assert bench.run("incidents", "ack", opened.incident.id, "--new-baseline", "--by", "ada") == 2
    assert "is about the data, not the model, so there is no new level" in capsys.readouterr().err
    assert bench.store.verdicts.baselines("search") == []
    assert bench.store.alerts.acknowledged([opened.incident.id]) == {}


def test_hours_before_a_baseline_restart_page_nobody(bench: Bench) -> None:
    bench.live(33)
    assert bench.notices == ["firing"]
    assert bench.run("baseline", "begin", "search", "--from", iso(34)) == 0
    bench.judge(day(33))
    bench.live(36)
    assert bench.notices == ["firing", "withdrawn"]
    assert set(bench.kinds) == {"not_enough_data"}


def test_baseline_show_explains_missing_verdicts_if_all_slices_are_new(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.live(31)
    renamed = replace(Ranking.of(42, peak=900).draw(), slices=("phone", "tablet", "desk")).rows(31 * 24, 42 * 24)
    put(bench.store, bench.monitor, renamed)
    bench.judge(day(42))
    assert bench.kinds[-1] == "not_enough_data"
    assert bench.run("baseline", "show", "search") == 0
    said = "still needs requests in a slice with a baseline, for a day; a new one has its own after 14 days; no drop is"
    assert said in capsys.readouterr().out


def test_a_backfill_after_a_restart_changes_no_verdict(bench: Bench) -> None:
    bench.live(34)
    assert bench.run("baseline", "begin", "search", "--from", iso(33)) == 0
    bench.live(36)
    before = bench.store.verdicts.between("search", 0, day(40))
    put(bench.store, bench.monitor, of(day(20), day(21)))
    bench.judge(day(36))
    assert bench.store.verdicts.between("search", 0, day(40)) == before
    assert bench.notices == ["firing", "withdrawn"]


def test_a_backfilled_incident_ends_where_its_level_was_accepted(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    put(bench.store, bench.monitor, of(START, day(34)))
    bench.judge(day(34))
    (opened,) = bench.store.alerts.incidents(state="firing")
    assert bench.run("incidents", "ack", opened.incident.id, "--new-baseline", "--by", "ada", "--note", "v3") == 0
    put(bench.store, bench.monitor, of(day(33.5), day(34)))
    for _ in range(2):
        assert bench.store.alerts.state("search").restated, "hours that were read again are judged again"
        bench.judge(day(34))
        (closed,) = bench.store.alerts.incidents()
        assert (closed.incident.id, closed.incident.state) == (opened.incident.id, "withdrawn")
        assert closed.incident.closed_at == day(34) - HOUR
        assert next(f.judged for f in closed.findings) == "ndcg(empty=zero)@10"
        capsys.readouterr()
        assert bench.run("incidents", "show", opened.incident.id) == 0
        assert re.search(r"Withdrawn, not recovered: its baseline was reset at .* by ada: v3", capsys.readouterr().out)
        put(bench.store, bench.monitor, of(day(20), day(21)))
    bench.judge(day(34))
    bench.live(38)
    assert set(bench.kinds) == {"healthy"}
    assert bench.store.alerts.watched() == []


def test_baseline_begin_starts_where_a_model_version_did(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(30)
    assert bench.run("baseline", "begin", "search", "--version", "v2") == 2
    assert "has no model version column; name it under `rankings: model_version`" in capsys.readouterr().err
    path = bench.folder / "rankmon.yaml"
    path.write_text(path.read_text().replace("time: time}", "time: time, model_version: version}"))
    (monitor,) = load(path, {}).monitors
    found = Partials(day(30), day(30) + 2 * HOUR, measures={"ndcg@10": {}})
    for start, version in ((day(30), "v1"), (day(30) + HOUR, "v2")):
        for key in (OVERALL, ("model_version", version)):
            found.traffic[start, *key] = np.array([5.0, 1, 50, 0, 1, 0, 0, 5])
    found.admitted = [("model_version", "v1"), ("model_version", "v2")]
    starts = range(found.since, found.until, HOUR)
    with bench.store.hold("search") as lease:
        bench.store.write(lease, monitor, found, dict.fromkeys(monitor.definitions, starts), 1e6, starts, force=True)
    assert bench.run("baseline", "begin", "search", "--version", "v3") == 2
    assert "search has no requests from version 'v3'; known are v1, v2" in capsys.readouterr().err
    assert bench.run("baseline", "begin", "search", "--version", "v2", "--from", iso(30)) == 2
    assert "use --from or --version, not both" in capsys.readouterr().err
    assert bench.run("baseline", "begin", "search", "--version", "v2", "--by", "ada") == 0
    assert bench.store.verdicts.baselines("search") == [BaselineReset(day(30) + HOUR, "ada", "version v2", day(30))]
    assert bench.run("baseline", "begin", "search", "--from", iso(20), "--by", "bob") == 0
    assert [b.author for b in bench.store.verdicts.baselines("search")] == ["bob", "ada"]


def test_baseline_begin_explains_a_version_without_a_series(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    path = bench.folder / "rankmon.yaml"
    listed = "slices: [device, {column: version, as: model_version, max_values: 2}]"
    text = path.read_text().replace("time: time}", "time: time, model_version: version}")
    path.write_text(text.replace("slices: [device]", listed))
    (monitor,) = load(path, {}).monitors
    found = Partials(day(30), day(30) + HOUR, measures={"ndcg@10": {}})
    served = [("model_version", version) for version in ("v1", "v2", "other", "(none)")]
    found.traffic |= {(day(30), *key): np.array([5.0, 1, 50, 0, 1, 0, 0, 5]) for key in (OVERALL, *served)}
    with bench.store.hold("search") as lease:
        targets = {definition: [day(30)] for definition in monitor.definitions}
        bench.store.write(lease, monitor, found, targets, 1e6, [day(30)], force=True)
    assert bench.run("baseline", "begin", "search", "--version", "v3") == 2
    assert (
        "search has no series for version 'v3': the first 2 have one, later ones count as `other`; use --from, "
        "and for future versions add {column: version, as: model_version, max_values: …} to `slices`"
    ) in capsys.readouterr().err


@pytest.mark.parametrize("of_all", [100, 4])
def test_baseline_begin_starts_where_the_version_serves_most_requests(
    bench: Bench, capsys: pytest.CaptureFixture[str], of_all: int
) -> None:
    bench.live(30)
    path = bench.folder / "rankmon.yaml"
    path.write_text(path.read_text().replace("time: time}", "time: time, model_version: version}"))
    (monitor,) = load(path, {}).monitors
    found = Partials(day(26), day(30), measures={"ndcg@10": {}})
    starts = range(found.since, found.until, HOUR)
    for start in starts:
        new = 5 if start < day(28) else of_all
        for key, requests in ((OVERALL, 100), (("model_version", "v1"), 100 - new), (("model_version", "v2"), new)):
            found.traffic[start, *key] = np.array([requests, requests, 10 * requests, 0, 1, 0, 0, requests], float)
    found.admitted = [("model_version", "v1"), ("model_version", "v2")]
    with bench.store.hold("search") as lease:
        bench.store.write(lease, monitor, found, dict.fromkeys(monitor.definitions, starts), 1e6, starts, force=True)
    code = bench.run("baseline", "begin", "search", "--version", "v2", "--by", "ada")
    begun = [one.since for one in bench.store.verdicts.baselines("search")]
    if of_all == 100:
        assert code == 0
        assert begun == [day(28)]
    else:
        assert (code, begun) == (2, [])
        assert "has served at most 5 % of the requests in a day" in capsys.readouterr().err


def test_a_level_not_judged_yet_shows_no_tolerated_drop(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(34)
    assert bench.run("baseline", "begin", "search", "--from", iso(34)) == 0
    bench.live(35)
    capsys.readouterr()
    assert bench.run("baseline", "show", "search") == 0
    shown = capsys.readouterr().out
    said = f"whole UTC days since the new level began, labels included: 1 of 2, so until {utc(day(36))} at least"
    assert f"still needs {said}; no drop is judged" in shown
    assert re.search(r"overall +[\d,]+ +– +– +– +the new level is not known yet", shown)
    assert bench.run("power") == 0
    assert re.search(r"slice 1 +[\d,]+ +– +– +– +– +the new level is not known yet", capsys.readouterr().out)


def test_baseline_begin_without_a_baseline_says_when_verdicts_follow(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.live(5)
    assert bench.run("baseline", "begin", "search", "--from", iso(4)) == 0
    said = capsys.readouterr().out
    assert "no baseline yet; learning its level from 2022-01-12 00:00 UTC on" in said
    assert "verdicts follow after 14 days" in said


def test_baseline_forget_undoes_baseline_begin_completely(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(34)
    before = bench.store.verdicts.between("search", 0, day(34))
    (opened,) = bench.store.alerts.incidents()
    assert bench.run("baseline", "begin", "search", "--from", iso(33)) == 0
    (command,) = re.findall(r'rankmon (baseline forget) search --at "(.*)"', capsys.readouterr().out)
    bench.judge(day(34))
    assert bench.store.alerts.watched() == []
    assert bench.run(*command[0].split(), "search", "--at", iso(32)) == 2
    said = capsys.readouterr().err
    assert "starts at 2022-02-09 00:00 UTC; known starts: 2022-02-10 00:00 UTC" in said
    assert bench.run("baseline", "forget", "search", "--at", command[1]) == 0
    assert "start at 2022-02-10 00:00 UTC removed" in capsys.readouterr().out
    assert bench.store.verdicts.baselines("search") == []
    bench.live(34.5)
    assert bench.store.verdicts.between("search", 0, day(34)) == before
    assert bench.store.alerts.watched() == ["search"]
    assert opened.incident.id in {s.incident.id for s in bench.store.alerts.incidents()}


@pytest.mark.parametrize(
    ("more", "arguments", "said"),
    [
        ("    drift: {}\n", ("begin", "shpo"), "there is no monitor 'shpo'; known are search"),
        ("    drift: {}\n", ("begin", "search", "--from", "2099-01-01"), "2099-01-01 00:00 UTC is in the future"),
        ("", ("begin", "search"), "search has no `drift:`, so it has no baseline; add `drift: {}` to it"),
        ("    drift: {}\n", ("forget", "search", "--at", "2022-02-01"), "known starts: none"),
        ("", ("show", "search"), "search has no `drift:`, so it has no baseline; add `drift: {}` to it"),
        (
            "    drift: {baseline_from: 2022-03-01}\n",
            ("begin", "search", "--from", "2022-02-01"),
            "the configuration has `baseline_from` 2022-03-01 00:00 UTC, which is later",
        ),
    ],
)
def test_baseline_refuses_wrong_usage_with_a_remedy(
    bench: Bench, capsys: pytest.CaptureFixture[str], more: str, arguments: tuple[str, ...], said: str
) -> None:
    configured(bench.folder, more)
    assert bench.run("baseline", *arguments) == 2
    assert said in capsys.readouterr().err
    assert bench.store.verdicts.baselines("search") == []


# ---- power -----------------------------------------------------------------------------------------------------------


def test_power_has_a_line_for_each_series(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(30)
    assert bench.run("power") == 0
    shown = capsys.readouterr().out
    assert "search: ndcg(empty=zero)@10, smallest drop found within 24 h" in shown
    assert re.search(r"overall +[\d,]+ +0\.5\d+ +\d\.\d % +\d\.\d % +0\.0\d+", shown)
    assert bench.run("power", "--monitor", "search", "--format", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    drops = {one["slice"]: one["smallest"] for one in found["series"]}
    assert 0.01 < drops[""] < drops["slice 0"] < 0.2


def test_power_without_a_dimension_shows_overall_only(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    drift = bench.monitor.drift
    assert drift is not None
    bench.monitor = replace(bench.monitor, slices=(), drift=replace(drift, mix_by=None))
    path = bench.folder / "rankmon.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("    slices: [device]\n", ""), encoding="utf-8")
    bench.live(30)
    assert bench.run("power", "--format", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    (only,) = found["series"]
    assert only["smallest"] == pytest.approx(0.035, abs=0.015)


def test_power_reports_a_missing_baseline(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(5)
    assert bench.run("power") == 0
    assert re.search(r"overall +– +– +– +– +– +no baseline yet", capsys.readouterr().out)


def test_power_without_a_judged_monitor_is_an_error(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    configured(bench.folder, "")
    assert bench.run("power") == 2
    assert "search has no `drift:`, so nothing is judged; add `drift: {}` to it" in capsys.readouterr().err
