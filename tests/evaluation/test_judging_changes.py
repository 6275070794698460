"""Judging while rules, buckets, clocks or channels change, or while the past is read again."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from monitor.cli.commands.incidents import judged_until, line
from monitor.conditions.rules import Baseline, Drop, Floor, Rule
from monitor.evaluation import condition_sets
from monitor.evaluation.fold import CHANGED, GOES_ON, GONE
from monitor.evaluation.incidents import RESTATED
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import REMOVED, withdraw
from monitor.measures.measure import parse
from monitor.series.partials import Partials
from monitor.store import Store
from monitor.store.schema import conditions
from monitor.types import RetrainRequests
from tests.evaluation.test_judging import BASE, RULE, Bench, _fill, bench
from tests.support.tallies import HOUR

__all__ = ["bench"]

OVERALL_RULE = replace(RULE, slices=())


def states(bench: Bench) -> list[str]:
    return [s.incident.state for s in bench.incidents]


def kinds(bench: Bench) -> list[str]:
    return [kind for _, kind in bench.notices]


def steps(bench: Bench, became: str) -> list[tuple[str, str]]:
    """(rule, reason) of the transitions that led to a state."""
    return [(t.rule, t.reason) for t in bench.store.alerts.transitions("search") if t.became == became]


# ---- a rule that is edited while it fires ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"lasting": HOUR}, {"min_requests": 5}, {"slices": ()}, {"limit": Floor(0.45, 0.5)}]
)
def test_an_edited_rule_that_still_fires_pages_once(bench: Bench, change: dict[str, Any]) -> None:
    bench.live(0.8, 0.4, 0.4, 0.4)
    before = bench.incidents
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, **change),))
    bench.judge()
    bench.live(0.4, 0.4)
    assert [s.incident.id for s in bench.incidents] == [s.incident.id for s in before]
    assert "withdrawn" not in kinds(bench)
    assert kinds(bench).count("firing") == 1
    bench.live(0.8, 0.8)
    assert states(bench) == ["resolved"]


def test_a_rule_edited_back_and_forth_while_firing_records_that_it_goes_on(bench: Bench) -> None:
    bench.live(0.8, 0.4, 0.4, 0.4)
    for measure in ("mrr@10", "ndcg@10"):
        bench.monitor = replace(bench.monitor, alerts=(replace(RULE, measure=parse(measure)),))
        bench.judge()
    (found,) = bench.incidents
    last = bench.store.alerts.transitions("search")[4:]
    assert {(t.was, t.became, t.incident, t.reason) for t in last} == {("firing", "firing", found.incident.id, GOES_ON)}
    assert [(t.dimension, t.evidence.judged) for t in last if t.evidence is not None] == [
        ("", "mrr@10"),
        ("device", "mrr@10"),
        ("", "ndcg@10"),
        ("device", "ndcg@10"),
    ]
    assert set(found.incident.firing or {}) == {("floor", "", ""), ("floor", "device", "mobile")}


def test_an_edited_rule_goes_on_even_if_windows_became_final_meanwhile(bench: Bench) -> None:
    bench.live(0.8, 0.4, 0.4, 0.4)
    bench.put(0.4, 0.4, 0.4)
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, lasting=HOUR),))
    bench.judge()
    assert (states(bench), kinds(bench)) == (["firing"], ["firing"])


def test_an_edited_rule_that_no_longer_fires_is_withdrawn_with_the_reason(bench: Bench) -> None:
    bench.live(0.8, 0.4, 0.4, 0.4)
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, limit=Floor(0.2, 0.2)),))
    bench.judge()
    assert (states(bench), kinds(bench)) == (["withdrawn"], ["firing", "withdrawn"])
    assert CHANGED in bench.messages[-1][1].full_text
    assert set(steps(bench, "withdrawn")) == {("floor", CHANGED)}


def test_a_vanished_slice_of_an_edited_rule_is_withdrawn_as_gone(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, overall=False),))
    bench.live(*[{"mobile": 0.8, "tv": 0.8}] * 2, *[{"mobile": 0.4, "tv": 0.8}] * 3)
    bench.put(*[{"tv": 0.8}] * 4)
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, overall=False, lasting=HOUR),))
    bench.judge()
    assert (states(bench), kinds(bench)) == (["withdrawn"], ["firing", "withdrawn"])
    assert steps(bench, "firing")[-1] == ("floor", GOES_ON)
    assert GONE in bench.messages[-1][1].full_text
    assert GOES_ON not in bench.messages[-1][1].full_text


def test_a_removed_rule_is_withdrawn_as_gone(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, name="other", limit=Floor(0.1, 0.1)),))
    bench.judge()
    assert GONE in bench.messages[-1][1].full_text
    assert set(steps(bench, "withdrawn")) == {("floor", GONE)}


# ---- every transition is kept ------------------------------------------------------------------------------------


def test_removing_a_monitor_records_the_end_of_its_open_conditions(bench: Bench) -> None:
    bench.live(0.4, 0.4)
    with bench.store.hold("search") as lease:
        withdraw("search", bench.store, lease, Recipients(bench.channels, "", time.time()))
    assert steps(bench, "withdrawn") == [("floor", REMOVED)] * 2
    assert {t.incident for t in bench.store.alerts.transitions("search") if t.became == "withdrawn"} == {
        bench.incidents[0].incident.id
    }


def test_a_notified_incident_that_better_data_undo_keeps_its_history(bench: Bench) -> None:
    bench.live(0.8, 0.4, 0.4)
    name = bench.incidents[0].incident.id
    bench.put(0.8, 0.8, at=1)
    bench.judge()
    assert states(bench) == ["withdrawn"]
    kept = [(t.was, t.became, t.reason) for t in bench.store.alerts.transitions("search") if t.incident == name]
    assert [k[:2] for k in kept] == [("pending", "firing")] * 2 + [("firing", "withdrawn")] * 2
    assert {k[2] for k in kept[2:]} == {RESTATED}


# ---- whether it is notified --------------------------------------------------------------------------------------


def test_an_ingest_delay_longer_than_the_lookback_still_notifies(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, lookback=24 * HOUR, ingest_delay=26 * HOUR)
    bench.put(0.4, 0.4)
    bench.judge(later=27 * HOUR)
    assert kinds(bench) == ["firing"]


def test_buckets_final_by_timeout_still_notify(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, lookback=24 * HOUR, final_timeout=48 * HOUR)
    bench.put(0.4, 0.4)
    bench.judge(later=49 * HOUR)
    assert kinds(bench) == ["firing"]


def test_a_silenced_monitor_requests_no_retraining_until_the_silence_ends(bench: Bench) -> None:
    rule = replace(OVERALL_RULE, retrain=True)
    asking = {"retrain": RetrainRequests(("team",), 0, 0)}
    bench.monitor = replace(bench.monitor, alerts=(rule,), **asking)
    now = time.time()
    bench.store.alerts.silence("search", now - 1, now + 3600, "me", "")
    bench.live(0.4, 0.4, 0.4)
    assert kinds(bench) == []
    bench.store.alerts.unsilence("search", now)
    bench.live(0.4)
    assert kinds(bench) == ["firing", "retrain"]


def test_a_silence_holds_back_retraining_for_an_already_notified_incident(bench: Bench) -> None:
    asking = {"retrain": RetrainRequests(("team",), 0, 3 * HOUR)}
    bench.monitor = replace(bench.monitor, alerts=(replace(OVERALL_RULE, retrain=True),), **asking)
    bench.live(0.4, 0.4)
    now = time.time()
    bench.store.alerts.silence("search", now - 1, now + 3600, "me", "")
    bench.live(*[0.4] * 4)
    assert kinds(bench) == ["firing"]
    bench.store.alerts.unsilence("search", now)
    bench.live(0.4)
    assert kinds(bench) == ["firing", "retrain"]


# ---- clocks ------------------------------------------------------------------------------------------------------


def ahead(bench: Bench, hours: int) -> None:
    """A clock that runs ahead stores future hours without requests and has them judged."""
    bench.put(*[{}] * hours, read_at=BASE + (bench.hour + hours) * HOUR)
    bench.judge()
    bench.hour -= hours


def test_new_falls_are_found_immediately_after_a_clock_ran_ahead(bench: Bench) -> None:
    bench.live(0.8, 0.8)
    ahead(bench, 48)
    assert bench.store.alerts.state("search").until == BASE + 50 * HOUR
    bench.live(0.8, 0.4, 0.4)
    assert bench.store.alerts.state("search").until == BASE + 5 * HOUR
    assert kinds(bench) == ["firing"]


def test_an_incident_notified_before_a_clock_ran_ahead_stays_open(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, overall=False),))
    bench.live({"mobile": 0.4, "tv": 0.8}, {"mobile": 0.4, "tv": 0.8})
    before = bench.incidents
    ahead(bench, 48)
    bench.live(*[{"mobile": 0.4, "tv": 0.8}] * 3)
    assert (kinds(bench), states(bench)) == (["firing"], ["firing"])
    assert [s.incident.id for s in bench.incidents] == [s.incident.id for s in before]
    bench.live(*[{"mobile": 0.8, "tv": 0.8}] * 2)
    assert kinds(bench) == ["firing", "resolved"]


def test_a_clock_set_back_a_day_resolves_nothing_and_pages_nobody_twice(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.put(*[0.8] * 30)
    bench.judge()
    bench.live(0.4, 0.4)
    bench.hour -= 24
    bench.judge()
    assert (kinds(bench), states(bench)) == (["firing"], ["firing"])
    assert bench.store.alerts.state("search").until == BASE + 32 * HOUR
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert said.startswith("monitor search: nothing is judged by this clock: it is ")
    bench.hour += 24
    bench.live(0.4, 0.8, 0.8, 0.8)
    assert (kinds(bench), states(bench)) == (["firing", "resolved"], ["resolved"])


def test_no_slice_counts_as_gone_while_the_source_has_no_requests(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, overall=False),))
    bench.live({"mobile": 0.4, "tv": 0.8}, {"mobile": 0.4, "tv": 0.8})
    bench.live(*[{}] * 8)
    assert states(bench) == ["firing"]
    bench.live(*[{"tv": 0.8}] * 4)
    assert states(bench) == ["withdrawn"]


@pytest.mark.parametrize("days", [30, 40])
@pytest.mark.parametrize("limit", [RULE.limit, Drop(0.2, 0.1, True, Baseline(trailing=6 * HOUR))])
def test_a_vanished_slice_is_withdrawn_however_long_the_source_had_no_requests(
    bench: Bench, days: int, limit: Floor | Drop
) -> None:
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, overall=False, limit=limit),))
    bench.live(*[{"mobile": 0.8, "tv": 0.8}] * 4, *[{"mobile": 0.8, "tv": 0.4}] * 2)
    for _ in range(days):
        bench.put(*[{}] * 24)
        bench.judge()
    assert states(bench) == ["firing"]
    bench.live(*[{"mobile": 0.8}] * 4)
    assert (kinds(bench), states(bench)) == (["firing", "withdrawn"], ["withdrawn"])


def test_a_slice_back_after_a_long_outage_continues_its_incident(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, overall=False),))
    bench.live(*[{"mobile": 0.8, "tv": 0.4}] * 2)
    for _ in range(40):
        bench.put(*[{}] * 24)
        bench.judge()
    bench.live(*[{"mobile": 0.8, "tv": 0.4}] * 4)
    assert (kinds(bench), states(bench)) == (["firing"], ["firing"])
    bench.live(*[{"mobile": 0.8, "tv": 0.8}] * 2)
    assert (kinds(bench), states(bench)) == (["firing", "resolved"], ["resolved"])


def test_an_open_incident_without_a_firing_condition_is_withdrawn(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, overall=False),))
    bench.live(*[{"mobile": 0.8, "tv": 0.4}] * 2)
    with bench.store.writing() as connection:
        is_tv = conditions.c.value == "tv"
        connection.execute(conditions.update().where(is_tv).values(state="ok", since=None))
    bench.live({"mobile": 0.8})
    assert (kinds(bench), states(bench)) == (["firing", "withdrawn"], ["withdrawn"])
    bench.live(*[{"mobile": 0.4}] * 2)
    assert states(bench) == ["withdrawn", "firing"]


# ---- buckets and slices ------------------------------------------------------------------------------------------


def test_longer_buckets_are_judged_at_their_edges_from_the_first_window(bench: Bench) -> None:
    bench.live(*[0.8] * 6)
    rule = Rule("floor", RULE.measure, 4 * HOUR, Floor(0.5, 0.6))
    bench.monitor = replace(bench.monitor, bucket=4 * HOUR, windows=(4 * HOUR,), alerts=(rule,))

    def put(*values: float, at: int) -> None:
        starts = range(BASE + at * 4 * HOUR, BASE + (at + len(values)) * 4 * HOUR, 4 * HOUR)
        tally = Partials(starts[0], starts[-1] + 4 * HOUR)
        for start, value in zip(starts, values, strict=True):
            _fill(tally, bench.monitor, start, {"mobile": value})
        tally.admitted = [("device", "mobile")]
        with bench.store.hold("search") as lease:
            targets = dict.fromkeys(bench.monitor.definitions, starts)
            bench.store.write(lease, bench.monitor, tally, targets, 1e6, starts, force=True)

    put(0.8, at=0)
    bench.judge()
    state = bench.store.alerts.state("search")
    assert (state.until, state.conditions["floor", "", ""].condition.known) == (BASE + 4 * HOUR, BASE + 4 * HOUR)
    put(0.4, at=1)
    bench.hour = 8
    bench.judge()
    assert bench.store.alerts.state("search").until == BASE + 8 * HOUR
    assert states(bench) == ["firing"]


def test_a_rule_on_slices_without_traffic_evaluates_each_window_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = replace(RULE, overall=False, slices=(("device", "watch"),))
    bench.monitor = replace(bench.monitor, alerts=(rule,))
    bench.live(*[0.8] * 4)
    looked: list[int] = []
    track_rule = condition_sets.track_rule

    def counted(rule: Rule, view: Any, ends: Sequence[int], before: Any) -> Any:
        looked.append(len(ends))
        return track_rule(rule, view, ends, before)

    monkeypatch.setattr(condition_sets, "track_rule", counted)
    bench.live(*[0.8] * 4)
    assert looked == [1] * 4
    bench.live(*[{"mobile": 0.8, "watch": 0.4}] * 2)
    assert states(bench) == ["firing"]


def test_a_new_slice_that_is_worse_than_the_rest_is_named_as_new(bench: Bench) -> None:
    bench.live(*[{"mobile": 0.8}] * 3)
    bench.live(*[{"mobile": 0.8, "tv": 0.1}] * 2)
    (lead, *_) = bench.messages[-1][1].findings
    assert [(s.slice, s.before, s.value, s.share) for s in lead.slices] == [("tv", None, 0.1, 0.5)]
    assert "new device=tv at 0.100 (50 % of requests)" in bench.messages[-1][1].full_text


# ---- last known values and durations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_live", [True, False])
def test_an_incident_without_requests_reports_its_last_known_value(bench: Bench, is_live: bool) -> None:
    past: list[float | dict[str, float]] = [0.8, 0.4, 0.4, 0.3, {}, {}, {}]
    if is_live:
        bench.live(*past)
    else:
        bench.put(*past)
        bench.judge()
    (found,) = bench.incidents
    assert [(f.value, (f.end - BASE) // HOUR) for f in found.findings] == [(pytest.approx(0.3), 4)] * 2


def test_a_rule_edited_while_there_are_no_requests_reports_its_last_value(bench: Bench) -> None:
    bench.live(0.8, 0.4, 0.3, {}, {})
    bench.monitor = replace(bench.monitor, alerts=(replace(RULE, lasting=HOUR),))
    bench.judge()
    goes_on = [t for t in bench.store.alerts.transitions("search") if t.reason == GOES_ON]
    assert [t.evidence.value for t in goes_on if t.evidence is not None] == [pytest.approx(0.3)] * 2


def test_an_open_incident_lasts_until_the_last_judged_hour(bench: Bench) -> None:
    bench.live(0.8, 0.4, 0.4, *[{}] * 30)
    told = line(bench.incidents[0], judged_until(bench.incidents, bench.store)["search"])
    assert re.search(r", open for 1 d 7 h \(judged until [\d :-]+ UTC\)$", told)
    bench.live(0.8, 0.8)
    assert judged_until(bench.incidents, bench.store) == {}
    assert re.search(r", lasted 1 d 9 h$", line(bench.incidents[0]))


# ---- a baseline that follows -------------------------------------------------------------------------------------


def test_an_incident_closed_by_its_baseline_is_not_called_recovered(bench: Bench) -> None:
    rule = replace(OVERALL_RULE, limit=Drop(0.07, 0.04, True, Baseline(trailing=6 * HOUR)), lasting=HOUR)
    bench.monitor = replace(bench.monitor, alerts=(rule,))
    bench.live(*[0.8] * 8, *[0.7] * 8)
    assert (kinds(bench), states(bench)) == (["firing", "resolved"], ["resolved"])
    over = bench.messages[-1][1]
    assert over.title == "search: resolved, but ndcg@10 stays at 0.700: its baseline followed"
    assert "Closed because the baseline fell: ndcg@10 at 0.700 is still below 0.744, where it fired" in over.full_text
    assert "it has held" not in over.full_text


def test_a_real_recovery_is_reported_as_one(bench: Bench) -> None:
    rule = replace(OVERALL_RULE, limit=Drop(0.07, 0.04, True, Baseline(trailing=6 * HOUR)), lasting=HOUR)
    bench.monitor = replace(bench.monitor, alerts=(rule,))
    bench.live(*[0.8] * 8, 0.7, 0.7, 0.8, 0.8)
    assert bench.messages[-1][1].title == "search: resolved, ndcg@10 is back at 0.800"
    assert bench.incidents[0].findings[0].still_below is None


def test_the_store_keeps_the_threshold_that_was_still_missed(bench: Bench) -> None:
    rule = replace(OVERALL_RULE, limit=Drop(0.07, 0.04, True, Baseline(trailing=6 * HOUR)), lasting=HOUR)
    bench.monitor = replace(bench.monitor, alerts=(rule,))
    bench.live(*[0.8] * 8, *[0.7] * 8)
    other = Store(bench.store.engine.url, 20)
    assert other.alerts.incidents()[0].findings[0].still_below == pytest.approx(0.744)
    other.close()
