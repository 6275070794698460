"""Edge cases of coarser buckets: intervals near them, gaps filled later, rules that need them, orphaned monitors."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa

from monitor.cli import run
from monitor.cli.commands.series import series_table
from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.config import load
from monitor.measures.measure import parse
from monitor.series import partials as b
from monitor.service.orphaned import OrphanedMonitors
from monitor.service.retention import FROM_THE_FIRST_EVERY, RetentionWorker, baselines_gone
from monitor.service.snapshot import Board, take_snapshot
from monitor.service.telemetry import Telemetry
from monitor.store import Store, schema
from monitor.types import Monitor, Retention, RollUp
from tests.support.metrics import registry
from tests.support.monitors import new_store
from tests.support.simulated import CONFIG
from tests.support.tallies import HOUR, rows, tally, watched, write

DAY = 24 * HOUR
DAYS, AGE = 20, 6
MONITOR = replace(watched(), windows=(6 * HOUR, DAY, 3 * DAY, 7 * DAY), retention=Retention(None, RollUp(AGE * DAY)))
"""Its ages are shorter than a configuration allows, so that little data suffices."""
BORDER = (DAYS - AGE) * DAY


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    made = new_store(database_url)
    yield made
    made.close()


def fill(store: Store, hours: range = range(DAYS * 24), monitor: Monitor = MONITOR) -> None:
    """Requests whose number and mean vary with the hour and the day."""
    tallied = tally(monitor, {n * HOUR: {"mobile": 6 + n % 24 % 5, "desktop": 3} for n in hours})
    for cells in tallied.measures.values():
        for (start, *key), sums in cells.items():
            rng = np.random.default_rng(start + len(key[1]))
            mean = 0.5 + 0.1 * np.sin(start / DAY * 2 * np.pi) + 0.05 * rng.normal() + 0.02 * (start // DAY % 3)
            sums[b.TOTAL], sums[b.SQUARES] = mean * sums[b.REQUESTS], (mean**2 + 0.04) * sums[b.REQUESTS]
    with store.hold(monitor.name) as lease:
        write(store, lease, monitor, tallied)


def keep(store: Store, monitor: Monitor = MONITOR, keeping: RetentionWorker | None = None) -> RetentionWorker:
    """Do all the work that is due in one go."""
    keeping = keeping or RetentionWorker(monitor, store, clock=lambda: 0.0)
    with store.hold(monitor.name) as lease:
        keeping.advance(lease, DAYS * DAY, lambda: False)
    return keeping


def table(store: Store, step: int) -> pd.DataFrame:
    wanted = (MONITOR.measures[:1], (*MONITOR.windows, 30 * HOUR), (0, DAYS * DAY), step, True)
    return series_table(store, MONITOR, *wanted).set_index(["window", "end", "dimension", "slice"])


def bounds(found: pd.DataFrame) -> list[tuple[str, str, str]]:
    """(lower, upper, method) of each window, rounded because rolling up changes the last digits."""
    columns = [found[name].map("{:.9f}".format).tolist() for name in ("lower", "upper")]
    return list(zip(*columns, found["method"].tolist(), strict=True))


# ---- intervals -----------------------------------------------------------------------------------------------------


def test_an_interval_near_coarser_buckets_is_unchanged_or_from_later_data_or_none(store: Store, tmp_path: Path) -> None:
    fill(store)
    later = new_store(f"sqlite:///{tmp_path}/later.db")
    fill(later, range(BORDER // HOUR, DAYS * 24))
    before, alone = table(store, 6 * HOUR), table(later, 6 * HOUR)
    later.close()
    keep(store)
    after = table(store, 6 * HOUR)
    keys, seen = after.index.to_frame(), {"as it was": 0, "of what came after": 0, "none": 0}
    names, midnight = keys["window"].tolist(), (keys["end"].dt.hour == 0).tolist()
    found = (bounds(each.reindex(after.index)) for each in (after, before, alone))
    for name, is_midnight, now, was, later_on in zip(names, midnight, *found, strict=True):
        kind = "none" if now[2] == "none" else "as it was" if now == was else "of what came after"
        seen[kind] += 1
        assert kind != "none" or now[:2] == ("nan", "nan")
        assert kind != "of what came after" or now == later_on
        assert kind == "as it was" or not is_midnight or name in ("6h", "30h")
    assert all(seen.values())
    assert not (before.method == "none").any()


def test_windows_over_weekly_buckets_have_no_interval(store: Store) -> None:
    """The days of such a week are not known."""
    fill(store)
    before = table(store, 7 * DAY)
    keep(store, replace(MONITOR, retention=Retention(None, RollUp(AGE * DAY, 7 * DAY))))
    after = table(store, 7 * DAY).loc["7d"]
    assert len(after) == 2 * 3
    assert set(after.method) == {"none"}
    np.testing.assert_allclose(after.value, before.loc["7d"].value, rtol=1e-12)


# ---- rolling up again ------------------------------------------------------------------------------------------------


def coarse(store: Store) -> list[tuple[int, int]]:
    query = (
        sa.select(schema.buckets.c.bucket_start, schema.buckets.c.seconds)
        .where(schema.buckets.c.seconds > 0)
        .distinct()
    )
    return [(start // DAY, seconds // HOUR) for start, seconds in store.rows(query.order_by("bucket_start"))]


def test_buckets_read_again_replace_the_coarser_bucket_made_of_them(store: Store) -> None:
    fill(store)
    keep(store)
    before = rows(store)
    fill(store, range(48, 72))
    keep(store)
    assert rows(store, "restatements") == {name: of for name, of in before.items() if name != "restatements"}


def test_a_span_with_a_coarser_bucket_of_another_length_is_left_and_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    fill(store)
    keep(store, replace(MONITOR, retention=Retention(None, RollUp(AGE * DAY, 7 * DAY))))
    fill(store, range(24, 48))
    before = rows(store)
    caplog.clear()
    with caplog.at_level(logging.INFO, "monitor.service.retention"):
        keep(store)
    assert rows(store) == before
    (said,) = caplog.messages
    assert said.endswith("0 days deleted, 1 span left as there is a coarser bucket with a different length")


def test_a_day_whose_gap_was_filled_later_is_rolled_up_within_a_day(store: Store) -> None:
    fill(store, range(30))
    fill(store, range(31, DAYS * 24))
    at = [0.0]
    keeping = keep(store, keeping=RetentionWorker(MONITOR, store, clock=lambda: at[0]))
    assert (1, 24) not in coarse(store)
    fill(store, range(30, 31))
    at[0] = FROM_THE_FIRST_EVERY / 2
    keep(store, keeping=keeping)
    assert (1, 24) not in coarse(store)
    at[0] = FROM_THE_FIRST_EVERY
    keep(store, keeping=keeping)
    assert coarse(store) == [(n, 24) for n in range(DAYS - AGE)]


# ---- rules whose baseline is gone ------------------------------------------------------------------------------------

PINNED = (2 * DAY, 4 * DAY)


def pinning(span: tuple[int, int] = PINNED) -> Rule:
    return Rule("stays", parse("ndcg@10"), DAY, Drop(0.1, 0.1, True, Baseline(pinned=span)))


def test_a_rule_pinned_to_rolled_up_buckets_is_reported(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    fill(store)
    late, early = (replace(MONITOR, alerts=(pinning(),), retention=r) for r in (MONITOR.retention, Retention()))
    assert baselines_gone(late, store) == []
    keep(store)
    (said,) = baselines_gone(late, store)
    span = "1970-01-03 00:00 UTC to 1970-01-05 00:00 UTC"
    why = "was rolled up into coarser buckets; pin a later time"
    assert said == f"alert rule stays cannot fire: its pinned baseline, {span}, {why}"
    at = [0.0]
    keeping = RetentionWorker(early, store, clock=lambda: at[0])
    for at[0] in (0.0, 1e4, 2e4):
        keep(store, early, keeping)
    assert [r.levelname for r in caplog.records if said in r.getMessage()] == ["WARNING"]
    board = Board()
    board.publish(take_snapshot(late, store, DAYS * DAY))
    found = list(registry(board, Telemetry()).collect())
    assert not [s for m in found if m.name.startswith("rankmon_baseline") for s in m.samples if "rule" in s.labels]


def test_a_rule_pinned_to_unread_data_is_reported_with_a_hint_to_backfill(store: Store) -> None:
    fill(store, range(10 * 24, DAYS * 24))
    (said,) = baselines_gone(replace(MONITOR, alerts=(pinning(),)), store)
    assert said.endswith("was never read or was deleted; pin a later time or backfill it")
    to_come = pinning(((DAYS + 1) * DAY, (DAYS + 2) * DAY))
    assert baselines_gone(replace(MONITOR, alerts=(to_come,)), store) == []


RULES = """\
    drift: {}
    alerts:
      - {name: stays, measure: ndcg@10, window: 24h, drop: 5%, baseline: {pinned: {from: 1970-01-03, to: 1970-01-05}}}
"""


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Runs a command over a store with an incomplete first day and rolled-up old days; returns its output."""
    path = tmp_path / "rankmon.yaml"
    path.write_text(CONFIG.format(folder=tmp_path) + RULES, encoding="utf-8")
    (monitor,) = load(path, {}).monitors
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    fill(store, range(5, DAYS * 24), replace(monitor, slices=()))
    keep(store, replace(monitor, alerts=(), retention=Retention(None, RollUp(AGE * DAY))))

    def invoke(*arguments: str) -> str:
        run([*arguments, "--config", str(path)])
        said = capsys.readouterr()
        return " ".join((said.out + said.err).split())

    yield invoke
    store.close()


@pytest.mark.parametrize("arguments", [("status",), ("check-config", "--connect")], ids=" ".join)
def test_status_and_check_config_report_a_rule_without_its_baseline(
    command: Callable[..., str], arguments: tuple[str, ...]
) -> None:
    assert "alert rule stays cannot fire: its pinned baseline, 1970-01-03 00:00 UTC" in command(*arguments)


@pytest.mark.parametrize("arguments", [(), ("--from", "1970-01-02"), ("--from", "1970-01-10")], ids=" ".join)
def test_replay_says_from_when_it_evaluates_despite_older_buckets(
    command: Callable[..., str], arguments: tuple[str, ...]
) -> None:
    said = command("replay", *arguments)
    assert "nothing before 1970-01-15 00:00 UTC can be evaluated" in said
    assert "the buckets from 1970-01-02 00:00 UTC to 1970-01-15 00:00 UTC were rolled up" in said
    assert re.search(r"search: 1970-01-15 00:00 UTC to .*, judged by what is stored since 1970-01-15 00:00 UTC", said)


def test_replay_from_a_later_time_does_not_mention_rolled_up_buckets(command: Callable[..., str]) -> None:
    assert "can be evaluated" not in command("replay", "--from", "1970-01-16")


# ---- orphaned monitors -----------------------------------------------------------------------------------------------

GONE = replace(MONITOR, name="gone")


def buckets(store: Store, *monitors: Monitor) -> list[bool]:
    """Whether each monitor has any rows."""
    return [store.retention.holding(monitor.name).rows > 0 for monitor in monitors]


def abandoned(store: Store, *names: str) -> OrphanedMonitors:
    return OrphanedMonitors(store, lambda: names)


def test_buckets_of_long_abandoned_monitors_are_deleted(store: Store) -> None:
    others = [replace(MONITOR, name=name) for name in ("configured", "run lately", "never run")]
    for monitor in (GONE, *others):
        fill(store, range(3 * 24), monitor)
    for name, at in (("gone", 100.0), ("configured", 100.0), ("run lately", 900.0)):
        store.record(name, last_attempt_at=at)
    looking = abandoned(store, "configured")
    looking.forget(500.0)
    assert buckets(store, GONE, *others) == [True] * 4
    looking.forget(500.0)
    assert buckets(store, GONE, *others) == [False, True, True, True]
    looking.forget(500.0)
    assert buckets(store, *others) == [True] * 3


def test_a_monitor_run_with_another_clock_is_left_alone(store: Store) -> None:
    fill(store, range(24), GONE)
    store.record("gone", last_attempt_at=100.0)
    looking = abandoned(store)
    for _ in range(3):
        with store.hold("gone"):
            looking.forget(500.0)
        with store.hold("gone"):
            pass
        looking.forget(500.0)
    assert buckets(store, GONE) == [True]


def test_a_long_deletion_continues_on_the_next_look(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.service.orphaned.DELETE_FOR", 0.0)
    fill(store, range(24), GONE)
    store.record("gone", last_attempt_at=100.0)
    looking = abandoned(store)
    looking.forget(500.0)
    looking.forget(500.0)
    assert buckets(store, GONE) == [True]
    monkeypatch.setattr("monitor.service.orphaned.DELETE_FOR", 60.0)
    looking.forget(500.0)
    assert buckets(store, GONE) == [False]


def test_an_emptied_monitor_is_left_alone_until_it_has_buckets_again(store: Store) -> None:
    fill(store, range(3 * 24), GONE)
    store.record("gone", last_attempt_at=100.0)
    keep(store, replace(GONE, retention=Retention(None, RollUp(DAY))))
    looking = abandoned(store)
    for _ in range(2):
        looking.forget(500.0)
    left = rows(store)
    assert not any(left[name] for name in ("buckets", "partials", "traffic", "refusals"))
    held = store.leases.number("gone")
    asked: list[str] = []

    def listening(connection: object, cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith(("BEGIN", "COMMIT", "ROLLBACK")) and "set_config" not in statement:
            asked.append(statement)

    sa.event.listen(store.engine, "before_cursor_execute", listening)
    for _ in range(3):
        looking.forget(500.0)
    sa.event.remove(store.engine, "before_cursor_execute", listening)
    assert store.leases.number("gone") == held
    assert [statement.split()[0] for statement in asked] == ["SELECT"] * 3, "one query a look, for abandoned monitors"
    fill(store, range(24), GONE)
    for _ in range(2):
        looking.forget(500.0)
    assert buckets(store, GONE) == [False]


@pytest.mark.parametrize("mark", [None, "refused"])
@pytest.mark.parametrize("seconds", [0, DAY])
def test_any_leftover_of_an_abandoned_monitor_is_deleted(store: Store, mark: str | None, seconds: int) -> None:
    """A process may be killed anywhere, and the next one must delete what it left."""
    fill(store, range(48), GONE)
    store.record("gone", last_attempt_at=100.0)
    number = store.integer(sa.select(schema.series.c.id).where(schema.series.c.monitor == "gone").limit(1))
    left = {"series_id": number, "bucket_start": 0, "seconds": seconds, "read_at": 1.0, "final": False, "mark": mark}
    store.change(schema.buckets.delete())
    store.change(schema.buckets.insert().values(left))
    looking = abandoned(store)
    for _ in range(2):
        looking.forget(500.0)
    assert store.rows(sa.select(schema.buckets)) == []
