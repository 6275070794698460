"""The history that cycles keep in memory equals the store, whatever is written in between and by whom."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.drift.state import DriftState
from monitor.errors import LeaseLost
from monitor.measures.measure import parse
from monitor.series.partials import NUM, Partials
from monitor.series.windows import History, points
from monitor.service.cycle import BatchSize, run_backfill
from monitor.service.snapshot import take_snapshot
from monitor.source.pull import Pull
from monitor.store import CachedStore, Store
from monitor.store.history_cache import MemoryBudget, reach
from monitor.store.schema import buckets, traffic
from monitor.types import Definition, Monitor
from tests.benchmarks.incremental import Daemon, write_log
from tests.support.drift import Ranking, day
from tests.support.monitors import new_store
from tests.support.tallies import HOUR, tally, watched, write

DAY = 24 * HOUR
MONITOR = replace(watched(), windows=(6 * HOUR, 2 * DAY))
DEVICES = ["mobile", "desktop", "tablet", "tv", "watch"]


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    made = new_store(database_url)
    yield made
    made.close()


def put(store: Store, hours: range | list[int], seed: int, devices: list[str], monitor: Monitor = MONITOR) -> None:
    """Writes hours of random counts under a lease of the given store."""
    with store.hold(monitor.name) as lease:
        write(store, lease, monitor, drawn(hours, seed, devices), force=True)


def drawn(hours: range | list[int], seed: int, devices: list[str]) -> Partials:
    rng = np.random.default_rng(seed)
    return tally(MONITOR, {n * HOUR: {d: int(rng.poisson(3)) for d in devices} for n in hours})


def same(known: Store, plain: Store, spans: list[tuple[int, int]], monitor: Monitor = MONITOR) -> None:
    """Asserts that each span of each series is equal to the last bit, and its windows to 1e-12."""
    for definition in monitor.definitions:
        for since, until in spans:
            for overall_only in (False, True):
                found, expected = (s.history(definition, since, until, overall_only) for s in (known, plain))
                assert found.slices == expected.slices
                for name in ("starts", "final"):
                    np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
                np.testing.assert_array_equal(found.sums, expected.sums)
    until = max(until for _, until in spans)
    for measure in monitor.measures:
        for length in monitor.windows:
            assert_alike(*(windows(s, measure, length, until) for s in (known, plain)))


def windows(store: Store, measure: Any, length: int, end: int) -> list[Any]:
    of: list[Definition] = [MONITOR.definition(measure), MONITOR.traffic]
    return points(measure, *(store.history(d, end - 30 * DAY, end) for d in of), HOUR, length, end)


def assert_alike(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in one.__dataclass_fields__:
            now, then = getattr(one, name), getattr(other, name)
            assert now == (pytest.approx(then, abs=1e-12, rel=0) if isinstance(then, float) else then), name


@pytest.mark.parametrize("seed", range(2))
def test_the_cache_equals_the_store_whoever_writes(store: Store, seed: int) -> None:
    rng = np.random.default_rng(seed)
    known, other = CachedStore(store, MONITOR), Store(store.url)
    put(known, range(3 * 24), seed, DEVICES[:2])
    newest, devices = 3 * 24, 2
    for step in range(20):
        devices = min(len(DEVICES), devices + (rng.random() < 0.15))
        old = sorted(rng.choice(newest, rng.integers(1, 12), replace=False).tolist())
        match rng.choice(["next", "next", "next", "restate", "backfill", "restart", "gap"]):
            case "restate":
                put(known, range(old[0], old[-1] + 1), step, DEVICES[:devices])
            case "backfill":
                put(other, range(old[0], old[-1] + 1), step, DEVICES[:devices])
                with known.hold(MONITOR.name):
                    pass  # as the next cycle does first
            case "restart":
                known = CachedStore(store, MONITOR)
                with known.hold(MONITOR.name):
                    pass
            case kind:
                newest += int(rng.integers(2, 90)) if kind == "gap" else 0
                put(known, [newest], step, DEVICES[: rng.integers(0, devices + 1)])
                newest += 1
        spans = [(0, newest * HOUR), ((newest - 30) * HOUR, newest * HOUR), (old[0] * HOUR, old[-1] * HOUR)]
        same(known, other, spans)
    other.close()


def test_pooled_readings_are_cached_in_full(store: Store) -> None:
    pooled = replace(MONITOR, measures=(parse("ndcg(aggregate=pooled)@10"),))
    known = CachedStore(store, pooled)
    put(known, range(48), 0, DEVICES, pooled)
    for _ in range(2):
        assert known.history(pooled.definitions[1], 0, 48 * HOUR).sums[..., NUM].any()
        same(known, store, [(0, 48 * HOUR), (5 * HOUR, 9 * HOUR)], pooled)


def test_counts_that_outgrow_their_type_stay_exact(store: Store) -> None:
    known = CachedStore(store, MONITOR)
    for hour in range(4):
        put(known, [hour], hour, DEVICES)
        grown = {"requests": 60_000**hour, "impressions": 7**hour}
        of_hour = sa.select(buckets.c.id).where(buckets.c.bucket_start == hour * HOUR)
        store.change(traffic.update().where(traffic.c.bucket_id.in_(of_hour)).values(grown))
        same(known, store, [(0, 4 * HOUR)])
    kinds = [field.dtype for field in known._known[MONITOR.traffic]._fields]
    assert {np.dtype(np.uint16), np.dtype(np.float64)} == set(kinds)


def test_a_part_of_the_cache_shares_memory_and_cannot_be_written(store: Store) -> None:
    put(store, range(100), 6, DEVICES[:3])
    known, plain, definition = CachedStore(store, MONITOR), Store(store.url), MONITOR.traffic
    whole = known.history(definition, 0, 100 * HOUR)
    part = known.history(definition, 20 * HOUR, 90 * HOUR)
    assert np.shares_memory(whole.sums, part.sums)
    same(known, plain, [(0, 100 * HOUR), (20 * HOUR, 90 * HOUR), (30 * HOUR, 100 * HOUR)])
    with pytest.raises(ValueError, match="read-only"):
        part.sums[0] = 7  # it is shared
    held = part.sums.copy()
    with known.hold(MONITOR.name) as lease:
        write(known, lease, MONITOR, drawn(range(80, 95), 7, DEVICES[:3]), force=True)
    same(known, plain, [(20 * HOUR, 90 * HOUR)])
    np.testing.assert_array_equal(part.sums, held)
    assert not np.array_equal(known.history(definition, 20 * HOUR, 90 * HOUR).sums, held)
    plain.close()


def test_only_buckets_stored_since_the_last_read_are_loaded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    known, asked, partials = CachedStore(store, MONITOR), list[int](), Store.partials

    def counted(store: Store, definition: Definition, since: int, until: int, *more: Any) -> Any:
        asked.append((until - since) // HOUR)
        return partials(store, definition, since, until, *more)

    put(known, range(200), 0, DEVICES)
    span = (0, 201 * HOUR)
    known.history(MONITOR.traffic, *span)
    monkeypatch.setattr(Store, "partials", counted)
    known.history(MONITOR.traffic, *span)
    assert asked == []
    put(known, [200], 1, DEVICES)
    known.history(MONITOR.traffic, *span)
    known.history(MONITOR.traffic, *span)
    assert asked == [1]


def test_data_older_than_the_cache_is_read_from_the_store(store: Store) -> None:
    known, long_ago = CachedStore(store, MONITOR), reach(MONITOR) // HOUR + 100
    put(known, range(24), 0, DEVICES)
    put(known, range(long_ago, long_ago + 24), 1, DEVICES)
    everything = (0, (long_ago + 24) * HOUR)
    for _ in range(2):
        assert len(known.history(MONITOR.traffic, *everything).starts) == 48
        assert len(known.history(MONITOR.traffic, everything[1] - 48 * HOUR, everything[1]).starts) == 24


def test_only_the_part_older_than_the_cache_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    known, first = CachedStore(store, MONITOR), reach(MONITOR) // HOUR + 24
    put(known, range(0, 48, 2), 0, DEVICES[:2])
    put(known, range(first - 24, first + 100), 1, DEVICES[1:])
    end = (first + 100) * HOUR
    spans = [(0, end), (10 * HOUR, end - HOUR), (0, 20 * HOUR), (40 * HOUR, 41 * HOUR)]
    same(known, store, [(end - DAY, end), *spans])
    asked, partials = list[tuple[int, int]](), Store.partials

    def noted(store: Store, definition: Definition, since: int, until: int, *more: Any) -> Any:
        asked.append((since, until))
        return partials(store, definition, since, until, *more)

    monkeypatch.setattr(Store, "partials", noted)
    known.history(MONITOR.traffic, 0, end)
    assert asked == [(0, known._known[MONITOR.traffic].since)]


def test_the_cache_drops_data_that_is_too_old(tmp_path: Path) -> None:
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    short = replace(MONITOR, windows=(HOUR,))
    known = CachedStore(store, short)
    days = reach(short) // DAY + 40
    for first in range(0, days * 24, 24 * 10):
        put(known, range(first, first + 24 * 10, 4), first, ["mobile"], short)
        known.history(short.traffic, (first - 48) * HOUR, (first + 240) * HOUR)
    kept = known._known[short.traffic]
    assert kept.since > 10 * DAY
    assert kept._count < days * 6
    same(known, store, [(days * DAY - 30 * DAY, days * DAY)], short)
    store.close()


def test_a_full_memory_budget_sends_reads_to_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = MemoryBudget(20_000)
    first, second = CachedStore(store, MONITOR, budget), CachedStore(store, replace(MONITOR, name="other"), budget)
    put(first, range(50), 0, DEVICES[:1])
    assert first.history(MONITOR.traffic, 0, 50 * HOUR).starts.size == 50
    assert list(first._known) == [MONITOR.traffic]
    put(first, range(50, 400), 0, DEVICES)
    with second.hold("other") as lease:
        write(second, lease, replace(MONITOR, name="other"), drawn(range(400), 0, DEVICES))
    other = replace(MONITOR, name="other").traffic
    assert second.history(other, 0, 400 * HOUR).starts.size == 400
    assert not second._known
    asked, partials = list[int](), Store.partials

    def counted(store: Store, definition: Definition, since: int, until: int, *more: Any) -> Any:
        asked.append((until - since) // HOUR)
        return partials(store, definition, since, until, *more)

    monkeypatch.setattr(Store, "partials", counted)
    second.history(other, 390 * HOUR, 400 * HOUR)
    assert asked == [10]  # it does not load everything again, only to exceed the budget again
    first.forget()
    assert second.history(other, 0, 20 * HOUR).starts.size == 20


def test_a_cache_that_outgrows_its_budget_is_dropped(store: Store) -> None:
    known = CachedStore(store, MONITOR, MemoryBudget(20_000))
    put(known, range(50), 0, DEVICES[:1])
    known.history(MONITOR.traffic, 0, 50 * HOUR)
    assert list(known._known) == [MONITOR.traffic]
    for first in range(50, 400, 25):
        put(known, range(first, first + 25), 0, DEVICES)
        same(known, store, [(0, (first + 25) * HOUR)], MONITOR)
        assert sum(one.size for one in known._known.values()) <= 20_000
    assert not known._known


def test_nothing_is_cached_while_another_holds_the_lease(store: Store) -> None:
    put(store, range(5), 0, DEVICES)
    known = CachedStore(store, MONITOR)
    with store.hold(MONITOR.name) as lease:
        assert known.history(MONITOR.traffic, 0, 5 * HOUR).starts.size == 5
        write(store, lease, MONITOR, drawn([5], 0, DEVICES), force=True)
        assert known.history(MONITOR.traffic, 0, 6 * HOUR).starts.size == 6


def test_losing_the_lease_to_another_clears_the_cache(store: Store) -> None:
    known = CachedStore(store, MONITOR)
    put(known, range(5), 0, DEVICES)
    assert known.history(MONITOR.traffic, 0, 6 * HOUR).starts.size == 5
    with store.hold(MONITOR.name) as lease:
        write(store, lease, MONITOR, drawn([5], 0, DEVICES), force=True)
        with pytest.raises(LeaseLost), known.hold(MONITOR.name):
            pass
        assert known.history(MONITOR.traffic, 0, 6 * HOUR).starts.size == 6


@pytest.mark.parametrize("is_other_there", [False, True])
def test_data_read_at_startup_stays_cached_unless_another_wrote_since(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_other_there: bool
) -> None:
    put(store, range(5), 0, DEVICES)
    known, asked, partials = CachedStore(store, MONITOR), list[int](), Store.partials

    def counted(store: Store, definition: Definition, since: int, until: int, *more: Any) -> Any:
        asked.append((until - since) // HOUR)
        return partials(store, definition, since, until, *more)

    assert known.history(MONITOR.traffic, 0, 6 * HOUR).starts.size == 5
    if is_other_there:
        put(store, [5], 1, DEVICES)
    monkeypatch.setattr(Store, "partials", counted)
    with known.hold(MONITOR.name):
        assert known.history(MONITOR.traffic, 0, 6 * HOUR).starts.size == (6 if is_other_there else 5)
    assert len(asked) == is_other_there
    same(known, store, [(0, 6 * HOUR)])


# ---- a daemon ------------------------------------------------------------------------------------------------------

LONG = Ranking.of(31, slices=4, peak=40, seed=3).draw(3)
RULE = Rule("q", parse("ndcg@10"), DAY, Drop(0.05, 0.05, True, Baseline(trailing=7 * DAY)), slices=(("device", None),))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    write_log(tmp_path / "log.db", LONG.rows(28 * 24, 31 * 24))
    made = Daemon.after(28, LONG, 28, tmp_path / "28", tmp_path / "log.db")
    yield made
    made.close()


def test_a_daemons_snapshots_equal_those_of_a_fresh_process(daemon: Daemon) -> None:
    """This holds through a backfill by another process, a restart, and hours in which nobody asks."""
    other = Store(daemon.store.url)
    for hour in range(28):
        if hour == 10:
            backfill(daemon, other, day(28) + 3 * HOUR, day(28) + 9 * HOUR)
        if hour == 18:
            daemon.restart()
        an_hour_later(daemon)
        if hour % 4 == 3:
            shown, fresh = daemon.shown, take_snapshot(daemon.monitor, other, daemon.clock.at)
            for found, expected in zip(shown.series, fresh.series, strict=True):
                assert_alike([*found.final, *found.provisional], [*expected.final, *expected.provisional])
            assert [r.condition for r in shown.readings] == [r.condition for r in fresh.readings]
            assert shown.provisional_buckets == fresh.provisional_buckets
    other.close()


def an_hour_later(daemon: Daemon) -> None:
    """Runs a cycle an hour later. With so little traffic a bucket may stay provisional until the next one."""
    daemon.clock.at += HOUR
    outcome = daemon.runner.run().outcome
    assert outcome is not None
    assert outcome.left == 0


def backfill(daemon: Daemon, other: Store, since: int, until: int) -> None:
    with other.hold(daemon.monitor.name) as lease:
        pull, batch_size = Pull(daemon.monitor, daemon.database), BatchSize()
        *_, done = run_backfill(
            daemon.monitor, daemon.clock.at, (since, until), pull, other, lease, batch_size, again=True
        )
    assert done.stored == (until - since) // HOUR


def test_a_cycle_does_not_check_settled_buckets_again(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    states, seen = Store.states, list[int]()

    def counted(store: Store, definition: Definition, since: int) -> Any:
        found = states(store, definition, since)
        seen.append(len(found))
        return found

    monkeypatch.setattr(Store, "states", counted)
    an_hour_later(daemon)
    assert max(seen) > 27 * 24
    for _ in range(5):
        seen.clear()
        an_hour_later(daemon)
        assert max(seen) <= 3


def test_a_clock_set_back_makes_a_cycle_check_all_buckets_again(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, states = list[int](), Store.states

    def counted(store: Store, definition: Definition, since: int) -> Any:
        seen.append(since)
        return states(store, definition, since)

    monkeypatch.setattr(Store, "states", counted)
    for _ in range(3):
        an_hour_later(daemon)
    assert min(seen[-2:]) > daemon.clock.at - 5 * HOUR
    daemon.clock.at -= 3 * HOUR
    an_hour_later(daemon)
    assert max(seen[-2:]) < daemon.clock.at - 27 * DAY


def test_histories_of_no_buckets_are_empty(store: Store) -> None:
    known = CachedStore(store, MONITOR)
    with known.hold(MONITOR.name):
        found: History = known.history(MONITOR.traffic, 0, DAY)
    assert found.starts.size == 0


def test_the_drift_state_is_parsed_again_only_when_it_changed(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, from_json, other = list[int](), DriftState.from_json, Store(daemon.store.url)

    def counted(plain: dict[str, Any]) -> DriftState:
        parsed.append(1)
        return from_json(plain)

    for _ in range(10):
        an_hour_later(daemon)
    monkeypatch.setattr(DriftState, "from_json", counted)
    daemon.runner.run()
    parsed.clear()
    daemon.runner.run()
    assert parsed == []
    backfill(daemon, other, day(28) + 3 * HOUR, day(28) + 9 * HOUR)
    an_hour_later(daemon)
    found, expected = (s.verdicts.newest_checkpoint(daemon.monitor.name) for s in (daemon.store, other))
    assert found is not None
    assert expected is not None
    assert found.state is not None
    assert expected.state is not None
    assert found.state.to_json() == expected.state.to_json()
    assert (found.identity, found.until) == (expected.identity, expected.until)
    other.close()


def test_an_idle_cycle_builds_no_new_statements_and_opens_few_transactions(daemon: Daemon) -> None:
    ran: list[sa.Executable] = []
    begun: list[sa.Connection] = []
    sa.event.listen(daemon.store.engine, "before_execute", lambda _, statement, *more: ran.append(statement))
    sa.event.listen(daemon.store.engine, "begin", begun.append)

    def idle() -> set[sa.Executable]:
        ran.clear(), begun.clear()
        daemon.clock.at += 1
        outcome = daemon.runner.run().outcome
        assert outcome is not None
        assert not outcome.stored
        return set(ran)

    daemon.cycle()
    first, second = idle(), idle()
    assert {text for text in map(str, second - first) if "leases" not in text} == set()
    assert len(begun) <= 10
