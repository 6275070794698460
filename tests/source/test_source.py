"""The sparse pull and the tally against a dense oracle, on logs full of dirt, on each engine."""

from __future__ import annotations

import random
from typing import Any

import pytest

from monitor.database_url import parse_url
from monitor.series.partials import Partials, to_partials
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.types import EventRule, Monitor, Recipe
from tests.support.dense import Dense
from tests.support.logs import (
    BUCKET,
    END,
    SPAN,
    START,
    Dirt,
    Log,
    Soiled,
    Style,
    column,
    events,
    judgments,
    monitor,
    styles,
    write,
)

SPARSE = (
    "ndcg@3",
    "ndcg(ideal=local)@2",
    "ndcg(gain=exp2,discount=jarvelin,ideal=max,max_grade=5)@3",
    "dcg(examination={1:1,2:0.62,3:0.3})@3",
    "dcg(examination={1:1,2:0.62,3:0.3},examination[device=tv]={1:1,2:0.5,3:0.2})@3",
    "coec(examination={1:1,2:0.5,3:0.3},examination[land=x]={1:1,2:1,3:0.1},examination[land=(none)]={1:1,2:0.1,3:1})@2",
    "dcg",
    "cg@2",
    "precision@2",
    "precision",
    "recall@2",
    "map@3",
    "mrr(rel=2)@3",
    "hit_rate@1",
    "err(max_grade=5)@3",
    "err(max_grade=1)@2",
    "ndcg(gain={1:1,3:7})@3",
    "rbp(p=0.5)",
    "ctr@2",
    "coec(examination={1:0.5,2:0.25,3:0.25})@3",
    "snips(examination={1:1,2:0.5,3:0.25})@3",
    "snips(gain=exp2)@2",
    "cg(gain=exp2,examination={1:1,2:0.5,3:0.25})@3",
    "click_position",
)
GLOBAL = ("ndcg(ideal=global)@3", "ndcg(gain={1:1,3:7},ideal=global)@3", "recall(ideal=global)@2", "map(ideal=global)")
DENSE = ("dcg(gain={0:0.5,0.5:1,1:2,3:5,4:5})@3", "ndcg(gain={0:0.25,0.5:1,1:2,3:5})@2", "mrr")
TABLED = ("ndcg(gain={1:1,2:1,3:7})@3", "ctr")


def measures(recipe: str, chance: random.Random) -> tuple[str, ...]:
    """Random measures that fit the recipe; sometimes gain tables that need zeros to be read, or do not."""
    kind = chance.random()
    if kind < 0.2:
        return DENSE
    if kind < 0.3:
        return TABLED
    usable = SPARSE + (GLOBAL if recipe == "judgments" else ())
    return tuple(m for m in usable if chance.random() < 0.6) or ("ndcg@3",)


def recipe_of(kind: str, style: Style, chance: random.Random) -> Recipe:
    """A recipe of this kind with random options."""
    if kind != "events":
        highest = chance.choice((None, None, 3))
        return column(max_grade=highest) if kind == "column" else judgments(max_grade=highest)
    own_value = (EventRule(None, "dwell"), EventRule(1, "click"), EventRule(0, "purchase"))
    options: dict[str, Any] = {"combine": chance.choice(("max", "sum"))}
    return events(style, **(options | ({"rules": own_value} if chance.random() < 0.4 else {})))


def dirt_of(url: str, kind: str, style: Style, position: str, grade: str) -> Dirt:
    """Dirt that the columns can hold: anything on SQLite, what their types allow on PostgreSQL."""
    time = (lambda micros: style.write(micros)[:18] + "?") if style.form.startswith("%") else None
    if url.startswith("sqlite"):
        # Text counts as a number but sorts after all numbers, so another of several judgments would be the highest.
        grades = ("bad", 1e999, *(["2"] if kind == "column" else []))
        return Dirt(("2", "x", 2.5, 1e300, 3.0), grades, ("35", "bad", 1e999), time)
    fractions = () if position == "integer" else (2.5, 3.0)
    special = (float("nan"), float("inf")) if position == "double precision" else ()
    values = (float("inf"), float("nan"))
    return Dirt(fractions + special, (float("inf"),) if grade == "double precision" else (), values, time)


def read(pull: Pull, since: int, until: int) -> Partials:
    """Partials of the requests in [since, until) seconds."""
    kernels = dict.fromkeys(m.kernel for m in pull.monitor.measures)
    return to_partials(pull.read(since, until), pull.monitor.bucket, kernels, pull.monitor.slices, {})


def assert_same(left: Partials, right: Partials | Dense, what: str) -> None:
    """Counts exactly, sums to 1e-12."""
    assert {c: list(map(float, t)) for c, t in left.traffic.items()} == {
        c: list(map(float, t)) for c, t in right.traffic.items()
    }, what
    expected = {key: rows for key, rows in right.refused.items() if rows}
    assert left.refused == expected, what
    assert left.measures.keys() == right.measures.keys(), what
    for kernel, cells in left.measures.items():
        assert cells.keys() == right.measures[kernel].keys(), (what, kernel)
        for cell, partial in cells.items():
            assert list(partial) == pytest.approx(list(right.measures[kernel][cell]), rel=1e-12, abs=1e-12), (
                what,
                kernel,
                cell,
            )


def case(url: str, kind: str, seed: int) -> tuple[Log, Monitor, Style, str]:
    """A log in the database, and a monitor that reads it."""
    chance = random.Random(f"{kind} {seed}")
    name, style = chance.choice(list(styles(url).items()))
    first = chance.choice((0, 1))
    position = chance.choice(("integer", "integer", "numeric", "double precision"))
    kinds = ("double precision", "numeric", *(["boolean"] if kind != "events" else []))
    grade = chance.choice(kinds)
    dirt = dirt_of(url, kind, style, position, grade)
    log = Soiled(seed, first, dirt, boolean=grade == "boolean").make()
    write(url, log, style, position, grade)
    made = monitor(recipe_of(kind, style, chance), style, measures(kind, chance), first)
    return log, made, style, f"{kind} {seed}: {name}, base {first}, {position}, {grade}, {made.measures}"


@pytest.mark.parametrize("kind", ["events", "judgments", "column"])
@pytest.mark.parametrize("seeds", [range(i, i + 12) for i in range(0, 24, 12)], ids=str)
def test_the_pull_equals_a_plain_loop_over_any_log(database_url: str, kind: str, seeds: range) -> None:
    database = Database("s", parse_url(database_url), 60)
    for seed in seeds:
        log, made, style, what = case(database_url, kind, seed)
        assert_same(read(Pull(made, database), START, END), Dense(log, made, style, START, END), what)
    database.close()


@pytest.mark.parametrize("kind", ["events", "judgments", "column"])
def test_sums_do_not_depend_on_how_the_range_is_cut(database_url: str, kind: str) -> None:
    database = Database("s", parse_url(database_url), 60)
    for seed in range(100, 106):
        _, made, _, what = case(database_url, kind, seed)
        chance, pull = random.Random(seed), Pull(made, database)
        cuts = [START + BUCKET, START + 2 * BUCKET - SPAN]
        since, until = sorted(chance.sample(range(START, END), 2))
        for first, middle, end in [(START, cut, END) for cut in cuts] + [(since, (since + until) // 2, until)]:
            whole, parts = read(pull, first, end), read(pull, first, middle) + read(pull, middle, end)
            assert_same(parts, whole, f"{what}, cut at {middle}")
            assert parts.fingerprint == whole.fingerprint
            assert (parts.since, parts.until) == (whole.since, whole.until)
    database.close()
