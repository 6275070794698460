"""From stored buckets to verdicts, and from verdicts to incidents and notifications."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypedDict

import numpy as np
import pytest

from monitor.conditions.checkpoint import BaselineReset
from monitor.conditions.kinds.threshold import Threshold
from monitor.conditions.rules import Baseline, Drop, Floor, Rule
from monitor.conditions.verdict_hours import hours
from monitor.conditions.verdicts import DEGRADED
from monitor.drift.settings import DriftSettings
from monitor.evaluation.retraining import due
from monitor.evaluation.run import verdict_conditions
from monitor.measures.measure import parse
from monitor.messages.explanation import advice, sentence
from monitor.messages.notification import Notification, notification
from monitor.series import partials as b
from monitor.series.windows import History
from monitor.store.schema import drift_states
from monitor.types import OVERALL
from monitor.units import DAY, HOUR
from tests.support.bench import Bench
from tests.support.drift import START, Ranking, day, on, verdicts
from tests.support.notices import ABOUT


class Changes(TypedDict, total=False):
    """Factors on the simulated past."""

    rate: float
    slices: list[int]


def test_stored_hours_give_the_same_verdicts_as_the_simulation(bench: Bench) -> None:
    past = Ranking.of(20).since(18, mean=0.8).draw()
    bench.put(past)
    bench.judge(day(20))
    stored = bench.store.verdicts.between("search", 0, day(20))
    assert stored == verdicts(past, verdict_conditions(bench.monitor, bench.store, 0).settings)
    assert len(stored) == 20 * 24
    assert bench.store.verdicts.newest("search") == stored[-1]


def test_a_drop_opens_one_incident_that_says_where_it_comes_from(bench: Bench) -> None:
    past = Ranking.of(34).since(32, mean=0.85, slices=[1]).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24)
    (found,) = bench.incidents
    assert found.incident.matter == "quality"
    assert found.incident.retrain
    assert ("degraded", "device", "slice 1") in (found.incident.firing or {})
    assert day(32) < found.incident.opened_at < day(33)
    fired = [(target, kind) for target, kind, _ in bench.said if kind in ("firing", "retrain")]
    assert ("team", "firing") in fired
    titles = [notice.title for target, notice in bench.notices if target == "team"]
    assert re.match(r"search: ndcg\(empty=zero\)@10 for device=slice 1 down 1\d\.\d %, ", titles[0])
    told = r"search: ndcg\(empty=zero\)@10 down \d\.\d %.+worst: device=slice 1, -1\d\.\d % over \d+ h$"
    assert any(re.match(told, title) for title in titles[1:])
    assert not any(target == "data" for target, _ in fired)


def test_a_backfill_gives_the_same_as_the_live_run(bench: Bench) -> None:
    past = Ranking.of(36).since(31, 33, mean=0.85).draw()
    bench.put(past.rows(0, 30 * 24))
    bench.judge(day(30))
    bench.live(past, 30 * 24, step=5)
    lived, told = bench.store.verdicts.between("search", 0, day(36)), list(bench.said)
    incidents = [s.incident for s in bench.incidents]
    assert [i.state for i in incidents] == ["resolved"]
    assert [kind for _, kind, _ in told if kind in ("firing", "resolved")] == ["firing", "resolved"]
    bench.put(past.rows(0, 24))  # again, so that everything is judged again
    bench.judge(day(36))
    assert bench.store.verdicts.between("search", 0, day(36)) == lived
    assert [s.incident for s in bench.incidents] == incidents
    assert bench.said == told


def test_lost_labels_notify_the_data_owners_and_later_the_team(bench: Bench) -> None:
    past = Ranking.of(36).since(30, 32, coverage=0.3).draw()
    bench.put(past.rows(0, 29 * 24))
    bench.judge(day(29))
    bench.live(past, 29 * 24, step=6)
    (found,) = bench.incidents
    assert (found.incident.matter, found.incident.state, found.incident.severity) == ("data", "resolved", "critical")
    assert not found.incident.retrain
    first, *rest = bench.said
    assert first[:2] == ("data", "firing")
    assert "labels suspect" in first[2]
    escalated = [(target, kind) for target, kind, title in rest if "collapsed, coverage" in title]
    assert set(escalated) == {("data", "updated"), ("team", "updated")}
    ended = [(target, kind) for target, kind, _ in rest if kind == "resolved"]
    assert set(ended) == {("data", "resolved"), ("team", "resolved")}
    assert not any(kind == "retrain" for _, kind, _ in bench.said)


def test_a_mix_shift_opens_no_incident(bench: Bench) -> None:
    past = Ranking.of(34, slices=4)
    past = replace(past, mean=past.mean * np.array([0.7, 1.0, 1.0, 1.1]))
    bench.put(past.since(31, rate=6.0, slices=[0]).draw())
    bench.judge(day(34))
    assert bench.incidents == []
    assert any(v.mix_shifted for v in bench.store.verdicts.between("search", day(31), day(34)))


def test_a_new_baseline_withdraws_open_incidents_and_starts_over(bench: Bench) -> None:
    past = Ranking.of(35).since(31, mean=0.85).draw()
    bench.put(past.rows(0, 33 * 24))
    bench.judge(day(33))
    assert [s.incident.state for s in bench.incidents] == ["firing"]
    bench.store.verdicts.begin_baseline("search", BaselineReset(day(31), "ann", "new layout"), 0.0)
    bench.live(past, 33 * 24)
    assert [s.incident.state for s in bench.incidents] == ["withdrawn"]
    newest = bench.store.verdicts.newest("search")
    assert newest is not None
    assert newest.kind == "healthy"  # on the new level
    kinds = [kind for _, kind, _ in bench.said if kind != "retrain"]
    assert kinds == ["firing", "withdrawn"]


def test_switching_drift_off_removes_verdicts_and_withdraws_incidents(bench: Bench) -> None:
    past = Ranking.of(33).since(31, mean=0.85).draw()
    bench.put(past.rows(0, 32 * 24))
    bench.judge(day(32))
    bench.monitor = replace(bench.monitor, drift=None)
    bench.live(past, 32 * 24)
    assert bench.store.verdicts.newest("search") is None
    assert bench.store.verdicts.newest_checkpoint("search") is None
    assert [s.incident.state for s in bench.incidents] == ["withdrawn"]


def test_drift_switched_on_late_judges_the_past_without_notifying(bench: Bench) -> None:
    past, drift = Ranking.of(34).since(31, 32, mean=0.8).draw(), bench.drift
    floor = Rule("floor", bench.drift.measure, DAY, Floor(0.01, 0.01))
    bench.monitor = replace(bench.monitor, drift=None, alerts=(floor,))
    bench.put(past.rows(0, 33 * 24))
    bench.judge(day(33))
    bench.monitor = replace(bench.monitor, drift=drift)
    bench.live(past, 33 * 24)
    assert bench.incidents == []
    assert any(v.is_degraded for v in bench.store.verdicts.between("search", day(31), day(33)))
    assert bench.said == []


def test_hours_are_built_from_whole_final_buckets(bench: Bench) -> None:
    drift, width = bench.drift, 1200
    past = Ranking.of(1, step=1200).draw()
    overall = np.stack([past.requests.sum(axis=1), past.total.sum(axis=1)])
    names = (OVERALL, *(("device", n) for n in past.slices))
    sums = np.zeros((72, 4, len(b.FIELDS)))
    sums[:, 0, b.REQUESTS], sums[:, 0, b.TOTAL] = overall
    sums[:, 1:, b.REQUESTS], sums[:, 1:, b.TOTAL] = past.requests, past.total
    crowd = np.zeros((72, 4, len(b.TRAFFIC_FIELDS)))
    crowd[:, 1:, 1] = past.labelled
    final = np.ones(72, bool)
    final[4] = False
    history, traffic = History(past.starts, final, names, sums), History(past.starts, final, names, crowd)
    found = hours(
        drift, width, history, traffic, {int(past.starts[6]): 3, int(past.starts[8]): 4}, counts_unlabelled=True
    )
    assert found.starts.tolist() == [START + h * HOUR for h in range(24) if h != 1]
    assert found.requests[1].tolist() == past.requests[6:9].sum(axis=0).tolist()
    assert found.labelled[0].tolist() == past.labelled[0:3].sum(axis=0).tolist()
    assert found.refused[:3].tolist() == [0, 7, 0]
    whole = hours(replace(drift, mix_by=None), width, history, traffic, {}, counts_unlabelled=True)
    assert whole.slices == ("",)
    assert whole.requests[:, 0].tolist() == found.requests.sum(axis=1).tolist()


def test_verdicts_of_another_version_are_judged_again(bench: Bench) -> None:
    past = Ranking.of(20).draw()
    bench.put(past.rows(0, 19 * 24))
    bench.judge(day(19))
    with bench.store.writing() as connection:
        connection.execute(drift_states.update().values(state='{"version": 1, "state": {}}', identity="another"))
    bench.live(past, 19 * 24)
    settings = DriftSettings(counts_unlabelled=bench.monitor.has_events)
    assert bench.store.verdicts.between("search", 0, day(20)) == verdicts(past, settings)


def test_hours_from_before_the_dimension_was_read_are_left_out(bench: Bench) -> None:
    past = Ranking.of(1).draw()
    names = (OVERALL, *(("device", n) for n in past.slices))
    sums = np.zeros((24, 4, len(b.FIELDS)))
    crowd = np.zeros((24, 4, len(b.TRAFFIC_FIELDS)))
    crowd[:20, 0, 0] = crowd[5:20, 1, 0] = 10.0  # the last hours have no requests at all
    history, traffic = (History(past.starts, np.ones(24, bool), names, s) for s in (sums, crowd))
    found = hours(bench.drift, HOUR, history, traffic, {}, counts_unlabelled=True)
    assert found.starts.tolist() == past.starts[5:].tolist()
    alone = [History(h.starts[20:], h.final[20:], (OVERALL,), h.sums[20:, :1]) for h in (history, traffic)]
    assert hours(bench.drift, HOUR, *alone, {}, counts_unlabelled=True).slices == ("(none)",)


# ---- what is reported ----------------------------------------------------------------------------------------------


def told(bench: Bench, kind: str, target: str = "team") -> list[Notification]:
    """The notifications of one kind that went to a target."""
    return [notice for to, notice in bench.notices if to == target and notice.kind == kind]


def test_an_open_alarm_reports_without_the_hours_that_lack_labels(bench: Bench) -> None:
    past = Ranking.of(35).since(31, mean=0.85).since(32, 32.75, coverage=0.0).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past.rows(0, 32 * 24 + 12), 31 * 24)
    (quality,) = (s for s in bench.incidents if s.incident.matter == "quality")
    found = next(f for f in quality.findings if not f.dimension)
    assert found.is_paused
    assert found.before == pytest.approx(0.55, abs=0.01)
    assert found.value == pytest.approx(0.85 * 0.55, abs=0.01)
    assert "no data problem found" not in sentence(found)
    assert "Hours with bad data, such as now, are left out" in sentence(found)
    stored = bench.store.verdicts.newest("search")
    assert stored is not None
    assert found.requests == stored.alarms[0].requests < 24 * 400
    bench.live(past, 32 * 24 + 12)
    (quality,) = (s for s in bench.incidents if s.incident.matter == "quality")
    found = next(f for f in quality.findings if not f.dimension)
    assert not found.is_paused
    assert found.value == pytest.approx(0.85 * 0.55, abs=0.01)
    assert "no data problem found" in sentence(found)


def test_slices_without_requests_are_reported_as_left_out_but_no_hours_are(bench: Bench) -> None:
    past = Ranking.of(34, slices=4).since(31, mean=0.85).since(32, rate=0.0, slices=[3]).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    assert {s.incident.matter for s in bench.incidents if s.incident.is_open} == {"quality", "data"}
    (quality,) = (s for s in bench.incidents if s.incident.matter == "quality")
    found = next(f for f in quality.findings if not f.dimension)
    assert "Hours with bad data" not in sentence(found)
    assert "Slices with bad data or without requests are left out" in sentence(found)
    every = bench.store.history(bench.monitor.definition(bench.drift.measure), found.end - found.window, found.end)
    assert found.requests == every.slice(OVERALL)[:, b.REQUESTS].sum(), "no hours are left out"


def test_a_rule_that_fires_while_labels_are_lost_says_so(bench: Bench) -> None:
    fall = Drop(0.1, 0.02, True, Baseline(trailing=7 * DAY))
    rule = Rule("drop", parse("ndcg(empty=zero)@10"), DAY, fall, HOUR, HOUR)
    bench.monitor = replace(bench.monitor, alerts=(rule,))
    past = Ranking.of(36).since(30, 31, coverage=0.5).draw()
    bench.put(past.rows(0, 29 * 24))
    bench.judge(day(29))
    bench.live(past.rows(0, 31 * 24), 29 * 24, step=6)
    (found,) = next(s for s in bench.incidents if s.incident.matter == "quality").findings
    assert found.name[0] == "drop"
    assert "The data are in doubt: verdict labels suspect." in sentence(found)
    assert advice([found]).startswith("first fix the data (labels suspect): the model cannot be judged by these hours.")
    bench.live(past.rows(0, 31 * 24 + 10), 31 * 24, step=2)
    assert not any(s.incident.is_open for s in bench.incidents if s.incident.matter == "data")
    (found,) = next(s for s in bench.incidents if s.incident.matter == "quality").findings
    assert "The data are in doubt: verdict labels suspect." in sentence(found), "its window still includes such hours"
    assert isinstance(found, Threshold)
    assert found.end - found.window < found.doubted_until < found.end


def test_a_rule_that_fires_after_the_labels_are_back_still_doubts_the_data(bench: Bench) -> None:
    fall = Drop(0.1, 0.02, True, Baseline(trailing=7 * DAY))
    rule = Rule("drop", parse("ndcg(empty=zero)@10"), DAY, fall, 28 * HOUR, HOUR)
    bench.monitor = replace(bench.monitor, alerts=(rule,))
    past = Ranking.of(36).since(30, 30.75, coverage=0.2).draw()
    bench.put(past.rows(0, 29 * 24))
    bench.judge(day(29))
    bench.live(past.rows(0, 31 * 24 + 12), 29 * 24, step=1)
    of_data = next(s.incident for s in bench.incidents if s.incident.matter == "data")
    quality = next(s for s in bench.incidents if s.incident.matter == "quality")
    assert of_data.closed_at is not None
    assert of_data.closed_at < quality.incident.opened_at
    assert "The data are in doubt: verdict labels suspect." in sentence(quality.findings[0])


def test_a_rule_that_fires_where_a_slice_lost_its_labels_says_so(bench: Bench) -> None:
    fall = Drop(0.1, 0.02, True, Baseline(trailing=7 * DAY))
    of_all = Rule("drop", parse("ndcg(empty=zero)@10"), DAY, fall, HOUR, HOUR)
    of_slices = replace(of_all, name="slices", overall=False, slices=(("device", None),))
    bench.monitor = replace(bench.monitor, alerts=(of_all, of_slices))
    past = Ranking.of(36, slices=3).since(30, 31, coverage=0.0, slices=[1]).since(30, 31, mean=0.7, slices=[2]).draw()
    bench.put(past.rows(0, 29 * 24))
    bench.judge(day(29))
    bench.live(past.rows(0, 31 * 24), 29 * 24, step=6)
    quality = next(s for s in bench.incidents if s.incident.matter == "quality")
    said = {(f.rule, f.slice): sentence(f) for f in quality.findings if isinstance(f, Threshold)}
    doubt = "The data are in doubt: verdict labels of slices suspect."
    assert {name for name, text in said.items() if doubt in text} == {("drop", ""), ("slices", "slice 1")}
    assert ("slices", "slice 2") in said


def test_a_rule_is_doubted_on_every_slice_that_lost_its_labels(bench: Bench) -> None:
    fall, lost = Drop(0.1, 0.02, True, Baseline(trailing=7 * DAY)), [1, 2, 3, 4, 5]
    rule = Rule(
        "slices", parse("ndcg(empty=zero)@10"), DAY, fall, HOUR, HOUR, overall=False, slices=(("device", None),)
    )
    bench.monitor = replace(bench.monitor, alerts=(rule,))
    past = Ranking.of(36, slices=16).since(30, 31, coverage=0.0, slices=lost).draw()
    bench.put(past.rows(0, 29 * 24))
    bench.judge(day(29))
    bench.live(past.rows(0, 31 * 24), 29 * 24, step=6)
    of_rule, of_data = (
        [f for s in bench.incidents if s.incident.matter == matter for f in s.findings]
        for matter in ("quality", "data")
    )
    doubted = {f.slice for f in of_rule if "The data are in doubt: verdict labels of slices suspect." in sentence(f)}
    assert doubted == {f"slice {number}" for number in lost}
    assert ", and 2 more slices. The other slices are judged as usual." in sentence(of_data[0])


def test_a_finding_starts_with_the_fall_not_with_its_evidence(bench: Bench) -> None:
    fell = 32 + 5 / 24
    past = Ranking.of(34, seed=2, peak=150, noise=0.02).since(fell, mean=0.8, slices=[0, 1]).draw(2)
    bench.put(past.rows(0, 32 * 24))
    bench.judge(day(32))
    bench.live(past.rows(0, 33 * 24), 32 * 24, step=3)
    newest = bench.store.verdicts.newest("search")
    assert newest is not None
    assert next(a.since for a in newest.alarms if not a.unit) < day(fell), "the evidence began earlier"
    found = next(f for s in bench.incidents for f in s.findings if f.verdict == DEGRADED and not f.dimension)
    assert (found.end - found.window, found.since - HOUR) == (day(fell), day(fell))
    stored = bench.store.history(bench.monitor.definition(bench.drift.measure), day(fell), found.end)
    sums = stored.slice(OVERALL).sum(axis=0)
    assert found.requests == sums[b.REQUESTS]
    assert found.value == pytest.approx(sums[b.TOTAL] / sums[b.REQUESTS])


def test_a_resolved_message_reports_the_mean_since_its_recovery_began(bench: Bench) -> None:
    past = Ranking.of(36).since(31, 33, mean=0.85).draw()
    bench.put(past.rows(0, 30 * 24))
    bench.judge(day(30))
    bench.live(past, 30 * 24, step=6)
    (notice,) = told(bench, "resolved")
    first = notice.findings[0]
    assert first.before is not None
    assert first.value == pytest.approx(first.before, rel=0.03)
    assert first.window < DAY / 2
    assert f"is back at {first.value:.3f}" in notice.title


def test_no_retraining_is_requested_while_quality_recovers(bench: Bench) -> None:
    past = Ranking.of(36).since(31, 32, mean=0.85).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past.rows(0, 32 * 24), 31 * 24)
    (low,) = bench.incidents
    assert due(bench.monitor, None, day(34), {"quality": low}) is not None
    bench.live(past.rows(0, 32 * 24 + 1), 32 * 24, step=1)
    (rising,) = bench.incidents
    newest = bench.store.verdicts.newest("search")
    assert newest is not None
    assert [a.back_since for a in newest.alarms] == [day(32)] * len(newest.alarms)
    assert {f.well_for for f in rising.findings} == {HOUR}
    assert {f.end for f in rising.findings} == {day(32)}, "the figures cover the hours before it rose"
    for found in rising.findings:
        stored = bench.store.history(bench.monitor.definition(bench.drift.measure), found.end - found.window, found.end)
        sums = stored.slice((found.dimension, found.slice)).sum(axis=0)
        assert found.requests == sums[b.REQUESTS]
        assert found.value == pytest.approx(sums[b.TOTAL] / sums[b.REQUESTS])
    assert due(bench.monitor, None, day(34), {"quality": rising}) is None


@pytest.mark.parametrize(("rate", "well"), [(0.0, 1), (0.02, 3)])  # two hours with few requests are still judged
def test_hours_without_requests_or_with_bad_data_do_not_count_as_recovered(
    bench: Bench, rate: float, well: int
) -> None:
    past = Ranking.of(36).since(31, 32, mean=0.85).draw()
    few = Ranking.of(36).since(32, rate=rate).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past.rows(0, 32 * 24 + 1), 31 * 24, step=3)
    bench.live(few.rows(0, 32 * 24 + 13), 32 * 24 + 1)
    (found,) = (s for s in bench.incidents if s.incident.matter == "quality")
    assert {f.well_for for f in found.findings} == {well * HOUR}
    assert all(f.is_paused for f in found.findings)


def test_labels_that_are_back_within_a_day_do_not_collapse(bench: Bench) -> None:
    for hours_ in (21, 23, 24):
        found = verdicts(Ranking.of(33).since(31, 31 + hours_ / 24, coverage=0.0).draw())
        assert {v.kind for v in on(found, 31)} == {"labels_suspect", "healthy"}, hours_
    kinds = [v.kind for v in on(verdicts(Ranking.of(34).since(31, 32.25, coverage=0.0).draw()), 31)]
    assert kinds.index("labels_collapsed") == 24
    assert kinds.count("labels_collapsed") >= 6
    assert kinds[-1] == "healthy"


def test_low_traffic_figures_name_their_hours_and_stay_after_recovery(bench: Bench) -> None:
    past = Ranking.of(35).since(31, 32, rate=0.2).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past.rows(0, 32 * 24 + 6), 31 * 24, step=6)
    (firing,) = told(bench, "firing", "data")
    assert firing.findings[0].window == 3 * HOUR
    (calm,) = bench.incidents
    assert calm.incident.is_open
    newest = bench.store.verdicts.newest("search")
    assert newest is not None
    assert newest.kind == "healthy"
    bench.live(past, 32 * 24 + 6, step=6)
    (over,) = bench.incidents
    assert over.incident.state == "resolved"
    for finding in (*calm.findings, *over.findings):
        assert finding.value is not None
        assert finding.before is not None
        assert finding.value < finding.before / 2
    assert "problem is over" in told(bench, "resolved", "data")[0].full_text


def test_a_label_collapse_reports_figures_of_one_day(bench: Bench) -> None:
    past = Ranking.of(33).since(31, coverage=0.2).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    collapsed = next(n for n in told(bench, "updated", "data") if "collapsed" in n.title)
    assert next(f.window for f in collapsed.findings if f.verdict == "labels_collapsed") == DAY


@pytest.mark.parametrize(
    ("what", "sentence_"),
    [
        (
            {"rate": 0.0, "slices": [1]},
            r"Missing slices \(device=slice 1\) stay away; this counts as the new normal\.",
        ),
        (
            {"rate": 0.35},
            r"Traffic stays at 35 % of what it was in the same hours before it fell \(over 4 d\); this is now the "
            r"expectation\.",
        ),
    ],
)
def test_a_permanent_loss_resolves_once_as_the_new_normal(bench: Bench, what: Changes, sentence_: str) -> None:
    past = Ranking.of(70).since(31, **what).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=12)
    assert [kind for target, kind, _ in bench.said if target == "data"] == ["firing", "resolved"]
    (notice,) = told(bench, "resolved", "data")
    assert "now the new normal" in notice.title
    assert re.search(sentence_, notice.full_text)
    assert "problem is over" not in notice.full_text


def test_partly_recovered_traffic_says_which_hours_are_judged(bench: Bench) -> None:
    past = Ranking.of(36).since(31, 33, rate=0.35).since(33, rate=0.62).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    newest = bench.store.verdicts.newest("search")
    assert newest is not None
    assert newest.kind == "healthy"
    (found,) = bench.incidents
    assert found.incident.is_open
    said = notification("updated", ABOUT, found.incident, found.findings, 1).full_text
    assert re.search(r"Above half of the expectation for .+ since .+ UTC, so judged again", said)
    assert "hours this low are not judged." in said


def test_a_rule_whose_window_has_no_bad_hour_is_not_doubted(bench: Bench) -> None:
    fall = Drop(0.1, 0.02, True, Baseline(trailing=7 * DAY))
    bench.monitor = replace(bench.monitor, alerts=(Rule("drop", parse("ndcg(empty=zero)@10"), HOUR, fall),))
    past = Ranking.of(32).since(30, 30.25, coverage=0.0).since(30.45, 31, mean=0.5).draw()
    bench.put(past.rows(0, 29 * 24))
    bench.judge(day(29))
    bench.live(past.rows(0, round(30.5 * 24)), 29 * 24, step=1)
    assert any(s.incident.is_open for s in bench.incidents if s.incident.matter == "data"), (
        "the data incident is not yet resolved"
    )
    found = [f for s in bench.incidents for f in s.findings if isinstance(f, Threshold)][-1]
    assert (found.doubted_by, found.doubt) == ("", "")
