"""Push-down against the pull on each engine, on logs full of dirt and on logs that SQL can sum."""

from __future__ import annotations

import functools
import json
import math
import operator
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS, Partials, to_partials
from monitor.series.readings import Aggregates
from monitor.source.dialects import dialect_of
from monitor.source.engine import Database
from monitor.source.parallel import ParallelReader
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown, why_not
from monitor.types import PLACE, EventRule, Judgments, Monitor, Recipe, Relation
from tests.source.test_source import assert_same, dirt_of
from tests.support.examples import times
from tests.support.lists import LISTS, ODD, Lists, of_lists, of_rows
from tests.support.logs import (
    BUCKET,
    BUCKETS,
    CLICKS,
    END,
    MICROS,
    SPAN,
    START,
    Dirt,
    Log,
    Soiled,
    Style,
    column,
    events,
    monitor,
    styles,
    write,
)
from tests.support.statements import execute

MEASURES = (
    "ndcg@3",
    "ndcg",
    "ndcg(ideal=local)@2",
    "ndcg(discount=jarvelin)@4",
    "ndcg(gain=exp2,discount=reciprocal,ideal=max,max_grade=5)@3",
    "ndcg(gain={1:1,2:1,3:7})@3",
    "dcg",
    "dcg(gain=exp2)@2",
    "dcg(examination={1:1,2:0.62,3:0.3})@3",
    "dcg(examination={1:1,2:0.62,3:0.3},examination[device=tv]={1:1,2:0.5,3:0.2})@3",
    "coec(examination={1:1,2:0.5,3:0.3},examination[land=x]={1:1,2:1,3:0.1},examination[land=(none)]={1:1,2:0.1,3:1})@2",
    "cg@2",
    "precision@2",
    "precision",
    "recall@2",
    "mrr(rel=2)@3",
    "mrr",
    "hit_rate@1",
    "rbp(p=0.5)",
    "rbp@2",
    "ctr@2",
    "coec(examination={1:0.5,2:0.25,3:0.25})@3",
    "snips(examination={1:1,2:0.5,3:0.25})@3",
    "snips(gain=exp2)@2",
    "cg(gain=exp2,examination={1:1,2:0.5,3:0.25})@3",
    "click_position",
    "no_results",
)
RULES = (CLICKS, (EventRule(1, "click"), EventRule(0, "purchase")), (EventRule(2),), (EventRule(1, "view", -5),))


UUIDS = ("8d0f3c7e-63e8-4c54-a1cb-0d8d2b1f9a11", "8d0f3c7e-63e8-4c54-a1cb-0d8d2b1f9a12")


class Mild(Soiled):
    """A log with dirt that SQL can handle: gaps, NULLs, early, late and unmatched events, and so on."""

    def _grade(self, missing: float) -> Any:
        grade = self.random.random() < 0.5 if self.boolean else self.random.choice((0, 0, 0, 1, 1, 2, 3))
        return self._maybe(grade, missing)

    def _position(self, place: int) -> Any:
        return self._maybe(self.first + (place if self.random.random() < 0.95 else -1 - place))

    def _at(self, micros: int, latest: int = 0) -> Any:
        return self._maybe((micros + self.random.randint(0, latest) * MICROS) // MICROS * MICROS, 0.01)

    def _request(self, name: str, served: int) -> None:
        before = len(self.log.rankings)
        super()._request(name, served)
        rows, seen = self.log.rankings[before:], set[Any]()
        self.log.rankings[before:] = [row for row in rows if not (row["item"] in seen or seen.add(row["item"]))]


class Plain(Mild):
    """A log of whole requests with early, late and unmatched events. In half of the logs, one row is out of line."""

    def make(self) -> Log:
        log, chance = super().make(), self.random
        for row in chance.sample(log.rankings, min(len(log.rankings), chance.choice((0, 1)))):
            row |= chance.choice(
                (
                    {"item": None},
                    {"position": chance.choice((None, self.first - 1))},
                    {"at": row["at"] + chance.choice((1, -1, SPAN, SPAN + 1)) * MICROS},
                    {"device": chance.choice((None, "tv", "car"))},
                    {"request": None},
                    {"item": chance.choice(log.rankings)["item"], "request": chance.choice(log.rankings)["request"]},
                )
            )
        return log

    def _request(self, name: str, served: int) -> None:
        device, at = self.random.choice(("tv", "pc", None)), served // MICROS * MICROS
        for place, item in enumerate(self.random.sample(range(1, 10), self.random.randint(1, 6))):
            row = {"request": name, "item": item, "position": self.first + place, "at": at, "query": "a"}
            self.log.rankings.append(row | {"device": device, "country": "x", "grade": self._grade(missing=0.3)})


def measures(chance: random.Random) -> tuple[str, ...]:
    """A random choice of MEASURES."""
    return tuple(m for m in MEASURES if chance.random() < 0.25) or ("ndcg@3",)


def recipe_of(kind: str, style: Style, chance: random.Random) -> Recipe:
    """A recipe of this kind with random options."""
    if kind == "column":
        return column(max_grade=chance.choice((None, 3)))
    return events(style, rules=chance.choice(RULES), count_unmatched=chance.random() < 0.8)


def case(url: str, kind: str, seed: int) -> tuple[Monitor, str]:
    """A log in the database, plain, mild or dirty, and a monitor that reads it."""
    chance = random.Random(f"{kind} {seed}")
    name, style = chance.choice(list(styles(url).items()))
    first, how = chance.choice((0, 1)), chance.choice((Plain, Mild, Soiled))
    position = chance.choice(("integer", "integer", "numeric", "double precision"))
    grade = chance.choice(("double precision", "numeric", *(["boolean"] if kind != "events" else [])))
    dirt = dirt_of(url, kind, style, position, grade) if how is Soiled else Dirt()
    write(url, how(seed, first, dirt, boolean=grade == "boolean").make(), style, position, grade)
    made = monitor(recipe_of(kind, style, chance), style, measures(chance), first)
    what = f"{kind} {seed}: {name}, base {first}, {position}, {grade}, {how.__name__}, {made.recipe}, {made.measures}"
    return made, what


def both(monitored: Monitor, database: Database, since: int, until: int) -> tuple[Partials, Partials, int]:
    """(partials by push-down, partials by the pull, how many buckets the database summed)

    Also checks that parallel pieces add up to the same, on databases that are read so. The statement that counts how
    often each item was logged must agree too; otherwise it is sent only if an item was logged twice.
    """
    kernels = dict.fromkeys(m.kernel for m in monitored.measures)
    pushdown = PushDown(monitored, database, is_bound=True)
    answers = (
        pushdown.read(since, until),
        Pull(monitored, database).read(since, until),
    )
    one, other = (to_partials(a, monitored.bucket, kernels, monitored.slices, {}) for a in answers)
    if database.sql.by_one_processor:
        pieces = ParallelReader(pushdown, cut_from=0, margins=0).read(since, until)
        added_up = to_partials(pieces, monitored.bucket, kernels, monitored.slices, {})
        assert_same(added_up, other, f"in pieces, {monitored.recipe}")
    thorough = PushDown(monitored, database, is_bound=True)
    thorough._thorough_until = math.inf
    counted = to_partials(thorough.read(since, until), monitored.bucket, kernels, monitored.slices, {})
    assert_same(counted, other, f"thoroughly, {monitored.recipe}")
    read = sum(r.until - r.since for r in answers[0].read) if isinstance(answers[0], Aggregates) else until - since
    return one, other, (until - since - read) // monitored.bucket


def recurring(seed: int) -> Log:
    """A log of reused ids, such as those of people instead of requests; some rows are just too far apart."""
    chance, log = random.Random(seed), Log()
    for _ in range(chance.randint(1, 40)):
        who = f"u{chance.randint(1, 9)}" if chance.random() < 0.5 else f"r{chance.random()}"
        edge = START + chance.randint(0, BUCKETS) * BUCKET
        near = (0, -0.25, -1, 1, -SPAN, SPAN, SPAN + 1, -SPAN - 1, chance.uniform(0, BUCKET))
        served = min(max(edge + chance.choice(near), START), END - 2 * SPAN)
        for place in range(chance.randint(1, 3)):
            later = served + chance.choice((0, 0, 1, SPAN - 1, SPAN, SPAN + 1))
            log.show(who, [chance.randint(1, 4)], round(later * 4) / 4, first=1 + place, device=who[0], grade=place)
        log.happen(who, chance.randint(1, 4), round(served * 4) / 4 + chance.choice((1, 30, 700)))
    return log


def every_way(monitored: Monitor, database: Database) -> dict[str, Partials]:
    """The partials by push-down and by the pull, reading one bucket at a time and several at once."""
    kernels = dict.fromkeys(m.kernel for m in monitored.measures)
    sums, pull = PushDown(monitored, database, is_bound=True), Pull(monitored, database)
    pieces = ParallelReader(PushDown(monitored, database, is_bound=True), cut_from=0, margins=0)
    found = {}
    for source, buckets in ((sums, 1), (sums, BUCKETS), (pull, 1), (pull, 3), (pull, BUCKETS), (pieces, BUCKETS)):
        edges = [*range(START, END, buckets * BUCKET), END]
        parts = [source.read(since, until) for since, until in pairwise(edges)]
        tallies = (to_partials(part, BUCKET, kernels, monitored.slices, {}) for part in parts)
        found[f"{type(source).__name__}, {buckets} at once"] = functools.reduce(operator.add, tallies)
    return found


def assert_however_it_is_read(monitored: Monitor, database: Database, log: Log, what: str) -> int:
    """Assert that all ways agree and that each row is used or refused; return how many were refused."""
    ways = every_way(monitored, database)
    expected = ways.pop("Pull, 1 at once")
    for way, found in ways.items():
        assert_same(found, expected, f"{what}, {way}")
    refused = sum(
        rows for (cell, reason), rows in expected.refused.items() if (cell[1], reason) == ("", "long_request")
    )
    used = sum(int(traffic[2]) for cell, traffic in expected.traffic.items() if cell[1] == "")
    assert used + refused == len(log.rankings), what
    return refused


def assert_lists_are_read_as_rows(database: Database, lists: Lists, what: str) -> int:
    """Assert that lists in each column give what rows give, both ways; return how many buckets were summed."""
    summed = 0
    for name in lists.columns:
        for acts in ("acts", *(["acts_in_text"] if name != "in_array" else [])):
            made = of_lists(name, acts)
            expected = pulled(of_rows(replace(made, recipe=of_lists(name).recipe)), database)
            summed += assert_both_are(expected, made, database, f"{what}, {name}, {acts}")
        judged = replace(of_lists(name), recipe=Judgments(Relation(("judged",)), "query", "item", "grade"))
        counted = replace(of_lists(name), rankings=replace(of_lists(name).rankings, results="found"))
        assert_same(pulled(judged, database), pulled(of_rows(judged), database), f"{what}, {name}, judgments")
        assert_both_are(pulled(of_rows(counted), database), counted, database, f"{what}, {name}, results")
    return summed


def refused(found: Partials) -> dict[str, int]:
    """Refused rows of all requests by reason."""
    return {reason: rows for (cell, reason), rows in found.refused.items() if cell[1] == ""}


def assert_both_are(expected: Partials, made: Monitor, database: Database, what: str) -> int:
    """Assert that both ways give `expected`; return how many buckets were summed."""
    one, other, buckets = both(made, database, START, END)
    assert_same(other, expected, f"{what}, by the pull")
    assert_same(one, expected, f"{what}, by the database")
    return buckets


def odd_lists(lists: Lists, more: Sequence[str] = ()) -> list[str]:
    """Statements that make a log with a request for each of ODD and `more`."""
    arrays = f"{lists.array[1]([])}, " if lists.array else ""
    values = [arrays + ", ".join([f"'{json}'"] * len(lists.json)) for json in (*ODD, *more)]
    known = f"r{list(ODD).index('[1, 2]')}"
    return lists.statements([(f"r{i}", START + i, value) for i, value in enumerate(values)], [(known, 1, START + 60)])


def assert_odd_lists_are_refused(database: Database, lists: Lists, more: Sequence[str] = ()) -> None:
    """Assert that elements other than ids and values other than lists are refused rows; `more` has one row each."""
    for name, acts in product([name for name in lists.columns if name != "in_array"], ("acts", "acts_in_text")):
        one, other, _ = both(of_lists(name, acts), database, START, END)
        assert_same(one, other, f"{name}, {acts}")
        traffic = dict(zip(TRAFFIC_FIELDS, one.traffic[START, "", ""].tolist(), strict=True))
        assert (traffic["requests"], traffic["no_results"]) == (len(ODD) + len(more), 2), name
        assert traffic["impressions"] == 5 + sum(ODD.values()) - lists.refused(acts), f"{name}, {acts}"
        assert refused(one) == {"null_item": lists.refused(acts) + len(more)}, f"{name}, {acts}"


def digits(lists: Lists) -> list[str]:
    """Statements that make a list with an item twice: as a number and as its digits."""
    literals = ([lists.array[1]([])] if lists.array else []) + ["'[7, \"7\", 8]'"] * len(lists.json)
    return lists.statements([("r1", START, ", ".join(literals))], [("r1", 7, START + 1)])


def assert_digits_are_numbers(database: Database, lists: Lists) -> None:
    """Assert it both ways, for labels of each type and of no type."""
    untyped = Relation(select="SELECT request, +item AS item, type, happened FROM acts")
    for name, acts in product([name for name in lists.columns if name != "in_array"], ("acts", "acts_in_text", "")):
        made = of_lists(name, acts, measures=("mrr",))
        made = made if acts else replace(made, recipe=replace(made.recipe, relation=untyped))
        one, other, _ = both(made, database, START, END)
        assert_same(one, other, f"{name}, {acts}")
        assert refused(one) == {"duplicate_item": 1}, f"{name}, {acts}"
        assert [float(cells[START, "", ""][FIELDS.index("total")]) for cells in one.measures.values()] == [0.5]


def assert_last_of_two_has_the_event(database: Database, lists: Lists, what: str) -> None:
    """Assert it both ways, for each JSON column of `Lists.of_ids` with two ids."""
    for name in [name for name in lists.columns if name != "in_array"]:
        one, other, _ = both(of_lists(name, measures=("mrr",)), database, START, END)
        assert_same(one, other, f"{what}, {name}")
        assert one.refused == {}
        assert [float(cells[START, "", ""][FIELDS.index("total")]) for cells in one.measures.values()] == [0.5], what


def pulled(made: Monitor, database: Database) -> Any:
    """The partials by the pull."""
    read = Pull(made, database).read(START, END)
    return to_partials(read, made.bucket, dict.fromkeys(m.kernel for m in made.measures), made.slices, {})


@pytest.mark.parametrize("kind", ["events", "column"])
def test_reused_ids_give_the_same_sums_in_reads_of_any_length(database_url: str, kind: str) -> None:
    database, refused = Database("s", parse_url(database_url), 60), 0
    for seed in range(times(4)):
        log, (name, style) = recurring(seed), random.Random(seed).choice(list(styles(database_url).items()))
        write(database_url, log, style)
        made = monitor(events(style) if kind == "events" else column(), style, ("ndcg", "ctr@2"))
        if not why_not(made, database.dialect):
            refused += assert_however_it_is_read(made, database, log, f"{kind} {seed}: {name}")
    assert refused > 4
    database.close()


@pytest.mark.parametrize("kind", ["events", "column"])
def test_push_down_equals_the_pull_on_any_log(database_url: str, kind: str) -> None:
    database, summed = Database("s", parse_url(database_url), 60), 0
    for seed in range(times(12)):
        made, what = case(database_url, kind, seed)
        if why_not(made, database.dialect):
            continue
        one, other, buckets = both(made, database, START, END)
        assert_same(one, other, what)
        summed += buckets
        chance = random.Random(seed)
        since, until = sorted(chance.sample(range(START, END), 2))
        assert_same(*both(made, database, since, until)[:2], f"{what}, {since} to {until}")
    assert summed > 12
    database.close()


def test_weights_too_small_for_a_float_sum_alike_both_ways(database_url: str) -> None:
    log, style = Log(), styles(database_url)["epoch ms"]
    for rank in (1, 61, 301, 1500, 5000):
        log.show(f"r{rank}", [1], START, first=rank, device="tv", country="x", grade=1)
    write(database_url, log, style)
    database = Database("s", parse_url(database_url), 60)
    made = monitor(column(), style, ("rbp(p=0.8)", "rbp(p=0.001)@60", "rbp(p=0.000001)"))
    one, other, summed = both(made, database, START, END)
    assert_same(one, other, "far down")
    assert summed == BUCKETS
    database.close()


def test_lists_in_a_column_are_read_like_rows(database_url: str) -> None:
    database = Database("s", parse_url(database_url), 60)
    lists, summed = LISTS[database.dialect], 0
    for seed in range(times(4)):
        execute(database_url, *lists.of_log(seed))
        summed += assert_lists_are_read_as_rows(database, lists, str(seed))
    assert summed > 12
    database.close()


def test_values_that_are_not_lists_of_ids_are_refused(database_url: str) -> None:
    database = Database("s", parse_url(database_url), 60)
    lists = LISTS[database.dialect]
    more = ["junk"] if database.dialect == "sqlite" else []
    execute(database_url, *odd_lists(lists, more))
    assert_odd_lists_are_refused(database, lists, more)
    database.close()


def test_a_json_number_and_its_digits_are_one_id(database_url: str) -> None:
    database = Database("s", parse_url(database_url), 60)
    execute(database_url, *digits(LISTS[database.dialect]))
    assert_digits_are_numbers(database, LISTS[database.dialect])
    database.close()


def test_text_is_a_list_on_postgresql_only_if_it_is_a_flat_json_list(postgres_url: str) -> None:
    """No text makes the read fail, and none is mistaken for a list."""
    chance, texts = random.Random(5), set[str]()
    for _ in range(times(2000)):
        ids = chance.choices((1, -5, "a€", 'q"', "\U0001f600", None, True, 1.5, 1e20, "\\"), k=chance.randint(0, 3))
        text = list(json.dumps(ids))
        for _ in range(chance.randint(0, 3)):
            text[chance.randrange(len(text))] = chance.choice('[]",\\u0dDeE+-.19nulltrefas b{}:\n\t')
        texts.add("".join(text))
    writer = sa.create_engine(postgres_url)
    with writer.begin() as writing:
        writing.exec_driver_sql("CREATE TABLE texts (v TEXT)")
        writing.execute(sa.text("INSERT INTO texts VALUES (:v)"), [{"v": text} for text in sorted(texts)])
        rows = dialect_of("postgresql").unrolled("texts", "v", 25, "text")
        of_each = sa.text(f"SELECT v, count({PLACE}) AS places FROM ({rows}) AS r GROUP BY v")
        found = {row.v: row.places for row in writing.execute(of_each)}
    writer.dispose()
    assert found == {text: len(flat_list(text)) for text in texts}
    assert sum(flat_list(text) != [None] for text in texts) > len(texts) / 10


def flat_list(text: str) -> list[Any]:
    """The JSON list in a text; [None] if it is not a list, not flat, or has characters that text cannot hold."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except ValueError:
        return [None]
    if found is None:
        return []
    is_flat = isinstance(found, list) and not any(isinstance(one, list | dict) or one == "\0" for one in found)
    return found if is_flat else [None]


def test_a_multidimensional_array_is_refused_as_one_row(postgres_url: str) -> None:
    lists = [
        ("r1", START, "ARRAY[[1, 2], [3, 4]], NULL, NULL, NULL"),
        ("r2", START, "'[5:6]={1,2}', NULL, NULL, NULL"),
    ]
    execute(postgres_url, *LISTS["postgresql"].statements(lists, [("r1", 1, START), ("r2", 2, START)]))
    database = Database("s", parse_url(postgres_url), 60)
    one, other, _ = both(of_lists("in_array", measures=("mrr",)), database, START, END)
    assert_same(one, other, "dimensions")
    assert refused(one) == {"null_item": 1}
    (partial,) = one.measures.values()
    assert float(partial[START, "", ""][FIELDS.index("total")]) == 0.5
    database.close()


def test_json_ids_may_be_uuids_on_postgresql(postgres_url: str) -> None:
    database = Database("s", parse_url(postgres_url), 60)
    execute(postgres_url, *LISTS["postgresql"].of_ids(UUIDS, "UUID"))
    assert_last_of_two_has_the_event(database, LISTS["postgresql"], "UUID")
    database.close()


@pytest.mark.parametrize("text", ["junk", "", " ", "nullx", '{"id": 1', "1, 2", "[1, 2"])
def test_text_in_place_of_a_list_is_one_refused_row(database_url: str, text: str) -> None:
    database = Database("s", parse_url(database_url), 60)
    lists = LISTS[database.dialect]
    execute(database_url, *odd_lists(lists), f"UPDATE lists SET in_json_0 = '{text}' WHERE in_json_0 = '[]'")
    one, other, _ = both(of_lists("in_json_0"), database, START, END)
    assert_same(one, other, text)
    assert refused(one) == {"null_item": lists.refused("acts") + 1}
    database.close()
