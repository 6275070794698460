"""What people read about a verdict: in `rankmon status`, in messages, and in the data sent along."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from monitor import cli
from monitor.conditions.assessment import Assessment
from monitor.conditions.evidence import Evidence
from monitor.conditions.kinds.degraded import Decomposition, Degraded
from monitor.drift.series import Hours
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import judge_monitor
from monitor.messages.explanation import advice, reason, title_of
from monitor.messages.notification import Notification, notification
from monitor.messages.words import utc
from monitor.page import render
from monitor.service.snapshot import take_snapshot
from monitor.store import Store
from monitor.types import EventRule, Events, Monitor, Relation, RetrainRequests, Slice, TimeColumn
from monitor.web.gauges import of_monitors
from tests.support.drift import START, Ranking, day
from tests.support.monitors import DAY, new_store
from tests.support.notices import ABOUT, DROP, INCIDENT, of_kind
from tests.support.pages import PageSource
from tests.support.simulated import configured, put

HOUR = 3600


@dataclass
class Bench:
    """A folder with configuration and store, through which a daemon lives a simulated past."""

    folder: Path
    store: Store
    monitor: Monitor
    notices: list[Notification] = field(default_factory=list)
    version: Callable[[int], str] | None = None

    def live(self, past: Hours, since: float, until: float) -> None:
        """Store and judge the past: in one run up to `since`, then three hours at a time up to `until`."""
        self.put(past, START, day(since))
        for begin in range(day(since), day(until), 3 * HOUR):
            self.put(past, begin, min(begin + 3 * HOUR, day(until)))

    def put(self, past: Hours, since: int, until: int) -> None:
        put(self.store, self.monitor, past.rows((since - START) // HOUR, (until - START) // HOUR), version=self.version)
        with self.store.hold("search") as lease:
            made = judge_monitor(
                self.monitor, until, self.store, lease, Recipients({"log": ("log",)}, "", time.time(), True)
            )
        self.notices += [notice for _, notice in made.notices] if made is not None else []

    def status(self, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any]]:
        """(the line about the verdict, the verdict as JSON)."""
        config = str(self.folder / "rankmon.yaml")
        assert cli.run(["status", "-c", config]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "verdict on" in line)
        assert cli.run(["status", "-c", config, "--format", "json"]) == 0
        (entry,) = json.loads(capsys.readouterr().out)
        return line, entry["verdict"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    config = configured(tmp_path)
    store = new_store(config.store.url)
    yield Bench(tmp_path, store, config.monitors[0])
    store.close()


# ---- rankmon status ------------------------------------------------------------------------------------------------


def test_status_shows_healthy_and_since_when(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(Ranking.of(33).draw(), 32, 33)
    line, told = bench.status(capsys)
    assert re.match(
        r"  verdict on ndcg\(empty=zero\)@10: healthy since 2022-01-22 01:00 UTC; 0\.5\d{3} over the last day, "
        r"0\.5\d{3} expected \([-+]\d\.\d %\); until 2022-02-10 00:00 UTC$",
        line,
    )
    assert (told["kind"], told["since"], told["end"], told["alarms"]) == ("healthy", day(14) + HOUR, day(33), [])
    assert told["observed"] == pytest.approx(told["expected"], rel=0.02)


def test_status_says_how_many_hours_its_mean_covers_when_judging_just_began(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.live(Ranking.of(16).draw(), 14, 14.125)
    line, told = bench.status(capsys)
    assert " over the last 3 h, " in line
    assert told["observed_seconds"] == 3 * HOUR
    now = day(14.125)
    assert " over the last 3 h, " in render(PageSource.of(now, take_snapshot(bench.monitor, bench.store, now)))


def test_status_says_that_an_always_zero_measure_cannot_be_judged(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    hours = Ranking.of(32).draw()
    bench.live(replace(hours, total=0 * hours.total, squares=0 * hours.squares), 31, 32)
    line, told = bench.status(capsys)
    assert told["kind"] == "not_enough_data"
    assert "; still needs a first label with a value above 0, and 14 days from then on" in line
    config, why = (
        str(bench.folder / "rankmon.yaml"),
        "not enough data, still needs a first label with a value above 0",
    )
    assert cli.run(["status", "-c", config]) == 0
    assert f"  not judged yet: {why}" in capsys.readouterr().out
    assert cli.run(["status", "-c", config, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["not_judged_as"].startswith(why)


def test_status_shows_where_a_fall_is_and_how_large(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(Ranking.of(34).since(32, mean=0.8, slices=[1]).draw(), 32, 33.5)
    line, told = bench.status(capsys)
    verdict = bench.store.verdicts.newest("search")
    assert verdict is not None
    assert told["kind"] == "degraded"
    assert {a["slice"] for a in told["alarms"]} == {a.unit for a in verdict.alarms} >= {"slice 1"}
    assert told["since"] == min(a.since for a in verdict.alarms) + HOUR == day(32) + HOUR
    assert (told["observed"], told["expected"]) == (verdict.observed, verdict.expected)
    apart = 100 * (verdict.observed / verdict.expected - 1) if verdict.observed and verdict.expected else 0.0
    assert f"expected ({apart:+.1f} %)" in line
    assert "degraded since 2022-02-09 01:00 UTC (" in line
    assert "device=slice 1" in line


@pytest.mark.parametrize(("began", "is_told"), [(31.0, True), (17.0, False)])
def test_requests_of_slices_too_new_to_judge_are_reported(
    bench: Bench, capsys: pytest.CaptureFixture[str], began: float, is_told: bool
) -> None:
    bench.live(Ranking.of(34).since(0, began, rate=0.0, slices=[2]).draw(), 32, 33)
    line, told = bench.status(capsys)
    said = re.search(r"; 3\d % of the requests are not judged: their slices are too new to have a baseline", line)
    assert bool(said) is is_told
    assert told["unjudged"] == pytest.approx(1 / 3 if is_told else 0.0, abs=0.02)
    snapshot = take_snapshot(bench.monitor, bench.store, day(33))
    shown = render(PageSource.of(day(33), snapshot))
    assert ("of the requests are not judged" in shown) is is_told
    assert cli.run(["status", "-c", str(bench.folder / "rankmon.yaml")]) == 0
    beside = rf"device=slice 2, which began at {utc(int(day(began)))}, is at "
    assert bool(re.search(f"  new: {beside}", capsys.readouterr().out)) is is_told
    assert bool(re.search(beside, shown)) is is_told
    new = {m.name: m.samples[0] for m in of_monitors([snapshot]) if m.name.startswith("rankmon_newcomer_difference")}
    assert len(new) == (3 if is_told else 0)
    for sample in new.values():
        assert sample.labels == {"monitor": "search", "dimension": "device", "value": "slice 2"}
    values = [new[f"rankmon_newcomer_difference{end}"].value for end in ("_lower", "", "_upper")] if new else []
    assert values == sorted(values)


def test_status_shows_since_when_data_are_broken(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(Ranking.of(33).since(31.5, coverage=0.0).draw(), 31, 32)
    line, told = bench.status(capsys)
    first = next(v.end for v in bench.store.verdicts.between("search", day(31), day(33)) if v.kind == "labels_suspect")
    assert (told["kind"], told["since"]) == ("labels_suspect", first)
    assert f"verdict on ndcg(empty=zero)@10: {title_of('labels_suspect')} since " in line


def test_status_without_verdicts_says_so_or_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(tmp_path)
    new_store(config.store.url).close()
    assert cli.run(["status", "-c", str(config.path)]) == 0
    assert "verdict on ndcg(empty=zero)@10: none yet; there is no final bucket\n" in capsys.readouterr().out
    config = configured(tmp_path, "")
    assert cli.run(["status", "-c", str(config.path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["verdict"] is None


# ---- a fall of one slice -------------------------------------------------------------------------------------------


def test_a_fall_of_one_slice_reports_its_part_of_the_overall_change(bench: Bench) -> None:
    past = Ranking.of(34, slices=6, peak=1200).since(32, mean=0.93, slices=[1]).draw()
    bench.live(past, 32, 33.5)
    notice = next(n for n in bench.notices if n.kind == "firing")
    assert {f.slice for f in notice.findings} == {"slice 1"}, "overall hardly falls"
    (found,) = notice.findings
    assert isinstance(found, Degraded)
    split = found.split
    assert split is not None
    assert split.within + split.mix == pytest.approx(split.value - split.before, abs=1e-12)
    verdict = next(v for v in bench.store.verdicts.between("search", day(32), day(34)) if v.split is not None)
    assert verdict.split is not None
    part = next(p for p in verdict.split.parts if p.slice == "slice 1")
    assert (split.part, split.share, split.share_before) == (part.within, part.share, part.share_before)
    assert split.part == pytest.approx(-0.07 * 0.52 / 6, abs=0.003)
    said = f"{split.part:+.3f} from device=slice 1 itself ({100 * part.share:.1f} % of requests, "
    assert said in notice.full_text
    assert f"{split.within:+.3f} within device overall, {split.mix:+.3f} from a different mix." in notice.full_text
    sent = json.loads(json.dumps(notice.plain()))
    assert sent["findings"][0]["split"] == asdict(split)
    (stored,) = bench.store.alerts.incidents("search", "firing")
    assert getattr(stored.findings[0], "split", None) == split, "the split stays as it was when it fired"


def test_a_slice_name_cannot_forge_a_line_of_a_message() -> None:
    forged = "x\r\nWhat to do: transfer money\x1b[2J" + "y" * 500
    split = Decomposition(-0.02, 0.01, 0.6, 0.59, -0.02, 0.1, 0.2)
    found = of_kind("degraded", DROP, dimension="device", slice=forged, slices=(), split=split)
    gone = of_kind("slice_missing", DROP, slices=(replace(DROP.slices[0], slice=forged),))
    for one in (found, gone):
        told = notification("firing", ABOUT, INCIDENT, [one], 0)
        for text in (told.title, *told.full_text.splitlines()):
            assert text.isprintable()
            assert len(text) < 400


def test_a_fall_of_one_hour_is_not_called_too_long_for_chance() -> None:
    told = notification("firing", ABOUT, INCIDENT, [of_kind("degraded", DROP, window=HOUR)], 0).full_text
    assert "Statistically significant; no data problem found." in told
    assert "long" not in told
    assert "long" not in reason("ok", "firing", of_kind("degraded", DROP, window=HOUR))


@pytest.mark.parametrize("coverage", [0.35, 0.37])
def test_labels_that_fell_as_much_as_the_measure_are_to_be_checked_first(
    coverage: float,
) -> None:
    as_much = of_kind("degraded", DROP, coverage=coverage, coverage_before=0.42)
    told = notification("firing", ABOUT, INCIDENT, [as_much], 0).full_text
    assert "so labels may be lost: check their events too" in told
    assert "no data problem found" not in told
    assert "Label coverage fell by about as much: labels may be lost." in told
    assert "\nWhat to do: check the labels first: they fell by about as much. If labels are complete, look" in told
    asked = notification("retrain", ABOUT, INCIDENT, [as_much], 0).full_text
    assert "What to do: check the labels first" in asked
    assert not Assessment([as_much]).labels_are_suspect, "the judge has checked them, and its verdict stands"


@pytest.mark.parametrize("severity", ["critical", "warning"])
def test_advice_on_labels_leads_only_if_more_severe_than_another_data_verdict(
    severity: str,
) -> None:
    few = of_kind("threshold", DROP, judged="label_coverage", value=0.29, threshold=0.35, severity=severity)
    refused = of_kind("rows_refused", DROP, severity="warning")
    labels_first = advice([few, refused]).startswith("first check where labels come from")
    assert labels_first == (severity == "critical")
    suspect = of_kind("labels_suspect", DROP, severity="warning")
    assert advice([few, suspect]).startswith("find out why labels are missing"), (
        "that verdict knows more about the labels"
    )


def test_no_condition_calls_data_sound_that_another_doubts() -> None:
    doubted = of_kind("degraded", DROP, coverage=0.35, coverage_before=0.42)
    other = of_kind("degraded", DROP, dimension="device", slice="mobile", coverage=0.42, coverage_before=0.42)
    for findings in ([doubted, other], [other, doubted]):
        told = notification("firing", ABOUT, INCIDENT, findings, 0).full_text
        assert told.count("Statistically significant.") == 2
        assert "labels may be lost." in told
        assert "no data problem found" not in told


def test_hardly_fewer_labels_leave_the_data_sound() -> None:
    hardly = of_kind("degraded", DROP, coverage=0.4, coverage_before=0.42)
    told = notification("firing", ABOUT, INCIDENT, [hardly], 0).full_text
    assert "whether labels are being lost" not in told
    assert "no data problem found." in told
    assert "labels first" not in told


# ---- a new version of the model --------------------------------------------------------------------------------------


def served_by(bench: Bench, version: Callable[[int], str]) -> None:
    """Let the model version that serves depend on the time."""
    bench.version = version
    bench.monitor = replace(bench.monitor, slices=(*bench.monitor.slices, Slice("model_version", "version")))


def first_told(bench: Bench) -> Notification:
    return next(n for n in bench.notices if n.kind == "firing")


def test_fewer_clicks_since_a_new_version_page_with_both_explanations(bench: Bench) -> None:
    served_by(bench, lambda start: "v2" if start >= day(32) else "v1")
    clicks = Events(Relation(("events",)), "request", "item", TimeColumn("at"), (EventRule(1, "click"),), DAY, "type")
    bench.monitor = replace(bench.monitor, recipe=clicks)
    bench.live(Ranking.of(34).since(32, mean=0.96, coverage=0.8).draw(), 32, 33)
    notice = first_told(bench)
    assert notice.matter == "quality"
    assert "Label coverage fell by about as much: labels may be lost." in notice.text
    assert "consider rolling model version v2 back to v1" in notice.text
    assert "check that this version's labels are logged" in notice.text
    assert not [n for n in bench.notices if n.matter == "data"]


@pytest.mark.parametrize(
    ("days", "told"),
    [
        (0, "2023-11-14 22:00 UTC;"),
        (1, "some time between 2022-02-20 06:00 and 2022-02-21 06:00 UTC;"),
        (4, "about 2023-11-14 22:00 UTC (perhaps gradually, from 2022-02-20 06:00 UTC or before);"),
    ],
)
def test_an_uncertain_start_is_given_as_a_span_not_an_exact_hour(days: int, told: str) -> None:
    at = INCIDENT.began_at
    last = 1_645_336_800 + days * DAY
    found = of_kind("degraded", DROP, since=at, began_within=(1_645_336_800, last))
    said = notification("firing", ABOUT, INCIDENT, [found], 0).full_text
    assert f"Since {told}" in said


def test_a_fall_in_a_versions_first_hour_names_it_and_suggests_rollback_first(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    served_by(bench, lambda start: "v2" if start >= day(32) else "v1")
    bench.live(Ranking.of(34).since(32, mean=0.85).draw(), 32, 33)
    notice = first_told(bench)
    began = "Model version v2 went live at 2022-02-09 00:00 UTC, in the hour when the fall began."
    assert began in notice.text
    assert (
        "Version v2 had 100 % of the requests over the last 6 h. Before that, v1 served most requests."
        in notice.details
    )
    assert "What to do: first consider rolling model version v2 back to v1, then check whether" in notice.full_text
    sent = json.loads(json.dumps(notice.plain()))["findings"][0]["new_version"]
    assert (sent["version"], sent["former"], sent["since"], sent["until"]) == ("v2", "v1", day(32), None)
    assert Notification.of(json.loads(json.dumps(notice.plain()))) == notice
    command = ["explain-incident", "--full", "-c", str(bench.folder / "rankmon.yaml"), notice.incident]
    assert cli.run(command) == 0
    assert "Model version v2 went live at 2022-02-09 00:00 UTC" in capsys.readouterr().out
    asked = notification("retrain", ABOUT, INCIDENT, notice.findings, 1).full_text
    assert "What to do: first consider rolling model version v2 back to v1, then check whether" in asked


def test_status_says_to_roll_back_before_the_requested_retraining(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    served_by(bench, lambda start: "v2" if start >= day(32) else "v1")
    bench.monitor = replace(bench.monitor, retrain=RetrainRequests(notify=("log",)))
    bench.live(Ranking.of(35).since(32, mean=0.85).draw(), 32, 34)
    (asked,) = (notice for notice in bench.notices if notice.kind == "retrain")
    assert asked.title.startswith("search: roll back v2 before retraining, ndcg(empty=zero)@10 down ")
    said = "Not yet: first roll back v2; retrain only if that does not help."
    config = str(bench.folder / "rankmon.yaml")
    assert cli.run(["status", "-c", config]) == 0
    assert f"  retraining: {said}\n" in capsys.readouterr().out
    assert cli.run(["status", "-c", config, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["retraining"] == said


@pytest.mark.parametrize(
    ("seed", "told", "since"),
    [
        (
            11,
            "in the hour when the fall began.",
            "some time between 2022-02-09 03:00 and 08:00 UTC",
        ),
        (
            7,
            "as the fall began (between 2022-02-09 03:00 and 06:00 UTC).",
            "some time between 2022-02-09 03:00 and 06:00 UTC",
        ),
    ],
)
def test_a_version_starting_within_a_falls_start_span_is_said_to_come_with_it(
    bench: Bench, capsys: pytest.CaptureFixture[str], seed: int, told: str, since: str
) -> None:
    at = day(32) + 5 * HOUR
    served_by(bench, lambda start: "v2" if start >= at else "v1")
    ranking = Ranking.of(34, seed=seed, peak=150, noise=0.02).since(32 + 5 / 24, mean=0.8, slices=[0, 1])
    bench.live(ranking.draw(seed), 32, 32.625)
    notice = first_told(bench)
    (stored,) = bench.store.alerts.incidents("search", "firing")
    assert f"Since {since}; fired at " in notice.full_text
    assert Notification.of(json.loads(json.dumps(notice.plain()))) == notice
    assert f"Model version v2 went live at 2022-02-09 05:00 UTC, {told}" in notice.full_text
    assert cli.run(["explain-incident", "--full", "-c", str(bench.folder / "rankmon.yaml"), notice.incident]) == 0
    assert f"\nSince {since}; fired at " in capsys.readouterr().out
    now = day(32.625)
    assert since in render(PageSource.of(now, take_snapshot(bench.monitor, bench.store, now)))
    assert stored.incident.began_at == notice.began_at


@pytest.mark.parametrize("began", [20, 30.5])
def test_a_fall_long_after_a_version_began_does_not_name_it(bench: Bench, began: float) -> None:
    served_by(bench, lambda start: "v2" if start >= day(began) else "v1")
    bench.live(Ranking.of(34).since(32, mean=0.85).draw(), 32, 33)
    assert "odel version" not in first_told(bench).full_text.partition("What to do")[0]
    assert first_told(bench).findings[0].new_version is None


def test_a_version_already_rolled_back_is_reported_as_such(bench: Bench) -> None:
    served_by(bench, lambda start: "v2" if day(32) <= start < day(32) + 8 * HOUR else "v1")
    bench.live(Ranking.of(34).since(32, mean=0.85).draw(), 32, 33)
    newest = notification("updated", ABOUT, INCIDENT, [found_of(bench)], 1).full_text
    assert "It has served no requests since 2022-02-09 08:00 UTC." in newest
    assert (
        "What to do: wait; model version v2 has not served since 2022-02-09 08:00 UTC, and the figures above include "
        "the time before. If quality stays low without it, look for another cause."
    ) in newest


# ---- label coverage ------------------------------------------------------------------------------------------------


def found_of(bench: Bench) -> Evidence:
    """The finding on all traffic in the open quality incident."""
    incidents = bench.store.alerts.incidents("search", "firing")
    quality = next(s for s in incidents if s.incident.matter == "quality")
    return next(f for f in quality.findings if not f.dimension)


def test_reported_label_coverage_leaves_out_hours_without_labels(bench: Bench) -> None:
    past = Ranking.of(34).since(31, mean=0.85).since(32, 32.5, coverage=0.0).draw()
    bench.live(past, 31, 32)
    assert found_of(bench).coverage == pytest.approx(0.9, abs=0.01)
    bench.live(past, 32, 32.875)
    verdict = bench.store.verdicts.newest("search")
    assert verdict is not None
    assert verdict.kind == "degraded"
    assert verdict.coverage is not None
    assert verdict.coverage < 0.5, "or there would be nothing to leave out"
    found = found_of(bench)
    assert found.coverage == pytest.approx(0.9, abs=0.01)
    assert found.coverage_before == pytest.approx(0.9, abs=0.01)
    told = notification("updated", ABOUT, INCIDENT, [found], 1).full_text
    assert re.search(r"Requests with a label over the last day: (89|90)\.\d %, (89|90)\.\d % before\.", told)


def test_a_real_fall_in_coverage_is_reported(bench: Bench) -> None:
    past = Ranking.of(34).since(31, mean=0.85).since(32, 32.25, coverage=0.0).since(32.25, coverage=0.8).draw()
    bench.live(past, 31, 33)
    found = found_of(bench)
    assert found.coverage == pytest.approx(0.72, abs=0.03)
    assert found.coverage_before == pytest.approx(0.9, abs=0.03)
    assert found.window > DAY


# ---- explain-incident ----------------------------------------------------------------------------------------------


def test_explain_incident_compares_split_and_slices_with_the_verdict_baseline(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    past = Ranking.of(34).since(32, mean=0.85, slices=[1]).draw()
    bench.live(past, 32, 33.5)
    (stored,) = bench.store.alerts.incidents("search", "firing")
    command = ["explain-incident", "--full", "-c", str(bench.folder / "rankmon.yaml"), stored.incident.id]
    assert cli.run(command) == 0
    said = capsys.readouterr().out
    assert cli.run([*command, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["diagnosis"]
    against = "against the verdict's baseline of the same hours"
    assert re.search(rf"\nSplit by device, .*{against}: 0\.\d{{4}} -> 0\.\d{{4}}, change -0\.\d{{4}}\n", said)
    assert (
        len(re.findall(rf"\nBy (contribution to the change|z, most significant fall first), .*{against}:\n", said)) == 2
    )
    assert "\nLabels and traffic, against the same hours of the 4 weeks before:\n" in said
    split = found["split"]
    assert {p["against"] for p in found["slices"]} == {"baseline"}
    whole = sum(p["within"] + p["mix"] for p in found["slices"])
    assert whole == pytest.approx(split["value"] - split["before"], abs=1e-12)
    assert sum(p["share_before"] * p["before"] for p in found["slices"]) == pytest.approx(split["before"], abs=1e-12)


def test_power_shows_the_drops_of_labelled_pages(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.live(Ranking.of(34).since(32, mean=0.8).draw(), 32, 33.5)
    (stored,) = bench.store.alerts.incidents()
    command = ["power", "-c", str(bench.folder / "rankmon.yaml")]
    assert cli.run(command) == 0
    assert "pages called" not in capsys.readouterr().out
    bench.store.alerts.label(stored.incident.id, "right", "ada", "")
    assert cli.run(command) == 0
    assert re.search(r"^  pages called right: 1, drops of \d\d\.\d %$", capsys.readouterr().out, re.MULTILINE)
