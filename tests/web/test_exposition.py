"""The exact text of `/metrics`, and that Prometheus' own checker accepts it."""

import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from monitor.clock import ReplayClock
from monitor.conditions.incident import Incident
from monitor.conditions.rules import Baseline, Drop, Floor, Rule
from monitor.conditions.thresholds import Condition, Evaluation, State
from monitor.fields import RESERVED_LABELS
from monitor.measures.measure import SPECS, parse
from monitor.series.windows import Point
from monitor.service.snapshot import Board, MonitorSnapshot, RuleReading, Series
from monitor.service.telemetry import QueueStatus, Telemetry
from monitor.store import Progress
from monitor.store.alerts import StoredIncident
from monitor.types import OVERALL, Column, Monitor, Position, Rankings, Relation, Slice, TimeColumn
from monitor.web.exposition import MAX_FORMATS, Exposition
from monitor.web.gauges import GAUGES
from tests.support import references
from tests.support.metrics import registry
from tests.support.requirements import missing

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.txt"

BASELINE = Baseline(trailing=21 * 86_400)
DROP = Rule("drop", parse("ndcg@10"), 86_400, Drop(0.07, 0.04, True, BASELINE), slices=(("device", None),))
FLOOR = Rule("floor", parse("dcg@5"), 86_400, Floor(2.5, 2.5), severity="warning")
COVERAGE = Rule("labels", None, 86_400, Floor(0.1, 0.1), severity="info")

MONITOR = Monitor(
    name="search",
    source="shop",
    rankings=Rankings(Relation(("log",)), "request", "item", Position("position"), TimeColumn("at")),
    recipe=Column("grade"),
    measures=(parse("ndcg@10"), parse("dcg@5"), parse("click_position")),
    slices=(Slice("device", "device"),),
    labels=(("team", 'find"ers\n'),),
    runbook_url="https://wiki.example.com/search",
    alerts=(DROP, FLOOR, COVERAGE),
)


def point(dimension: str = "", name: str = "", value: float | None = 0.75, completeness: float = 1.0) -> Point:
    return Point(
        dimension,
        name,
        end=1_646_092_800,
        length=86_400,
        value=value,
        lower=None if value is None else value - 0.05,
        upper=None if value is None else value + 0.05,
        method="history",
        requests=200,
        empty_ratio=0.25,
        label_coverage=0.5,
        completeness=completeness,
        final=True,
    )


def series(measure: str, *final: Point, provisional: tuple[Point, ...] = ()) -> Series:
    parsed = parse(measure)
    return Series(parsed, MONITOR.definition(parsed), 86_400, final, provisional)


def snapshot(*found: Series) -> MonitorSnapshot:
    progress = Progress(1_646_092_790.0, 1_646_092_900.0, 1_646_092_900.5)
    refused, incident = MappingProxyType({"null_item": 7}), Incident("search", 1_646_000_000, 1_646_089_200)
    return MonitorSnapshot(
        MONITOR,
        1_646_092_901.0,
        found,
        progress,
        3,
        refused,
        unmatched=2,
        future_rows=0,
        due_buckets=1,
        readings=READINGS,
        opened=MappingProxyType({"quality": StoredIncident(incident, told=True)}),
        recommends_retraining=True,
    )


def reading(rule: Rule, key: tuple[str, str], state: State, baseline: float | None, below: float) -> RuleReading:
    seen = Evaluation(1_646_092_800, "", 200, 0.7, baseline, below, below)
    return RuleReading(rule, key, seen, Condition(state))


READINGS = (
    reading(DROP, OVERALL, "pending", 0.8, 0.744),
    reading(DROP, ("device", "mobile"), "firing", 0.7, 0.651),
    reading(FLOOR, OVERALL, "ok", None, 2.5),
    reading(COVERAGE, OVERALL, "ok", None, 0.1),
)


@pytest.fixture
def board() -> Board:
    made = Board()
    provisional = (replace(point(value=0.5), final=False),)
    found = snapshot(
        series("ndcg@10", point(), point("device", 'mobile "2"\n\\', 0.6), provisional=provisional),
        series("dcg@5", point(value=3.25)),
        series("click_position", point(value=None)),
    )
    made.publish(replace(found, places=MappingProxyType({"device": 12})))
    return made


@pytest.fixture
def telemetry() -> Telemetry:
    made = Telemetry()
    made.count("rankmon_evaluations", "search", by=4)
    made.count("rankmon_evaluation_failures", "search", "timeout")
    made.count("rankmon_notifications_sent", "oncall", by=3)
    made.queues = MappingProxyType({"log": QueueStatus(), "oncall": QueueStatus(2, 1_646_092_000.5, 3, 1)})
    made.count("rankmon_skipped_runs", "search", "still_running", by=0)
    return made


def text(board: Board, telemetry: Telemetry) -> str:
    """The exposition without the parts that differ between machines."""
    own = ("process_", "python_info")
    lines = generate_latest(registry(board, telemetry)).decode().splitlines()
    kept = [s for s in lines if not s.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(own)]
    return "\n".join(s.split("{")[0] + "{...} 1.0" if s.startswith("rankmon_build_info{") else s for s in kept) + "\n"


@pytest.mark.parametrize("speed", [1.0, 600.0])
def test_a_replay_shifts_its_timestamps_to_the_present(board: Board, telemetry: Telemetry, speed: float) -> None:
    """Alert rules and panels use Prometheus' own time: a demo that replays data two weeks old must not look stale."""
    now = board.snapshots["search"].progress.last_success_at
    assert now is not None
    shown, _ = Exposition(board, telemetry, ReplayClock(now + 60, speed)).text("")
    families = text_string_to_metric_families(shown.decode())
    instants = {f.name: f.samples[0].value for f in families if f.name.endswith("_timestamp_seconds") and f.samples}
    assert instants["rankmon_last_success_timestamp_seconds"] == pytest.approx(time.time() - 60 / speed, abs=5)
    assert instants["rankmon_window_end_timestamp_seconds"] > time.time() - 86_400
    assert instants["rankmon_notification_oldest_timestamp_seconds"] == 1_646_092_000.5
    as_stored = {f.name: f.samples[0].value for f in registry(board, telemetry).collect() if f.samples}
    assert as_stored["rankmon_last_success_timestamp_seconds"] == now


def test_the_exposition_equals_the_golden_file(board: Board, telemetry: Telemetry) -> None:
    assert text(board, telemetry) == GOLDEN.read_text(encoding="utf-8")


def test_the_metrics_reference_names_every_family_and_label(board: Board, telemetry: Telemetry) -> None:
    page = references.PAGES["metrics"]()
    listed = dict(re.findall(r"^\| `rankmon_(\w+)` \| (.*?) \|", page, re.MULTILINE))
    assert {gauge.name for gauge in GAUGES} <= set(listed)
    assert [name for name, labels in listed.items() if not labels] == ["config_last_reload_successful"], (
        "only this one belongs to the process"
    )
    own = {"team"}  # the monitor's own label
    of_measures = {f"{name}{unit}" for name in SPECS for unit in ("", "_ratio")}
    for family in registry(board, telemetry).collect():
        for sample in family.samples if family.name.startswith("rankmon_") else ():
            name = family.name.removeprefix("rankmon_")
            known = listed.get(name) or listed.get(f"{name}_total") or listed.get(name.removeprefix("slice_"))
            if known is None:
                left = name.removeprefix("slice_").removeprefix("provisional_")
                assert re.sub("_(lower|upper)", "", left) in of_measures, f"{name} is not in the reference"
            else:
                more = {"dimension", "value"} if name.startswith("slice_") else set()
                assert set(sample.labels) - own - {"le"} - more <= set(re.findall(r"`(\w+)`", known)), name


def test_promtool_accepts_every_name_and_type(board: Board, telemetry: Telemetry) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        missing("promtool is not installed (Debian package prometheus)")
    checked = subprocess.run(
        [str(promtool), "check", "metrics"], input=generate_latest(registry(board, telemetry)), capture_output=True
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_windows_without_value_or_with_low_completeness_give_no_sample(telemetry: Telemetry) -> None:
    board = Board()
    board.publish(snapshot(series("ndcg@10", point(completeness=0.5)), series("click_position", point(value=None))))
    shown = text(board, telemetry)
    assert "rankmon_ndcg_ratio{" not in shown
    assert "rankmon_click_position{" not in shown
    assert "rankmon_window_completeness_ratio{definition=" in shown


def test_series_removed_from_the_board_leave_the_exposition(board: Board, telemetry: Telemetry) -> None:
    assert "device" in text(board, telemetry)
    board.publish(replace(snapshot(series("ndcg@10", point())), readings=READINGS[:1]))
    assert "device" not in text(board, telemetry)
    board.keep_only([])
    assert "rankmon_ndcg" not in text(board, telemetry)


@pytest.mark.parametrize(("told", "until"), [(False, "1.7e+09"), (True, "0.0")])
def test_a_silence_covers_only_incidents_not_yet_announced(told: bool, until: str, telemetry: Telemetry) -> None:
    board, incident = Board(), Incident("search", 0, 3600, "firing", "critical", False)
    found = replace(snapshot(series("ndcg@10", point())), silenced_until=1.7e9)
    stored = StoredIncident(incident, told=told, acknowledged_at=5.0)
    board.publish(replace(found, opened=MappingProxyType({"quality": stored})))
    shown = text(board, telemetry)
    assert f'rankmon_silenced_until_timestamp_seconds{{matter="quality",monitor="search"}} {until}' in shown
    assert 'rankmon_silenced_until_timestamp_seconds{matter="data",monitor="search"} 1.7e+09' in shown
    assert 'rankmon_incident_acknowledged{matter="quality",monitor="search"} 1.0' in shown
    assert 'rankmon_incident_acknowledged{matter="data",monitor="search"} 0.0' in shown


def test_no_label_set_is_exposed_twice(board: Board, telemetry: Telemetry) -> None:
    samples = [s.rsplit(" ", 1)[0] for s in text(board, telemetry).splitlines() if not s.startswith("#")]
    assert len(samples) == len(set(samples))


def test_registering_twice_in_one_process_works(board: Board, telemetry: Telemetry) -> None:
    assert text(board, telemetry) == text(board, telemetry)


def test_metric_labels_are_reserved_from_monitors(board: Board, telemetry: Telemetry) -> None:
    telemetry.count("rankmon_config_reloads", "applied")
    families = registry(board, telemetry).collect()
    samples = [s for f in families for s in f.samples if s.name.startswith("rankmon_")]
    own = {name for s in samples for name in s.labels if s.name != "rankmon_monitor_info"}
    assert own <= RESERVED_LABELS


# ---- kept text -------------------------------------------------------------------------------------------------------

ACCEPTS = [
    "",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3",
]


def families_of(text: bytes) -> list[str]:
    """Each family with its head and samples, except those that change with every scrape."""
    parts = ("\n" + text.decode().removesuffix("# EOF\n")).split("\n# HELP ")[1:]
    return sorted(part.rstrip("\n") for part in parts if not part.startswith("process_"))


@pytest.mark.parametrize("accept", ACCEPTS)
def test_kept_text_equals_the_client_librarys_after_every_change(
    board: Board, telemetry: Telemetry, accept: str
) -> None:
    encode, expected_kind = choose_encoder(accept)
    kept = Exposition(board, telemetry)

    def same() -> bytes:
        text, kind = kept.text(accept)
        expected = encode(registry(board, telemetry))
        assert kind == expected_kind
        assert families_of(text) == families_of(expected)
        assert text.endswith(b"# EOF\n") == expected.endswith(b"# EOF\n")
        return text

    was = board.snapshots["search"]
    board.keep_only(())
    same()
    board.publish(was)
    same()
    for name, measure in (("ads", "mrr@10"), ("zoo", "map@5")):  # kinds of measures no other monitor has
        other = replace(snapshot(series(measure, point())), monitor=replace(MONITOR, name=name, slices=()))
        board.publish(other)
        same()
    board.publish(replace(was, future_rows=8, opened=MappingProxyType({})))
    assert b'rankmon_source_future_rows{monitor="search"} 8' in same()
    telemetry.count("rankmon_evaluations", "search", by=3)
    same()
    board.keep_only(["zoo"])
    assert b'"search", measure' not in same()


def test_an_unchanged_monitor_is_not_rendered_again(board: Board, telemetry: Telemetry) -> None:
    kept = Exposition(board, telemetry)
    board.publish(replace(board.snapshots["search"], monitor=replace(MONITOR, name="other")))
    first = {name: families for name, (_, families) in _kept(kept).items()}
    board.publish(replace(board.snapshots["other"], due_buckets=2))
    again = {name: families for name, (_, families) in _kept(kept).items()}
    assert again["search"] is first["search"]
    assert again["other"] is not first["other"]


def _kept(kept: Exposition) -> Any:
    _, kind = kept.text("")
    return kept._kept[kind]


def test_made_up_formats_do_not_fill_the_cache(board: Board, telemetry: Telemetry) -> None:
    kept = Exposition(board, telemetry)
    for number in range(1, 20):
        text, _ = kept.text(f"application/openmetrics-text;version=1.0.{number}")
    assert len(kept._kept) <= MAX_FORMATS
    assert list(text_string_to_metric_families(text.decode().removesuffix("# EOF\n")))
