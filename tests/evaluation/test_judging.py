"""From stored buckets to incidents and notifications: what is recorded, who is notified, what rule changes do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import sqlalchemy as sa

from monitor.conditions.kinds.threshold import Unjudged
from monitor.conditions.rules import Baseline, Drop, Floor, Rule
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import judge_monitor, withdraw
from monitor.measures.measure import parse
from monitor.messages.notification import Notification
from monitor.routing import Route
from monitor.series import partials as b
from monitor.series.partials import Cell, Partials
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.store.schema import outbox
from monitor.types import OVERALL, Monitor, RetrainRequests
from tests.support.monitors import new_store
from tests.support.tallies import HOUR, watched

RULE = Rule("floor", parse("ndcg@10"), HOUR, Floor(0.5, 0.6), 2 * HOUR, 2 * HOUR, slices=(("device", None),))
BASE = 500_000 * HOUR
"""Hours in these tests count from here."""


@dataclass
class Bench:
    """A store and a monitor, used the way a daemon uses them."""

    store: Store
    monitor: Monitor
    channels: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"log": ("log",), "team": ("team",)})
    hour: int = 0
    routes: tuple[Route, ...] = ()
    clock: Callable[[], float] = time.time

    def put(
        self, *values: float | Mapping[str, float], at: int | None = None, final: bool = True, read_at: float = 1e6
    ) -> None:
        """Store consecutive hours from hour `at` on, each with one value for all or one per device."""
        first = self.hour if at is None else at
        tally = Partials(BASE + first * HOUR, BASE + (first + len(values)) * HOUR)
        for number, value in enumerate(values):
            devices = value if isinstance(value, Mapping) else {"mobile": value}
            _fill(tally, self.monitor, BASE + (first + number) * HOUR, devices)
        tally.admitted = [("device", d) for d in ("mobile", "tv")]
        starts = range(tally.since, tally.until, HOUR)
        with self.store.hold(self.monitor.name) as lease:
            targets = dict.fromkeys(self.monitor.definitions, starts)
            finals = starts if final else ()
            self.store.write(lease, self.monitor, tally, targets, read_at, finals, force=True)
        self.hour = max(self.hour, first + len(values))

    def judge(self, current: bool = True, later: int = 0) -> None:
        now = BASE + self.hour * HOUR + later
        with self.store.hold(self.monitor.name) as lease:
            judge_monitor(self.monitor, now, self.store, lease, self.recipients(current))

    def recipients(self, current: bool = True) -> Recipients:
        """Who is notified, as a daemon would say."""
        return Recipients(self.channels, "http://page/", self.clock(), current, routes=self.routes)

    def wake(self) -> None:
        """There is no sender to wake."""

    def live(self, *values: float | Mapping[str, float]) -> None:
        for value in values:
            self.put(value)
            self.judge()

    @property
    def incidents(self) -> list[StoredIncident]:
        """Oldest first."""
        return self.store.alerts.incidents()[::-1]

    @property
    def notices(self) -> list[tuple[str, str]]:
        """(target, kind) of everything put into the outbox."""
        return [(target, n.kind) for target, n in self.messages]

    @property
    def messages(self) -> list[tuple[str, Notification]]:
        import json

        query = sa.select(outbox.c.target, outbox.c.document).order_by(outbox.c.id)
        with self.store.reading() as connection:
            return [(target, Notification.of(json.loads(d))) for target, d in connection.execute(query)]


def _fill(tally: Partials, monitor: Monitor, start: int, devices: Mapping[str, float]) -> None:
    for key in [OVERALL, *(("device", d) for d in devices)]:
        cell: Cell = (start, *key)
        values = list(devices.values()) if key == OVERALL else [devices[key[1]]]
        requests = 100 * len(values)
        tally.traffic[cell] = np.array([requests, requests, 10 * requests, 0, 0, 0, 0, requests], dtype=float)
        sums = np.zeros(len(b.FIELDS))
        sums[[b.REQUESTS, b.TOTAL, b.SQUARES]] = requests, 100 * sum(values), 100 * sum(v * v for v in values)
        for measure in monitor.measures:
            tally.measures.setdefault(str(measure.kernel), {})[cell] = sums


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    store = new_store(database_url, 20)
    monitor = replace(watched(), windows=(HOUR,), alerts=(RULE,), notify=("team",), labels=(("team", "search"),))
    yield Bench(store, monitor)
    store.close()


# ---- who is notified ---------------------------------------------------------------------------------------------


def test_an_incident_opens_notifies_and_resolves(bench: Bench) -> None:
    bench.live(0.8, 0.4, 0.4, 0.4, 0.8, 0.8)
    (found,) = bench.incidents
    at = [
        (i - BASE) // HOUR for i in (found.incident.began_at, found.incident.opened_at, found.incident.closed_at or 0)
    ]
    assert at == [2, 3, 6]
    assert bench.notices == [("team", "firing"), ("team", "resolved")]
    assert len({n.key for _, n in bench.messages}) == 2
    steps = [(t.dimension, t.was, t.became) for t in bench.store.alerts.transitions("search")]
    assert ("", "ok", "pending") in steps
    assert ("device", "firing", "ok") in steps


def test_an_open_incident_reports_its_firing_baseline_and_its_recovery(bench: Bench) -> None:
    moving = Drop(0.2, 0.1, True, Baseline(trailing=2 * HOUR))
    rule = replace(RULE, limit=moving, lasting=0, resolve_lasting=3 * HOUR)
    bench.monitor = replace(bench.monitor, alerts=(rule,))
    bench.live(0.8, 0.8, 0.4)

    def lead() -> tuple[float | None, float | None, int, int, bool]:
        found = bench.incidents[0].findings[0]
        known = found.before_when_fired, None if found.before is None else round(found.before, 3)
        return *known, found.well_for // HOUR, found.well_needed // HOUR, found.is_recovering

    assert lead() == (0.8, 0.8, 0, 3, False)
    bench.live(0.4)
    assert lead() == (0.8, 0.6, 0, 3, False)
    bench.live(0.45)
    assert lead() == (0.8, 0.4, 1, 3, True)
    bench.live(0.8)
    assert lead() == (0.8, 0.425, 2, 3, True)
    bench.live(0.8)
    assert bench.incidents[0].incident.state == "resolved"
    assert lead() == (0.8, 0.625, 3, 3, True)
    assert "recovering" not in bench.messages[-1][1].full_text


def test_an_open_incident_says_why_it_can_no_longer_be_judged(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, slices=(), lasting=0, min_requests=150),))

    def held() -> tuple[int, Unjudged | None]:
        (found,) = bench.incidents[0].findings
        return (found.end - BASE) // HOUR, found.unjudged

    two = {"mobile": 0.4, "tv": 0.4}
    bench.live(two)
    assert held() == (1, None)
    bench.live({"mobile": 0.8}, {"mobile": 0.8})
    assert held() == (1, Unjudged("too few requests", 100, 150))
    bench.judge()
    assert held() == (1, Unjudged("too few requests", 100, 150))
    bench.live(two)
    assert held() == (4, None)
    bench.put({"mobile": 0.8}, two, two)
    bench.put({"mobile": 0.8})
    bench.judge()
    assert held() == (7, Unjudged("too few requests", 100, 150))


def test_judging_twice_notifies_once(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    for _ in range(3):
        bench.judge()
    assert bench.notices == [("team", "firing")]


def test_an_incident_opened_and_closed_unseen_is_recorded_but_not_notified(bench: Bench) -> None:
    bench.put(0.4, 0.4, 0.4, 0.8, 0.8)
    bench.judge()
    assert [s.incident.state for s in bench.incidents] == ["resolved"]
    assert bench.notices == []


def test_hours_reread_together_with_new_ones_are_judged_again(bench: Bench) -> None:
    bench.live(*[0.8] * 6)
    bench.put(0.8, 0.4, 0.4, 0.4, 0.8, 0.8, 0.8, at=0)
    bench.judge()
    assert [s.incident.state for s in bench.incidents] == ["resolved"]


def test_nobody_is_notified_while_there_is_more_to_read(bench: Bench) -> None:
    bench.put(0.4, 0.4)
    bench.judge(current=False)
    assert bench.notices == []
    bench.judge()
    assert bench.notices == [("team", "firing")]


def test_a_rule_that_fired_long_ago_notifies_nobody(bench: Bench) -> None:
    bench.put(0.4, 0.4)
    bench.judge(later=bench.monitor.lookback + bench.monitor.final_timeout + bench.monitor.ingest_delay + HOUR + 1)
    assert [s.incident.state for s in bench.incidents] == ["firing"]
    assert bench.notices == []


def test_open_buckets_are_not_judged(bench: Bench) -> None:
    bench.put(0.4)
    bench.put(0.4, final=False)
    bench.put(0.4)
    bench.judge()
    assert bench.incidents == []
    bench.put(0.4, at=1)
    bench.judge()
    assert [s.incident.state for s in bench.incidents] == ["firing"]


def test_a_joining_slice_sends_an_update(bench: Bench) -> None:
    bench.live(*[{"mobile": 0.4, "tv": 0.9}] * 2)
    assert [n.title for _, n in bench.messages] == ["search: ndcg@10 for device=mobile is 0.400, below 0.500"]
    bench.live(*[{"mobile": 0.1, "tv": 0.7}] * 2)
    assert [k for _, k in bench.notices] == ["firing", "updated"]
    assert {f.where for f in bench.messages[-1][1].findings} == {"", "device=mobile"}


def test_a_silenced_monitor_pages_after_the_silence_if_still_firing(bench: Bench) -> None:
    now = time.time()
    bench.store.alerts.silence("search", now - 1, now + 3600, "me", "moving the index")
    bench.live(0.4, 0.4, 0.4)
    assert bench.notices == []
    assert bench.store.alerts.unsilence("search", now) == 1
    bench.judge()
    assert bench.notices == [("team", "firing")]
    assert ", first notification 1 h later.\n" in bench.messages[0][1].text


def test_a_resolved_incident_is_notified_during_a_silence(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    bench.store.alerts.silence("search", time.time() - 1, time.time() + 3600, "me", "")
    bench.live(0.8, 0.8)
    assert [k for _, k in bench.notices] == ["firing", "resolved"]


def test_the_resolved_message_goes_to_the_first_receivers_under_the_old_labels(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    bench.monitor = replace(bench.monitor, notify=("log",), labels=(("team", "renamed"),))
    bench.live(0.8, 0.8)
    assert bench.notices == [("team", "firing"), ("team", "resolved")]
    assert {n.labels for _, n in bench.messages} == {(("team", "search"),)}


def test_the_resolved_message_goes_to_current_receivers_if_the_first_are_gone(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    bench.monitor, bench.channels = replace(bench.monitor, notify=("log",)), {"log": ("log",)}
    bench.live(0.8, 0.8)
    assert bench.notices == [("team", "firing"), ("log", "resolved")]


def test_a_worse_severity_is_reported_with_the_former_one(bench: Bench) -> None:
    two_floors(bench)
    bench.live(0.4, 0.4, 0.1, 0.1)
    last = bench.messages[-1][1]
    assert (last.kind, last.severity, last.former_severity) == ("updated", "critical", "warning")


def two_floors(bench: Bench) -> None:
    """A mild rule, and a graver one."""
    mild = replace(RULE, severity="warning", slices=())
    grave = replace(RULE, name="grave", limit=Floor(0.2, 0.2), slices=())
    bench.monitor = replace(bench.monitor, alerts=(mild, grave))


def test_a_worsening_during_catch_up_is_reported_afterwards_if_it_still_holds(bench: Bench) -> None:
    two_floors(bench)
    bench.live(0.4, 0.4)
    bench.put(0.1, 0.1)
    for _ in range(2):
        bench.judge(current=False)  # like a backfill
    assert bench.incidents[0].incident.severity == "critical"
    assert [k for _, k in bench.notices] == ["firing"]
    for _ in range(3):
        bench.judge()
    last = bench.messages[-1][1]
    assert [k for _, k in bench.notices] == ["firing", "updated"]
    assert (last.severity, last.former_severity) == ("critical", "warning")
    bench.put(0.8, 0.8)
    bench.judge(current=False)
    assert [k for _, k in bench.notices] == ["firing", "updated", "resolved"], "a resolved message is sent in any case"


def test_a_slice_that_joins_and_recovers_during_catch_up_notifies_nobody(bench: Bench) -> None:
    bench.live(*[{"mobile": 0.4, "tv": 0.4}] * 2)
    bench.put(*[{"mobile": 0.4, "tv": 0.4, "desk": 0.4}] * 3)
    bench.judge(current=False)
    bench.put(*[{"mobile": 0.4, "tv": 0.4, "desk": 0.8}] * 2)
    bench.judge(current=False)
    bench.judge()
    assert [k for _, k in bench.notices] == ["firing"]
    bench.put(*[{"mobile": 0.4, "tv": 0.8, "desk": 0.8}] * 2)
    bench.judge(current=False)
    assert [k for _, k in bench.notices] == ["firing", "updated"], "recovering slices send no update during catch-up"


def test_an_update_names_the_conditions_that_ended(bench: Bench) -> None:
    bench.live(*[{"mobile": 0.4, "tv": 0.4}] * 3)
    bench.live(*[{"mobile": 0.4, "tv": 0.8}] * 3)
    last = bench.messages[-1][1]
    assert last.kind == "updated"
    ended = "rule floor for all traffic (0.6: back to normal), rule floor for device=tv (0.8: back to normal)"
    assert last.text.startswith(f"Ended: {ended}. Still open: rule floor for device=mobile. ")
    bench.live(*[{"mobile": 0.8, "tv": 0.8}] * 3)
    assert bench.messages[-1][1].kind == "resolved"
    assert " The first notification said: ndcg@10 is 0.400, below 0.500.\n" in bench.messages[-1][1].text
    assert "Ended" not in bench.messages[-1][1].full_text


@pytest.mark.parametrize("is_other_data", [False, True])
def test_an_update_says_whether_the_data_behind_the_last_message_changed(bench: Bench, is_other_data: bool) -> None:
    bench.live(*[0.8] * 4, *[{"mobile": 0.4, "tv": 0.8}] * 3)
    assert bench.messages[-1][1].kind == "firing"
    if is_other_data:
        bench.put(*[0.7] * 4, at=0)
    bench.live(*[{"mobile": 0.4, "tv": 0.4}] * 3)
    last = bench.messages[-1][1]
    assert last.kind == "updated"
    assert last.text.startswith("The data, the labels or a rule changed since the previous message") == is_other_data


def test_a_worsening_of_a_notified_incident_is_sent_despite_a_silence(bench: Bench) -> None:
    two_floors(bench)
    bench.live(0.4, 0.4)
    bench.store.alerts.silence("search", time.time() - 1, time.time() + 3600, "me", "")
    bench.live(0.1, 0.1)
    assert [k for _, k in bench.notices] == ["firing", "updated"]


# ---- retraining --------------------------------------------------------------------------------------------------


def retraining(bench: Bench, cooldown: int, after: int = 0) -> None:
    rule = replace(RULE, retrain=True, slices=())
    bench.monitor = replace(
        bench.monitor, alerts=(rule,), retrain=RetrainRequests(notify=("team",), cooldown=cooldown, after=after)
    )


def test_one_drift_requests_retraining_once(bench: Bench) -> None:
    retraining(bench, cooldown=0)
    bench.live(0.4, 0.4, 0.4, 0.4)
    assert [k for _, k in bench.notices] == ["firing", "retrain"]


def test_the_next_drift_waits_for_the_cooldown(bench: Bench) -> None:
    retraining(bench, cooldown=10 * HOUR)
    bench.live(0.4, 0.4, 0.8, 0.8)
    bench.live(*[0.4] * 7)
    assert [k for _, k in bench.notices].count("retrain") == 1
    bench.live(0.4)
    assert [k for _, k in bench.notices].count("retrain") == 2
    assert len({n.key for _, n in bench.messages if n.kind == "retrain"}) == 2


def test_a_rule_without_retrain_requests_none(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, retrain=RetrainRequests(notify=("team",)))
    bench.live(0.4, 0.4)
    assert [k for _, k in bench.notices] == ["firing"]


# ---- changed rules -----------------------------------------------------------------------------------------------


def test_a_removed_rule_withdraws_its_incident(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    bench.monitor = replace(bench.monitor, alerts=())
    bench.judge()
    assert bench.incidents[0].incident.state == "withdrawn"
    assert [k for _, k in bench.notices] == ["firing", "withdrawn"]
    assert "not recovered" in bench.messages[-1][1].full_text


def test_a_changed_definition_withdraws_its_incidents(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    bench.monitor = replace(watched(grade="other"), windows=(HOUR,), alerts=(RULE,), notify=("team",))
    bench.judge()
    assert [s.incident.state for s in bench.incidents] == ["withdrawn"]


def test_changing_only_severity_and_retrain_sends_nothing(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, severity="warning", retrain=True),))
    bench.judge()
    assert [k for _, k in bench.notices] == ["firing"]


def test_a_new_rule_looks_back_and_opens_an_incident_if_it_fires(bench: Bench) -> None:
    bench.live(0.55, 0.55, 0.55)
    assert bench.incidents == []
    bench.monitor = replace(bench.monitor, alerts=(RULE, replace(RULE, name="strict", limit=Floor(0.6, 0.6))))
    bench.judge()
    assert bench.incidents == []
    bench.live(0.55)
    (found,) = bench.incidents
    assert (found.incident.began_at - BASE) // HOUR == 1
    assert bench.notices == [("team", "firing")]


def test_a_removed_monitor_withdraws_its_incident_and_says_so_once(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    with bench.store.hold("search") as lease:
        withdraw("search", bench.store, lease, Recipients(bench.channels, "", time.time()))
        withdraw("search", bench.store, lease, Recipients(bench.channels, "", time.time()))
    assert bench.store.alerts.watched() == []
    assert bench.notices == [("team", "firing"), ("team", "withdrawn")]
    assert bench.messages[-1][1].labels == (("team", "search"),)


def test_a_monitor_that_returns_is_judged_like_any_other(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    with bench.store.hold("search") as lease:
        withdraw("search", bench.store, lease, Recipients(bench.channels, "", time.time()))
    bench.live(0.4, 0.4)
    assert [s.incident.state for s in bench.incidents] == ["withdrawn", "firing"]


# ---- a past that changes -----------------------------------------------------------------------------------------


def test_a_backfill_records_incidents_of_earlier_hours_without_notifying(bench: Bench) -> None:
    bench.put(0.8, 0.8, at=10)
    bench.judge()
    bench.put(*[0.4] * 5, 0.8, 0.8, 0.8, 0.8, 0.8, at=0)
    bench.judge()
    (found,) = bench.incidents
    assert ((found.incident.opened_at - BASE) // HOUR, found.incident.state) == (2, "resolved")
    assert bench.notices == []


def test_an_unnotified_incident_vanishes_when_better_data_undo_it(bench: Bench) -> None:
    bench.put(0.4, 0.4, 0.8, 0.8, 0.8)
    bench.judge()
    assert len(bench.incidents) == 1
    bench.put(0.8, 0.8, at=0)
    bench.judge()
    assert bench.incidents == []


def test_a_notified_incident_that_better_data_undo_is_withdrawn_not_deleted(bench: Bench) -> None:
    bench.live(0.8, 0.4, 0.4)
    bench.put(0.8, 0.8, at=1)
    bench.judge()
    (found,) = bench.incidents
    assert found.incident.state == "withdrawn"
    assert [k for _, k in bench.notices] == ["firing", "withdrawn"]
    assert "read again" in bench.messages[-1][1].full_text


def test_a_resolved_incident_stays_as_notified_when_data_change(bench: Bench) -> None:
    bench.live(0.8, 0.4, 0.4, 0.8, 0.8)
    before = bench.incidents
    bench.put(0.8, 0.8, at=1)
    bench.judge()
    assert [s.incident for s in bench.incidents] == [s.incident for s in before]


def test_an_open_incident_keeps_its_id_when_its_start_moves(bench: Bench) -> None:
    bench.live(0.8, 0.8, 0.8, 0.4, 0.4)
    name = bench.incidents[0].incident.id
    bench.put(0.4, 0.4, at=1)
    bench.judge()
    assert [(s.incident.id, s.incident.state) for s in bench.incidents] == [(name, "firing")]
    bench.live(0.8, 0.8)
    assert [(s.incident.id, s.incident.state) for s in bench.incidents] == [(name, "resolved")]
    assert [k for _, k in bench.notices] == ["firing", "resolved"]


def test_an_acknowledgement_survives_later_judging(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    name = bench.incidents[0].incident.id
    assert bench.store.alerts.acknowledge(name, "ada", "looking", 1e9)
    bench.live(0.4, 0.8, 0.8)
    (found,) = bench.incidents
    assert (found.acknowledged_by, found.note, found.incident.state) == ("ada", "looking", "resolved")
    assert bench.store.alerts.acknowledge(name, "bob", "", 2e9)
    (found,) = bench.incidents
    assert (found.acknowledged_by, found.note) == ("bob", "looking"), "an empty note does not erase the old one"
    assert not bench.store.alerts.acknowledge("no such", "ada", "", 1e9)


def test_nothing_is_stored_when_the_lease_is_lost(bench: Bench) -> None:
    from monitor.errors import LeaseLost

    bench.put(0.4, 0.4)
    with bench.store.hold("search") as lease:
        pass
    recipients = Recipients(bench.channels, "", time.time(), True)
    with pytest.raises(LeaseLost):
        judge_monitor(bench.monitor, BASE + 2 * HOUR, bench.store, lease, recipients)
    assert (bench.incidents, bench.notices) == ([], [])
    assert bench.store.alerts.state("search").until is None
