"""Admission of slice values: which values have their own series at what time, and how they lose it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from prometheus_client.exposition import generate_latest

from monitor import cli
from monitor.config import load
from monitor.errors import InputError
from monitor.page import render
from monitor.series.slices import BEGINNING, SliceRegistry
from monitor.service.cycle import BatchSize, CycleResult, run_backfill, run_cycle
from monitor.service.slice_admission import ReleaseRequest, dimensions, release_places
from monitor.service.snapshot import Board, take_snapshot
from monitor.service.telemetry import Telemetry
from monitor.store import Store
from monitor.store.schema import conditions
from monitor.types import Monitor, Slice
from tests.support.dump import differences, dump
from tests.support.metrics import registry
from tests.support.monitors import new_store, pull
from tests.support.pages import PageSource
from tests.support.simulated import configured
from tests.support.tallies import watched

HOUR, DAY = 3600, 86_400
START = 20_000 * DAY
JUNK, REAL = ("x1", "x2"), ("pc", "tv")
"""Junk values come first by name and exist on the first day only; the real values follow from then on."""

MONITOR = replace(
    watched(),
    bucket=6 * HOUR,
    windows=(DAY,),
    slices=(Slice("device", "device", 3),),
    lookback=50 * DAY,
)


class Bench:
    """A log with one request of each device per bucket, the store, and cycles over both."""

    def __init__(self, folder: Path, store: Store, monitor: Monitor = MONITOR) -> None:
        self.log, self.store, self.monitor = f"sqlite:///{folder}/log.db", store, monitor
        self.engine = sa.create_engine(self.log)
        columns = "request TEXT, item TEXT, position INT, time INT, grade REAL, device TEXT"
        self.say(f"CREATE TABLE IF NOT EXISTS rankings ({columns})")

    def say(self, statement: str, rows: list[dict[str, object]] | None = None) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(statement), rows or {})

    def serve(self, since: float, until: float, *devices: str, each: int = 1) -> None:
        """Requests of these devices in each bucket of some days."""
        starts = range(int(START + since * DAY), int(START + until * DAY), self.monitor.bucket)
        rows = [
            {"request": f"{start}-{device}-{n}", "time": start + 60 + n, "device": device}
            for start in starts
            for device in devices
            for n in range(each)
        ]
        self.say("INSERT INTO rankings VALUES (:request, 'a', 1, :time, 1.0, :device)", rows)

    def at(self, day: float, most: int = 168) -> CycleResult:
        with self.store.hold(self.monitor.name) as lease:
            now, source = START + day * DAY + self.monitor.ingest_delay, pull(self.monitor, self.log)
            *_, outcome = run_cycle(self.monitor, now, source, self.store, lease, BatchSize(most=most))
        self.store.record(self.monitor.name, newest_source_at=outcome.arrived.request)
        return outcome

    def again(self, since: float, until: float, now: float, most: int = 168) -> None:
        span = (int(START + since * DAY), int(START + until * DAY))
        with self.store.hold(self.monitor.name) as lease:
            source = pull(self.monitor, self.log)
            how = (source, self.store, lease, BatchSize(most=most), True)
            assert [*run_backfill(self.monitor, START + now * DAY + 900, span, *how)]

    def release(self, *values: str, dry_run: bool = False, **how: bool) -> list[str]:
        return release_places(self.monitor, self.store, ReleaseRequest("device", values, **how), dry_run)

    def devices(self, since: float, until: float) -> set[str]:
        """Values with requests in some days."""
        history = self.store.history(self.monitor.traffic, int(START + since * DAY), int(START + until * DAY))
        return {value for of, value in history.slices if of == "device"}


def of_time(monitor: Monitor) -> Monitor:
    """The monitor with times in whole seconds since 1970."""
    rankings = monitor.rankings
    return replace(monitor, rankings=replace(rankings, time=replace(rankings.time, format="epoch_s")))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the log and the SQLite store of `bench`, to be copied."""
    folder = tmp_path_factory.mktemp("begun")
    store = new_store(f"sqlite:///{folder}/store.db", 20)
    made = Bench(folder, store, of_time(MONITOR))
    made.serve(0, 1, "mobile", *JUNK, each=2)
    made.serve(1, 40, "mobile", *REAL)
    made.at(30)
    made.engine.dispose()
    store.close()
    return folder


@pytest.fixture
def bench(tmp_path: Path, database_url: str, begun: Path) -> Iterator[Bench]:
    """Junk holds two of the three places since the first day, and the real values wait."""
    url = sa.make_url(database_url)
    shutil.copy(begun / "log.db", tmp_path / "log.db")
    if url.drivername == "sqlite":
        shutil.copy(begun / "store.db", str(url.database))
    store = new_store(url, 20)
    made = Bench(tmp_path, store, of_time(MONITOR))
    if url.drivername != "sqlite":
        made.at(30)
    yield made
    store.close()


# ---- at what time ----------------------------------------------------------------------------------------------------


def test_a_value_has_its_place_except_in_its_gaps() -> None:
    gaps = {("d", "gone"): [(50, None)], ("d", "new"): [(BEGINNING, 60)], ("d", "back"): [(10, 20), (50, 70)]}
    places = SliceRegistry({"d": {"gone", "new", "back", "old"}, "e": {"x"}}, gaps)
    at = {t: places.at(t) for t in (0, 10, 20, 50, 60, 70)}
    assert [sorted(at[t]["d"]) for t in at] == [
        ["back", "gone", "old"],
        ["gone", "old"],
        ["back", "gone", "old"],
        ["old"],
        ["new", "old"],
        ["back", "new", "old"],
    ]
    assert {t: places.at(t)["e"] for t in at} == {t: {"x"} for t in at}
    assert places.changes() == [10, 20, 50, 60, 70]


def test_no_new_value_gets_a_place_before_the_newest_change() -> None:
    places = SliceRegistry({"d": {"a"}, "e": {"x"}}, {("d", "a"): [(0, None)]})
    both = (Slice("d", "d", 5), Slice("e", "e", 5))
    assert places.open_at(0, both) == both
    assert [s.max_values for s in places.open_at(-1, both)] == [0, 5]


# ---- through cycles --------------------------------------------------------------------------------------------------


def test_released_places_go_to_waiting_values(bench: Bench) -> None:
    assert bench.devices(1, 30) == {"mobile", "other"}
    (told,) = bench.release(silent=True)
    assert told == (
        "device: 2 places are released as of 2024-11-03 00:00 UTC, by device=x1, device=x2; 2 of 3 are free then"
    )
    bench.at(35)
    assert bench.devices(30, 35) == {"mobile", "pc", "tv"}
    assert bench.devices(1, 30) == {"mobile", "other"}, "what was stored stays"
    assert bench.devices(0, 1) == {"mobile", *JUNK}


@pytest.mark.parametrize(("since", "most"), [(27, 1), (0, 3), (0, 168)])
def test_rereading_buckets_admits_the_same_values(bench: Bench, since: int, most: int) -> None:
    bench.release(silent=True)
    bench.serve(34, 36, *JUNK)
    bench.at(40)
    before = dump(bench.store)
    bench.again(since, 40, 40, most)
    assert differences(before, dump(bench.store)) == []


def test_admission_after_a_release_is_the_same_for_any_batch_size(bench: Bench, tmp_path: Path) -> None:
    bench.release(silent=True)
    bench.at(40)
    store = new_store(f"sqlite:///{tmp_path}/other.db", 30)
    other = Bench(tmp_path, store, bench.monitor)
    other.at(30, most=7)
    other.release(silent=True)
    for day in (31, 33.5, 40):
        other.at(day, most=1)
    assert differences(dump(bench.store), dump(store)) == []
    store.close()


def test_a_returning_value_resumes_its_series_once_a_place_is_free(bench: Bench) -> None:
    bench.release("x1")
    bench.serve(31, 40, "x1")
    bench.at(40)
    assert bench.devices(30, 40) == {"mobile", "pc", "other"}, "pc was there first"
    bench.release("x2", force=True)
    bench.say("DELETE FROM rankings WHERE device = 'tv'")
    bench.serve(40, 45, "mobile", "pc", "x1")
    bench.at(45)
    assert bench.devices(40, 45) == {"mobile", "pc", "x1"}
    history = bench.store.history(bench.monitor.traffic, START, START + 45 * DAY)
    busy = history.starts[history.slice(("device", "x1"))[:, 0] > 0]
    assert ((busy - START) // DAY).tolist() == [0] * 4 + [d for d in range(40, 45) for _ in range(4)]
    before = dump(bench.store)
    bench.again(0, 30, 45)
    bench.again(40, 45, 45)
    assert differences(before, dump(bench.store)) == []


def test_values_with_a_place_never_exceed_the_limit(bench: Bench) -> None:
    for day in range(31, 60, 4):
        bench.serve(day + 10, day + 14, *(f"new {day + n}" for n in range(3)))
        (found,) = dimensions(bench.monitor, bench.store)
        bench.release(found.held[-1].value, force=True)
        bench.at(day + 14)
    places = bench.store.places("search")
    assert len(places.changes()) > 3
    for change in places.changes():
        for instant in (change - 1, change):
            assert len(places.at(instant)["device"] - {"other"}) <= 3


def test_a_backfill_before_the_release_admits_no_new_value(bench: Bench) -> None:
    bench.serve(-10, 0, "older", "mobile")
    bench.release(silent=True)
    bench.again(-10, 0, 30)
    assert bench.devices(-10, 0) == {"mobile", "other"}
    bench.at(35)
    assert bench.devices(30, 35) == {"mobile", "pc", "tv"}


def test_a_bucket_of_another_width_uses_the_places_at_its_start(bench: Bench) -> None:
    bench.serve(30, 30.5, "mobile")
    bench.at(30.75)
    bench.release(silent=True)
    daily = Bench(Path(bench.log.removeprefix("sqlite:///")).parent, bench.store, replace(bench.monitor, bucket=DAY))
    daily.again(28, 40, 40)
    assert daily.devices(28, 31) == {"mobile", "other"}
    assert daily.devices(31, 40) == {"mobile", "pc", "tv"}


def test_empty_values_take_no_place(bench: Bench) -> None:
    bench.serve(31, 33, "")
    bench.at(35)
    assert bench.devices(31, 33) == {"mobile", "other", "(empty)"}


# ---- who may go ------------------------------------------------------------------------------------------------------


def test_a_dry_run_names_the_values_and_changes_nothing(bench: Bench) -> None:
    before = bench.store.places("search")
    with bench.store.hold("search"):
        (told,) = bench.release(dry_run=True, silent=True)
    gone = "by device=x1, device=x2; 2 of 3 would be free then"
    assert told == f"device: 2 places would be released as of 2024-11-03 00:00 UTC, {gone}"
    assert bench.store.places("search") == before


def test_an_active_value_keeps_its_place_unless_forced(bench: Bench) -> None:
    with pytest.raises(InputError, match="device=mobile had 112 requests in the last 28d; --force counts its requests"):
        bench.release("mobile")
    (told,) = bench.release("mobile", force=True)
    assert "by device=mobile; 1 of 3" in told
    bench.at(35)
    assert bench.devices(30, 35) == {"mobile", "other"}, "it gets a place back, as the first by name"


def test_a_value_with_an_open_condition_keeps_its_place(bench: Bench) -> None:
    row = {"monitor": "search", "rule": "slice_missing", "dimension": "device", "value": "x1", "identity": "i"}
    with bench.store.writing() as connection:
        connection.execute(conditions.insert().values(**row, state="firing", since=START, streak=1))
    with pytest.raises(InputError, match="device=x1 keeps its place while slice_missing is firing"):
        bench.release("x1", force=True)
    said, told = bench.release(silent=True)
    assert said == "device=x1 keeps its place while slice_missing is firing"
    assert "by device=x2; 1 of 3" in told


def test_values_do_not_count_as_gone_after_a_data_gap(bench: Bench) -> None:
    bench.say("DELETE FROM rankings WHERE time > :t", [{"t": START + 2 * DAY}])
    bench.serve(60, 61, "mobile")
    bench.again(2, 30, 61)
    bench.at(61)
    with pytest.raises(InputError, match="for 1 day of the last 28d, too few to tell which values are gone"):
        bench.release(silent=True)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (ReleaseRequest("device"), "name the values, or add --silent for all without requests"),
        (ReleaseRequest("devise", silent=True), "monitor search has no slices by 'devise'; did you mean 'device'"),
        (ReleaseRequest("device", ("pc",)), "device=pc has no place to release; rankmon slices show search lists"),
        (ReleaseRequest("device", ("other",)), "device=other has no place to release; rankmon"),
    ],
)
def test_an_impossible_release_is_refused_with_a_remedy(bench: Bench, wish: ReleaseRequest, message: str) -> None:
    with pytest.raises(InputError, match=message):
        release_places(bench.monitor, bench.store, wish, False)


# ---- how it is seen --------------------------------------------------------------------------------------------------


def test_dimensions_report_requests_without_a_place(bench: Bench) -> None:
    (found,) = dimensions(bench.monitor, bench.store)
    assert (found.name, found.places, found.requests, found.others, found.days) == ("device", 3, 336, 224, 28)
    assert [(h.value, h.requests, h.last_day) for h in found.held] == [
        ("mobile", 112, START + 29 * DAY),
        ("x1", 0, None),
        ("x2", 0, None),
    ]


def test_gauges_report_how_many_places_are_taken(bench: Bench) -> None:
    def taken() -> list[str]:
        board = Board()
        board.publish(take_snapshot(bench.monitor, bench.store, START + 30 * DAY))
        text = generate_latest(registry(board, Telemetry())).decode()
        return [line for line in text.splitlines() if line.startswith("rankmon_slice_places")]

    labels = 'dimension="device",monitor="search"'
    assert taken() == [f"rankmon_slice_places{{{labels}}} 3.0", f"rankmon_slice_places_taken{{{labels}}} 3.0"]
    bench.release("x1")
    assert taken()[1] == f"rankmon_slice_places_taken{{{labels}}} 2.0"


def test_commands_and_page_report_taken_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configured(tmp_path, more="")
    path = tmp_path / "rankmon.yaml"
    dimension, time = "slices: [{column: device, max_values: 3}]", "time: {column: time, format: epoch_s}}"
    path.write_text(path.read_text().replace("slices: [device]", dimension).replace("time: time}", time))
    config = load(path, {})
    store = new_store(config.store.url)
    made = Bench(tmp_path, store, replace(config.monitors[0], lookback=50 * DAY))
    made.serve(0, 1, "mobile", *JUNK, each=2)
    made.serve(1, 30, "mobile", *REAL)
    made.at(30)

    def run(*arguments: str) -> str:
        assert cli.run([*arguments[:2], "--config", str(tmp_path / "rankmon.yaml"), *arguments[2:]]) == 0
        return capsys.readouterr().out

    shown = run("slices", "show", "search")
    assert shown.splitlines()[0] == (
        "search: device: 3 of 3 places are taken; 66.7 % of the requests of the last 28d are `other`"
    )
    assert shown.splitlines()[1].split() == ["value", "requests", "in", "28d", "share", "last", "day"]
    assert "  device=x1                    0   0.0 %  none for 28d" in shown
    assert cli.run(["status", "--config", str(tmp_path / "rankmon.yaml")]) == 0
    told = "all 3 places of device are taken, and 66.7 % of the requests of 24h are `other`; see rankmon slices show"
    assert told in capsys.readouterr().out
    now = START + 30 * DAY + 900
    page = render(PageSource.of(now, take_snapshot(config.monitors[0], store, now)))
    assert told.replace("; see", ":") in page
    assert "released" in run("slices", "release", "search", "device", "--silent")
    assert '"taken": 1' in run("slices", "show", "search", "--format", "json")
    store.close()
