"""Diagnoses taken from a real source: what they contain, what they leave out, and that they disturb no cycle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.causes import diagnosis as d
from monitor.causes.losses import query_id
from monitor.cli.incident_report import lines
from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.demo.shop import Shop, Story
from monitor.drift.verdicts import SliceLabelLoss
from monitor.errors import SourceError, TooMany
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import judge_monitor
from monitor.evaluation.stored_fall import FiredCondition, StoredFall, fired, first_fired
from monitor.measures.measure import parse
from monitor.messages.diagnosis import Told
from monitor.series.readings import Reading
from monitor.service.cycle import BatchSize, run_backfill
from monitor.service.diagnosing import MOST, CapturedPeriod, Diagnoser, capture, detailed
from monitor.service.reading import RowReader
from monitor.service.runner import Runner
from monitor.service.snapshot import Board
from monitor.service.telemetry import Telemetry
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.store.schema import incidents, transitions
from monitor.types import Drift, Judgments, Monitor, Relation, Slice
from tests.support.monitors import DAY, new_store, pull, shop, shop_database

HOUR = 3600
WEEK = 7 * DAY
STORY = Story(datetime(2026, 2, 2, tzinfo=UTC), history_days=24, degraded_days=2, rollback_after=timedelta(days=9))
FIRST, LAST = int(STORY.start.timestamp()), int(STORY.history_end.timestamp())
RULE = Rule(
    "drop", parse("ndcg@10"), DAY, Drop(0.07, 0.07, True, Baseline(trailing=14 * DAY)), 6 * HOUR, 6 * HOUR,
    min_requests=50, retrain=True,
)  # fmt: skip


def watched() -> Monitor:
    made = shop(["ndcg@10"], alerts=(RULE,), lookback=30 * DAY)
    rankings = replace(made.rankings, query="query", model_version="model_version")
    version = Slice("model_version", "model_version")
    return replace(made, rankings=rankings, slices=(version, *made.slices))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three weeks of the shop and a store in which its incident is open."""
    folder = tmp_path_factory.mktemp("diagnosing")
    shop_database(folder / "shop.db", Shop(story=STORY), STORY.start, STORY.history_end)
    store, monitor = new_store(f"sqlite:///{folder}/store.db"), watched()
    with store.hold("shop") as lease:
        source = pull(monitor, f"sqlite:///{folder}/shop.db")
        for _ in run_backfill(monitor, LAST + DAY, (FIRST, LAST), source, store, lease, BatchSize()):
            pass
        judge_monitor(monitor, LAST + DAY, store, lease, Recipients())
    store.close()
    return folder


@dataclass
class Source:
    """The shop's database; it records what is read and fails on demand."""

    source: Any
    fault: Exception | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)
    holds_since: int = 0
    bad: int | None = None

    def read(self, since: int, until: int) -> Reading:
        self.asked.append((since, until))
        if self.fault is not None:
            raise self.fault
        if self.bad is not None and since <= self.bad < until:
            raise SourceError("a row that cannot be read", "data")
        found: Reading = self.source.read(max(since, self.holds_since), max(until, self.holds_since))
        return found


@dataclass
class Bench:
    """A store with an open incident, and its source."""

    store: Store
    source: Source
    monitor: Monitor = field(default_factory=watched)

    @property
    def incident(self) -> StoredIncident:
        (found,) = (s for s in self.store.alerts.incidents("shop", "firing") if s.incident.matter != "data")
        return found

    def open(self, monitor: Monitor) -> RowReader:
        if self.source.source.monitor != monitor:
            self.source.source = Pull(monitor, self.source.source.database)
        return self.source

    @property
    def document(self) -> dict[str, Any] | None:
        found = self.store.verdicts.diagnoses(self.incident.incident.id)
        return next((dict(one.document) for one in found if one.document is not None), None)

    @property
    def first(self) -> FiredCondition:
        return first_fired(self.incident, self.store)

    def join(self, *slices: str) -> None:
        """Makes the rule fire on more slices, an hour after the incident opened."""
        (step,) = [t for t in self.store.alerts.transitions("shop") if t.became == "firing" and not t.dimension]
        assert step.evidence is not None
        with self.store.writing() as connection:
            for name in slices:
                found = replace(step.evidence, dimension="device", slice=name, end=step.at + HOUR)
                row = {"monitor": "shop", "dimension": "device", "value": name, "at": step.at + HOUR}
                row |= {n: getattr(step, n) for n in ("incident", "rule", "was", "became", "recorded_at", "reason")}
                row["evidence"] = json.dumps(found.plain())
                connection.execute(transitions.insert().values(row))

    def fire(self, *slices: str) -> None:
        """Makes the rule still fire on these slices only; "" is all traffic."""
        with self.store.writing() as connection:
            (summary,) = connection.execute(sa.select(incidents.c.summary)).scalars()
            found = json.loads(summary)
            first = found["firing"][0]
            found["firing"] = [{**first, "dimension": "device" * bool(name), "value": name} for name in slices]
            connection.execute(incidents.update().values(summary=json.dumps(found)))

    def capture(self) -> dict[str, Any]:
        source = self.open(detailed(self.monitor))
        steps = capture(self.monitor, self.incident, self.first, self.store, source, 1e9)
        try:
            while True:
                next(steps)
        except StopIteration as ended:
            return json.loads(json.dumps(ended.value))  # type: ignore[no-any-return]


@pytest.fixture
def bench(filled: Path, tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "store.db").write_bytes((filled / "store.db").read_bytes())
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    yield Bench(store, Source(pull(watched(), f"sqlite:///{filled}/shop.db")))
    store.close()


@pytest.fixture
def judged(filled: Path, tmp_path: Path) -> Iterator[Bench]:
    """The same shop with verdicts instead of the rule."""
    monitor = replace(watched(), alerts=(), drift=Drift(parse("ndcg@10"), "device"))
    store, source = new_store(f"sqlite:///{tmp_path}/store.db"), pull(monitor, f"sqlite:///{filled}/shop.db")
    with store.hold("shop") as lease:
        for _ in run_backfill(monitor, LAST + DAY, (FIRST, LAST), source, store, lease, BatchSize()):
            pass
        judge_monitor(monitor, LAST + DAY, store, lease, Recipients())
    yield Bench(store, Source(source), monitor)
    store.close()


# ---- contents ------------------------------------------------------------------------------------------------------


def test_captured_requests_match_the_stored_window_and_earlier_weeks(bench: Bench) -> None:
    found = bench.capture()
    window, *weeks = found["captured"]["periods"]
    assert [p["since"] for p in weeks] == [window["since"] - n * WEEK for n in (1, 2, 3)]
    assert not any(p["is_sampled"] for p in (window, *weeks))
    history = bench.store.history(bench.monitor.definition(parse("ndcg@10")), window["since"], window["until"])
    merged = history.slice(("", "")).sum(axis=0)
    assert window["requests"] == int(merged[0] - merged[1]), "requests with a value"
    assert found["captured"]["value"] == pytest.approx(merged[2] / window["requests"], abs=1e-12)
    assert found["captured"]["value"] == pytest.approx(found["fell"]["value"], abs=1e-12)


def test_a_capture_names_the_guilty_device_and_version(bench: Bench) -> None:
    found = bench.capture()
    assert (found["slices"][0]["slice"], found["slices_by_z"][0]["slice"]) == ("mobile", "mobile")
    assert found["split"]["within"] + found["split"]["mix"] == pytest.approx(
        found["split"]["value"] - found["split"]["before"], abs=1e-12
    )
    assert {v["version"] for v in found["versions"]} == {"v1", "v2"}
    compared = found["captured"]["comparison"]
    assert (compared["first"]["version"], compared["second"]["version"], compared["by"]) == ("v1", "v2", "query")
    assert compared["upper"] < 0


def test_listed_requests_exist_in_the_source_and_lost_value(bench: Bench, filled: Path) -> None:
    found = bench.capture()["captured"]["requests"]
    assert len(found) == 20
    assert all(r["value"] < r["expected"] for r in found)
    engine = sa.create_engine(f"sqlite:///{filled}/shop.db")
    with engine.connect() as connection:
        for one in found:
            row = connection.execute(
                sa.text("SELECT DISTINCT device, model_version FROM rankings WHERE request_id = :id"),
                {"id": one["request"]},
            ).one()
            assert tuple(row) == (one["slice"], one["version"])
    engine.dispose()


def test_query_texts_are_hidden_unless_switched_on(bench: Bench, filled: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{filled}/shop.db")
    with engine.connect() as connection:
        texts = set(connection.execute(sa.text("SELECT DISTINCT query FROM rankings")).scalars())
    engine.dispose()
    hidden = bench.capture()
    ids = {query_id(text) for text in texts}
    worst = hidden["captured"]["queries"]["worst"]
    assert worst
    assert {q["query"] for q in worst} <= ids
    assert all("text" not in q for q in worst)
    assert not any(f'"{text}"' in json.dumps(hidden) for text in texts)
    bench.monitor = replace(bench.monitor, drift=Drift(parse("ndcg@10"), "device", show_queries=True))
    shown = bench.capture()["captured"]["queries"]["worst"]
    assert {q["text"] for q in shown} <= texts


def test_a_verdicts_diagnosis_uses_the_verdicts_own_split(judged: Bench) -> None:
    bench, store = judged, judged.store
    found = bench.capture()
    (verdict,) = store.verdicts.between("shop", found["fired_at"] - 1, found["fired_at"])
    assert found["fell"]["verdict"] == "degraded"
    assert found["measure"] == "ndcg(empty=zero)@10"
    assert verdict.split is not None
    assert found["split"]["from"] == "verdict"
    assert found["split"]["before"] == verdict.split.before
    told = {p["slice"]: (p["before"], p["value"], p["z"]) for p in found["slices"] if p["dimension"] == "device"}
    assert told == {p.slice: (p.before, p.value, p.z) for p in verdict.split.parts}, (
        "slices are compared with the same baseline as the split"
    )
    assert {p["against"] for p in found["slices"] if p["dimension"] != "device"} == {"before"}
    whole = found["split"]
    assert whole["within"] + whole["mix"] == pytest.approx(whole["value"] - whole["before"], abs=1e-12)
    assert found["slices_by_z"][0]["slice"] == "mobile"
    empty = {r["value"] for r in found["captured"]["requests"]}
    assert empty == {0.0}, "here a request without a click counts as a loss"


def test_slices_that_lost_their_labels_are_left_out_of_a_capture(
    judged: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, store = judged, judged.store
    whole = bench.capture()
    assert (whole["dimension"], whole["unlabelled"]) == ("", [])
    assert "mobile" in {r["slice"] for r in whole["captured"]["requests"]}
    said = store.verdicts.between
    lost = (SliceLabelLoss("mobile", LAST, 0.01, 0.7),)
    monkeypatch.setattr(store.verdicts, "between", lambda *of: [replace(v, lost=lost) for v in said(*of)])
    found = bench.capture()
    assert found["unlabelled"] == ["mobile"]
    assert "mobile" not in {r["slice"] for r in found["captured"]["requests"]}
    assert found["coverage"]["requests"] < whole["coverage"]["requests"]
    assert found["versions"] == [], "a version's partials include all slices"
    read, both = (sum(v["requests"] for v in d["captured"]["versions"]) for d in (found, whole))
    assert 0 < read < both
    assert (
        "device=mobile lost its labels and is left out of requests, queries and versions"
        in (found["captured"]["notes"])
    )
    text = "\n".join(lines(bench.incident, [Told(bench.first.name, bench.first.at, found)], []))
    assert "Labels and traffic without mobile, which had lost their labels" in text
    assert "Model versions in the window, without mobile, from the requests read" in text


def test_a_report_without_label_events_does_not_mention_them(bench: Bench) -> None:
    found = bench.capture()

    def text(document: dict[str, Any]) -> str:
        return "\n".join(lines(bench.incident, [Told(bench.first.name, bench.first.at, document)], []))

    assert "events per request" in text(found)
    of_none = {name: None for name in found["coverage"] if name.startswith(("events", "unmatched"))}
    without = text({**found, "coverage": {**found["coverage"], **of_none}})
    assert "requests with a label" in without
    assert "events" not in without.partition("Labels and traffic")[2].partition("\n\n")[0]


def test_capturing_twice_gives_the_same_document(bench: Bench) -> None:
    assert bench.capture() == bench.capture()


def test_too_many_requests_are_sampled_and_the_notes_say_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bench.capture()
    monkeypatch.setattr(d, "MOST_REQUESTS", 200)
    bench.source.asked = []
    found = bench.capture()
    assert all(p["requests"] <= 200 for p in found["captured"]["periods"])
    assert all(p["is_sampled"] for p in found["captured"]["periods"])
    assert any("are sampled, at most 200 requests" in note for note in found["captured"]["notes"])
    assert not any("sample" in note for note in whole["captured"]["notes"])
    read = sum(until - since for since, until in bench.source.asked)
    assert read < 0.5 * sum(p["until"] - p["since"] for p in found["captured"]["periods"]), (
        "only part of each period is read"
    )
    assert found["split"] == whole["split"], "stored partials need no sample"
    assert found == bench.capture()


def test_a_range_too_large_for_memory_is_read_in_parts(bench: Bench) -> None:
    whole, read = bench.capture(), bench.source.source.read

    def small(since: int, until: int) -> Reading:
        if until - since > 5 * HOUR:
            raise TooMany("more than 10 rows")
        return read(since, until)  # type: ignore[no-any-return]

    bench.source.source.read = small
    found = bench.capture()
    assert found["captured"]["value"] == pytest.approx(whole["captured"]["value"], abs=1e-12)
    assert found["captured"]["requests"] == whole["captured"]["requests"]
    bench.source.source.read = lambda *_: (_ for _ in ()).throw(TooMany("more than 10 rows"))
    with pytest.raises(SourceError, match="more than 10 rows within a second"):
        bench.capture()


def test_a_purged_source_leaves_the_stored_parts_and_a_note(bench: Bench) -> None:
    whole = bench.capture()
    bench.source.holds_since = whole["window"][0]
    found = bench.capture()
    assert found["captured"]["requests"] == []
    assert any("no longer has all earlier weeks" in note for note in found["captured"]["notes"])
    bench.source.holds_since = LAST + 10 * DAY
    empty = bench.capture()
    assert any("no longer has the requests of the fallen window" in note for note in empty["captured"]["notes"])
    assert empty["captured"]["value"] is None
    assert empty["slices"] == whole["slices"]


def test_a_fallen_slice_captures_only_its_requests(bench: Bench) -> None:
    (transition,) = [t for t in bench.store.alerts.transitions("shop") if t.became == "firing"]
    finding = replace(transition.evidence, dimension="device", slice="mobile") if transition.evidence else None
    assert finding is not None
    stored = replace(bench.incident, findings=(finding,))
    with bench.store.writing() as connection:
        connection.execute(sa.text("DELETE FROM transitions"))
    source, first = bench.open(detailed(bench.monitor)), first_fired(stored, bench.store)
    steps = capture(bench.monitor, stored, first, bench.store, source, 1e9)
    try:
        while True:
            next(steps)
    except StopIteration as ended:
        found = ended.value
    assert (found["dimension"], found["slice"]) == ("device", "mobile")
    assert {r["slice"] for r in found["captured"]["requests"]} == {"mobile"}


def test_a_missing_query_column_is_noted(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, rankings=replace(bench.monitor.rankings, query=None, model_version=None))
    found = bench.capture()["captured"]
    assert found["queries"] is None
    assert found["comparison"] is None
    assert any("name their column under `rankings: query`" in note for note in found["notes"])
    assert {r["by_query"] for r in found["requests"]} == {False}
    assert {r["slice"] for r in found["requests"]} == {"mobile"}, "the other slices did not fall"


def test_without_queries_requests_with_nothing_relevant_are_not_listed(bench: Bench) -> None:
    """A quarter of healthy requests has no click either; sorted by time they would fill the list."""
    zero = parse("ndcg(empty=zero)@10")
    bench.monitor = replace(
        bench.monitor, rankings=replace(bench.monitor.rankings, query=None), measures=(zero,),
        alerts=(replace(RULE, measure=zero),),
    )  # fmt: skip
    set_ = sa.update(transitions).values(
        evidence=sa.func.json_set(transitions.c.evidence, "$.judged", "ndcg(empty=zero)@10")
    )
    with bench.store.writing() as connection:
        connection.execute(set_.where(transitions.c.evidence.is_not(None)))
    found = bench.capture()
    assert found["measure"] == "ndcg(empty=zero)@10"
    now, before = found["captured"]["left_out"]
    assert 0.5 < now < 0.7
    assert 0.2 < before < 0.4
    lost = found["captured"]["requests"]
    assert {r["slice"] for r in lost} == {"mobile"}
    assert min(r["expected"] for r in lost) > 0.7, "expected among requests with something relevant"
    text = "\n".join(lines(bench.incident, [Told(bench.first.name, bench.first.at, found)], []))
    assert "  In the slices that fell, requests with nothing relevant are not part of this: " in text
    with sa.create_engine(bench.source.source.database.url).connect() as connection:
        clicked = set(connection.execute(sa.text("SELECT request_id FROM events")).scalars())
    assert {r["request"] for r in lost} <= clicked


def test_serving_times_of_versions_come_from_the_store(bench: Bench) -> None:
    """The captured periods are a day and the same hours of earlier weeks; they miss the time in between."""
    rollout = LAST - 2 * DAY
    found = bench.capture()
    assert found["window"][0] not in (rollout, rollout - DAY), "otherwise the expected time would be right by chance"
    one, other = (found["captured"]["comparison"][which] for which in ("first", "second"))
    assert (one["version"], one["since"], one["until"]) == ("v1", FIRST, rollout)
    assert (other["version"], other["since"]) == ("v2", rollout)
    assert found["captured"]["comparison"]["resolution"] == HOUR


def test_judgments_by_query_and_the_query_slice_are_read_together(database_url: str) -> None:
    """The query is selected twice: once to join judgments, once as the query slice."""
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE shown (request TEXT, query TEXT, item TEXT, position INT, at BIGINT)"))
        connection.execute(sa.text("CREATE TABLE judged (query TEXT, item TEXT, grade INT)"))
        connection.execute(sa.text("INSERT INTO judged VALUES ('a', 'x', 3), ('a', 'y', 1), ('b', 'x', 1)"))
        rows = "('1','a','y',1,100), ('1','a','x',2,100), ('2','b','x',1,200)"
        connection.execute(sa.text(f"INSERT INTO shown VALUES {rows}"))
    engine.dispose()
    made = shop(["ndcg@10"], slices=())
    time = replace(made.rankings.time, column="at", format="epoch_s")
    rankings = replace(
        made.rankings, relation=Relation(("shown",)), request="request", item="item", time=time, query="query"
    )
    recipe = Judgments(Relation(("judged",)), "query", "item", "grade")
    monitor = detailed(replace(made, rankings=rankings, recipe=recipe, measures=(parse("ndcg@10"),)))
    reading = pull(monitor, database_url).read(0, HOUR)
    assert list(reading.ids) == ["1", "2"]
    assert list(reading.slices["rankmon_query"]) == ["a", "b"]


# ---- timing --------------------------------------------------------------------------------------------------------


def never() -> bool:
    return False


def test_a_diagnosis_is_taken_once(bench: Bench) -> None:
    diagnoser = Diagnoser(bench.monitor, bench.store, bench.open)
    assert diagnoser.advance(never) == bench.incident.incident.id
    document, asked = bench.document, len(bench.source.asked)
    assert document is not None
    assert diagnoser.advance(never) is None
    assert Diagnoser(bench.monitor, bench.store, bench.open).advance(never) is None
    assert (bench.document, len(bench.source.asked)) == (document, asked)


def test_a_diagnosis_continues_over_several_cycles(bench: Bench) -> None:
    diagnoser = Diagnoser(bench.monitor, bench.store, bench.open)
    taken = [diagnoser.advance(lambda: True)]
    assert len(bench.source.asked) == 1
    while taken[-1] is None:
        assert bench.document is None
        taken.append(diagnoser.advance(never, longest=0.0))
    assert len(taken) >= 3
    assert len(bench.source.asked) == len(set(bench.source.asked)), "nothing is read twice"
    assert bench.document is not None
    assert {**bench.document, "captured": None} == {**bench.capture(), "captured": None}


def test_a_failing_source_is_retried_with_growing_pauses(bench: Bench) -> None:
    diagnoser = Diagnoser(bench.monitor, bench.store, bench.open)
    bench.source.fault = SourceError("it is away", "connect")
    failed = []
    for cycle in range(40):
        try:
            diagnoser.advance(never)
        except SourceError:
            failed.append(cycle)
    assert failed[:4] == [0, 1, 3, 7]
    assert {b - a for a, b in pairwise(failed[4:])} == {13}
    bench.source.fault = None
    for _ in range(13):
        diagnoser.advance(never)
    assert bench.document is not None


def test_data_incidents_are_not_diagnosed(bench: Bench) -> None:
    with bench.store.writing() as connection:
        connection.execute(sa.text("UPDATE incidents SET matter = 'data'"))
    assert Diagnoser(bench.monitor, bench.store, bench.open).advance(never) is None
    assert bench.source.asked == []


def test_a_resolved_incident_stops_the_reading(bench: Bench) -> None:
    diagnoser = Diagnoser(bench.monitor, bench.store, bench.open)
    diagnoser.advance(lambda: True)
    with bench.store.writing() as connection:
        connection.execute(sa.text("UPDATE incidents SET state = 'resolved'"))
    assert diagnoser.advance(never) is None
    assert len(bench.source.asked) == 1


def test_the_stored_document_needs_no_source(bench: Bench) -> None:
    found = StoredFall(bench.monitor, bench.first, bench.store).document(bench.incident.incident)
    assert found["slices"][0]["slice"] == "mobile"
    assert "captured" not in found
    assert bench.source.asked == []


# ---- several conditions --------------------------------------------------------------------------------------------


def test_still_firing_conditions_come_before_ended_ones(bench: Bench) -> None:
    bench.join("mobile", "desktop")
    assert fired(bench.incident, bench.store)[0].name == ("drop", "", "")
    bench.fire("mobile")
    assert [one.name[2] for one in fired(bench.incident, bench.store)] == ["mobile", "", "desktop"]
    assert bench.first.name == ("drop", "device", "mobile")
    bench.fire("mobile", "")
    assert bench.first.name == ("drop", "", ""), "overall before its slices"
    with bench.store.writing() as connection:
        grave = sa.func.json_set(transitions.c.evidence, "$.severity", "info")
        connection.execute(sa.update(transitions).values(evidence=grave).where(transitions.c.dimension == ""))
        connection.execute(
            sa.update(incidents).values(summary=sa.func.json_set(incidents.c.summary, "$.findings", sa.func.json("[]")))
        )
    assert bench.first.name == ("drop", "device", "mobile"), "the gravest first"


def test_the_gravest_condition_is_diagnosed_beyond_the_limit(bench: Bench) -> None:
    bench.join(*(f"slice {n}" for n in range(2 * MOST)))
    diagnoser = Diagnoser(bench.monitor, bench.store, bench.open)
    diagnoser.advance(never)
    assert len(conditions(bench)) == MOST
    late = f"slice {2 * MOST - 1}"
    assert ("device", late) not in conditions(bench)
    bench.fire(late)
    diagnoser.advance(never)
    assert ("device", late) in conditions(bench)
    assert len(conditions(bench)) == MOST + 1


def test_a_slices_versions_are_counted_from_its_captured_requests(bench: Bench) -> None:
    bench.join("mobile")
    bench.fire("mobile")
    found = bench.capture()
    assert found["slice"] == "mobile"
    told = {v["version"]: (v["requests"], v["requests_before"]) for v in found["captured"]["versions"]}
    window, *weeks = found["captured"]["periods"]
    assert told == {"v1": (0, sum(p["requests"] for p in weeks)), "v2": (window["requests"], 0)}


def conditions(bench: Bench) -> list[tuple[str, str]]:
    """The conditions with a diagnosis, as dimension and value."""
    found = bench.store.verdicts.diagnoses(bench.incident.incident.id)
    return [one.condition[1:] for one in found if one.document is not None]


def test_each_firing_condition_gets_its_own_diagnosis(bench: Bench) -> None:
    diagnoser = Diagnoser(bench.monitor, bench.store, bench.open)
    diagnoser.advance(never)
    assert conditions(bench) == [("", "")]
    before = bench.document
    bench.join("mobile", "desktop")
    assert diagnoser.advance(never) == bench.incident.incident.id
    assert sorted(conditions(bench)) == [("", ""), ("device", "desktop"), ("device", "mobile")]
    documents = {one.condition[2]: one.document for one in bench.store.verdicts.diagnoses(bench.incident.incident.id)}
    for name in ("mobile", "desktop"):
        document = documents[name]
        assert document is not None
        assert document["slice"] == name
        assert {r["slice"] for r in document["captured"]["requests"]} == {name}
    assert bench.document == before, "the diagnosis of all traffic is unchanged"
    assert diagnoser.advance(never) is None


def test_all_traffic_is_diagnosed_first_and_the_number_is_limited(bench: Bench) -> None:
    bench.join(*(f"slice {n}" for n in range(2 * MOST)))
    assert fired(bench.incident, bench.store)[0].name[1:] == ("", "")
    diagnoser = Diagnoser(bench.monitor, bench.store, bench.open)
    diagnoser.advance(lambda: True)
    while not conditions(bench):
        diagnoser.advance(lambda: True)
    assert conditions(bench) == [("", "")]
    diagnoser.advance(never)
    assert len(conditions(bench)) == MOST
    asked = len(bench.source.asked)
    assert diagnoser.advance(never) is None
    assert len(bench.source.asked) == asked


def test_a_failed_capture_keeps_its_error_until_one_succeeds(bench: Bench) -> None:
    diagnoser, id_ = Diagnoser(bench.monitor, bench.store, bench.open), bench.incident.incident.id
    bench.source.fault = SourceError("it is away", "connect")
    with pytest.raises(SourceError):
        diagnoser.advance(never)
    (failed,) = bench.store.verdicts.diagnoses(id_)
    assert (failed.condition, failed.document, failed.error) == (("drop", "", ""), None, "it is away")
    assert bench.document is None
    bench.source.fault = KeyError("somebody's query")
    with pytest.raises(KeyError):
        diagnoser.advance(never)
    (failed,) = bench.store.verdicts.diagnoses(id_)
    assert failed.error == "a bug in rankmon (KeyError)"
    bench.source.fault = None
    for _ in range(3):
        diagnoser.advance(never)
    (done,) = bench.store.verdicts.diagnoses(id_)
    assert done.error == ""
    assert done.document is not None
    late = replace(done, document=None, error="too late")
    bench.store.verdicts.put_diagnosis(id_, "shop", late)
    assert bench.store.verdicts.diagnoses(id_) == [done]


def test_a_failing_capture_does_not_block_the_others(bench: Bench) -> None:
    bench.join("mobile")
    bench.source.bad = (
        bench.first.at - DAY
    )  # the first second of all traffic's window; the slice's window starts an hour later
    diagnoser = Diagnoser(bench.monitor, bench.store, bench.open)
    failures = 0
    for _ in range(6):
        try:
            diagnoser.advance(never)
        except SourceError:
            failures += 1
    assert failures
    assert conditions(bench) == [("device", "mobile")]


def test_a_period_of_unknown_size_does_not_count_as_sampled() -> None:
    from monitor.causes.sample import NO_REQUESTS

    assert not CapturedPeriod((0, HOUR), NO_REQUESTS, None).plain()["is_sampled"]


# ---- in a cycle ----------------------------------------------------------------------------------------------------


@dataclass
class Daemon:
    """A runner over the bench; its detailed reading can fail separately."""

    bench: Bench
    cycle_source: Any
    is_detailed: bool = True
    opened: int = 0

    def __post_init__(self) -> None:
        import threading

        parts = (self.bench.store, Board(), Telemetry(), self, threading.Event(), self)
        self.telemetry, self.stopping = parts[2], parts[4]
        opens = self._open if self.is_detailed else None
        self.runner = Runner(self.bench.monitor, self.cycle_source, *parts, open_detailed=opens)  # type: ignore[arg-type]

    speed = 1.0

    def now(self) -> float:
        return LAST + DAY

    def recipients(self) -> Recipients:
        return Recipients({"log": ("log",)}, "http://page/", 0.0)

    def wake(self) -> None:
        pass

    def _open(self, monitor: Monitor) -> RowReader:
        self.opened += 1
        return self.bench.open(monitor)


@pytest.fixture
def daemon(bench: Bench, filled: Path) -> Daemon:
    return Daemon(bench, pull(bench.monitor, f"sqlite:///{filled}/shop.db"))


def test_a_cycle_sends_notices_and_takes_a_diagnosis(daemon: Daemon) -> None:
    assert daemon.runner.run().error is None
    assert daemon.bench.document is not None
    kinds = {n.kind for n in [daemon.bench.store.alerts.notices(daemon.bench.incident.incident.id)[1]] if n is not None}
    assert kinds <= {"firing", "retrain"}
    assert kinds


@pytest.mark.parametrize("fault", [SourceError("it is away", "connect"), ValueError("a bug"), KeyError("x")])
def test_a_failing_diagnosis_does_not_fail_the_cycle(
    daemon: Daemon, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.bench.source.fault = fault
    run = daemon.runner.run()
    assert run.error is None
    assert daemon.opened == 1
    assert daemon.bench.document is None
    assert daemon.bench.store.progress("shop").last_error == ""
    assert "diagnosis" in caplog.text
    daemon.bench.source.fault = None
    assert daemon.runner.run().error is None
    assert daemon.bench.document is not None


def test_a_runner_without_a_detailed_reader_diagnoses_nothing(bench: Bench, filled: Path) -> None:
    daemon = Daemon(bench, pull(bench.monitor, f"sqlite:///{filled}/shop.db"), is_detailed=False)
    assert daemon.runner.run().error is None
    assert bench.document is None


def test_query_texts_never_reach_log_or_outbox(bench: Bench, filled: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    bench.monitor = replace(bench.monitor, drift=Drift(parse("ndcg@10"), "device", show_queries=True))
    Daemon(bench, pull(bench.monitor, f"sqlite:///{filled}/shop.db")).runner.run()
    assert "is diagnosed: see rankmon explain-incident" in caplog.text
    assert bench.document is not None
    texts = [q["text"] for q in bench.document["captured"]["queries"]["worst"] if " " in q["text"]]
    assert texts, "single words also occur inside other words"
    with bench.store.reading() as connection:
        sent = "".join(connection.execute(sa.text("SELECT document FROM outbox")).scalars())
    assert sent
    assert not any(text in caplog.text or text in sent for text in texts)


def test_a_resolved_incident_left_undiagnosed_is_diagnosed_later(bench: Bench) -> None:
    """A killed process had opened and reported the incident; it resolved before any process diagnosed it."""
    name = bench.incident.incident.id
    with bench.store.writing() as connection:
        over = {"state": "resolved", "closed_at": LAST, "told": True}
        connection.execute(incidents.update().where(incidents.c.id == name).values(over))
    made = Diagnoser(bench.monitor, bench.store, bench.open)
    assert [made.advance(lambda: False) for _ in range(2)] == [name, None]
    assert [one.document is not None for one in bench.store.verdicts.diagnoses(name)] == [True]
    asked = len(bench.source.asked)
    assert Diagnoser(bench.monitor, bench.store, bench.open).advance(lambda: False) is None
    assert len(bench.source.asked) == asked


def test_an_overdue_diagnosis_is_given_up_after_three_failures(bench: Bench) -> None:
    with bench.store.writing() as connection:
        connection.execute(incidents.update().values(state="resolved", closed_at=LAST, told=True))
    bench.source.fault = SourceError("gone", "missing")
    made, failed = Diagnoser(bench.monitor, bench.store, bench.open), 0
    for _ in range(30):
        try:
            assert made.advance(lambda: False) is None
        except SourceError:
            failed += 1
    assert failed == 3
