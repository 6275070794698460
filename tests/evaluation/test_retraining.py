"""Retraining requests: only for lasting falls that bad data do not explain, and with their evidence."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.conditions.checkpoint import BaselineReset
from monitor.conditions.evidence import Evidence, Matter
from monitor.conditions.incident import Firing, Incident
from monitor.conditions.rules import Floor
from monitor.drift.verdicts import Alarm, AlarmChange, Verdict
from monitor.evaluation.notices import Recipients
from monitor.evaluation.retraining import LARGEST, LONGEST_TEXT, due, evidence, in_the_way
from monitor.evaluation.run import judge_monitor
from monitor.evaluation.stored_fall import NOTHING, StoredFall, UnsavedEvaluation, first_fired
from monitor.measures.measure import parse
from monitor.messages.notification import Notification
from monitor.messages.words import lasting
from monitor.service.cycle import BatchSize, run_backfill
from monitor.service.snapshot import take_snapshot
from monitor.store import Store
from monitor.store.alerts import Retrain, StoredIncident
from monitor.store.verdicts import Diagnosis
from monitor.types import Drift, Monitor, Relation, RetrainRequests, Slice
from tests.causes.test_diagnosing import FIRST, LAST, Bench, bench, filled
from tests.causes.test_diagnosing import watched as bench_monitor
from tests.evaluation.test_judging import BASE, RULE
from tests.evaluation.test_judging import Bench as Hours
from tests.support.monitors import new_store, pull
from tests.support.notices import COVERAGE, DROP, FELL, of_kind
from tests.support.tallies import HOUR, RANKINGS, watched

__all__ = ["bench", "filled"]

DAY = 24 * HOUR
NAME = ("drop", "", "")
FALLEN = replace(DROP, rule="drop")


LOW = of_kind("degraded", DROP)
RISING = (replace(LOW, well_for=HOUR), FALLEN)
SLOW = replace(LOW, dimension="device", slice="tv")


def opened(
    matter: Matter = "quality", retrain: bool = True, findings: tuple[Evidence, ...] = (FALLEN,), at: int = FELL
) -> StoredIncident:
    firing = {NAME: Firing("critical", retrain, at)}
    return StoredIncident(Incident("search", at, at, firing=firing, matter=matter), True, findings)


def monitor(after: int = DAY, cooldown: int = 7 * DAY) -> Monitor:
    return replace(watched(), retrain=RetrainRequests((), cooldown, after))


# ---- when ----------------------------------------------------------------------------------------------------------

CURRENT = opened()
ID = CURRENT.incident.id


@pytest.mark.parametrize(
    ("why", "is_due", "found", "last", "lasted"),
    [
        ("it has lasted", True, [CURRENT], None, DAY),
        ("it has not lasted yet", False, [CURRENT], None, DAY - HOUR),
        ("nothing is open", False, [], None, DAY),
        ("no rule asks for it", False, [opened(retrain=False)], None, DAY),
        ("the data are broken too", False, [CURRENT, opened("data")], None, DAY),
        ("only the data are broken", False, [opened("data")], None, DAY),
        ("a rule on the labels fires with it", False, [opened(findings=(FALLEN, COVERAGE))], None, DAY),
        ("labels fell with it", False, [opened(findings=(replace(FALLEN, coverage=0.1),))], None, DAY),
        ("it is recovering", False, [opened(findings=(replace(FALLEN, well_for=HOUR),))], None, DAY),
        ("the overall mean is rising again", False, [opened(findings=(*RISING, SLOW))], None, DAY),
        (
            "a slice rises, but overall does not",
            True,
            [opened(findings=(LOW, replace(SLOW, well_for=HOUR)))],
            None,
            DAY,
        ),
        ("it asked already", False, [CURRENT], Retrain("k", ID, FELL), 30 * DAY),
        ("another asked too recently", False, [CURRENT], Retrain("k", "other", FELL), DAY),
        ("another asked long ago", True, [CURRENT], Retrain("k", "other", FELL - 6 * DAY), DAY),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_retraining_is_requested_only_for_a_lasting_fall_of_the_model(
    why: str, is_due: bool, found: list[StoredIncident], last: Retrain | None, lasted: int
) -> None:
    by_matter = {stored.incident.matter: stored for stored in found}
    asked = due(monitor(), last, FELL + lasted, by_matter)
    assert (asked is not None) == is_due, why
    asks = "quality" in by_matter and any(x.retrain for x in (by_matter["quality"].incident.firing or {}).values())
    assert bool(in_the_way(monitor(), last, FELL + lasted, by_matter)) == (asks and not is_due)
    assert asked is None or (asked.incident, asked.asked_at) == (ID, FELL + lasted)


@pytest.mark.parametrize(
    ("since", "known", "is_due"),
    [
        (FELL + HOUR, FELL + 2 * HOUR, False),
        (
            FELL - DAY,
            FELL + 2 * HOUR,
            False,
        ),  # the level is learnt from the two days after it, and the fall is in these
        (FELL - HOUR, FELL - HOUR, True),  # nobody knew of the fall then
        (FELL + HOUR, None, True),
        (FELL - 20 * DAY, FELL + 2 * HOUR, True),  # it has fallen below that level too
    ],
)
def test_a_fall_accepted_as_the_new_level_requests_no_retraining(since: int, known: int | None, is_due: bool) -> None:
    said = [BaselineReset(since, "ann", "", known)]
    assert (due(monitor(), None, FELL + DAY, {"quality": CURRENT}, said) is not None) == is_due


@pytest.mark.parametrize(
    ("said", "last", "lasted"),
    [
        ("it has lasted 23 h of 1 d", None, DAY - HOUR),
        ("it was already requested, ", Retrain("k", ID, FELL), 30 * DAY),
        (" is less than 7 d ago", Retrain("k", "other", FELL), DAY),
        ("", None, DAY),
    ],
)
def test_the_reason_against_retraining_is_reported(said: str, last: Retrain | None, lasted: int) -> None:
    found = in_the_way(monitor(), last, FELL + lasted, {"quality": CURRENT})
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize(("lasted", "is_due"), [(DAY, False), (DAY + 5 * HOUR, False), (DAY + 6 * HOUR, True)])
def test_the_asking_rule_itself_must_have_lasted(lasted: int, is_due: bool) -> None:
    other = ("floor", "", "")
    firing = {other: Firing("warning", False, FELL), NAME: Firing("critical", True, FELL + 6 * HOUR)}
    found = StoredIncident(Incident("search", FELL, FELL, firing=firing), True, (FALLEN,))
    assert (due(monitor(), None, FELL + lasted, {"quality": found}) is not None) == is_due
    said = "" if is_due else f"it has lasted {lasting(lasted - 6 * HOUR)} of 1 d"
    assert in_the_way(monitor(), None, FELL + lasted, {"quality": found}) == said


def test_an_earlier_request_is_reported_before_a_recovery() -> None:
    rising = opened(findings=RISING)
    asked = Retrain("k", rising.incident.id, FELL)
    assert in_the_way(monitor(), asked, FELL + DAY, {"quality": rising}).startswith("it was already requested")


def test_the_request_key_does_not_depend_on_the_time_of_asking() -> None:
    keys = {getattr(due(monitor(), None, FELL + DAY + n, {"quality": CURRENT}), "key", None) for n in (0, HOUR)}
    assert len(keys) == 1
    assert keys != {None}


def test_a_live_run_requests_retraining_once_the_incident_has_lasted(tmp_path: Path) -> None:
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    made = replace(
        watched(), windows=(HOUR,), alerts=(replace(RULE, retrain=True, slices=()),), notify=("team",),
        retrain=RetrainRequests(notify=("team",), after=5 * HOUR),
    )  # fmt: skip
    hours = Hours(store, made)
    hours.live(0.8, *[0.4] * 6)
    assert [kind for _, kind in hours.notices] == ["firing"]
    assert re.fullmatch(r"it has lasted \d h of 5 h", take_snapshot(made, store, 1e10).no_retraining_as)
    hours.live(0.4)
    assert [kind for _, kind in hours.notices] == ["firing", "retrain"]
    hours.live(*[0.4] * 5)
    assert [kind for _, kind in hours.notices] == ["firing", "retrain"]
    store.close()


# ---- with what -----------------------------------------------------------------------------------------------------


def keep(bench: Bench, document: dict[str, Any]) -> None:
    """Store a diagnosis as that of the open incident."""
    found = Diagnosis(bench.first.name, 1e9, document)
    bench.store.verdicts.put_diagnosis(bench.incident.incident.id, "shop", found)


def requested(bench: Bench) -> Notification:
    """The request that a daemon makes for the open incident."""
    made = replace(bench.monitor, retrain=RetrainRequests(notify=("log",)), lookback=60 * DAY)
    with bench.store.hold("shop") as lease:
        judge_monitor(made, LAST + DAY, bench.store, lease, Recipients({"log": ("log",)}, "", 1e9, True))
    with bench.store.reading() as connection:
        (document,) = connection.execute(sa.text("SELECT document FROM outbox WHERE kind = 'retrain'")).scalars()
    return Notification.of(json.loads(document))


def test_a_request_carries_its_evidence(bench: Bench) -> None:
    document = bench.capture()
    keep(bench, document)
    found = requested(bench).evidence
    assert found is not None
    assert (found["measure"], found["window_seconds"]) == ("ndcg@10", DAY)
    ends = [point["end"] for point in found["series"]]
    assert (ends[-1], ends[-1] - ends[0]) == (bench.store.alerts.state("shop").until, 14 * DAY - HOUR)
    assert set(found["series"][0]) == {"end", "value", "requests"}
    assert found["series"][-1]["value"] < 0.93 * found["series"][0]["value"]
    assert found["diagnosis"]["slices"][0]["slice"] == "mobile"
    assert found["diagnosis"]["split"] == document["split"]
    assert found["diagnosis"]["comparison"]["second"]["version"] == "v2"
    stored = {d["measure"]: d for d in found["definitions"]}
    definition = bench.monitor.definition(bench.monitor.measures[0])
    assert stored["ndcg@10"]["id"] == definition.id
    assert json.loads(stored["ndcg@10"]["text"])["measure"] == "ndcg@10"
    assert len(json.dumps(found)) < 64 * 1024


def test_the_series_in_a_request_match_rankmon_series(bench: Bench) -> None:
    from monitor.cli.commands.series import series_table

    found = requested(bench).evidence
    assert found is not None
    measures = [bench.monitor.measures[0]]
    table = series_table(bench.store, bench.monitor, measures, [DAY], (LAST - 15 * DAY, LAST), HOUR)
    told = {
        int(at.timestamp()): (v, n) for at, v, n in zip(table["end"], table["value"], table["requests"], strict=True)
    }
    for point in found["series"]:
        value, requests = told[point["end"]]
        assert (point["value"], point["requests"]) == (pytest.approx(value, abs=1e-6), requests)


def test_incomplete_windows_are_left_out_of_the_series(tmp_path: Path) -> None:
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    rule = replace(RULE, window=4 * HOUR, slices=(), retrain=True)
    hours = Hours(store, replace(watched(), windows=(4 * HOUR,), alerts=(rule,), min_completeness=0.75))
    hours.put(*[0.8] * 8)
    hours.put(*[0.8] * 8, at=10)  # two hours are missing
    hours.put(*[0.4] * 8)
    hours.judge()
    found = evidence(hours.monitor, hours.incidents[0], BASE + 26 * HOUR, NOTHING, store)
    ends = [(point["end"] - BASE) // HOUR for point in found["series"]]
    # Windows that end with hours 10 to 12 are half complete; those just before and after, three quarters.
    assert ends == [*range(3, 10), *range(13, 27)]
    store.close()


def test_a_request_contains_no_request_ids_or_queries(bench: Bench) -> None:
    document = bench.capture()
    keep(bench, document)
    text = json.dumps(requested(bench).plain())
    assert document["captured"]["requests"]
    assert not any(r["request"] in text for r in document["captured"]["requests"])
    assert not any(q["query"] in text for q in document["captured"]["queries"]["worst"])


def test_a_request_without_a_diagnosis_uses_what_the_store_knows(bench: Bench) -> None:
    found = requested(bench).evidence
    assert found is not None
    assert found["diagnosis"]["slices"][0]["slice"] == "mobile"
    assert found["diagnosis"]["comparison"] is None
    assert found["verdict"] is None
    assert found["expected"] == []


def test_other_notifications_carry_no_evidence(bench: Bench) -> None:
    requested(bench)
    with bench.store.reading() as connection:
        documents = connection.execute(sa.text("SELECT document FROM outbox WHERE kind != 'retrain'")).scalars().all()
    assert documents
    assert all("evidence" not in json.loads(document) for document in documents)


def test_request_evidence_survives_a_json_round_trip() -> None:
    from tests.support.notices import notice

    made = notice("retrain", evidence={"version": 1, "series": []})
    assert Notification.of(json.loads(json.dumps(made.plain()))) == made
    assert hash(made)


def diagnosed_as_stored(monitor: Monitor, store: Store) -> dict[str, Any]:
    """The diagnosis in the only retraining request, checked to be the one that `explain-incident` shows."""
    with store.reading() as connection:
        (document,) = connection.execute(sa.text("SELECT document FROM outbox WHERE kind = 'retrain'")).scalars()
    asked = Notification.of(json.loads(document))
    (current,) = [s for s in store.alerts.incidents(state="firing") if s.incident.matter == "quality"]
    first = first_fired(current, store)
    assert asked.findings[0].rule == first.name[0]
    assert asked.evidence is not None
    told: dict[str, Any] = asked.evidence["diagnosis"]
    known = json.loads(json.dumps(StoredFall(monitor, first, store).document(current.incident)))
    assert told == {name: known.get(name) for name in told}
    return told


def test_one_run_over_everything_requests_with_the_fall_of_the_asking_rule(tmp_path: Path) -> None:
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    mild = replace(RULE, name="mild", severity="warning", slices=())
    grave = replace(RULE, name="grave", limit=Floor(0.2, 0.3), slices=(), retrain=True)
    monitor = replace(
        watched(),
        windows=(HOUR,),
        alerts=(mild, grave),
        notify=("team",),
        retrain=RetrainRequests(notify=("team",), after=0),
    )
    hours = Hours(store, monitor)
    hours.put(*[0.8] * 30, *[0.45] * 20, *[0.1] * 6)
    hours.judge()
    assert [hour - BASE for hour in diagnosed_as_stored(monitor, store)["window"]] == [51 * HOUR, 52 * HOUR]
    store.close()


def test_one_run_over_all_verdicts_requests_with_the_split_of_its_verdict(filled: Path, tmp_path: Path) -> None:
    drift = Drift(parse("ndcg@10"), "device", retrain=True)
    made = replace(
        bench_monitor(), alerts=(), drift=drift, notify=("log",), retrain=RetrainRequests(notify=("log",), after=0)
    )
    monitor = replace(made, lookback=60 * DAY)
    store, source = new_store(f"sqlite:///{tmp_path}/store.db"), pull(monitor, f"sqlite:///{filled}/shop.db")
    with store.hold("shop") as lease:
        for _ in run_backfill(monitor, LAST + DAY, (FIRST, LAST), source, store, lease, BatchSize()):
            pass
        judge_monitor(monitor, LAST + DAY, store, lease, Recipients({"log": ("log",)}, "", 1e9, True))
    assert diagnosed_as_stored(monitor, store)["split"]["from"] == "verdict"
    store.close()


def test_a_request_stays_small_with_many_slices(bench: Bench) -> None:
    document = bench.capture()
    part = document["slices"][0]
    many = [part | {"dimension": "d" * 100, "slice": "s" * 100 + str(n)} for n in range(150)]
    document |= {"slices": many, "slices_by_z": many, "split": document["split"] | {"parts": many}}
    keep(bench, document)
    found = evidence(bench.monitor, bench.incident, LAST, NOTHING, bench.store)
    assert len(json.dumps(found)) <= LARGEST
    assert len(found["series"]) >= 2
    assert found["series"][-1]["end"] == LAST
    assert found["diagnosis"]["slices"]


def test_a_long_definition_is_truncated_in_a_request(bench: Bench) -> None:
    columns = ", ".join(f"column_{n:05}" for n in range(1000))
    select = f"SELECT request, item, position, time, {columns} FROM shown"
    bench.monitor = replace(bench.monitor, rankings=replace(bench.monitor.rankings, relation=Relation(select=select)))
    found = evidence(bench.monitor, bench.incident, LAST, NOTHING, bench.store)
    assert [len(d["text"]) for d in found["definitions"]] == [LONGEST_TEXT + 3] * 2
    assert len(json.dumps(found)) <= LARGEST


def test_a_verdict_on_many_slices_is_cut_to_the_first_with_totals(bench: Bench) -> None:
    names = [f"slice {n} of {'s' * 90}" for n in range(400)]
    alarms = tuple(Alarm(name, LAST - DAY, LAST, -0.1, 2.0, 0.02, 0.4, 0.5, 1000) for name in names)
    changes = tuple(AlarmChange(name, "firing") for name in names)
    verdict = Verdict(LAST, "degraded", alarms, changes, tuple(names), missing=tuple(names))
    found = evidence(bench.monitor, bench.incident, LAST, UnsavedEvaluation(verdicts=[verdict]), bench.store)
    assert len(json.dumps(found)) <= LARGEST
    assert [one["unit"] for one in found["verdict"]["alarms"]] == names[:20]
    assert found["verdict"]["missing"] == tuple(names[:20])
    totals = {name: found["verdict"]["totals"][name] for name in ("alarms", "changes", "pending", "missing")}
    assert set(totals.values()) == {400}
    assert len(found["series"]) > 300  # the series need not be cut for it


def test_a_query_dimension_is_left_out_of_requests(bench: Bench) -> None:
    slices = (*bench.monitor.slices, Slice("q", "query"))
    bench.monitor = replace(bench.monitor, slices=slices, rankings=replace(RANKINGS, query="query"))
    found = evidence(bench.monitor, bench.incident, LAST, NOTHING, bench.store)
    assert {p["dimension"] for p in found["diagnosis"]["slices"]} <= {"device", "country"}
