"""When a bucket is read, read again and final: decided from what is stored and the time passed in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.series.finality import BucketState, Mark, believed, due_buckets, final_age, is_final, is_over, read_ages
from monitor.types import Column, Monitor, Position, Rankings, Relation, TimeColumn

HOUR, DAY = 3600, 86_400
YEAR = 365 * DAY
START = 1_700_000 * HOUR
END = START + HOUR

RANKINGS = Rankings(Relation(("rankings",)), "request", "item", Position("position"), TimeColumn("time"))
MONITOR = Monitor("m", "s", RANKINGS, Column("grade", attribution=3 * HOUR), (), ingest_delay=300, final_timeout=DAY)


def read(age: float, mark: Mark = "", final: bool = False) -> BucketState:
    """State of the bucket [START, END) after a read that started this long after its end."""
    return BucketState(END + age, final or (mark == "awaited" and age >= DAY), mark)


# (what it shows, stored state of the bucket, its age now, age of the source's newest request, is it due?)
CASES: list[tuple[str, BucketState | None, float, float | None, bool]] = [
    ("a bucket that has not ended is not due", None, -1, -1, False),
    ("rankings may be on their way until the ingest delay has passed", None, 299, 299, False),
    ("from then on a bucket that was never read is due", None, 300, 300, True),
    ("even if the source shows nothing newer", None, 300, -HOUR, True),
    ("even if it never showed anything", None, 300, None, True),
    ("however late", None, 5 * DAY, 5 * DAY, True),
    ("once read it rests until the next age", read(300), 3899, 3899, False),
    ("an hour on it is read again", read(300), 3900, 3900, True),
    ("two at once where a cycle was missed count as one", read(300), 8000, 8000, True),
    ("after which it rests again", read(8000), 10_799, 10_799, False),
    ("at label delay it is read for good, if the source shows newer requests", read(8000), 10_800, 10_800, True),
    ("or a request of just its end", read(8000), 10_800, 0, True),
    ("a read before the label delay leaves it open", read(10_799), 10_800, 10_800, True),
    ("at label delay it is also read if nothing newer is there, but not for good", read(8000), 10_800, -1, True),
    ("then it rests", read(10_800), 10_801, -1, False),
    ("until the source moves on", read(10_800), 10_801, 0, True),
    ("or the next age comes", read(10_800), 21_600, -1, True),
    ("or the timeout", read(90_000), 10_800 + DAY, -1, True),
    ("a final bucket is never due", read(10_800, final=True), 10_801, 10_801, False),
    ("not even years later", read(10_800, final=True), 5 * YEAR, 5 * YEAR, False),
    (
        "one that the timeout made final rests while the source is away",
        read(90_000 + DAY, "awaited"),
        9 * DAY,
        -1,
        False,
    ),
    ("and is read once more when it is back", read(90_000 + DAY, "awaited"), 9 * DAY, 0, True),
    ("but not by a clock set back, which could not make it final", read(90_000 + DAY, "awaited"), HOUR, 0, False),
    ("one read while the source was away rests until it is back", read(300, "awaited"), 3000, -1, False),
    ("and is read at once then, not at its next age", read(300, "awaited"), 3000, 0, True),
    ("or at its next age", read(300, "awaited"), 3900, -1, True),
    ("one that was refused is never due", read(300, "refused"), 5 * DAY, 5 * DAY, False),
    ("with the clock set back, what was read rests", read(300), 200, 200, False),
    ("even before the bucket's time", read(300), -DAY, -DAY, False),
    ("and a final one stays final", read(10_800, final=True), -DAY, -DAY, False),
]


@pytest.mark.parametrize(("state", "age", "newest", "due"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_bucket_is_due_by_its_age_and_the_source(
    state: BucketState | None, age: float, newest: float | None, due: bool
) -> None:
    states = {START: state} if state else {}
    # Earlier buckets are settled, so only this one can be due.
    states |= {s: BucketState(s + DAY, True) for s in range(START - 8 * DAY, START, HOUR)}
    found = due_buckets(MONITOR, states, END + age, None if newest is None else END + newest)
    assert (START in found) is due
    assert [s for s in found if s < START] == []


FINAL = [
    ("not before the labels have had their time", 10_799, 10_799, False),
    ("then, if the source shows a request of later than the bucket", 10_800, 0, True),
    ("not while it shows none: its rankings may be late as a whole", 10_800, -1, False),
    ("not while it shows nothing at all", 10_800, None, False),
    ("not up to the timeout", 10_799 + DAY, -1, False),
    ("at the timeout it is taken as it is", 10_800 + DAY, -1, True),
    ("also if the source is empty", 10_800 + DAY, None, True),
    ("a read before the bucket's end is never final", -1, 10**9, False),
]


@pytest.mark.parametrize(("age", "newest", "final"), [c[1:] for c in FINAL], ids=[c[0] for c in FINAL])
def test_a_read_makes_a_bucket_final(age: float, newest: float | None, final: bool) -> None:
    assert is_final(MONITOR, START, END + age, None if newest is None else END + newest) is final


def test_labels_settle_no_earlier_than_the_rankings() -> None:
    assert final_age(replace(MONITOR, recipe=Column("grade"))) == MONITOR.ingest_delay
    assert final_age(replace(MONITOR, recipe=Column("grade", attribution=HOUR), lateness=60)) == HOUR + 60


MONITORS = st.builds(
    lambda bucket, attribution, ingest, lateness, timeout: replace(
        MONITOR,
        bucket=bucket,
        recipe=Column("grade", attribution=attribution),
        ingest_delay=ingest,
        lateness=lateness,
        final_timeout=timeout,
    ),
    st.sampled_from([60, 300, HOUR, 6 * HOUR, DAY, 7 * DAY]),
    st.sampled_from([0, 60, HOUR, 5 * HOUR, DAY, 30 * DAY]),
    st.sampled_from([0, 60, 300, HOUR, DAY]),
    st.sampled_from([0, 60, DAY]),
    st.sampled_from([0, 60, HOUR, DAY, 7 * DAY]),
)


@given(MONITORS)
def test_read_ages_grow_to_the_timeout_in_few_steps(monitor: Monitor) -> None:
    ages = read_ages(monitor)
    assert ages == sorted(set(ages))
    assert ages[0] == monitor.ingest_delay
    assert ages[-1] == final_age(monitor) + monitor.final_timeout
    assert final_age(monitor) in ages
    assert len(ages) <= 40


def reads_over_a_year(
    monitor: Monitor, start: int, ticks: Iterator[float], silent_from: float, back_at: float = 9 * YEAR + END
) -> list[BucketState]:
    """The reads of one bucket by a daemon that checks at every tick, while the source is silent from
    `silent_from` until `back_at`."""
    state, reads = None, list[BucketState]()
    later = {start + 2 * YEAR: BucketState(start, True)}  # no later bucket is missing
    for now in ticks:
        newest = now if now >= back_at else min(now, silent_from)
        found = due_buckets(monitor, later | ({start: state} if state else {}), now, newest)
        if start in found:
            assert state is None or not state.is_settled, "a settled bucket was read again"
            final = is_final(monitor, start, now, newest)
            state = BucketState(now, final, "" if is_over(monitor, start, newest) else "awaited")
            reads.append(state)
    return reads


@pytest.mark.parametrize("silent_from", [START + 60, END + 2 * HOUR, END + YEAR], ids=["at once", "soon", "never"])
@pytest.mark.parametrize("attribution", [0, 3 * HOUR, 7 * DAY])
def test_a_bucket_is_read_a_few_times_in_a_year_and_then_stays_final(attribution: int, silent_from: float) -> None:
    monitor = replace(MONITOR, recipe=Column("grade", attribution=attribution), lookback=6 * HOUR, windows=(HOUR,))
    rng, now, ticks = Random(1), float(START), []
    while now < END + YEAR:
        ticks.append(now)
        now += rng.expovariate(1 / (300 if now < END + 30 * DAY else 6 * HOUR))
    reads = reads_over_a_year(monitor, START, iter(ticks), silent_from)
    assert 1 <= len(reads) <= len(read_ages(monitor)) + 1
    assert [r.final for r in reads] == [False] * (len(reads) - 1) + [True]


def test_a_bucket_finalized_by_timeout_is_read_once_more_when_the_source_returns() -> None:
    ticks = (float(END + n * HOUR) for n in range(1, 90 * 24))
    monitor = replace(MONITOR, lookback=6 * HOUR, windows=(HOUR,))
    reads = reads_over_a_year(monitor, START, ticks, silent_from=START + 60, back_at=END + 30 * DAY)
    assert [(r.final, r.mark) for r in reads[-3:]] == [(False, "awaited"), (True, "awaited"), (True, "")]
    assert reads[-1].read_at == END + 30 * DAY


def test_a_week_of_downtime_leaves_no_gap() -> None:
    states = {s: BucketState(s + DAY, True) for s in range(START - 10 * DAY, START, HOUR)}
    states[START] = BucketState(END + 300, False)
    back = START + 9 * DAY + 600  # longer than the week a daemon reads on its own
    found = due_buckets(MONITOR, states, back, back)
    assert found == list(range(START, START + 9 * DAY, HOUR))


def test_a_month_of_silence_leaves_no_gap_when_the_source_returns() -> None:
    states = {s: BucketState(s + DAY, True) for s in range(START - 10 * DAY, START + HOUR, HOUR)}
    last, back = END, END + 30 * DAY
    silent = due_buckets(MONITOR, states, back, last)
    assert silent == list(range(END, END + MONITOR.lookback, HOUR))
    states |= {s: BucketState(back, True) for s in silent}
    assert due_buckets(MONITOR, states, back, last) == []
    assert due_buckets(MONITOR, states, back + 300, back) == list(range(END + MONITOR.lookback, back, HOUR))


def test_a_new_monitor_reads_exactly_its_lookback() -> None:
    found = due_buckets(MONITOR, {}, END + 300, END)
    assert found == list(range(END - 7 * DAY, END, HOUR))


def test_a_longer_lookback_reads_only_the_earlier_buckets() -> None:
    states = {s: BucketState(END, True) for s in range(END - 7 * DAY, END, HOUR)}
    found = due_buckets(replace(MONITOR, lookback=8 * DAY), states, END + 300, END)
    assert found == list(range(END - 8 * DAY, END - 7 * DAY, HOUR))


def test_an_open_bucket_is_read_at_any_age() -> None:
    states = {START - 90 * DAY: BucketState(START, False)} | {
        s: BucketState(s + DAY, True) for s in range(START - 8 * DAY, END, HOUR)
    }
    assert due_buckets(MONITOR, states, END, END) == [START - 90 * DAY]


@pytest.mark.parametrize("back", [60, HOUR, 5 * HOUR, 3 * DAY])
def test_a_clock_set_back_makes_nothing_due(back: int) -> None:
    now = float(END + 300)
    states = {s: BucketState(now, is_final(MONITOR, s, now, now)) for s in range(START - 20 * DAY, END, HOUR)}
    assert due_buckets(MONITOR, states, now, now) == []
    assert due_buckets(MONITOR, states, now - back, now - back) == []


@pytest.mark.parametrize("ahead", [DAY, 30 * DAY, YEAR, 50 * YEAR])
def test_a_clock_set_forward_makes_few_buckets_due(ahead: int) -> None:
    now = float(END + 300)
    states = {s: BucketState(now, is_final(MONITOR, s, now, now)) for s in range(START - 20 * DAY, END, HOUR)}
    within_reach = (MONITOR.lookback + 4 * HOUR) // HOUR
    assert 0 < len(due_buckets(MONITOR, states, now + ahead, now)) <= within_reach
    assert len(due_buckets(MONITOR, {}, now + ahead, now)) <= within_reach
    assert len(due_buckets(MONITOR, states, now + ahead, None)) <= within_reach


def test_reads_by_a_fast_clock_are_distrusted_once_it_is_right() -> None:
    right, ahead = BucketState(END + 300, True), BucketState(END + YEAR, True)
    states = {START: right, END: ahead, END + HOUR: ahead}
    assert believed(states, END + HOUR) == {START: right}
    assert believed(states, END + YEAR) == states
    due = due_buckets(MONITOR, believed(states, END + HOUR + 300), END + HOUR + 300, END + HOUR)
    assert START not in due
    assert END in due
    assert END + HOUR not in due


def test_reads_stay_trusted_when_a_clock_is_set_back_a_little() -> None:
    states = {START: BucketState(END + 300, False)}
    assert believed(states, END + 60) == states


@pytest.mark.parametrize("ahead", [3 * HOUR, 12 * HOUR])
def test_reads_by_a_clock_hours_ahead_are_distrusted(ahead: int) -> None:
    assert believed({START: BucketState(END + 300 + ahead, True)}, END + 600) == {}
