"""`rankmon inspect` prints what the daemon stores for a request, with figures that can be checked by hand."""

import json
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from monitor.causes.derivation import Derivation, derive
from monitor.causes.inspection import Inspection
from monitor.cli import run
from monitor.config import load
from monitor.database_url import parse_url
from monitor.measures.kernels import score
from monitor.measures.measure import parse
from monitor.series.partials import EMPTY, REQUESTS, TOTAL
from monitor.source.engine import Database
from monitor.source.inspect import inspect
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.types import Column, EventRule, Events, Judgments, Monitor, Position, Rankings, Relation
from tests.support.lists import LISTS, of_lists, of_rows
from tests.support.monitors import ISO, time_column
from tests.support.statements import execute

NINE = datetime(2026, 1, 5, 9, tzinfo=UTC)
HOUR = 3600
START = int(NINE.timestamp())
TIME = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")

EVERY_MEASURE = (
    "ndcg@3",
    "ndcg(gain=exp2,ideal=local)@3",
    "ndcg(ideal=max,max_grade=5)@3",
    "ndcg(discount=jarvelin,aggregate=pooled)",
    "ndcg(discount=reciprocal,empty=one)@10",
    "dcg@3",
    "cg",
    "precision@3",
    "precision",
    "recall@2",
    "map@3",
    "map(ideal=local)@3",
    "mrr",
    "hit_rate@2",
    "err(max_grade=5)@4",
    "rbp(p=0.5)",
    "ctr@3",
    "coec(examination={1:0.5,2:0.25,3:0.25})@3",
    "snips(examination={1:1,2:0.5,3:0.25})@3",
    "snips(gain=exp2)@2",
    "cg(gain=exp2,examination={1:1,2:0.5,3:0.25})@3",
    "coec(examination={1:0.5,2:0.25,3:0.25},examination[device=tv]={1:1,2:0.5,3:0.2})@3",
    "dcg(examination={1:1,2:0.62,3:0.3},examination[device=tv]={1:1,2:0.5,3:0.2})@3",
    "click_position",
)
BY_JUDGMENTS = (
    "ndcg(ideal=global)@3",
    "recall(ideal=global)@3",
    "map(ideal=global)@3",
    "ndcg(gain=exp2)@2",
    "err(max_grade=9)@2",
)


class Shop:
    """A source with rankings, events and judgments, a store, and a configuration with one monitor."""

    def __init__(self, url: str, folder: Path, request_type: Any = sa.Text, label_type: Any = sa.REAL) -> None:
        self.url, self.folder = url, folder
        self.engine = sa.create_engine(url)
        tables = sa.MetaData()

        def request() -> list[sa.Column[Any]]:
            return [sa.Column("request_id", request_type), sa.Column("item_id", sa.Text)]

        self.rankings = sa.Table(
            "rankings",
            tables,
            *request(),
            *(sa.Column("position", sa.REAL), sa.Column("served_at", TIME)),
            *(sa.Column(name, sa.Text) for name in ("query", "device")),
            sa.Column("label", label_type),
        )
        self.events = sa.Table(
            "events",
            tables,
            *request(),
            *(sa.Column("type", sa.Text), sa.Column("value", sa.REAL), sa.Column("occurred_at", TIME)),
        )
        self.judgments = sa.Table(
            "judgments",
            tables,
            *(sa.Column(n, t) for n, t in (("query", sa.Text), ("item_id", sa.Text), ("grade", sa.REAL))),
        )
        tables.create_all(self.engine)
        self.settings: dict[str, Any] = {}

    @property
    def path(self) -> Path:
        return self.folder / "rankmon.yaml"

    def close(self) -> None:
        self.engine.dispose()

    def at(self, after_nine: float) -> Any:
        """An instant as the source writes it."""
        moment = NINE + timedelta(seconds=after_nine)
        return moment if self.engine.dialect.name != "sqlite" else moment.strftime(ISO)

    def show(self, request: Any, items: Sequence[Any], served: float = 60, first: int = 1, **more: Any) -> None:
        """Log one list; an item may be a pair (item, position), or come with further columns as a dict."""
        with self.engine.begin() as connection:
            for place, item in enumerate(items, first):
                row = {"request_id": request, "served_at": self.at(served), "position": place, **more}
                row |= {"item_id": item} if not isinstance(item, dict) else item
                connection.execute(self.rankings.insert().values(row))

    def act(self, request: Any, *events: tuple[str | None, str, float | None]) -> None:
        """Log events (item, type, seconds after nine[, value])."""
        with self.engine.begin() as connection:
            for item, kind, when, *value in events:
                row = {"request_id": request, "item_id": item, "type": kind, "value": value[0] if value else None}
                occurred = None if when is None else self.at(when)
                connection.execute(self.events.insert().values(occurred_at=occurred, **row))

    def judge(self, query: str, *grades: tuple[str | None, float | None]) -> None:
        with self.engine.begin() as connection:
            for item, grade in grades:
                connection.execute(self.judgments.insert().values(query=query, item_id=item, grade=grade))

    def configure(self, relevance: dict[str, Any], measures: Sequence[str], **rankings: Any) -> None:
        """Write the configuration file."""
        time = {"column": "served_at"} | ({"format": ISO} if self.engine.dialect.name == "sqlite" else {})
        columns = {"request": "request_id", "item": "item_id", "position": "position", "time": time, "query": "query"}
        monitor = {
            "name": "shop",
            "source": "shop",
            "rankings": {"table": "rankings"} | columns | rankings if "select" not in rankings else columns | rankings,
            "relevance": relevance,
            "measures": list(measures),
            "slices": ["device"],
        }
        document = {
            "store": {"url": f"sqlite:///{self.folder}/store.db"},
            "sources": {"shop": {"url": self.url}},
            "monitors": [monitor | self.settings],
        }
        self.path.write_text(yaml.safe_dump(document), encoding="utf-8")

    def by_events(self, measures: Sequence[str] = ("ndcg@3",), combine: str = "max", **rankings: Any) -> None:
        time = {"column": "occurred_at"} | ({"format": ISO} if self.engine.dialect.name == "sqlite" else {})
        events = {
            "table": "events",
            "request": "request_id",
            "item": "item_id",
            "time": time,
            "type": "type",
            "value": "value",
            "attribution": "1h",
            "combine": combine,
            "max_grade": 5,
            "rules": [
                {"type": "click", "grade": 1},
                {"type": "buy", "grade": 3},
                {"type": "dwell", "minimum": 30, "grade": 2},
            ],
        }
        self.configure({"events": events}, measures, **rankings)

    def by_judgments(self, measures: Sequence[str] = BY_JUDGMENTS) -> None:
        columns = {"table": "judgments", "query": "query", "item": "item_id", "grade": "grade"}
        self.configure({"judgments": columns}, measures)

    def backfill(self, since: str = "2026-01-05T09:00", until: str = "2026-01-05T10:00") -> None:
        assert run(["backfill", "-c", str(self.path), "--from", since, "--to", until]) == 0

    def partials(self) -> dict[str, Any]:
        """Measure -> stored partial of the bucket at nine; and the refused rows under `refused`."""
        config = load(self.path, {})
        store, monitor = Store(config.store.url), config.monitors[0]
        found = {
            str(m): store.history(monitor.definition(m), START, START + 1, True).sums[0][0] for m in monitor.measures
        }
        found["refused"] = store.refused(monitor.traffic, START, START + 1)
        store.close()
        return found


@pytest.fixture
def shop(database_url: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(database_url, tmp_path)
    yield shop
    shop.close()


@pytest.fixture
def small_shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop in SQLite, for behaviour that does not depend on the database."""
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", tmp_path)
    yield shop
    shop.close()


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `rankmon inspect` and returns what it prints."""

    def call(shop: Shop, request: object, *arguments: str, fails: int = 0) -> str:
        capsys.readouterr()
        assert run(["inspect", str(request), "-c", str(shop.path), *arguments]) == fails
        captured = capsys.readouterr()
        return captured.err if fails else captured.out

    return call


@pytest.fixture
def seen(printed: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """Runs `rankmon inspect --format json` and returns the document."""

    def call(shop: Shop, request: object, *arguments: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(printed(shop, request, "--format", "json", *arguments))
        return document

    return call


def assert_stored_is_shown(shop: Shop, document: dict[str, Any]) -> None:
    """A backfill stored the same figures for the bucket as `document` shows for its only request."""
    stored = shop.partials()
    for measure in document["measures"]:
        partial = stored[measure["measure"]]
        assert partial[REQUESTS] == (0 if document["no_sample"] else 1)
        assert partial[TOTAL] == pytest.approx(0.0 if document["no_sample"] else measure["value"] or 0.0, rel=1e-12)
        assert partial[EMPTY] == (measure["value"] is None and not document["no_sample"])
        assert_adds_up(measure)
    assert refused(document) == stored["refused"]


def assert_adds_up(measure: dict[str, Any]) -> None:
    """The terms shown for a measure give its value by sums, products and one division."""
    total = sum(t["gain"] * t["weight"] for t in measure["terms"])
    assert total == pytest.approx(measure["numerator"], rel=1e-12)
    if measure["ideal"]:
        ideal = sum(t["gain"] * t["weight"] for t in measure["ideal"])
        assert ideal == pytest.approx(measure["denominator"], rel=1e-12)
    if measure["value"] is not None:
        assert total / (measure["denominator"] or 1) == pytest.approx(measure["value"], rel=1e-12)


def refused(document: dict[str, Any]) -> dict[str, int]:
    """Refused rows and events in the document by reason, for the reasons that are counted."""
    rows = document["rows"]
    reasons = [*document["mixed"], *(reason for row in rows for reason in row["reasons"])]
    reasons += [event["reason"] for row in rows for event in row["events"]]
    return {r: reasons.count(r) for r in set(reasons) - {"", "early", "late", "no_time", "no_rule"}}


def dirt(shop: Shop, request: Any = "s1", first: int = 1) -> None:
    """One request with everything that can be wrong in it."""
    shop.show(
        request, ["a", "b", "a", None, "e", {"item_id": "f", "position": None}, "g", "a"], first=first, query="shoes"
    )
    shop.show(request, [{"item_id": "h", "position": first + 1}, {"item_id": "i", "position": 2.5}, "j"], first=first)
    shop.show(request, [{"item_id": "c", "position": first - 1}], served=61, device="tv")
    shop.act(
        request,
        ("a", "click", 70),
        ("a", "click", 80),
        ("a", "click", 81),
        ("a", "buy", 90),
        ("b", "click", 75),
        ("h", "buy", 75),
    )
    shop.act(request, ("e", "click", 30), ("e", "click", -9000), ("g", "click", 3660), ("g", "click", 3659.5))
    shop.act(request, ("g", "click", 9000), ("g", "view", 70), ("g", "click", None), ("g", "dwell", 70, 12.0))
    shop.act(
        request,
        ("f", "click", 70),
        ("i", "click", 70),
        ("c", "click", 70),
        ("z", "click", 70),
        ("g", "dwell", 70, 40.0),
    )


# The value shown is the value stored


@pytest.mark.parametrize("combine", ["max", "sum"])
def test_every_measure_of_a_dirty_request_equals_the_stored_one(
    shop: Shop, combine: str, seen: Callable[..., dict[str, Any]]
) -> None:
    dirt(shop)
    shop.by_events(EVERY_MEASURE, combine)
    shop.backfill()
    document = seen(shop, "s1")
    assert_stored_is_shown(shop, document)
    found = refused(document)
    assert set(found) == {
        *("null_item", "null_position", "bad_position", "duplicate_position", "early_event", "late_event"),
        "duplicate_item" if combine == "max" else "grade_above_max",
    }


@pytest.mark.parametrize("combine", ["sum", "max"])
def test_one_click_on_a_duplicated_row_gives_cg_1(
    shop: Shop, combine: str, seen: Callable[..., dict[str, Any]], printed: Callable[..., str]
) -> None:
    shop.show("s1", ["a", "b"])
    shop.show("s1", ["a", "b"])
    shop.act("s1", ("a", "click", 70), ("a", "click", 9))
    shop.by_events(["cg", "ctr@2"], combine)
    shop.backfill()
    document = seen(shop, "s1")
    assert_stored_is_shown(shop, document)
    assert [m["value"] for m in document["measures"]] == [1, 0.5]
    first, again, _, other = document["rows"]
    assert (first["is_copy"], [e["reason"] for e in first["events"]]) == (False, ["early_event", ""])
    assert (again["is_copy"], again["is_used"], again["events"]) == (True, False, [])
    assert again["reasons"] == ["duplicate_row"]
    assert (other["is_copy"], other["reasons"]) == (True, [])
    assert "same row again" in printed(shop, "s1")


def test_positions_from_0_are_shown_with_their_ranks(
    shop: Shop, seen: Callable[..., dict[str, Any]], printed: Callable[..., str]
) -> None:
    dirt(shop, first=0)
    shop.by_events(EVERY_MEASURE, position={"column": "position", "base": 0})
    shop.backfill()
    document = seen(shop, "s1")
    assert_stored_is_shown(shop, document)
    assert [(r["position"], r["rank"]) for r in document["rows"][:2]] == [(-1, 0), (0, 1)]
    assert "position  rank  item" in printed(shop, "s1", "--measure", "mrr")


def test_a_global_ideal_includes_judged_items_that_were_not_shown(
    shop: Shop, seen: Callable[..., dict[str, Any]], printed: Callable[..., str]
) -> None:
    shop.show("s1", ["a", "b", "c", "a", "d", None], query="shoes")
    shop.judge("shoes", ("a", 1), ("a", 2), ("b", 0), ("x", 3), ("y", 1), ("d", -1), (None, 4), ("c", None), ("w", -2))
    shop.judge("boots", ("c", 4))
    shop.by_judgments()
    shop.backfill()
    document = seen(shop, "s1")
    assert_stored_is_shown(shop, document)
    assert [(j["item"], j["grade"], j["positions"]) for j in document["judgments"][:3]] == [
        *[("x", 3, []), ("a", 2, [1, 4]), ("y", 1, [])]
    ]
    assert [j["item"] for j in document["judgments"] if not j["is_usable"]] == ["d", "w"]
    ideal = document["measures"][0]["ideal"]
    assert [(t["item"], t["position"], t["gain"]) for t in ideal] == [("x", None, 3), ("a", 1, 2), ("y", None, 1)]
    assert "   1  x     not shown      3" in printed(shop, "s1")


def test_a_missing_grade_in_a_column_is_not_zero(shop: Shop, seen: Callable[..., dict[str, Any]]) -> None:
    labels = {"a": 1, "b": None, "c": 0, "d": 3, "e": -1, "f": 2}
    shop.show("s1", [{"item_id": i, "label": v} for i, v in labels.items()])
    shop.show("s1", [{"item_id": "f", "label": 4, "position": 9}, {"item_id": None, "label": 1, "position": 8}])
    shop.configure({"column": {"grade": "label", "max_grade": 5}}, EVERY_MEASURE)
    shop.backfill()
    document = seen(shop, "s1")
    assert_stored_is_shown(shop, document)
    assert [r["grade"] for r in document["rows"][:3]] == [1, None, 0]
    assert [r["is_used"] for r in document["rows"]] == [True, False, False, True, False, False, False, True]


def test_a_boolean_grade_counts_as_0_or_1(
    database_url: str, tmp_path: Path, seen: Callable[..., dict[str, Any]]
) -> None:
    shop = Shop(database_url, tmp_path, label_type=sa.Boolean)
    shop.show("s1", [{"item_id": i, "label": v} for i, v in zip("abcd", (False, True, None, True), strict=True)])
    shop.configure({"column": {"grade": "label", "max_grade": 1}}, ["ndcg@3", "ctr@4", "mrr"])
    shop.backfill()
    document = seen(shop, "s1")
    shop.close()
    assert_stored_is_shown(shop, document)
    assert [r["grade"] for r in document["rows"]] == [0, 1, None, 1]


def test_a_gain_table_with_a_gain_for_grade_0_counts_every_row(shop: Shop, seen: Callable[..., dict[str, Any]]) -> None:
    dirt(shop)
    shop.by_events(["ndcg(gain={0:1,1:2,2:3,3:4,5:9})@5", "cg(gain={0:1,1:2,2:3,3:4,5:9})@5"])
    shop.backfill()
    document = seen(shop, "s1")
    assert_stored_is_shown(shop, document)
    assert [t["grade"] for t in document["measures"][1]["terms"]] == [3, 0, 0]


def test_random_requests_match_the_values_and_refusals_of_their_bucket(shop: Shop) -> None:
    requests = fill_at_random(shop, random.Random(1))
    database = Database("shop", parse_url(shop.url), 60)
    for recipe in ("events", "sum", "dense", "judgments", "column"):
        monitor = a_monitor(shop.url, recipe)
        reading = Pull(monitor, database).read(START, START + HOUR)
        number = {int(served): i for i, served in enumerate(reading.served)}
        assert len(number) == len(requests)
        scores = {m: score(m, reading.taken_by(m.kernel)) for m in monitor.measures}
        for request in requests:
            one = inspect(monitor, database, request)
            i = number[one.served]
            assert (not one.no_sample) == reading.rankings.sampled[i]
            assert counted(one) == {r: int(c[i]) for r, c in reading.refusals.counts.items() if c[i]}
            assert one.slices == {d: v[i] for d, v in reading.slices.items()}
            for measure, scored in scores.items() if not one.no_sample else ():
                working = derive(measure, one)
                assert (working.value is None) == scored.empty[i]
                assert (working.value or 0.0) == pytest.approx(scored.value[i], rel=1e-12)
                assert_works_out(working)
    database.close()


def assert_works_out(working: Derivation) -> None:
    total = sum(t.product for t in working.terms)
    assert total == pytest.approx(working.numerator, rel=1e-12)
    if working.value is not None:
        assert total / (working.denominator or 1) == pytest.approx(working.value, rel=1e-12)


def counted(one: Inspection) -> dict[str, int]:
    """Refused rows and events by reason."""
    reasons = [*one.mixed, *(r for row in one.rows for r in row.reasons)]
    reasons += [e.reason for row in one.rows for e in row.events]
    return {r: reasons.count(r) for r in set(reasons) - {"", "early", "late", "no_time", "no_rule"}}


def fill_at_random(shop: Shop, chance: random.Random, size: int = 25) -> list[str]:
    """Requests of up to a dozen rows over few items and positions, so that many collide."""
    names = [f"r{i}" for i in range(size)]
    rows, events = [], []
    for i, name in enumerate(names):
        served, query = 30 + 80 * i, chance.choice(["q1", "q2", "q3"])
        for _ in range(chance.randint(1, 12)):
            mixed = chance.random() < 0.02
            row = {
                "request_id": name,
                "item_id": chance.choice([*"abcdefgh", None]),
                "position": chance.choice([*range(1, 9), *range(1, 9), 0, None, 1.5]),
                "served_at": shop.at(served),
                "query": "other" if mixed else query,
                "device": chance.choice(["tv"] * 30 + ["phone", None]),
                "label": chance.choice([0, 0, 1, 2, 3, None, -1, 7]),
            }
            rows += [row] * chance.choice([1, 1, 1, 1, 2])
        for _ in range(chance.randint(0, 10)):
            delay = chance.choice([-5000, -30, 0, 5, 60, 3599, 3600, 3630, 9000])
            event = {
                "request_id": name,
                "item_id": chance.choice([*"abcdefghz", None]),
                "occurred_at": shop.at(served + delay),
            }
            kind = chance.choice(["click", "click", "buy", "dwell", "view"])
            events.append(event | {"type": kind, "value": chance.choice([None, 10.0, 50.0])})
    judgments = [
        {
            "query": q,
            "item_id": chance.choice([*"abcdefghxyz", None]),
            "grade": chance.choice([0, 1, 2, 3, None, -1, 7]),
        }
        for q in ["q1"] * 9 + ["q2"] * 4
    ]
    with shop.engine.begin() as connection:
        for table, values in ((shop.rankings, rows), (shop.events, events), (shop.judgments, judgments)):
            connection.execute(table.insert(), values)
    return names


def a_monitor(url: str, recipe: str) -> Monitor:
    from monitor.types import Slice

    rules = (EventRule(1, "click"), EventRule(3, "buy"), EventRule(2, "dwell", 30))
    when = time_column("occurred_at", url)
    by_events = Events(Relation(("events",)), "request_id", "item_id", when, rules, HOUR, "type", "value", max_grade=5)
    recipes = {
        "events": by_events,
        "dense": by_events,
        "sum": replace(by_events, combine="sum"),
        "judgments": Judgments(Relation(("judgments",)), "query", "item_id", "grade", 5),
        "column": Column("label", 5),
    }
    dense = ("ndcg(gain={0:1,1:2,2:3,3:4})@5", "cg(gain={0:0.5,1:2,2:3,3:4})@3")
    texts = {"dense": dense, "judgments": (*EVERY_MEASURE, *BY_JUDGMENTS[:3])}.get(recipe, EVERY_MEASURE)
    return Monitor(
        "shop",
        "shop",
        Rankings(
            Relation(("rankings",)),
            "request_id",
            "item_id",
            Position("position"),
            time_column("served_at", url),
            query="query",
        ),
        recipes[recipe],
        tuple(parse(t) for t in texts),
        (Slice("device", "device"),),
    )


# Finding the request


@pytest.mark.parametrize(
    ("kind", "request_id"),
    [
        (sa.BigInteger, 42),
        (sa.Uuid, uuid.UUID("8d0f3c7e-63e8-4c54-a1cb-0d8d2b1f9a11")),
        (sa.Text, "o'hara; %s :x"),
        (sa.LargeBinary, b"r1"),
    ],
    ids=["integer", "uuid", "text", "bytes"],
)
def test_a_request_is_found_by_id_whatever_the_column_type(
    database_url: str, tmp_path: Path, kind: Any, request_id: Any, seen: Callable[..., dict[str, Any]]
) -> None:
    # SQLite has no UUID type, so they are text there.
    is_text = kind is sa.Uuid and database_url.startswith("sqlite")
    shop = Shop(database_url, tmp_path, sa.Text if is_text else kind)
    shop.show(str(request_id) if is_text else request_id, ["a", "b"])
    shop.act(str(request_id) if is_text else request_id, ("b", "click", 70))
    shop.by_events()
    text = "r1" if kind is sa.LargeBinary else str(request_id)
    document = seen(shop, text)
    shop.close()
    assert document["measures"][0]["value"] == pytest.approx(0.6309297535714575)
    assert document["request"] == (42 if kind is sa.BigInteger else text)


def test_a_binary_id_is_given_in_hexadecimal(
    database_url: str, tmp_path: Path, seen: Callable[..., dict[str, Any]], printed: Callable[..., str]
) -> None:
    shop, known = Shop(database_url, tmp_path, sa.LargeBinary), uuid.UUID("8d0f3c7e-63e8-4c54-a1cb-0d8d2b1f9a11")
    shop.show(known.bytes, ["a", "b"])
    shop.act(known.bytes, ("b", "click", 70))
    shop.by_events()
    for text in (str(known), known.hex.upper(), f"0x{known.hex}", rf"\x{known.hex}"):
        assert seen(shop, text)["measures"][0]["value"] == pytest.approx(0.6309297535714575)
    assert "the column is binary, so write the id in hexadecimal" in printed(shop, "r1", fails=2)
    assert "with a time; does it belong to monitor shop?" in printed(shop, "8d0f", fails=2)
    shop.close()


@pytest.mark.parametrize(
    ("change", "tv", "shown"),
    [
        ("text[] USING string_to_array({}, ',')", "tv,4k", "['tv', '4k']"),
        ("jsonb USING {}::jsonb", '{"at": "tv"}', "{'at': 'tv'}"),
    ],
    ids=["array", "jsonb"],
)
def test_slices_and_queries_may_be_arrays_or_json(
    postgres_url: str, tmp_path: Path, change: str, tv: str, shown: str, seen: Callable[..., dict[str, Any]]
) -> None:
    shop = Shop(postgres_url, tmp_path)
    shop.settings = {"engine": "pull"}
    shop.show("s1", ["a", "b", {"item_id": "c", "device": None}], device=tv, query=tv)
    shop.show("s2", ["a", {"item_id": "b", "device": tv}], device="[]" if "json" in change else "pc", query=tv)
    with shop.engine.begin() as connection:
        for name in ("device", "query"):
            connection.exec_driver_sql(f"ALTER TABLE rankings ALTER {name} TYPE {change.format(name)}")
    shop.by_events()
    shop.backfill()
    one, other = seen(shop, "s1", "--show-query"), seen(shop, "s2")
    shop.close()
    assert (one["slices"], one["query"], one["mixed"]) == ({"device": shown}, shown, [])
    assert (other["slices"], other["mixed"]) == ({"device": "(mixed)"}, ["mixed_slice"])


def test_a_numeric_id_is_found_in_an_untyped_sqlite_column(tmp_path: Path, seen: Callable[..., dict[str, Any]]) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", tmp_path, sa.BigInteger)
    shop.show(42, ["a", "b"])
    shop.act(42, ("b", "click", 70))
    select = "SELECT request_id + 0 AS request_id, item_id, position, served_at, query, device FROM rankings"
    shop.by_events(select=select)
    assert len(seen(shop, 42)["measures"][0]["terms"]) == 1
    shop.close()


def test_an_unknown_request_is_a_user_error_that_says_where_it_searched(
    small_shop: Shop, printed: Callable[..., str]
) -> None:
    small_shop.show("s1", ["a"])
    small_shop.by_events()
    assert printed(small_shop, "s2", fails=2) == (
        "rankmon: source shop, table rankings, column request_id: there is no request 's2' with a time; does it belong "
        "to monitor shop?\n"
    )
    assert printed(small_shop, "s1", "--at", "2026-01-06T09:30", fails=2) == (
        "rankmon: source shop, table rankings, column request_id: there is no request 's1' from 2026-01-06T08:59:00 to "
        "2026-01-06T10:01:00 UTC; use another --at, or none to search everywhere\n"
    )


def test_text_that_cannot_be_an_id_of_the_column_is_a_user_error(
    postgres_url: str, tmp_path: Path, printed: Callable[..., str]
) -> None:
    shop = Shop(postgres_url, tmp_path, sa.BigInteger)
    shop.by_events()
    assert "'abc' cannot be a request id" in printed(shop, "abc", fails=2)
    shop.close()


def test_a_search_that_takes_too_long_suggests_the_at_option(small_shop: Shop, printed: Callable[..., str]) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM rankings, n"
    small_shop.by_events(select=endless)
    small_shop.show("s1", ["a"])
    document = yaml.safe_load(small_shop.path.read_text())
    document["sources"]["shop"]["statement_timeout"] = "1s"
    small_shop.path.write_text(yaml.safe_dump(document))
    assert "or use --at to say when the request was served" in printed(small_shop, "s1", fails=3)


def test_the_at_option_selects_one_serving_of_a_reused_id(
    shop: Shop, seen: Callable[..., dict[str, Any]], printed: Callable[..., str]
) -> None:
    shop.show("again", ["a", "b"], served=60)
    shop.show("again", ["c", "d", "e"], served=2 * HOUR + 60)
    shop.act("again", ("b", "click", 70), ("c", "click", 2 * HOUR + 70))
    shop.by_events()
    first, later = seen(shop, "again"), seen(shop, "again", "--at", "2026-01-05T11:59:59")
    assert [(r["item"]) for r in first["rows"]] == ["a", "b"]
    assert [(r["item"]) for r in later["rows"]] == ["c", "d", "e"]
    assert (first["elsewhere"], later["elsewhere"]) == (3, 0)
    assert first["measures"][0]["value"] == pytest.approx(0.6309297535714575)
    assert later["measures"][0]["value"] == 1
    assert "3 more rows of this id are not read with this bucket" in printed(shop, "again")


def test_an_id_served_again_within_the_attribution_window_is_reported(
    shop: Shop, seen: Callable[..., dict[str, Any]], printed: Callable[..., str]
) -> None:
    shop.by_events()
    shop.show("twice", ["a"])
    shop.show("twice", ["b"], served=60 + 3600)
    assert seen(shop, "twice")["again"] == ["2026-01-05T10:01:00Z"]
    assert seen(shop, "twice", "--at", "2026-01-05T10:59:59")["again"] == ["2026-01-05T09:01:00Z"]
    assert (
        "\nthis id was served 1 time more within the attribution, nearest at 2026-01-05 10:01:00 UTC (+1 h 0 min): an "
        "event counts for every serving of its request id within the attribution window; is it a session's or a "
        "person's id?"
    ) in printed(shop, "twice")
    shop.show("long ago", ["a"])
    shop.show("long ago", ["b"], served=60 + 3601)
    assert seen(shop, "long ago")["again"] == []
    assert "served 1 time" not in printed(shop, "long ago")


def test_a_request_across_a_bucket_edge_is_shown_whole_from_either_side(
    shop: Shop, seen: Callable[..., dict[str, Any]]
) -> None:
    shop.show("s1", ["a"], served=HOUR - 1)
    shop.show("s1", ["b"], served=HOUR + 1, first=2)
    shop.act("s1", ("b", "click", HOUR + 60))
    shop.by_events()
    documents = [seen(shop, "s1", *at) for at in ([], ["--at", "2026-01-05T09:59"], ["--at", "2026-01-05T10:00"])]
    assert documents[0] == documents[1] == documents[2]
    assert documents[0]["bucket"]["start"] == "2026-01-05T09:00:00Z"
    assert len(documents[0]["rows"]) == 2


# What it reports about the request


def test_the_query_is_printed_only_on_request(small_shop: Shop, printed: Callable[..., str]) -> None:
    small_shop.show("s1", ["a", "b"], query="shoes for jane doe")
    small_shop.judge("shoes for jane doe", ("a", 1))
    small_shop.settings["slices"] = ["device", {"column": "query", "as": "asked"}]
    small_shop.by_judgments()
    for style in ("table", "json"):
        assert "jane" not in printed(small_shop, "s1", "--format", style)
        assert "jane" in printed(small_shop, "s1", "--format", style, "--show-query")


def test_a_request_that_is_not_sampled_says_why(small_shop: Shop, seen: Callable[..., dict[str, Any]]) -> None:
    small_shop.show("unjudged", ["a", "b"], query="boots")
    small_shop.show("mixed", ["a"], query="shoes")
    small_shop.show("mixed", ["b"], query="boots", device="tv", first=2)
    small_shop.show("nothing", [None, {"item_id": "a", "position": None}], query="shoes")
    small_shop.show("unasked", ["a", "b"], query=None)
    small_shop.judge("shoes", ("a", 1))
    small_shop.by_judgments()
    why = {name: seen(small_shop, name)["no_sample"] for name in ("unjudged", "unasked", "mixed", "nothing")}
    assert why == {
        "unjudged": "its query is not judged",
        "unasked": "it has no query",
        "mixed": "its rows differ in their query",
        "nothing": "it has no item with a position",
    }
    small_shop.configure({"column": {"grade": "label", "max_grade": 5}}, ["mrr"])
    assert seen(small_shop, "mixed")["no_sample"] == "none of its rows has a grade"
    small_shop.show("refused", [{"item_id": "a", "label": 7}])
    assert seen(small_shop, "refused")["no_sample"] == "none of its grades counts"


def test_a_request_without_a_label_shows_no_measures(small_shop: Shop, printed: Callable[..., str]) -> None:
    small_shop.show("unjudged", ["a", "b"], query="boots")
    small_shop.show("judged", ["a", "b"], query="shoes")
    small_shop.judge("shoes", ("a", 1))
    small_shop.by_judgments()
    said = printed(small_shop, "unjudged")
    assert said.endswith("it has no label, so no measure counts it\n")
    assert "nothing relevant" not in said
    assert "----" not in said
    assert "no measure counts it" not in printed(small_shop, "judged")


def test_a_request_longer_than_max_request_span_is_left_out(shop: Shop, seen: Callable[..., dict[str, Any]]) -> None:
    shop.show("s1", ["a", "b"])
    shop.show("s1", ["c"], served=121, first=3)
    shop.act("s1", ("a", "click", 70))
    shop.by_events()
    shop.backfill()
    document = seen(shop, "s1")
    assert_stored_is_shown(shop, document)
    assert document["no_sample"] == "its rows span more than max_request_span; it is left out"
    assert refused(document) == {"long_request": 3}


@pytest.mark.parametrize("kind", ["column", "judgments"])
def test_only_the_measure_that_cannot_use_a_grade_drops_it(
    shop: Shop, seen: Callable[..., dict[str, Any]], kind: str
) -> None:
    shop.show("s1", [{"item_id": "a", "label": 3}, {"item_id": "b", "label": 1}], query="shoes")
    shop.judge("shoes", ("a", 3), ("b", 1), ("z", 9))
    measures = ["ndcg@3", "dcg@3", "err(max_grade=2)@3", "ndcg(gain={0:0,1:1,9:3})@3"]
    if kind == "judgments":
        shop.by_judgments([*measures, "ndcg(ideal=global)@3", "ndcg(ideal=global,gain={0:0,1:1,3:2})@3"])
    else:
        shop.configure({"column": {"grade": "label"}}, measures)
    shop.backfill()
    document = seen(shop, "s1")
    assert_stored_is_shown(shop, document)
    assert refused(document) == {"grade_above_max": 1}
    assert [len(m["terms"]) for m in document["measures"][:4]] == [2, 2, 1, 1]


def test_a_repeated_local_time_is_not_sampled(
    small_shop: Shop, seen: Callable[..., dict[str, Any]], printed: Callable[..., str]
) -> None:
    small_shop.show("s1", ["a", "b"], served_at="2026-10-25 02:30:00")
    local = {"column": "served_at", "format": "%Y-%m-%d %H:%M:%S", "timezone": "Europe/Berlin"}
    small_shop.by_events(time=local)
    document = seen(small_shop, "s1")
    small_shop.backfill("2026-10-25T00:00", "2026-10-25T01:00")
    assert document["served"] == "2026-10-25T00:30:00Z"
    assert [r["reasons"] for r in document["rows"]] == [["ambiguous_time"]] * 2
    assert "counts   no, for no measure: its local serving time occurs twice" in printed(small_shop, "s1")


def test_the_stored_state_of_the_bucket_is_shown(small_shop: Shop, printed: Callable[..., str]) -> None:
    small_shop.show("s1", ["a", "b"])
    small_shop.show("later", ["a"], served=9 * HOUR)
    small_shop.by_events(["mrr"])
    assert "stored   not known: there is no store" in printed(small_shop, "s1")
    assert not (small_shop.folder / "store.db").exists()
    small_shop.backfill(until="2026-01-05T17:00")
    assert "stored   final, read 20" in printed(small_shop, "s1")
    assert "stored   no\n" in printed(small_shop, "later")
    small_shop.by_events(["mrr", "hit_rate@3"])
    assert "stored   mrr final, read 20" in (text := printed(small_shop, "s1"))
    assert "; hit_rate@3 no\n" in text


def test_a_measure_that_the_monitor_does_not_compute_is_refused(small_shop: Shop, printed: Callable[..., str]) -> None:
    small_shop.show("s1", ["a", "b"])
    small_shop.by_events(["ndcg@3", "mrr"])
    assert "---- mrr ----" not in printed(small_shop, "s1", "--measure", "ndcg(aggregate=pooled)@3")
    assert (
        printed(small_shop, "s1", "--measure", "ndcg@4", fails=2) == "rankmon: shop computes mrr, ndcg@3, not ndcg@4\n"
    )


def test_several_matching_monitors_require_the_monitor_option(small_shop: Shop, printed: Callable[..., str]) -> None:
    small_shop.show("s1", ["a", "b"])
    small_shop.by_events()
    document = yaml.safe_load(small_shop.path.read_text())
    document["monitors"].append(document["monitors"][0] | {"name": "other"})
    small_shop.path.write_text(yaml.safe_dump(document))
    assert (
        printed(small_shop, "s1", fails=2)
        == "rankmon: several monitors match; choose one with --monitor: shop, other\n"
    )
    assert "s1 of monitor other" in printed(small_shop, "s1", "-m", "other")


def test_a_request_without_relevant_items_says_how_it_counts(small_shop: Shop, printed: Callable[..., str]) -> None:
    small_shop.show("s1", ["a", "b"])
    small_shop.by_events(["ndcg@3", "ndcg(empty=one)@3", "mrr"])
    text = printed(small_shop, "s1")
    nothing = "DCG / ideal DCG = none: there is nothing relevant;"
    assert f"\nndcg@3 = {nothing} left out of the mean (empty=skip)\n" in text
    assert f"\nndcg(empty=one)@3 = {nothing} counted as 1 (empty=one)\n" in text
    assert "\nmrr = sum = none: there is nothing relevant; counted as 0 (empty=zero)\n" in text


def test_text_from_the_database_cannot_control_the_terminal(small_shop: Shop, printed: Callable[..., str]) -> None:
    small_shop.show("s\x1b[2J", ["\x1b[31ma\n[b]"], device="\x07")
    small_shop.act("s\x1b[2J", ("\x1b[31ma\n[b]", "click", 70))
    small_shop.by_events()
    text = printed(small_shop, "s\x1b[2J")
    assert "\x1b" not in text
    assert r"\u001b[31ma\u000a[b]" in text


def test_the_page_can_be_read_and_checked_by_hand(small_shop: Shop, printed: Callable[..., str]) -> None:
    small_shop.show("s1", ["a", "b", "a", None, "c", "d"], device="tv")
    small_shop.act("s1", ("a", "click", 70), ("a", "buy", 200), ("b", "click", 45), ("d", "click", 2 * HOUR))
    small_shop.act("s1", ("c", "dwell", 72, 31), ("z", "click", 90))
    small_shop.by_events(["ndcg@3"])
    page = printed(small_shop, "s1").replace(f"{small_shop.folder}/", "")
    assert [line.rstrip() for line in page.splitlines()] == PAGE.splitlines()


PAGE = """\
request  s1 of monitor shop, source shop
served   2026-01-05 09:01:00 UTC
bucket   2026-01-05 09:00:00 to 2026-01-05 10:00:00 UTC
stored   not known: there is no store store.db yet; run rankmon backfill or rankmon run to create it
slices   device=tv
query    hidden; --show-query prints it
labels   click = 1, buy = 3, dwell from 30 on = 2; the highest of an item's events until 2026-01-05 10:01:00 UTC (1h)
counts   yes

position  item  grade  refused         event  time (UTC)  after serving  value  worth  counts
       1  a         3  duplicate_item
       2  b                            click  09:00:45            -15 s             1  no: early_event
       3  a         3                  click  09:01:10            +10 s             1  yes
                                       buy    09:03:20      +2 min 20 s             3  yes
       4  –            null_item
       5  c         2                  dwell  09:01:12            +12 s     31      2  yes
       6  d                            click  11:00:00      +1 h 59 min             1  no: late
       –  z                            click  09:01:30            +30 s             1  no: unmatched

duplicate_item: relevant rows of one item at several places; the highest grade counts, then the last place
null_item: rows without an item (they still occupy a place in the list)
early_event: events shortly before their request was served
late: long after the attribution time
unmatched: its item was not shown to this request

---- ndcg@3 ----

rank  item  position  grade  gain  discount  gain × discount
   3  a            3      3     3       0.5              1.5
1 more with a gain, below the cut-off

ideal: all logged items, best first, cut at 3
rank  item  position  grade  gain      discount  gain × discount
   1  a            3      3     3             1                3
   2  c            5      2     2  0.6309297536      1.261859507

DCG = 1.5, ideal DCG = 4.261859507
ndcg@3 = DCG / ideal DCG = 0.35195904451706733

"""


def test_a_list_in_a_column_is_inspected_like_rows(database_url: str) -> None:
    database = Database("s", parse_url(database_url), 60)
    lists = LISTS[database.dialect]
    execute(database_url, *lists.of_log(5))
    for name in lists.columns:
        made = of_lists(name)
        for n in range(40):
            one, other = (inspect(m, database, f"r{n}") for m in (made, of_rows(made)))
            rows, as_rows = ([replace(row, item=str(row.item)) for row in found.rows] for found in (one, other))
            assert repr((rows, one.graded)) == repr((as_rows, other.graded)), "positions may be nan"
    database.close()
