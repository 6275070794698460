"""The same store gives the same events, whatever the order of runs, restarts, late labels and resets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from monitor.conditions.checkpoint import BaselineReset
from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.drift.series import Hours
from monitor.evaluation.fold import Checkpoint, EventBatch, fold_hours
from monitor.evaluation.hours import StoredHours
from monitor.evaluation.run import conditions_of, judge_past
from monitor.measures.measure import parse
from monitor.units import DAY, HOUR
from tests.support.bench import Bench, opened
from tests.support.drift import Ranking, day
from tests.support.examples import examples

DAYS = 36
PAST = Ranking.of(DAYS, slices=2).since(30, 32, mean=0.85).since(32.5, 33, coverage=0.1).since(34, mean=0.9).draw()
KNOWN = 28 * 24
"""Rows that are stored and evaluated before anything random happens."""
LATE = st.lists(st.tuples(st.integers(KNOWN, DAYS * 24 - 6), st.integers(1, 6)), max_size=3)
SPLITS = st.lists(st.integers(KNOWN, DAYS * 24 - 1), max_size=4, unique=True).map(sorted)
RULE = Rule("drop", parse("ndcg@10"), DAY, Drop(0.05, 0.02, True, Baseline(trailing=10 * DAY)), 6 * HOUR, 6 * HOUR)


def few(number: int) -> settings:
    """Examples that are not shrunk when they fail, because each takes a second."""
    return settings(examples(number), phases=(Phase.explicit, Phase.reuse, Phase.generate))


def with_rule(bench: Bench) -> Bench:
    rule = replace(RULE, measure=bench.drift.measure, slices=(("device", None),))
    bench.monitor = replace(bench.monitor, alerts=(rule,))
    return bench


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 28 judged days."""
    path = tmp_path_factory.mktemp("fold") / "begun.db"
    with opened(f"sqlite:///{path}") as bench:
        with_rule(bench).put(PAST.rows(0, KNOWN))
        bench.judge(day(28), current=False)
    return path


@contextmanager
def copied(begun: Path) -> Iterator[Bench]:
    with TemporaryDirectory(dir=begun.parent) as folder:
        shutil.copyfile(begun, f"{folder}/store.db")
        with opened(f"sqlite:///{folder}/store.db") as bench:
            yield with_rule(bench)


def recorded(bench: Bench) -> dict[str, Any]:
    """Events, verdicts, incidents and the state of the evaluation."""
    steps, verdicts = bench.store.alerts.transitions("search"), bench.store.verdicts
    newest = verdicts.newest_checkpoint("search")
    # An incident open when the past is read again keeps its id, and with it the time at which it opened.
    known = [s.incident for s in bench.incidents]
    return {
        "events": sorted((t.at, t.rule, t.dimension, t.value, t.was, t.became) for t in steps),
        "verdicts": verdicts.between("search", 0, day(DAYS)),
        "incidents": sorted(((i.matter, i.state, i.severity, i.closed_at, i.firing) for i in known), key=repr),
        "conditions": {n: k for n, k in bench.store.alerts.state("search").conditions.items() if k.condition.since},
        "state": None if newest is None or newest.state is None else hash(json.dumps(newest.state.to_json())),
    }


def without_labels(past: Hours) -> Hours:
    """The hours as read before their labels came."""
    none = np.zeros_like(past.total)
    return replace(past, total=none, squares=none, labelled=none, events=np.zeros_like(past.events))


@pytest.fixture(scope="module")
def at_once(begun: Path) -> dict[str, Any]:
    with copied(begun) as bench:
        bench.put(PAST.rows(KNOWN, DAYS * 24))
        bench.judge(day(DAYS), current=False)
        found = recorded(bench)
    assert {"drop", "degraded", "labels_suspect"} <= {event[1] for event in found["events"]}
    return found


@few(10)
@given(splits=SPLITS, late=LATE)
def test_any_order_of_runs_and_late_labels_gives_the_same_events(
    begun: Path, at_once: dict[str, Any], splits: list[int], late: list[tuple[int, int]]
) -> None:
    with copied(begun) as bench:
        row, waiting = KNOWN, list(late)
        for end in (*splits, DAYS * 24):
            bench.put(PAST.rows(row, end)) if end > row else None
            for since, length in (lack for lack in late if row <= lack[0] < end):
                bench.put(without_labels(PAST.rows(since, min(since + length, end))))
            bench.judge(day(0) + end * HOUR, current=False)
            row = end
            if waiting and waiting[-1][0] + waiting[-1][1] <= end:
                put_labels(bench, *waiting.pop())
        for since, length in waiting:
            put_labels(bench, since, length)
        for since, length in late:  # spans cut short by the end of a run
            put_labels(bench, since, length)
        bench.judge(day(DAYS), current=False)
        assert recorded(bench) == at_once


def put_labels(bench: Bench, since: int, length: int) -> None:
    bench.put(PAST.rows(since, since + length))


@pytest.fixture(scope="module")
def stored(begun: Path) -> Iterator[Bench]:
    """A store with all hours, evaluated only up to day 28."""
    with copied(begun) as bench:
        bench.put(PAST.rows(KNOWN, DAYS * 24))
        yield bench


def folded(bench: Bench, ends: Sequence[int]) -> tuple[Any, EventBatch]:
    """The checkpoint after evaluating up to each row in `ends`, and all events on the way. Nothing is stored."""
    checkpoint, events = Checkpoint(), EventBatch()
    conditions = partial(conditions_of, bench.monitor, (), ())
    for end in ends:
        past = StoredHours(bench.monitor, bench.store)
        checkpoint, some = fold_hours(checkpoint, past, conditions, (), day(0) + end * HOUR)
        events.add(some)
    return checkpoint, events


@few(6)
@given(splits=SPLITS)
def test_any_split_of_the_hours_gives_the_same_checkpoint_and_events(stored: Bench, splits: list[int]) -> None:
    after, events = folded(stored, [*splits, DAYS * 24])
    expected, at_once = folded(stored, [DAYS * 24])
    assert sorted(events.changes, key=repr) == sorted(at_once.changes, key=repr)
    assert events.lived == at_once.lived
    assert after.verdicts.checkpoint.state.to_json() == expected.verdicts.checkpoint.state.to_json()
    firing = [{n: k for n, k in one.conditions.items() if k.condition.since} for one in (after, expected)]
    assert firing[0] == firing[1]


@few(6)
@example(splits=[], said=820, back=38)  # an incident that opens at the very step at which the baseline is reset
@given(splits=SPLITS, said=st.integers(KNOWN + 24, DAYS * 24 - 24), back=st.integers(-36, 9 * 24))
def test_a_replay_equals_the_live_run_whenever_the_baseline_was_reset(
    begun: Path, splits: list[int], said: int, back: int
) -> None:
    with copied(begun) as bench:
        row = KNOWN
        for end in sorted({*splits, said, DAYS * 24}):
            bench.put(PAST.rows(row, end)) if end > row else None
            bench.judge(day(0) + end * HOUR, current=False)
            if (row := end) == said:
                reset = BaselineReset(day(0) + (said - back) * HOUR, "ann", "new layout")
                bench.store.verdicts.begin_baseline("search", reset, 0.0)
        found = judge_past(bench.monitor, bench.store, day(DAYS))
        assert found is not None
        assert {s.incident.id: s.incident for s in found.incidents} == {
            s.incident.id: s.incident for s in bench.incidents
        }
        lived = recorded(bench)["events"]
        names = [(p.change.at, *p.change.name, p.change.was, p.change.became) for p in found.placed]
        assert sorted(names) == lived
