"""Ten and more logs that `rankmon init` was not made for: those of the examples, public ones, and awkward ones.

Each has what real logs have beside rankings and labels: a catalogue, users, columns that look like positions, lists
of different lengths, requests that nobody clicked in, items shown twice, and rows in no order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa

BEGIN = datetime(2026, 9, 14, tzinfo=UTC)
REQUESTS, CATALOGUE = 900, 400
QUERIES = [
    f"{a} {b}" for a in ("cheap", "red", "garden", "kids", "steel", "used") for b in ("lamp", "bike", "mug", "tent")
]

Row = dict[str, Any]
Rows = Sequence[Row]
DAYS_AND_SECONDS = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class Unseen:
    """A log: where it goes, what `init` needs to be told of it, and what is right.

    Attributes:
        engine: `sqlite`, `postgresql` or `parquet`.
        tables: name -> rows.
        answers: key of a question -> what somebody who knows the log answers.
        rankings: of the mapping, by key; a column of a `select` by its name there.
        relevance: kind -> what must be right of it.
        refused: part of the error, of a log that cannot be watched.
    """

    name: str
    engine: str
    tables: Mapping[str, Rows]
    rankings: Mapping[str, Any] = field(default_factory=dict)
    relevance: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True)
class Served:
    """One request: its list, and (item, kind, when) of what was done with it."""

    id: str
    at: datetime
    query: str
    device: str
    country: str
    model: str
    user: str
    items: tuple[str, ...]
    acts: tuple[tuple[str, str, datetime, float], ...]


def served(seed: int, kinds: Sequence[str] = ("click", "click", "click", "purchase")) -> list[Served]:
    """Requests of some weeks, in no order."""
    chance, found = random.Random(seed), []
    for number in range(REQUESTS):
        at = BEGIN + timedelta(minutes=47 * number, seconds=chance.randrange(60), milliseconds=chance.randrange(1000))
        length = chance.choice((3, 8, 10, 10, 10, 12))
        items = tuple(f"{chance.randrange(CATALOGUE):06}" for _ in range(length))
        acts = [
            (item, chance.choice(kinds), at + timedelta(seconds=chance.expovariate(1 / 400)), 90 * chance.random())
            for place, item in enumerate(items)
            for _ in range(chance.random() < 0.45 / (1 + place))
        ]
        found.append(
            Served(
                f"{chance.getrandbits(48):012x}",
                at,
                chance.choice(QUERIES),
                chance.choice(("ios", "android", "web")),
                chance.choice(("de", "fr", "it", "nl")),
                "lambdamart-7" if number < REQUESTS / 3 else "lambdamart-8",
                f"u{chance.randrange(300)}",
                items,
                tuple(acts),
            )
        )
    chance.shuffle(found)
    return found


def shown(requests: Sequence[Served], row: Callable[[Served, str, int], Row]) -> list[Row]:
    """One row per item shown; `row` is given its place from 0."""
    return [row(one, item, place) for one in requests for place, item in enumerate(one.items)]


def acted(requests: Sequence[Served], row: Callable[[Served, str, str, datetime, float], Row]) -> list[Row]:
    """One row per event."""
    return [row(one, *act) for one in requests for act in one.acts]


def beside() -> dict[str, Rows]:
    """Tables that are no part of the log."""
    chance = random.Random(1)
    return {
        "products": [
            {"item_id": f"{n:06}", "title": f"product {n}", "price": chance.randrange(100, 9000) / 100, "rank": n + 1}
            for n in range(CATALOGUE)
        ],
        "users": [{"user_id": f"u{n}", "born": 1950 + n % 55} for n in range(300)],
    }


def unseen_logs() -> list[Unseen]:
    """All of them."""
    return [
        _shop(),
        _feed(),
        _judged(),
        _ads(),
        _files(),
        _array(),
        _json(),
        _french(),
        _two_tables(),
        _no_events(),
        _ubi(),
    ]


def _shop() -> Unseen:
    log = served(11, ("click", "click", "dwell", "purchase"))
    rows = shown(
        log,
        lambda r, item, place: {
            **{"request_id": r.id, "user_id": r.user, "item_id": item, "position": place + 1, "served_at": r.at},
            **{"query_text": r.query, "model": r.model, "device": r.device, "country_code": r.country},
        },
    )
    events = acted(
        log,
        lambda r, item, kind, at, seconds: {
            **{"request_id": r.id, "item_id": item, "occurred_at": at, "event_type": kind},
            "seconds": seconds if kind == "dwell" else None,
        },
    )
    return Unseen(
        "examples/search-events",
        "postgresql",
        {**beside(), "search_log": rows, "search_events": sorted(events, key=lambda e: e["event_type"])},
        {
            **{"table": "search_log", "request": "request_id", "item": "item_id", "position": "position"},
            **{"time": "served_at", "query": "query_text", "model_version": "model"},
        },
        {
            "events": {
                **{"table": "search_events", "request": "request_id", "item": "item_id"},
                **{"type": "event_type", "time": "occurred_at"},
            }
        },
    )


def _feed() -> Unseen:
    berlin, log, next_up = ZoneInfo("Europe/Berlin"), served(12, ("play",)), served(13, ("play",))
    rows = shown(
        log,
        lambda r, item, place: {
            **{"feed_id": r.id, "title_id": item, "slot": place, "device": r.device, "model": r.model},
            "served_at": r.at.astimezone(berlin).strftime(DAYS_AND_SECONDS),
        },
    )
    others = shown(
        next_up,
        lambda r, item, place: {
            **{"list_id": r.id, "title_id": item, "place": place + 1, "shown_at": int(r.at.timestamp()), "is_test": 0}
        },
    )
    plays = acted(
        [*log, *next_up],
        lambda r, item, _, at, seconds: {
            **{"feed_id": r.id, "title_id": item, "started_ms": int(at.timestamp() * 1000), "watched_s": int(seconds)}
        },
    )
    return Unseen(
        "examples/recommendations",
        "sqlite",
        {"home_feed": rows, "next_up": others, "plays": plays},
        {
            **{"table": "home_feed", "request": "feed_id", "item": "title_id", "model_version": "model"},
            "position": {"column": "slot", "base": 0},
            "time": {"column": "served_at", "format": DAYS_AND_SECONDS, "timezone": "Europe/Berlin"},
        },
        {
            "events": {
                **{"table": "plays", "request": "feed_id", "item": "title_id"},
                "time": {"column": "started_ms", "format": "epoch_ms"},
            }
        },
        {"rankings.table": "home_feed", "rankings.time.timezone": "Europe/Berlin"},
    )


def _judged() -> Unseen:
    log, chance = served(14), random.Random(4)
    rows = shown(
        log,
        lambda r, item, place: {
            **{"request_id": r.id, "document_id": item, "rank": place + 1, "served_at": r.at, "query": r.query},
            "score": 1 / (place + 1.5),
        },
    )
    pairs = [(query, f"{n:06}") for query in QUERIES for n in range(CATALOGUE) if chance.random() < 0.8]
    judged = [
        {"query": query, "document_id": item, "grade": chance.randrange(5), "judge": "a"} for query, item in pairs
    ]
    wanted = {"table": "judgments", "query": "query", "item": "document_id", "grade": "grade", "max_grade": 4}
    return Unseen(
        "examples/judged-queries",
        "postgresql",
        {"search_log": rows, "judgments": judged},
        {
            **{"table": "search_log", "request": "request_id", "item": "document_id", "position": "rank"},
            **{"time": "served_at", "query": "query"},
        },
        {"judgments": wanted},
    )


def _ads() -> Unseen:
    log = served(15)
    rows = shown(
        log,
        lambda r, item, place: {
            **{"auction_id": r.id, "ad_id": item, "slot": place + 1, "shown_at": r.at.replace(tzinfo=None)},
            **{"model": r.model, "placement": r.device, "bid": place % 4 + 0.25},
            "clicked": any(act[0] == item for act in r.acts),
        },
    )
    return Unseen(
        "examples/label-column",
        "postgresql",
        {**beside(), "impressions": rows},
        {
            **{"table": "impressions", "request": "auction_id", "item": "ad_id", "position": "slot"},
            **{"time": {"column": "shown_at", "timezone": "UTC"}, "model_version": "model"},
        },
        {"column": {"grade": "clicked", "max_grade": 1}},
        {"rankings.time.timezone": "UTC"},
    )


def _files() -> Unseen:
    log = served(16)
    rows = shown(
        log,
        lambda r, item, place: {
            **{"request_id": r.id, "item_id": item, "position": place + 1, "device": r.device},
            "served_at": r.at.replace(tzinfo=None),
        },
    )
    events = acted(
        log,
        lambda r, item, kind, at, _: {
            **{"request_id": r.id, "item_id": item, "event_type": kind, "occurred_at": at.replace(tzinfo=None)}
        },
    )
    return Unseen(
        "examples/parquet",
        "parquet",
        {"search_log": rows, "search_events": events},
        {
            **{"request": "request_id", "item": "item_id", "position": "position"},
            "time": {"column": "served_at", "timezone": "UTC"},
        },
        {
            "events": {
                **{"request": "request_id", "item": "item_id", "type": "event_type"},
                "time": {"column": "occurred_at", "timezone": "UTC"},
            }
        },
        {"rankings.time.timezone": "UTC", "relevance.events.time.timezone": "UTC"},
    )


def _array() -> Unseen:
    log = served(17)
    rows = [
        {
            **{"search_id": r.id, "ts": r.at, "q": r.query, "platform": r.device, "results": list(r.items)},
            "took": n % 90,
        }
        for n, r in enumerate(log)
    ]
    events = acted(log, lambda r, item, kind, at, _: {"search_id": r.id, "sku": item, "action": kind, "ts": at})
    return Unseen(
        "an array per request",
        "postgresql",
        {**beside(), "search": rows, "actions": events},
        {**{"request": "search_id", "items": "results"}, **{"time": "ts", "query": "q"}},
        {"events": {"table": "actions", "request": "search_id", "item": "sku", "type": "action", "time": "ts"}},
    )


def _json() -> Unseen:
    log = served(18, ("view_item", "add_to_cart", "purchase"))
    rows = [
        {
            **{"impression_id": r.id, "created": int(r.at.timestamp()), "phrase": r.query, "store": r.country},
            "hits": json.dumps(list(r.items)) if n % 50 else "[]",
        }
        for n, r in enumerate(log)
    ]
    log = [r for n, r in enumerate(log) if n % 50]
    events = acted(
        log,
        lambda r, item, kind, at, _: {
            **{"impression_id": r.id, "product": item, "event": kind, "created": int(at.timestamp())}
        },
    )
    epoch = {"column": "created", "format": "epoch_s"}
    return Unseen(
        "a list in JSON per request",
        "sqlite",
        {"impressions": rows, "events": events},
        {
            **{"request": "impression_id", "items": "hits"},
            **{"time": epoch, "query": "phrase"},
        },
        {"events": {"table": "events", "request": "impression_id", "item": "product", "type": "event", "time": epoch}},
    )


def _french() -> Unseen:
    log = served(19, ("clic", "clic", "clic", "achat"))
    rows = shown(
        log,
        lambda r, item, place: {
            **{"requete": r.id, "horodatage": r.at.strftime("%Y-%m-%dT%H:%M:%SZ"), "visiteur": r.user},
            **{"recherche": r.query, "appareil": r.device, "article": item, "rang": place},
        },
    )
    events = acted(
        log,
        lambda r, item, kind, at, _: {
            **{"requete": r.id, "article": item, "nature": kind, "horodatage": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
        },
    )
    time = {"column": "horodatage", "format": "%Y-%m-%dT%H:%M:%SZ"}
    rules = [{"type": "clic", "grade": 1}, {"type": "achat", "grade": 3}]
    return Unseen(
        "names in French, positions from 0",
        "sqlite",
        {"affichages": rows, "gestes": events},
        {
            **{"table": "affichages", "request": "requete", "item": "article", "query": "recherche"},
            **{"position": {"column": "rang", "base": 0}, "time": time},
        },
        {
            "events": {
                **{"table": "gestes", "request": "requete", "item": "article", "type": "nature"},
                **{"time": time, "rules": rules},
            }
        },
        {"relevance.events.rules": "clic=1 achat=3"},
    )


def _two_tables() -> Unseen:
    log = served(20)
    rows = shown(
        log,
        lambda r, item, place: {
            **{"query_id": r.id, "doc": item, "pos": place + 1, "at": r.at, "q": r.query, "country": r.country}
        },
    )
    of = {
        name: [{"query_id": r.id, "doc": item, "at": at} for r in log for item, kind, at, _ in r.acts if kind == wanted]
        for name, wanted in (("clicks", "click"), ("orders", "purchase"))
    }
    return Unseen(
        "two tables of events",
        "postgresql",
        {**beside(), "results": rows, **of},
        {
            **{"table": "results", "request": "query_id", "item": "doc", "position": "pos"},
            **{"time": "at", "query": "q"},
        },
        {
            "events": {
                **{"request": "request_id", "item": "item_id", "time": "happened_at"},
                "rules": [{"type": "clicks", "grade": 1}, {"type": "orders", "grade": 1}],
            }
        },
        {"relevance.events.table": "all of them"},
    )


def _no_events() -> Unseen:
    rows = shown(
        served(21),
        lambda r, item, place: {
            "request_id": r.id,
            "item_id": item,
            "position": place + 1,
            "served_at": r.at.isoformat(),
        },
    )
    refused = "nothing says which items were wanted"
    return Unseen("a log without events", "sqlite", {**beside(), "search_log": rows}, refused=refused)


def _ubi() -> Unseen:
    log = served(22, ("click", "click", "watch"))
    searches = [
        {
            **{"query_id": r.id, "client_id": r.user, "application": r.device, "user_query": r.query},
            **{"timestamp": r.at, "query_response_id": f"x{r.id}", "query_response_hit_ids": list(r.items)},
        }
        for r in log
    ]
    acts = acted(
        log,
        lambda r, item, kind, at, seconds: {
            **{"query_id": r.id, "client_id": r.user, "action_name": kind, "timestamp": at, "message_type": "INFO"},
            "event_attributes": json.dumps(
                {
                    "object": {"object_id": item, "object_id_field": "sku"},
                    "position": {"ordinal": r.items.index(item) + 1, "x": int(seconds), "y": 7},
                }
            ),
        },
    )
    return Unseen(
        "OpenSearch's UBI",
        "postgresql",
        {"ubi_queries": searches, "ubi_events": acts},
        {
            **{"request": "query_id", "items": "query_response_hit_ids"},
            **{"time": "timestamp", "query": "user_query"},
        },
        {
            "events": {
                **{"request": "query_id", "item": "event_attributes_object_object_id"},
                **{"type": "action_name", "time": "timestamp"},
            }
        },
    )


# ---- where they go -------------------------------------------------------------------------------------------------

TYPES = {int: "BIGINT", float: "DOUBLE PRECISION", list: "TEXT[]", bool: "BOOLEAN"}


def fill(log: Unseen, url: str, folder: Path) -> tuple[str, list[str]]:
    """Write a log; (URL, further arguments) for `init`."""
    if log.engine == "parquet":
        return "duckdb:///:memory:", [part for name in log.tables for part in ("--file", _file(log, name, folder))]
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for name, rows in log.tables.items():
            columns = ", ".join(f'"{column}" {_type(rows, column)}' for column in rows[0])
            connection.exec_driver_sql(f'CREATE TABLE "{name}" ({columns})')
            connection.execute(sa.table(name, *map(sa.column, rows[0])).insert(), list(rows))
    engine.dispose()
    return url, []


def _file(log: Unseen, name: str, folder: Path) -> str:
    import duckdb
    import pandas as pd

    path, rows = folder / f"{name}.parquet", pd.DataFrame(log.tables[name])
    duckdb.sql(f"COPY (SELECT * FROM rows) TO '{path}' (FORMAT parquet)") if len(rows) else None
    return str(path)


def _type(rows: Rows, column: str) -> str:
    value = next((row[column] for row in rows if row[column] is not None), None)
    if column == "event_attributes":
        return "JSONB"
    if isinstance(value, datetime):
        return "TIMESTAMP" if value.tzinfo is None else "TIMESTAMPTZ"
    return TYPES.get(type(value), "TEXT")
