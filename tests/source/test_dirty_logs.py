"""Random logs with every kind of dirt, read sparsely by the product and densely by a plain loop: they must agree."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.measures.measure import parse
from monitor.series.partials import Partials, to_partials
from monitor.types import Column, EventRule, Events, Monitor, Position, Rankings, Recipe, Relation, Slice
from tests.support.monitors import pull, time_column

BASE = 1_770_000_000 - 1_770_000_000 % 3600
HOURS = 6
SPAN = 60
ATTRIBUTION = 1800
DEPTH = 5
MEASURES = ("ndcg@5", "ndcg(gain=exp2,ideal=local)@3", "mrr@5", "ctr@5", "precision@5")


@dataclass(frozen=True)
class Row:
    request: str | None
    item: int | None
    position: float | None
    at: int
    grade: float | None
    device: str | None


@dataclass(frozen=True)
class Event:
    request: str | None
    item: int | None
    kind: str
    at: int
    value: float | None


@dataclass(frozen=True)
class Log:
    rows: tuple[Row, ...]
    events: tuple[Event, ...]


def dirty_log(seed: int, requests: int = 120) -> Log:
    rng = random.Random(seed)
    rows: list[Row] = []
    events: list[Event] = []
    for number in range(requests):
        at = BASE + rng.randrange(-300, HOURS * 3600 + 300)
        device = rng.choice(["mobile", "desktop", "tv", None])
        size = rng.randrange(0, 8)
        for position in range(1, size + 1):
            item = rng.choice([None, *[position * 10] * 8, 10, 20])
            place = rng.choice([position] * 8 + [position + 1, None, 0, -2])
            later = at + rng.choice([0] * 6 + [rng.randrange(0, SPAN - 1)])
            grade = rng.choice([None, 0, 0, 1, 2, 0.5, 3, -1])
            other = rng.choice([device] * 12 + ["desktop", None])
            name = None if rng.random() < 0.02 else f"r{number}"
            rows.append(Row(name, item, place, later, grade, other))
            for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
                delay = rng.choice([5, 100, ATTRIBUTION - 1, ATTRIBUTION, ATTRIBUTION + 20, -10, -5000])
                kind = rng.choice(["click", "purchase", "dwell", "hover"])
                events.append(Event(name, item, kind, at + delay, rng.choice([None, 3.0, 40.0])))
    for _ in range(10):
        at = BASE + rng.randrange(0, HOURS * 3600)
        events.append(Event(rng.choice(["nobody", None]), 10, "click", at, None))
    return Log(tuple(rows), tuple(events))


def load(url: str, log: Log) -> None:
    text = url.startswith("sqlite")
    engine, metadata = sa.create_engine(url), sa.MetaData()
    kind = sa.Text() if text else sa.DateTime(timezone=True)
    rankings = sa.Table(
        "rankings",
        metadata,
        sa.Column("request", sa.Text),
        sa.Column("item", sa.Integer),
        sa.Column("position", sa.Float),
        sa.Column("at", kind),
        sa.Column("grade", sa.Float),
        sa.Column("device", sa.Text),
    )
    events = sa.Table(
        "events",
        metadata,
        sa.Column("request", sa.Text),
        sa.Column("item", sa.Integer),
        sa.Column("kind", sa.Text),
        sa.Column("at", kind),
        sa.Column("value", sa.Float),
    )
    metadata.create_all(engine)
    with engine.begin() as connection:
        for table, found in ((rankings, log.rows), (events, log.events)):
            moments = (datetime.fromtimestamp(r.at, UTC) for r in found)
            written = [m.strftime("%Y-%m-%dT%H:%M:%SZ") if text else m for m in moments]
            if found:
                connection.execute(table.insert(), [{**vars(r), "at": m} for r, m in zip(found, written, strict=True)])
    engine.dispose()


EVENTS = Events(
    Relation(("events",)),
    "request",
    "item",
    time_column("at", "sqlite"),
    (EventRule(1, "click"), EventRule(3, "purchase"), EventRule(2, "dwell", 30)),
    attribution=ATTRIBUTION,
    type="kind",
    value="value",
)


def monitor(url: str, recipe: Recipe) -> Monitor:
    if isinstance(recipe, Events):
        recipe = replace(recipe, time=time_column("at", url))
    return Monitor(
        "m",
        "s",
        Rankings(Relation(("rankings",)), "request", "item", Position("position"), time_column("at", url)),
        recipe,
        tuple(parse(m) for m in MEASURES),
        (Slice("device", "device", max_values=2),),
        max_request_span=SPAN,
    )


# ---- the same, by plain loops over every row ----------------------------------------------------------------------


def requests_of(log: Log) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in log.rows:
        if row.request is not None:
            found[row.request].append(row)
    return found


def event_grade(event: Event) -> float | None:
    if event.kind == "dwell":
        return 2.0 if event.value is not None and event.value >= 30 else None
    return {"click": 1.0, "purchase": 3.0}.get(event.kind)


def graded(rows: Sequence[Row], log: Log, recipe: Recipe) -> tuple[dict[int, float], int]:
    """(position -> grade that counts there, number of events that count)"""
    served = min(r.at for r in rows)
    candidates: list[tuple[float, float, Any]] = []
    counted = 0
    seen: set[object] = set()
    for row in rows:
        if row.item is None:
            continue
        grade: float | None = row.grade
        if isinstance(recipe, Events):
            mine = [e for e in log.events if e.request == row.request and e.item == row.item]
            valid = [e for e in mine if 0 <= e.at - served < ATTRIBUTION and event_grade(e) is not None]
            counted += len(valid) if row.item not in seen else 0
            seen.add(row.item)
            grades = [g for g in map(event_grade, valid) if g is not None]
            total = sum(grades) if recipe.combine == "sum" else max(grades, default=0.0)
            grade = total if grades else None
        if grade is not None and grade >= 0 and row.position is not None and row.position >= 1:
            candidates.append((grade, row.position, row.item))
    taken: dict[int, float] = {}
    items: set[Any] = set()
    once = []
    for grade_, place, item in sorted(candidates, key=lambda c: (-c[0], -c[1])):
        if item not in items:
            items.add(item)
            once.append((grade_, place))
    for grade_, place in sorted(once, key=lambda c: (-c[0], -c[1])):
        taken.setdefault(int(place), grade_)
    return taken, counted


def expected(log: Log, recipe: Recipe) -> dict[int, Counter[str]]:
    """Bucket -> sums over all its requests."""
    buckets: dict[int, Counter[str]] = {BASE + h * 3600: Counter() for h in range(HOURS)}
    for rows in requests_of(log).values():
        served = min(r.at for r in rows)
        bucket = served - served % 3600
        if bucket not in buckets:
            continue
        places, events = graded(rows, log, recipe)
        shown = [r for r in rows if r.item is not None and r.position is not None and r.position >= 1]
        usable = (r for r in shown if r.grade is not None and r.grade >= 0)
        labelled = events > 0 if isinstance(recipe, Events) else any(usable)
        sums = buckets[bucket]
        sums["requests"] += 1
        sums["labelled"] += labelled
        sums["impressions"] += sum(r.position <= DEPTH for r in shown)  # type: ignore[operator]
        sums["events"] += events
        sampled = bool(shown) and (labelled or isinstance(recipe, Events))
        if not sampled:
            continue
        for text in MEASURES:
            items = {r.item for r in shown if r.position <= DEPTH}  # type: ignore[operator]
            value, empty = by_hand(text, places, len(items))
            sums[f"{text} requests"] += 1
            sums[f"{text} empty"] += empty
            sums[f"{text} total"] += 0 if empty else value  # type: ignore[assignment]
    return buckets


def by_hand(text: str, places: dict[int, float], shown: int) -> tuple[float, bool]:
    relevant = {p: g for p, g in places.items() if g > 0}
    if text == "ctr@5":
        hits = sum(p <= 5 for p in relevant)
        return (hits / shown, False) if shown else (0.0, True)
    if text == "precision@5":
        return sum(p <= 5 for p in relevant) / 5, not relevant
    if text == "mrr@5":
        return max((1 / p for p in relevant if p <= 5), default=0.0), not relevant
    k, exp, local = (5, False, False) if text == "ndcg@5" else (3, True, True)
    gain = {p: 2**g - 1 if exp else g for p, g in relevant.items()}
    pool = [g for p, g in gain.items() if not local or p <= k]
    ideal = sum(g / math.log2(i + 2) for i, g in enumerate(sorted(pool, reverse=True)[:k]))
    dcg = sum(g / math.log2(p + 1) for p, g in gain.items() if p <= k)
    return (dcg / ideal, False) if ideal else (0.0, True)


# ---- the comparison -----------------------------------------------------------------------------------------------


def read(url: str, watched: Monitor, edges: Sequence[int]) -> Partials:
    source = pull(watched, url)
    known: dict[str, set[str]] = {}
    total: Partials | None = None
    for since, until in pairwise(edges):
        part = to_partials(source.read(since, until), 3600, watched.measures, watched.slices, known)
        for dimension, value in part.admitted:
            known.setdefault(dimension, set()).add(value)
        total = part if total is None else total + part
    source.database.close()
    assert total is not None
    return total


RECIPES = {
    "events by max": EVENTS,
    "events by sum": replace(EVENTS, combine="sum"),
    "a column": Column("grade"),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_sparse_read_equals_a_loop_over_every_row(database_url: str, seed: int, recipe: Recipe) -> None:
    log = dirty_log(seed)
    load(database_url, log)
    watched = monitor(database_url, recipe)
    found = read(database_url, watched, [BASE, BASE + HOURS * 3600])
    for bucket, sums in expected(log, recipe).items():
        traffic = found.traffic[bucket, "", ""]
        assert [int(v) for v in traffic[[0, 1, 2, 4]]] == [
            sums[n] for n in ("requests", "labelled", "impressions", "events")
        ], bucket
        for text in MEASURES:
            stored = found.measures[text][bucket, "", ""]
            assert [int(stored[0]), int(stored[1])] == [sums[f"{text} requests"], sums[f"{text} empty"]], (bucket, text)
            assert stored[2] == pytest.approx(sums[f"{text} total"], abs=1e-12), (bucket, text)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_cutting_the_range_changes_nothing(database_url: str, recipe: Recipe) -> None:
    load(database_url, dirty_log(7))
    watched = monitor(database_url, recipe)
    whole = read(database_url, watched, [BASE, BASE + HOURS * 3600])
    hourly = read(database_url, watched, [BASE + h * 3600 for h in range(HOURS + 1)])
    odd = read(database_url, watched, [BASE, BASE + 1234, BASE + 3600, BASE + 9999, BASE + HOURS * 3600])
    for other in (hourly, odd):
        overall = {c: v.tolist() for c, v in other.traffic.items() if c[1] == ""}
        assert overall == {c: v.tolist() for c, v in whole.traffic.items() if c[1] == ""}
        assert other.refused.items() >= {k: n for k, n in whole.refused.items() if k[0][1] == ""}.items()
        for text in MEASURES:
            for cell, sums in whole.measures[text].items():
                if cell[1] == "":
                    assert other.measures[text][cell] == pytest.approx(sums, rel=1e-12, abs=1e-12)
    assert {c: v.tolist() for c, v in hourly.traffic.items()} == {c: v.tolist() for c, v in whole.traffic.items()}
    assert hourly.admitted == whole.admitted


def test_slices_add_up_to_overall(database_url: str) -> None:
    load(database_url, dirty_log(11))
    watched = monitor(database_url, EVENTS)
    found = read(database_url, watched, [BASE, BASE + HOURS * 3600])
    for start in range(BASE, BASE + HOURS * 3600, 3600):
        parts = [v for (bucket, dimension, _), v in found.traffic.items() if bucket == start and dimension == "device"]
        assert sum(parts)[:5].tolist() == found.traffic[start, "", ""][:5].tolist()  # type: ignore[index]
    values = {value for _, dimension, value in found.traffic if dimension == "device"}
    assert len(values - {"other", "(mixed)", "(none)"}) == 2  # the cap


def test_an_empty_log_gives_explicit_zero_buckets(database_url: str) -> None:
    load(database_url, Log((), ()))
    found = read(database_url, monitor(database_url, EVENTS), [BASE, BASE + 7200])
    assert sorted(found.traffic) == [(BASE, "", ""), (BASE + 3600, "", "")]
    assert all(not v.any() for v in found.traffic.values())
