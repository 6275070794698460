"""What changes along with a fall and may explain it: robots, other kinds of labels, lists of another length."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.conditions.evidence import ConcurrentChange, evidence_of
from monitor.conditions.versions import NewVersion, WeakVersion
from monitor.drift.series import Hours
from monitor.messages.explanation import advice
from monitor.messages.notification import Notification, notification
from tests.support.bench import Bench, opened
from tests.support.drift import Ranking, day
from tests.support.logs import Style, events
from tests.support.notices import ABOUT, DROP, INCIDENT, of_kind

FALL = 32.0
BASE = Ranking.of(36)
CLICKS = events(Style("bigint", "epoch_ms", None, lambda micros: micros))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(f"sqlite:///{tmp_path}/store.db") as made:
        made.monitor = replace(made.monitor, recipe=CLICKS)
        yield made


def told(bench: Bench, past: Hours) -> Notification:
    """The first page about a fall, from a daemon that lives through it."""
    since = round(FALL * 24)
    bench.put(past.rows(0, since))
    bench.judge(day(FALL))
    bench.live(past, since)
    return next(n for target, n in bench.notices if target == "team" and n.kind == "firing")


def with_events(past: Hours, factor: float) -> Hours:
    """With `factor` times the events per request from the fall on."""
    return replace(past, events=past.events * [factor if start >= day(FALL) else 1.0 for start in past.starts.tolist()])


def changed(notice: Notification) -> list[tuple[str, str]]:
    """(slice, what changed) of every finding that fell."""
    return [(f.slice, one.what) for f in notice.findings for one in f.concurrent]


def asked(bench: Bench) -> bool:
    return "retrain" in [kind for _, kind, _ in bench.said]


def test_a_slice_that_fell_as_its_requests_doubled_suggests_robots_not_retraining(
    bench: Bench,
) -> None:
    notice = told(bench, BASE.since(FALL, mean=0.78, rate=2.0, slices=[1]).draw())
    assert changed(notice) == [("slice 1", "requests")]
    assert "Far more requests for device=slice 1 than usual: " in notice.full_text
    assert "What to do: first find out who sends so many requests (robots" in notice.full_text
    assert "slice 1 over" in notice.full_text
    assert not asked(bench)


@pytest.mark.parametrize(
    ("past", "why"),
    [
        (BASE.since(FALL, mean=0.78, slices=[1]), "requests are as many as before"),
        (BASE.since(FALL - 4, rate=2.0).since(FALL, mean=0.78, slices=[1]), "it was a holiday that began days before"),
        (BASE.since(FALL, rate=1.6, mean=0.5, coverage=0.8), "the extra requests cannot be all that fell"),
        (BASE.since(FALL - 7, FALL - 4, rate=0.55).since(FALL, mean=0.78), "the week before had an outage"),
    ],
)
def test_a_fall_without_concurrent_changes_is_blamed_on_the_model(bench: Bench, past: Ranking, why: str) -> None:
    notice = told(bench, past.draw())
    assert changed(notice) == [], why
    assert "Statistically significant; no data problem found." in notice.full_text
    assert asked(bench)


def test_more_events_per_request_suggest_that_other_events_now_count(bench: Bench) -> None:
    notice = told(bench, with_events(BASE.since(FALL, mean=0.9).draw(), 1.2))
    assert ("", "events") in changed(notice)
    line = r"Requests bring more events that count: 2\.[12]\d? each \(usually 1\.[78]\d?\)\."
    assert len(re.findall(line, notice.full_text)) == 1
    assert notice.full_text.count("bring more events") == 1, "once for all traffic, not again for each slice"
    assert "What to do: first check whether different events now count as labels, or lists are" in notice.full_text
    assert "no data problem found" not in notice.full_text
    assert not asked(bench)


def test_a_mix_shift_that_brings_more_events_is_not_a_concurrent_change(bench: Bench) -> None:
    past = BASE.since(FALL, mean=0.85).since(FALL, rate=1.4, slices=[2]).since(FALL, rate=0.6, slices=[0])
    assert changed(told(bench, past.draw())) == []


@pytest.mark.parametrize("factor", [1.5, 0.7])
def test_a_changed_list_length_is_reported_with_the_fall(bench: Bench, factor: float) -> None:
    past = BASE.since(FALL, mean=0.9, items=factor).draw()
    notice = told(bench, past)
    assert ("", "items") in changed(notice)
    assert f"List length changed: {10 * factor:.1f} items per request (usually 10.0)." in notice.full_text
    assert "first check whether lists were changed on purpose" in notice.full_text


def test_concurrent_changes_come_first_in_the_advice_and_survive_storage() -> None:
    fell = of_kind("degraded", DROP, concurrent=(ConcurrentChange("events", 2.6, 2.0),))
    assert advice([fell]).startswith("first check whether different events now count")
    assert (
        notification("retrain", ABOUT, INCIDENT, [fell], 0).full_text.count(
            "first check whether different events now count"
        )
        == 1
    )
    assert evidence_of(json.loads(json.dumps(fell.plain()))) == fell


def test_a_finding_stored_by_a_newer_release_can_be_read() -> None:
    new = NewVersion("v2", "v1", 0, 0, 3600, None, 1.0, 0.0, (0, 3600))
    weak = WeakVersion("v3", 0, 0.4, 0.5, -0.15, -0.05, 0.1)
    items = (ConcurrentChange("items", 12.0, 10.0),)
    known = of_kind("degraded", DROP, new_version=new, weak_version=weak, concurrent=items)
    plain = json.loads(json.dumps(known.plain()))
    for part in (plain, *plain["slices"], plain["new_version"], plain["weak_version"], *plain["concurrent"]):
        part["of_a_newer_release"] = [1]
    assert plain["slices"], "or the test shows nothing about them"
    assert evidence_of(plain) == known
