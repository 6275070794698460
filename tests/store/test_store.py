"""The store on SQLite and on PostgreSQL: whole buckets or nothing, whatever happens in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from monitor.errors import LeaseLost, StoreError
from monitor.measures.measure import parse
from monitor.series.finality import BucketState
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS
from monitor.store import Lease, Progress, Store, Written
from monitor.store.schema import restatements
from monitor.types import OVERALL
from tests.support.monitors import new_store
from tests.support.postgres import PostgresServer, free_port
from tests.support.tallies import HOUR, let_on, line, python, rows, tally, watched, write

MONITOR = watched()
TRAFFIC, NDCG, MRR = MONITOR.definitions
MOBILE, DESKTOP = ("device", "mobile"), ("device", "desktop")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = new_store(database_url, 20)
    yield opened
    opened.close()


@pytest.fixture
def lease(store: Store) -> Iterator[Lease]:
    with store.hold(MONITOR.name) as held:
        yield held


def requests_of(store: Store, slice_key: tuple[str, str] = OVERALL) -> dict[int, float]:
    """Bucket start -> requests, from the partials of a measure."""
    history = store.history(NDCG, 0, 10**9)
    return dict(zip(history.starts.tolist(), history.slice(slice_key)[:, 0].tolist(), strict=True))


# ---- what was written is what is read ------------------------------------------------------------------------------


def test_an_empty_store_returns_nothing(store: Store) -> None:
    assert store.states(NDCG, 0) == {}
    assert store.newest_bucket(NDCG) is None
    assert store.known_slices(MONITOR.name) == {}
    assert store.refused(TRAFFIC, 0, 10**9) == {}
    assert store.progress(MONITOR.name) == Progress()
    history = store.history(NDCG, 0, 10**9)
    assert (len(history.starts), history.slices, history.sums.shape) == (0, (OVERALL,), (0, 1, len(FIELDS)))


def test_sums_are_read_back_exactly(store: Store, lease: Lease) -> None:
    tallied = tally(MONITOR, {0: {"mobile": 7, "desktop": 3}, HOUR: {"mobile": 1}})
    assert write(store, lease, MONITOR, tallied) == Written(2, ())
    for definition in (NDCG, MRR):
        history = store.history(definition, 0, 2 * HOUR)
        assert history.starts.tolist() == [0, HOUR]
        assert history.slices == (OVERALL, DESKTOP, MOBILE)
        for cell, expected in tallied.measures[definition.kernel].items():
            assert history.slice(cell[1:])[cell[0] // HOUR].tolist() == expected.tolist()
    traffic = store.history(TRAFFIC, 0, 2 * HOUR)
    for cell, expected in tallied.traffic.items():
        assert traffic.slice(cell[1:])[cell[0] // HOUR].tolist() == expected.tolist()


def test_an_empty_bucket_is_a_row_of_zeros_and_an_unread_one_is_absent(store: Store, lease: Lease) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}, HOUR: {}}))
    write(store, lease, MONITOR, tally(MONITOR, {3 * HOUR: {"mobile": 1}}))
    assert requests_of(store) == {0: 1, HOUR: 0, 3 * HOUR: 1}


def test_history_includes_its_start_excludes_its_end_and_may_be_overall_only(store: Store, lease: Lease) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {n * HOUR: {"mobile": 1} for n in range(4)}))
    assert store.history(NDCG, HOUR, 3 * HOUR).starts.tolist() == [HOUR, 2 * HOUR]
    assert store.history(NDCG, 0, 10**9, overall_only=True).slices == (OVERALL,)


def test_states_are_those_since_a_time_and_all_open_ones(store: Store, lease: Lease) -> None:
    every = tally(MONITOR, {n * HOUR: {"mobile": 1} for n in range(5)})
    write(store, lease, MONITOR, every, read_at=12345.678, finals=[HOUR, 3 * HOUR])
    assert store.states(NDCG, 3 * HOUR) == {n * HOUR: BucketState(12345.678, n == 3) for n in (0, 2, 3, 4)}
    assert store.newest_bucket(NDCG) == 4 * HOUR


def test_more_buckets_than_one_statement_holds_are_written(store: Store, lease: Lease) -> None:
    many = tally(MONITOR, {n * HOUR: {"mobile": 1} for n in range(1300)})
    assert write(store, lease, MONITOR, many).buckets == 1300
    before = rows(store)
    assert write(store, lease, MONITOR, many).buckets == 1300
    assert rows(store) == before


# ---- writing again -------------------------------------------------------------------------------------------------


def test_writing_twice_changes_nothing(store: Store, lease: Lease) -> None:
    tallied = tally(
        MONITOR, {0: {"mobile": 7, "desktop": 3}, HOUR: {}}, refused={(0, "null_item"): 2}, fingerprint="abc"
    )
    write(store, lease, MONITOR, tallied)
    before = rows(store)
    assert all(before[t] for t in ("series", "slices", "partials", "traffic", "refusals", "buckets"))
    write(store, lease, MONITOR, tallied)
    assert rows(store) == before


def test_a_new_read_replaces_whole_buckets_with_their_slices_and_refusals(store: Store, lease: Lease) -> None:
    first = tally(
        MONITOR,
        {0: {"mobile": 7, "desktop": 3}, HOUR: {"desktop": 1}},
        refused={(0, "null_item"): 2, (0, "bad_time"): 1, (HOUR, "null_item"): 4},
        fingerprint="old",
    )
    write(store, lease, MONITOR, first, finals=[])
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 8}}, refused={(0, "bad_grade"): 5}))
    assert requests_of(store) == {0: 8, HOUR: 1}
    assert requests_of(store, MOBILE) == {0: 8, HOUR: 0}
    assert requests_of(store, DESKTOP) == {0: 0, HOUR: 1}
    assert store.refused(TRAFFIC, 0, HOUR) == {"bad_grade": 5}
    assert store.refused(TRAFFIC, 0, 2 * HOUR) == {"bad_grade": 5, "null_item": 4}
    used = {(row[2], row[-1]) for row in rows(store)["buckets"] if row[-1]}
    assert used == {(HOUR, "old")}
    assert store.states(NDCG, 0) == {0: BucketState(1e6, True), HOUR: BucketState(1e6, False)}


def test_a_write_touches_only_its_target_buckets(store: Store, lease: Lease) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}, HOUR: {"mobile": 1}}), finals=[])
    both = tally(MONITOR, {0: {"mobile": 5}, HOUR: {"mobile": 5}})
    written = store.write(lease, MONITOR, both, {TRAFFIC: [HOUR], NDCG: [HOUR], MRR: []}, 1e6, [HOUR])
    assert written.buckets == 1
    assert requests_of(store) == {0: 1, HOUR: 5}
    assert store.states(MRR, 0)[HOUR] == BucketState(1e6, False)


@pytest.mark.parametrize(
    ("requests", "labelled"), [(9, 1.0), (10, 0.8), (0, 0)], ids=["fewer requests", "fewer labels", "nothing"]
)
def test_a_final_bucket_does_not_shrink_unless_forced(
    store: Store, lease: Lease, requests: int, labelled: float
) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}, HOUR: {"mobile": 10}}), finals=[0])
    before = rows(store)
    less = tally(MONITOR, {0: {"mobile": requests}}, labelled)
    assert write(store, lease, MONITOR, less, read_at=2e6) == Written(0, (0,))
    assert rows(store) == before
    assert write(store, lease, MONITOR, less, read_at=2e6, force=True) == Written(1, ())
    assert requests_of(store) == {0: requests, HOUR: 10}


@pytest.mark.parametrize("field", ["impressions", "judged", "events"])
def test_a_final_bucket_does_not_lose_items_or_events(store: Store, lease: Lease, field: str) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}}))
    less = tally(MONITOR, {0: {"mobile": 10}})
    less.traffic[0, *OVERALL][TRAFFIC_FIELDS.index(field)] -= 1
    assert write(store, lease, MONITOR, less) == Written(0, (0,))


def test_another_depth_must_keep_the_requests_but_not_the_impressions(store: Store, lease: Lease) -> None:
    deeper = replace(MONITOR, measures=(*MONITOR.measures, parse("ndcg@20")))
    assert deeper.traffic != MONITOR.traffic
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}, HOUR: {"mobile": 10}}))
    read = tally(deeper, {0: {"mobile": 10}, HOUR: {"mobile": 9}})
    read.traffic[0, *OVERALL][2:5] = 1
    assert write(store, lease, deeper, read, read_at=2e6) == Written(1, (HOUR,))
    refused = BucketState(2e6, False, "refused")
    assert store.states(deeper.traffic, 0) == {0: BucketState(2e6, True), HOUR: refused}
    assert store.states(deeper.traffic, 2 * HOUR) == {}
    assert write(store, lease, deeper, read, read_at=3e6, force=True) == Written(2, ())
    assert store.states(deeper.traffic, 0)[HOUR] == BucketState(3e6, True)


def test_an_open_bucket_is_deleted_when_its_new_read_is_refused(store: Store, lease: Lease) -> None:
    """Otherwise it would never become final."""
    deeper = replace(MONITOR, measures=(*MONITOR.measures, parse("ndcg@20")))
    write(store, lease, deeper, tally(deeper, {0: {"mobile": 10}}), finals=[])
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}}))
    assert write(store, lease, deeper, tally(deeper, {0: {"mobile": 1}})).kept == (0,)
    assert store.newest_bucket(deeper.traffic) is None
    assert store.newest_bucket(TRAFFIC) == 0


def test_buckets_finalized_by_timeout_stay_in_the_states_until_read_again(store: Store, lease: Lease) -> None:
    both = tally(MONITOR, {0: {}, HOUR: {"mobile": 1}})
    write(store, lease, MONITOR, both, awaited={0})
    assert store.states(NDCG, 5 * HOUR) == {0: BucketState(1e6, True, "awaited")}
    write(store, lease, MONITOR, tally(MONITOR, {0: {}}), read_at=2e6)
    assert store.states(NDCG, 5 * HOUR) == {}


def test_the_view_marks_the_series_of_current_definitions(store: Store, lease: Lease) -> None:
    other = watched(grade="another")

    def current() -> set[tuple[str, bool]]:
        with store.reading() as connection:
            found = connection.exec_driver_sql("SELECT DISTINCT definition, is_current FROM rankmon_buckets").all()
        return {(definition, bool(is_current)) for definition, is_current in found}

    mine, theirs = ({d.id for d in m.definitions[1:]} for m in (MONITOR, other))
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))
    assert current() == {(d, True) for d in mine}
    write(store, lease, other, tally(other, {0: {"mobile": 1}}))
    assert current() == {*((d, False) for d in mine), *((d, True) for d in theirs)}
    store.adopt(lease, MONITOR)  # the configuration was changed back
    assert current() == {*((d, True) for d in mine), *((d, False) for d in theirs)}


def test_a_kept_bucket_does_not_block_its_neighbours(store: Store, lease: Lease) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}, HOUR: {"mobile": 10}}))
    purged = tally(MONITOR, {0: {"mobile": 1}, HOUR: {"mobile": 12}})
    assert write(store, lease, MONITOR, purged) == Written(1, (0,))
    assert requests_of(store) == {0: 10, HOUR: 12}


def test_a_final_bucket_may_grow_and_an_open_one_may_shrink(store: Store, lease: Lease) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}, HOUR: {"mobile": 10}}, 0.5), finals=[0])
    grown = tally(MONITOR, {0: {"mobile": 10}, HOUR: {"mobile": 5}}, 0.6)
    assert write(store, lease, MONITOR, grown) == Written(2, ())
    assert requests_of(store) == {0: 10, HOUR: 5}


def test_restating_is_logged(store: Store, lease: Lease) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {start: {"mobile": 10} for start in range(0, 5 * HOUR, HOUR)}))
    less = tally(MONITOR, {0: {"mobile": 1}, 4 * HOUR: {"mobile": 10}})
    write(store, lease, MONITOR, less, force=True, restating=[0, HOUR, 4 * HOUR])
    with store.reading() as connection:
        logged = connection.execute(sa.select(restatements)).mappings().one()
    expected = {"since": 0, "until": 5 * HOUR, "restated_at": 1e6, "forced": True, "buckets": 3}
    assert dict(logged) == {"id": 1, "monitor": MONITOR.name, **expected}


# ---- series and slices stay apart ----------------------------------------------------------------------------------


def test_two_definitions_never_mix(store: Store, lease: Lease) -> None:
    other = watched(grade="another_grade")
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}}, refused={(0, "bad_grade"): 1}))
    assert store.history(other.definitions[1], 0, HOUR).starts.tolist() == []
    assert store.states(other.traffic, 0) == {}
    assert store.newest_bucket(other.traffic) is None
    assert store.refused(other.traffic, 0, HOUR) == {}
    before = store.history(NDCG, 0, HOUR).sums.tolist()
    assert write(store, lease, other, tally(other, {0: {"mobile": 3}})) == Written(1, ())
    assert store.history(NDCG, 0, HOUR).sums.tolist() == before
    assert store.history(other.definitions[1], 0, HOUR).sums[0, 0, 0] == 3


def test_requests_in_two_definitions_count_once(store: Store, lease: Lease) -> None:
    other = watched(grade="another_grade")
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}, HOUR: {"mobile": 1, "desktop": 2}}))
    write(store, lease, other, tally(other, {HOUR: {"mobile": 1, "desktop": 2}, 2 * HOUR: {"desktop": 3}}))
    used = store.usage(MONITOR.name, 10**6)
    assert used.until == 3 * HOUR
    assert used.requests[MOBILE] == {0: 11}
    assert used.requests[DESKTOP] == {0: 5}


def test_text_that_utf_8_cannot_hold_is_refused_with_a_remedy(store: Store) -> None:
    with pytest.raises(StoreError, match="use UTF-8 text"):
        store.alerts.silence(MONITOR.name, 0, 1, "ada", "caf\udce9")
    with pytest.raises(StoreError, match="use UTF-8 text"):
        store.alerts.incident("caf\udce9")


def test_two_monitors_never_mix(store: Store, lease: Lease) -> None:
    other = watched("news")
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}}))
    with store.hold("news") as theirs:
        write(store, theirs, other, tally(other, {0: {"tv": 3}}))
    assert store.known_slices("search") == {"": {""}, "device": {"mobile"}}
    assert store.known_slices("news") == {"": {""}, "device": {"tv"}}
    assert requests_of(store) == {0: 10}


def test_values_stay_admitted_when_their_traffic_ends(store: Store, lease: Lease) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1, "tv": 1}}), finals=[])
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))
    assert store.known_slices(MONITOR.name)["device"] == {"mobile", "tv"}
    history = store.history(NDCG, 0, HOUR)
    assert history.slices == (OVERALL, MOBILE)
    assert history.slice(("device", "tv")).tolist() == [[0.0] * len(FIELDS)]


def test_any_text_can_be_a_slice_value(store: Store, lease: Lease) -> None:
    values = ["", "Ä\u2028\U0001f600", "'; DROP TABLE slices; --", "%s :x {y}", "a" * 500, "\t\n"]
    write(store, lease, MONITOR, tally(MONITOR, {0: dict.fromkeys(values, 1)}))
    assert store.known_slices(MONITOR.name)["device"] == set(values)
    assert {v for _, v in store.history(NDCG, 0, HOUR).slices[1:]} == set(values)


# ---- all or nothing ------------------------------------------------------------------------------------------------


def test_a_write_with_a_lost_lease_stores_nothing_at_all(store: Store, lease: Lease) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}}))
    before = rows(store)
    other = Store(store.url, lease_seconds=20)
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE leases SET expires_at = 1")
    assert other.leases.acquire(MONITOR.name) is not None
    with pytest.raises(LeaseLost, match="monitor search: another process took over writing; this one yielded"):
        write(store, lease, MONITOR, tally(MONITOR, {0: {"tv": 50}, HOUR: {"tv": 1}}, refused={(0, "bad_time"): 1}))
    assert rows(store) == before
    other.close()


def test_a_write_that_fails_half_way_stores_nothing_at_all(store: Store, lease: Lease) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}}))
    before = rows(store)
    broken = tally(MONITOR, {0: {"mobile": 20, "tv": 1}, HOUR: {"tv": 1}})
    del broken.measures[MRR.kernel]
    with pytest.raises(KeyError):
        write(store, lease, MONITOR, broken)
    assert rows(store) == before
    write(store, lease, MONITOR, tally(MONITOR, {HOUR: {"mobile": 1}}))  # the connection is still usable
    assert requests_of(store) == {0: 10, HOUR: 1}


KILLED = """
import sys, time
from sqlalchemy.engine import make_url
from monitor.store import Store
from monitor.store.bucket_writes import BucketWrite
from tests.support.tallies import HOUR, tally, watched, write

def hang(*_):
    print("inside", flush=True)
    time.sleep(60)

store = Store(make_url(sys.argv[1]), lease_seconds=60)
with store.hold("search") as lease:
    BucketWrite.refuse = hang
    write(store, lease, watched(), tally(watched(), {0: {"tv": 99}, HOUR: {"tv": 99}}))
"""


def test_a_process_killed_mid_write_leaves_the_old_state(store: Store, database_url: str) -> None:
    with store.hold(MONITOR.name) as lease:
        write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}}))
    before = rows(store)
    process = python(KILLED, database_url)
    assert line(process) == "inside"
    assert rows(store) == before  # others can still read
    process.kill()
    process.communicate()
    assert rows(store) == before
    with store.hold(MONITOR.name) as lease:
        write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 11}}))
    assert requests_of(store) == {0: 11}


# ---- concurrency ---------------------------------------------------------------------------------------------------


def test_reading_does_not_wait_for_a_writer_and_sees_the_previous_state(store: Store, lease: Lease) -> None:
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 10}}))
    with store.writing() as connection:
        connection.exec_driver_sql("DELETE FROM partials")
        began = time.monotonic()
        assert requests_of(store) == {0: 10}
        assert store.progress(MONITOR.name) == Progress()
        store.schema.check()
        assert time.monotonic() - began < 5
    assert requests_of(store) == {}


def test_a_connection_used_for_reading_still_writes_in_a_transaction(store: Store) -> None:
    def write_half(used: object) -> None:
        with store.writing() as connection:
            assert connection.connection.driver_connection is used
            connection.exec_driver_sql("UPDATE monitors SET last_error = 'half'")
            raise KeyError

    store.record("m", last_error="before")
    for _ in range(3):
        with store.reading() as connection:
            used = connection.connection.driver_connection
        with pytest.raises(KeyError):
            write_half(used)
        with pytest.raises(StoreError), store.reading() as connection:
            connection.exec_driver_sql("SELECT * FROM nowhere")
    assert store.progress("m").last_error == "before"


@pytest.fixture
def on_file(tmp_path: Path) -> Iterator[tuple[Store, Path]]:
    path = tmp_path / "watched.db"
    opened = new_store(f"sqlite:///{path}", 30)
    opened.record("m", last_error="of the first")
    yield opened, path
    opened.close()


@pytest.mark.parametrize("instead", [False, True], ids=["moved", "replaced"])
def test_a_moved_or_replaced_file_is_an_error_until_it_is_put_back(
    on_file: tuple[Store, Path], tmp_path: Path, instead: bool
) -> None:
    store, path = on_file
    path.rename(away := path.with_name("away.db"))
    if instead:
        path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(
            StoreError, match=r"watched\.db was moved or replaced while rankmon was running; put it back, or "
        ):
            store.progress("m")
        with pytest.raises(StoreError, match="moved or replaced"):
            store.record("m", last_error="lost")
    assert path.exists() is instead
    away.rename(path)
    assert store.progress("m").last_error == "of the first"


def test_threads_write_their_monitors_side_by_side(store: Store) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        monitor = watched(f"m{number}")
        try:
            for step in range(8):
                with store.hold(monitor.name) as held:
                    write(store, held, monitor, tally(monitor, {step * HOUR: {"mobile": number, "tv": step}}))
                    store.record(monitor.name, last_success_at=float(step))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for number in range(6):
        history = store.history(watched(f"m{number}").definitions[1], 0, 10**9)
        assert history.slice(OVERALL)[:, 0].tolist() == [number + step for step in range(8)]
        assert store.progress(f"m{number}").last_success_at == 7


WRITER = """
import sys
from sqlalchemy.engine import make_url
from monitor.store import Store
from tests.support.tallies import HOUR, tally, watched, write

store, name = Store(make_url(sys.argv[1]), lease_seconds=20), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for step in range(20):
    with store.hold(name) as lease:
        write(store, lease, watched(name), tally(watched(name), {step * HOUR: {"mobile": 1 + step}}))
print("done", flush=True)
"""


def test_processes_write_their_monitors_side_by_side(store: Store, database_url: str) -> None:
    writers = [python(WRITER, database_url, f"m{n}") for n in range(3)]
    for writer in writers:
        assert line(writer) == "ready"
    for writer in writers:
        let_on(writer)
    for number, writer in enumerate(writers):
        output, errors = writer.communicate(timeout=60)
        assert output == "done\n", errors
        history = store.history(watched(f"m{number}").definitions[1], 0, 10**9)
        assert history.slice(OVERALL)[:, 0].tolist() == [1 + step for step in range(20)]


def test_many_threads_can_open_a_new_file_at_the_same_time(tmp_path: Path) -> None:
    failures: list[StoreError] = []

    def enter(url: str, barrier: threading.Barrier) -> None:
        opened = Store(make_url(url))
        barrier.wait()
        try:
            with opened.writing() as connection:
                connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS entered (x INTEGER)")
        except StoreError as error:
            failures.append(error)
        opened.close()

    for number in range(12):
        barrier = threading.Barrier(8)
        url = f"sqlite:///{tmp_path}/{number}.db"
        threads = [threading.Thread(target=enter, args=(url, barrier)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


# ---- progress ------------------------------------------------------------------------------------------------------


def test_progress_keeps_what_is_not_changed(store: Store) -> None:
    store.record("m", newest_source_at=1.5, last_attempt_at=2.5)
    store.record("m", last_success_at=3.5, last_error='it\'s "odd"; 100 %')
    store.record("n", last_error="other")
    assert store.progress("m") == Progress(1.5, 2.5, 3.5, 'it\'s "odd"; 100 %')
    store.record("m", last_error="", newest_source_at=None)
    assert store.progress("m") == Progress(None, 2.5, 3.5, "")
    assert store.progress("n") == Progress(last_error="other")


# ---- error messages ------------------------------------------------------------------------------------------------


def told(url: str) -> str:
    with pytest.raises(StoreError) as caught:
        Store(make_url(url)).progress("m")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    message = f"store: there is no folder {tmp_path}/nowhere; create it, or change store.url"
    assert told(f"sqlite:///{tmp_path}/nowhere/store.db") == message


def test_a_relative_path_is_reported_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert told("sqlite:///here/store.db") == (
        f"store: there is no folder {tmp_path}/here; create it, or change store.url"
    )


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("This is a text file. " * 100)
    assert told(f"sqlite:///{tmp_path}/store.db") == (
        f"store sqlite:///{tmp_path}/store.db: file is not a database; another program wrote this file; "
        "change store.url, or move it away"
    )


def test_a_folder_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    message = told(f"sqlite:///{tmp_path}/store.db")
    assert message.startswith(f"store: {tmp_path}/store.db is a folder; set store.url to a file in it")


def test_a_damaged_file_is_a_store_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    store = new_store(url, 30)
    with store.hold(MONITOR.name) as lease:
        write(store, lease, MONITOR, tally(MONITOR, {n * HOUR: {"mobile": 1} for n in range(500)}))
    store.close()
    file = tmp_path / "store.db"
    pages = bytearray(file.read_bytes())
    for page in range(30, len(pages) // 4096):
        pages[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    file.write_bytes(pages)
    with pytest.raises(StoreError, match="malformed"):
        store.history(NDCG, 0, 10**9)
    store.close()


# Root may write everywhere, so this drops its rights after everything is imported.
UNPRIVILEGED = """
import os, sys, tempfile
from pathlib import Path
from sqlalchemy.engine import make_url
from monitor.errors import StoreError
from monitor.store import Store

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    folder.chmod(0o755)
    warm = Store(make_url(f"sqlite:///{folder}/store.db"))
    warm.schema.migrate()
    warm.close()
    (folder / "shut").mkdir(mode=0o700)
    (folder / "store.db").chmod(0o444)
    if os.geteuid() == 0:
        os.seteuid(65534)
    else:
        folder.chmod(0o555)
        (folder / "shut").chmod(0o000)
    try:
        for url in ("store.db", "new.db", "shut/store.db"):
            try:
                Store(make_url(f"sqlite:///{folder}/{url}")).record("m", last_error="x")
                print("no error")
            except StoreError as error:
                print(str(error).replace(str(folder), ""))
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(0o755)
        (folder / "shut").chmod(0o700)
"""


def test_a_file_that_cannot_be_written_is_reported() -> None:
    output, errors = python(UNPRIVILEGED).communicate(timeout=60)
    faults, remedies = zip(*(line.split("; ", 1) for line in output.splitlines()), strict=True)
    assert faults == (
        "store sqlite:////store.db: attempt to write a readonly database",
        "store sqlite:////new.db: unable to open database file",
        "store sqlite:////shut/store.db: unable to open database file",
    ), errors
    assert all("may not write to the folder" in remedy for remedy in remedies)


def test_a_server_that_is_down_is_reported_with_its_address() -> None:
    port = free_port()
    message = told(f"postgresql+psycopg://me:s3cret@127.0.0.1:{port}/rankmon")
    assert message.startswith(f"store postgresql+psycopg://me:***@127.0.0.1:{port}/rankmon: connection failed: ")
    assert "Connection refused" in message


@pytest.mark.parametrize("database", ["rankmon", "s3cret"])
def test_a_password_is_never_shown(postgres: PostgresServer, database: str) -> None:
    postgres.start()
    message = told(f"postgresql+psycopg://s3cret:s3cret@127.0.0.1:{postgres.port}/{database}")
    assert "s3cret@" not in message
    assert ":s3cret" not in message
    assert 'role "***" does not exist' in message


def test_a_missing_permission_is_reported(postgres: PostgresServer, postgres_url: str) -> None:
    owner = Store(make_url(postgres_url))
    with owner.writing() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS guest")
        connection.exec_driver_sql("CREATE ROLE guest LOGIN")
    guest = Store(make_url(postgres_url).set(username="guest"))
    with pytest.raises(StoreError, match="permission denied for schema public"):
        guest.schema.migrate()
    owner.schema.migrate()
    with pytest.raises(StoreError, match="permission denied for table monitors"):
        guest.record("m", last_error="x")
    for store in (guest, owner):
        store.close()


def test_an_unsupported_database_is_refused() -> None:
    message = "store: rankmon keeps its tables in SQLite or PostgreSQL, not in mysql; change store.url"
    assert told("mysql+pymysql://localhost/rankmon") == message


# ---- a server that goes away ---------------------------------------------------------------------------------------


def test_a_server_restart_between_two_calls_goes_unnoticed(postgres: PostgresServer, postgres_url: str) -> None:
    store = new_store(postgres_url, 30)
    with store.hold(MONITOR.name) as lease:
        write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))
        postgres.stop()
        with pytest.raises(StoreError, match="refused"):
            write(store, lease, MONITOR, tally(MONITOR, {HOUR: {"mobile": 1}}))
        postgres.start()
        write(store, lease, MONITOR, tally(MONITOR, {HOUR: {"mobile": 2}}))
        postgres.stop()
        postgres.start()
        assert requests_of(store) == {0: 1, HOUR: 2}
        postgres.stop()
        postgres.start()
        write(store, lease, MONITOR, tally(MONITOR, {HOUR: {"mobile": 3}}))
    assert requests_of(store) == {0: 1, HOUR: 3}
    store.close()


def test_a_server_that_crashes_mid_write_keeps_the_old_state(postgres: PostgresServer, postgres_url: str) -> None:
    store = new_store(postgres_url, 30)

    def write_half() -> None:
        with store.writing() as connection:
            connection.exec_driver_sql("DELETE FROM partials")
            postgres.kill()
            connection.exec_driver_sql("DELETE FROM traffic")

    with store.hold(MONITOR.name) as lease:
        write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))
        with pytest.raises(StoreError):
            write_half()
        postgres.start()
        assert requests_of(store) == {0: 1}
    store.close()
