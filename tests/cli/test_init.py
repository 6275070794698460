"""`rankmon init` on logs of ten shapes: it maps what the values settle and asks about the rest."""

from __future__ import annotations

import io
import json
import random
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest
import sqlalchemy as sa
import yaml

import monitor.cli as cli
from monitor.source import discovery, proposal
from monitor.source.proposal import QUESTIONS
from tests.support import hackernews

NOW = datetime(2026, 11, 1, tzinfo=UTC)
REQUESTS, ITEMS = 400, 8

Row = dict[str, Any]
Clock = Callable[[datetime], Any]


def iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(at: datetime) -> int:
    return int(at.timestamp())


def shop(clock: Clock = iso, base: int = 1) -> tuple[list[Row], list[Row]]:
    """(impressions, events) of a shop; clicks fall off with the position."""
    chance = random.Random(7)
    shown, events = [], []
    for number in range(REQUESTS):
        at = NOW + timedelta(minutes=7 * number)
        common = {
            "request_id": f"r{number:05}",
            "served_at": clock(at),
            "user_id": f"u{chance.randrange(90)}",
            "query": chance.choice(["red shoes", "lamp", "garden table", "bike", "rain coat", "mug"])
            + " "
            + "x" * (number % 9),
            "device": chance.choice(["phone", "desktop", "tablet"]),
            "model_version": "v1" if number < REQUESTS / 2 else "v2",
        }
        for place, item in enumerate(chance.sample(range(300), ITEMS)):
            price = chance.randrange(100, 9999) / 100
            shown.append({**common, "item_id": f"i{item}", "position": place + base, "price": price})
            if chance.random() < 0.5 / (place + 1):
                late = at + timedelta(seconds=chance.randrange(5, 1500))
                kind = "purchase" if chance.random() < 0.2 else "click"
                events.append(event(shown[-1], kind, clock(late)))
    return shown, events


def event(of: Row, kind: str, at: Any) -> Row:
    """An event on an impression."""
    return {"request_id": of["request_id"], "item_id": of["item_id"], "event_type": kind, "occurred_at": at}


def by_kind(events: Sequence[Row]) -> dict[str, list[Row]]:
    """One table per event type."""
    found = dict[str, list[Row]]()
    for one in events:
        found.setdefault(one["event_type"], []).append({k: v for k, v in one.items() if k != "event_type"})
    return found


def renamed(rows: Sequence[Row], names: Mapping[str, str]) -> list[Row]:
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


def fill(url: str, **tables: Sequence[Row]) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for name, rows in tables.items():
            columns = ", ".join(f'"{column}" {_type(value)}' for column, value in rows[0].items())
            connection.exec_driver_sql(f'CREATE TABLE "{name}" ({columns})')
            table = sa.table(name, *map(sa.column, rows[0]))
            connection.execute(table.insert(), list(rows))
    engine.dispose()


def _type(value: Any) -> str:
    kinds = {int: "BIGINT", float: "DOUBLE PRECISION", datetime: "TIMESTAMPTZ", list: "TEXT[]", bool: "BOOLEAN"}
    return kinds.get(type(value), "TEXT")


class Log:
    """A SQLite log and the result of `init` on it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self.output = f"sqlite:///{folder}/log.db", folder / "rankmon.yaml"
        self.capsys = capsys
        self.code, self.out, self.err = 0, "", ""

    def init(self, *arguments: str, url: str = "") -> dict[str, Any]:
        """Runs `init`; returns the monitor that it wrote, or nothing."""
        self.code = cli.run(["init", url or self.url, "-o", str(self.output), *arguments])
        self.out, self.err = self.capsys.readouterr()
        return yaml.safe_load(self.output.read_text())["monitors"][0] if self.output.exists() else {}

    def series(self) -> list[tuple[str, float]]:
        """(end, value) of the first day's NDCG with the configuration that `init` wrote."""
        given = ["-c", str(self.output)]
        assert cli.run(["backfill", "--from", "2026-11-01", "--to", "2026-11-03", *given]) == 0
        self.capsys.readouterr()
        assert cli.run(["series", "--from", "2026-11-01", "--format", "json", *given]) == 0
        points = json.loads(self.capsys.readouterr().out)
        return [(p["end"], round(p["value"], 12)) for p in points if p["measure"].startswith("ndcg") and p["value"]]


@pytest.fixture
def log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Log:
    return Log(tmp_path, capsys)


def test_a_log_of_lists_and_events_needs_no_answer(log: Log) -> None:
    shown, events = shop()
    fill(log.url, search_log=shown, search_events=events, users=[{"user_id": "u1", "born": 1990}])
    made = log.init()
    assert (log.code, log.err) == (0, "")
    assert made["rankings"] == {
        "table": "search_log",
        "request": "request_id",
        "item": "item_id",
        "position": "position",
        "time": {"column": "served_at", "format": "%Y-%m-%dT%H:%M:%SZ"},
        "query": "query",
        "model_version": "model_version",
    }
    assert made["slices"] == ["device"]
    events_key = made["relevance"]["events"]
    assert events_key["rules"] == [{"type": "click", "grade": 1}, {"type": "purchase", "grade": 1}]
    assert (events_key["attribution"], events_key["time"]["column"]) == ("1h", "occurred_at")


def test_experiment_groups_come_last_among_the_slices(log: Log) -> None:
    shown, events = shop()
    groups = {row["request_id"]: "AB"[int(row["request_id"][-1], 36) % 2] for row in shown}
    shown = [{**row, "ab_bucket": groups[row["request_id"]], "latest": groups[row["request_id"]]} for row in shown]
    fill(log.url, search_log=shown, search_events=events)
    assert log.init("--yes")["slices"] == ["device", "latest", "ab_bucket"]


def test_sampling_takes_whole_lists_from_unordered_rows(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, events = shop()
    fill(log.url, search_log=sorted(shown, key=lambda row: row["position"]), search_events=events)
    monkeypatch.setattr(discovery, "ROWS", REQUESTS - 1)
    made = log.init("--yes")
    assert (log.code, log.err) == (0, "")
    assert [made["rankings"][key] for key in ("request", "position")] == ["request_id", "position"]


@pytest.mark.parametrize("clock", [iso, seconds])
@pytest.mark.parametrize(
    "names", [{}, {"request_id": "anfrage", "item_id": "artikel", "served_at": "gezeigt_um", "occurred_at": "am"}]
)
def test_ids_in_the_range_of_timestamps_stay_ids(log: Log, names: Mapping[str, str], clock: Clock) -> None:
    """Read as seconds and as milliseconds, they would fall in 2017 and 2001."""
    shown, events = (
        [
            {**r, "request_id": 1_500_000_000 + int(r["request_id"][1:]), "item_id": 10**12 + int(r["item_id"][1:])}
            for r in rows
        ]
        for rows in shop(clock)
    )
    fill(log.url, search_log=renamed(shown, names), search_events=renamed(events, names))
    made = log.init()
    assert (log.code, log.err) == (0, "")
    keys = {key: names.get(name, name) for key, name in (("request", "request_id"), ("item", "item_id"))}
    assert {key: made["rankings"][key] for key in keys} == keys
    assert {key: made["relevance"]["events"][key] for key in keys} == keys
    times = made["rankings"]["time"]["column"], made["relevance"]["events"]["time"]["column"]
    assert times == tuple(names.get(name, name) for name in ("served_at", "occurred_at"))


def test_foreign_column_names_and_positions_from_0_are_recognised(log: Log) -> None:
    shown, events = shop(seconds, base=0)
    german = {
        "request_id": "anfrage",
        "served_at": "gezeigt_um",
        "user_id": "kunde",
        "query": "suchwort",
        "device": "gerät",
        "model_version": "fassung",
        "item_id": "artikel",
        "position": "platz",
        "price": "preis",
        "event_type": "art",
        "occurred_at": "zeitpunkt",
    }
    kinds = {"click": "klick", "purchase": "kauf"}
    acts = [{**e, "event_type": kinds[e["event_type"]]} for e in events]
    fill(log.url, verlauf=renamed(shown, german), handlungen=renamed(acts, german))
    made = log.init("--answer", "relevance.events.rules=klick=1 kauf=3")
    assert (log.code, log.err) == (0, "")
    rankings, recipe = made["rankings"], made["relevance"]["events"]
    assert (rankings["request"], rankings["item"]) == ("anfrage", "artikel")
    assert rankings["position"] == {"column": "platz", "base": 0}
    assert rankings["time"] == {"column": "gezeigt_um", "format": "epoch_s"}
    assert rankings["query"] == "suchwort"
    assert set(made["slices"]) == {"gerät", "fassung"}
    assert (recipe["table"], recipe["request"], recipe["item"], recipe["type"]) == (
        "handlungen",
        "anfrage",
        "artikel",
        "art",
    )
    assert recipe["rules"] == [{"type": "klick", "grade": 1}, {"type": "kauf", "grade": 3}]


def test_an_event_on_every_item_is_not_a_label(log: Log) -> None:
    shown, events = shop()
    views = [event(row, "impression", row["served_at"]) for row in shown]
    fill(log.url, search_log=shown, search_events=views + events)
    assert [rule["type"] for rule in log.init()["relevance"]["events"]["rules"]] == ["click", "purchase"]


def test_times_with_a_zero_offset_need_no_zone_answer(log: Log, tmp_path: Path) -> None:
    shown, events = shop(lambda at: at.isoformat())
    fill(log.url, search_log=shown, search_events=events)
    made = log.init()
    assert (log.code, log.err) == (0, "")
    assert made["rankings"]["time"] == {"column": "served_at", "format": "%Y-%m-%dT%H:%M:%S+00:00"}
    (tmp_path / "plain").mkdir()
    plain = Log(tmp_path / "plain", log.capsys)
    shown, events = shop()
    fill(plain.url, search_log=shown, search_events=events)
    plain.init()
    assert log.series() == plain.series() != []


@pytest.mark.parametrize("names", [{}, {"click": "klick", "purchase": "kauf"}])
def test_an_event_in_nearly_every_list_is_not_a_label_and_the_file_says_why(log: Log, names: Mapping[str, str]) -> None:
    """Each list has views of three items, too few to stand for all impressions."""
    shown, events = shop()
    views = [event(row, "view", row["served_at"]) for row in shown if row["position"] <= 3]
    acts = [{**e, "event_type": names.get(e["event_type"], e["event_type"])} for e in events]
    fill(log.url, search_log=shown, search_events=views + acts)
    kinds = [names.get(kind, kind) for kind in ("click", "purchase")]
    if names:  # no name says which event means that an item was wanted
        assert log.init() == {}
        assert f"    --answer 'relevance.events.rules={kinds[0]}=1 {kinds[1]}=1'" in log.err
    made = log.init(*["--yes"] * bool(names))["relevance"]["events"]
    assert [rule["type"] for rule in made["rules"]] == kinds
    written = log.output.read_text()
    assert "view 600 (in 100% of the lists)" in written
    assert "without view, as nearly every list has it: it says what was shown" in written


@pytest.mark.parametrize(
    ("joined", "answer", "within", "attribution"),
    [
        (False, "click=1 purchase=3", "1 d 3 h", "3d"),
        (False, "view=1", "1 min", "1h"),
        (True, "click=1 purchase=3", "1 d 3 h", "3d"),
        (True, "click=1", "10 min", "1h"),
    ],
)
def test_the_attribution_window_comes_from_the_events_the_rules_count(
    log: Log, joined: bool, answer: str, within: str, attribution: str
) -> None:
    """Purchases are late and rare; every impression has a view."""
    shown, events = shop(lambda at: at.isoformat())
    later = {"view": 60, "click": 600, "purchase": 97_200}
    acts = [event(row, "view", row["served_at"]) for row in shown] + events
    times = {row["request_id"]: datetime.fromisoformat(row["served_at"]) for row in shown}
    acts = [
        {**e, "occurred_at": (times[e["request_id"]] + timedelta(seconds=later[e["event_type"]])).isoformat()}
        for e in acts
    ]
    if joined:
        fill(log.url, search_log=shown, **by_kind(acts))
    else:
        fill(log.url, search_log=shown, search_events=acts)
    made = log.init("--yes", "--answer", f"relevance.events.rules={answer}")
    assert log.code == 0, log.err
    assert made["relevance"]["events"]["attribution"] == attribution
    of_each = " of each type" if " " in answer else ""
    waits = "; verdicts wait as long: a second monitor on the early ones alone pages sooner" if of_each else ""
    assert f"# 99 % of the sampled events{of_each} that count happen within {within}{waits}\n" in log.output.read_text()


def test_events_of_several_tables_keep_their_types(log: Log) -> None:
    """Views in a table of several types once counted as much as its clicks."""
    shown, events = shop()
    views = [event(row, "view", row["served_at"]) for row in shown]
    of = by_kind(events)
    clicks = [{**one, "event_type": "click"} for one in of["click"]]
    fill(log.url, search_log=shown, search_events=views + clicks, orders=of["purchase"])
    recipe = log.init("--yes")["relevance"]["events"]
    assert log.code == 0, log.err
    assert {rule["type"]: rule["grade"] for rule in recipe["rules"]} == {"click": 1, "orders": 1}
    assert "CAST(event_type AS VARCHAR) AS type" in recipe["select"]
    assert "'orders' AS type" in recipe["select"]
    assert "without view, as nearly every list has it: it says what was shown" in log.output.read_text()


def test_enum_event_types_combine_with_table_names(log: Log, postgres_url: str) -> None:
    shown, events = shop()
    of = by_kind(events)
    fill(postgres_url, search_log=shown, orders=of["purchase"])
    fill(postgres_url, search_events=[{**one, "event_type": "click"} for one in of["click"]])
    with sa.create_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql("CREATE TYPE kind AS ENUM ('click', 'view')")
        connection.exec_driver_sql("ALTER TABLE search_events ALTER event_type TYPE kind USING event_type::kind")
    log.init("--yes", url=postgres_url)
    assert log.code == 0, log.err
    assert log.series() != []


@pytest.mark.parametrize("name", ["dislike", "return"])
def test_an_undo_event_is_not_proposed_as_a_label(log: Log, name: str) -> None:
    shown, events = shop()
    acts = [{**e, "event_type": {"purchase": name}.get(e["event_type"], "like")} for e in events]
    fill(log.url, search_log=shown, search_events=acts)
    assert log.init() == {}
    assert "Which events mean that an item was wanted? In the sample: like " in log.err


@pytest.mark.parametrize("odd", ["[]", '["a1", null, "a2"]', '[{"id": "a1"}]', None])
def test_json_lists_are_mapped_despite_one_without_ids(log: Log, odd: str | None) -> None:
    shown, events = shop()
    lists: dict[str, Row] = {}
    for row in shown:
        known = lists.setdefault(row["request_id"], {**row, "items": []})
        known["items"].append(row["item_id"])
    rows = [
        {k: json.dumps(v) if k == "items" else v for k, v in r.items() if k not in ("item_id", "position", "price")}
        for r in lists.values()
    ]
    rows[1]["items"] = odd
    fill(log.url, searches=rows, search_events=events)
    made = log.init()
    assert (log.code, log.err) == (0, "")
    assert not {"select", "item", "position"} & made["rankings"].keys()
    assert [made["rankings"][key] for key in ("table", "items", "request")] == ["searches", "items", "request_id"]
    assert made["relevance"]["events"]["table"] == "search_events"


@pytest.mark.engines
@pytest.mark.parametrize(
    ("listed", "item"),
    [("array", "uuid"), *product(("array", "jsonb", "json", "text"), ("bigint", "integer", "text"))],
)
def test_listed_items_match_the_id_type_of_the_events(log: Log, postgres_url: str, listed: str, item: str) -> None:
    """An array has an item type of its own; in JSON an id is a number or a string."""
    shown, events = shop(lambda at: at)
    as_item = {"uuid": "lpad(substr(item_id, 2), 32, '0')::uuid", "text": "substr(item_id, 2)"}.get(
        item, f"substr(item_id, 2)::{item}"
    )
    fill(postgres_url, listing=shown, happening=events)
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        items = f"array_agg({as_item} ORDER BY position)"
        items = items if listed == "array" else f"to_json({items})::{listed}"
        for statement in (
            f"CREATE TABLE lists AS SELECT request_id, served_at, device, {items} AS items "
            "FROM listing GROUP BY 1, 2, 3",
            f"CREATE TABLE acts AS SELECT request_id, {as_item} AS what, event_type, occurred_at FROM happening",
            f"CREATE TABLE inside AS SELECT request_id, to_jsonb(row({as_item})) AS what, event_type, occurred_at "
            "FROM happening",
            "DROP TABLE listing, happening",
        ):
            connection.exec_driver_sql(statement)
    for table in ("acts", *(["inside"] if item == "bigint" else [])):
        for stale in (log.output, *log.output.parent.glob("rankmon.db*")):
            stale.unlink(missing_ok=True)
        made = log.init("--table", "lists", "--table", table, url=postgres_url)
        assert (log.code, log.err) == (0, ""), (table, log.err)
        assert made["rankings"]["items"] == "items"
        assert log.series()
    engine.dispose()


def test_numeric_ids_in_json_match_text_ids_of_events(log: Log, postgres_url: str) -> None:
    shown, events = shop(lambda at: at)
    numbered = [{**r, "item_id": int(r["item_id"][1:])} for r in shown]
    lists: dict[str, Row] = {}
    for row in numbered:
        lists.setdefault(row["request_id"], {**row, "items": []})["items"].append(row["item_id"])
    rows = [
        {k: json.dumps(v) if k == "items" else v for k, v in r.items() if k not in ("item_id", "position", "price")}
        for r in lists.values()
    ]
    fill(postgres_url, searches=rows, search_events=[{**e, "item_id": e["item_id"][1:]} for e in events])
    log.init(url=postgres_url)
    assert (log.code, log.err) == (0, "")
    assert log.series()


def test_a_postgresql_array_per_request_is_mapped(log: Log, postgres_url: str) -> None:
    shown, events = shop(lambda at: at)
    lists: dict[str, Row] = {}
    for row in shown:
        known = lists.setdefault(row["request_id"], {**row, "items": []})
        known["items"].append(row["item_id"])
    rows = [{k: v for k, v in r.items() if k not in ("item_id", "position", "price")} for r in lists.values()]
    fill(postgres_url, searches=rows, search_events=events)
    made = log.init(url=postgres_url)
    assert (log.code, log.err) == (0, "")
    assert made["rankings"]["time"] == "served_at"
    assert (made["rankings"]["request"], made["rankings"]["items"]) == ("request_id", "items")


def test_two_event_tables_are_combined_or_one_is_chosen(log: Log) -> None:
    shown, events = shop()
    of = by_kind(events)
    fill(log.url, search_log=shown, clicks=of["click"], orders=of["purchase"])
    made = log.init("--yes")["relevance"]["events"]
    assert (log.code, log.err) == (0, "")
    assert made["rules"] == [{"type": "clicks", "grade": 1}, {"type": "orders", "grade": 1}]
    assert "UNION ALL" in made["select"]
    log.init()
    assert "exists; give another --output" in log.err
    log.output.unlink()
    assert log.init("--answer", "relevance.events.table=clicks")["relevance"]["events"]["table"] == "clicks"


def test_a_label_column_in_the_rankings_is_mapped(log: Log) -> None:
    shown, events = shop()
    clicked = {(e["request_id"], e["item_id"]) for e in events}
    rows = [{**r, "clicked": int((r["request_id"], r["item_id"]) in clicked)} for r in shown]
    fill(log.url, impressions=rows)
    made = log.init()
    assert (log.code, log.err) == (0, "")
    assert made["relevance"] == {"column": {"grade": "clicked", "max_grade": 1}}


def test_judgments_of_queries_and_items_are_mapped(log: Log) -> None:
    shown, _ = shop()
    chance = random.Random(3)
    pairs = dict.fromkeys((r["query"], r["item_id"]) for r in shown)
    judged = [{"search": q, "doc": i, "relevance": chance.randrange(5)} for q, i in pairs if chance.random() < 0.9]
    fill(log.url, search_log=shown, qrels=judged)
    made = log.init()
    assert (log.code, log.err) == (0, "")
    wanted = {"table": "qrels", "query": "search", "item": "doc", "grade": "relevance", "max_grade": 4}
    assert made["relevance"] == {"judgments": wanted}


def test_a_log_without_labels_is_refused_with_the_reason(log: Log) -> None:
    shown, _ = shop()
    fill(log.url, search_log=shown)
    assert log.init() == {}
    assert log.code == 2
    assert "nothing says which items were wanted" in log.err


def test_an_unwritable_output_file_is_named(log: Log, tmp_path: Path) -> None:
    shown, events = shop()
    fill(log.url, search_log=shown, search_events=events)
    log.output = tmp_path / "nowhere" / "rankmon.yaml"
    log.init("--yes")
    assert (log.code, log.err) == (2, f"rankmon: cannot write {log.output}: No such file or directory\n")


def behavior_insights(clock: Clock = iso) -> tuple[list[Row], list[Row]]:
    """The shop as OpenSearch's UBI logs it: (ubi_queries, ubi_events)."""
    shown, events = shop(clock)
    lists: dict[str, list[str]] = {}
    for row in shown:
        lists.setdefault(row["request_id"], []).append(row["item_id"])
    firsts = {r["request_id"]: r for r in shown}
    places = {(r["request_id"], r["item_id"]): r["position"] for r in shown}
    searches = [
        {
            "query_id": key,
            "client_id": firsts[key]["user_id"],
            "application": "shop",
            "query_attributes": {"device": firsts[key]["device"]},
            "user_query": firsts[key]["query"],
            "timestamp": firsts[key]["served_at"],
            "query_response_hit_ids": hits,
        }
        for key, hits in lists.items()
    ]
    acts = [
        {
            "query_id": e["request_id"],
            "action_name": e["event_type"],
            "timestamp": e["occurred_at"],
            "event_attributes": {
                "object": {"object_id": e["item_id"]},
                "position": {"ordinal": places[e["request_id"], e["item_id"]]},
            },
        }
        for e in events
    ]
    return searches, acts


def test_lists_and_constants_are_not_taken_for_the_query(log: Log) -> None:
    """A query with few different values is a slice, and the lists repeat with it."""
    searches, acts = behavior_insights()
    few = [
        {**r, "user_query": f"lamp {n % 3}", "client_id": "web", "query_attributes": "{}"}
        for n, r in enumerate(searches)
    ]
    lists = [json.dumps([f"lamp{n % 3}", "mug", "tent"]) for n in range(len(few))]
    attributes = json.dumps({"object": {"object_id": "mug"}, "position": {"ordinal": 2}})
    fill(
        log.url,
        ubi_queries=[{**r, "query_response_hit_ids": hits} for r, hits in zip(few, lists, strict=True)],
        ubi_events=[{**r, "event_attributes": attributes} for r in acts],
    )
    made = log.init("--yes")
    assert log.code == 0, log.err
    assert "query" not in made["rankings"]
    assert "user_query" in made["slices"]


@pytest.mark.parametrize("engine", ["parquet", "sqlite", "postgresql"])
def test_ubi_logs_are_mapped_and_score_like_plain_rows(
    log: Log, tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    """The series equals that of the same shop logged as plain rows."""
    files: list[str] = []
    url = log.url
    if engine == "parquet":
        duckdb = pytest.importorskip("duckdb")
        for name, rows in zip(("ubi_queries", "ubi_events"), behavior_insights(), strict=True):
            (tmp_path / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
            duckdb.sql(
                f"COPY (SELECT * FROM read_json('{tmp_path}/{name}.json', timestampformat='none', dateformat='none'))"
                f" TO '{tmp_path}/{name}.parquet' (FORMAT parquet)"
            )
            files += ["--file", f"{tmp_path}/{name}.parquet"]
        url = "duckdb:///:memory:"
    elif engine == "sqlite":
        searches, acts = behavior_insights()
        texts = [[{k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in r.items()} for r in searches]]
        texts += [[{k: json.dumps(v) if isinstance(v, dict) else v for k, v in r.items()} for r in acts]]
        fill(url, ubi_queries=texts[0], ubi_events=texts[1])
    else:
        url = request.getfixturevalue("postgres_url")
        searches, acts = behavior_insights(lambda at: at)
        fill(
            url,
            ubi_queries=[{**r, "query_attributes": json.dumps(r["query_attributes"])} for r in searches],
            ubi_events=[{**r, "event_attributes": json.dumps(r["event_attributes"])} for r in acts],
        )
        made = sa.create_engine(url)
        with made.begin() as connection:
            for table, column in (("ubi_events", "event_attributes"), ("ubi_queries", "query_attributes")):
                connection.exec_driver_sql(f"ALTER TABLE {table} ALTER {column} TYPE JSONB USING {column}::jsonb")
        made.dispose()
    found = log.init(*files, url=url)
    assert log.code == 0, log.err
    assert engine != "parquet" or "url: 'duckdb:///:memory:'" in log.output.read_text()
    assert (found["rankings"]["request"], found["rankings"]["items"]) == ("query_id", "query_response_hit_ids")
    assert found["rankings"]["query"] == "user_query"
    assert found["slices"] == ["query_attributes_device"]
    recipe = found["relevance"]["events"]
    names = "query_id", "event_attributes_object_object_id", "action_name"
    assert (recipe["request"], recipe["item"], recipe["type"]) == names
    assert "position_ordinal" not in recipe["select"]
    plain = Log(tmp_path / "plain", log.capsys)
    (tmp_path / "plain").mkdir()
    shown, events = shop()
    fill(plain.url, search_log=shown, search_events=events)
    plain.init()
    assert log.series() == plain.series() != []


def test_rankings_delivered_twice_are_reported_with_a_select(log: Log) -> None:
    shown, events = shop()
    fill(log.url, search_log=shown * 2, search_events=events)
    assert log.init()["rankings"]["request"] == "request_id"
    (told,) = re.findall(r"`(select: .*?)`", log.err)
    # Its column `query` is a reserved word.
    assert yaml.safe_load(told)["select"].startswith('SELECT DISTINCT request_id, item_id, "query", ')


def test_init_asks_which_of_several_event_tables_counts(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, events = shop()
    fill(log.url, search_log=shown, clicks=events, likes=events)
    assert log.init() == {}
    assert log.code == 2
    assert "Several tables have events on shown items. Which one? [all of them, clicks, likes]" in log.err
    assert "--answer 'relevance.events.table=all of them'" in log.err
    log.init("--answer", "relevance.events.table=nothing")
    assert "choose one of all of them, clicks, likes" in log.err
    monkeypatch.setattr("sys.stdin", io.StringIO("likes\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert log.init()["relevance"]["events"]["table"] == "likes"


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        (["rankings.tabel=a"], "there is no question 'rankings.tabel'; did you mean 'rankings.table'?"),
        (["zone=UTC"], "there is no question 'zone'; known are rankings.table, rankings.item, "),
        (["rankings.item=a", "rankings.item=b"], "--answer rankings.item is given twice; keep one"),
        (["rankings.item"], "--answer 'rankings.item': write KEY=VALUE"),
    ],
)
def test_malformed_answer_options_are_refused(log: Log, answers: list[str], wanted: str) -> None:
    assert log.init("--yes", *(part for one in answers for part in ("--answer", one))) == {}
    assert log.code == 2
    assert wanted in log.err


def test_init_without_a_terminal_lists_all_open_questions_with_usable_answers(log: Log) -> None:
    shown, events = shop(lambda at: at.strftime("%Y-%m-%d %H:%M:%S"))
    acts = [{**e, "event_type": {"purchase": "add to list"}.get(e["event_type"], "zap")} for e in events]
    fill(log.url, search_log=shown, search_events=acts)
    assert log.init() == {}
    assert (log.code, log.err.count("--answer ")) == (2, 3)
    assert log.err.startswith(
        "rankmon: answer 3 questions, as suggested below or otherwise, or accept all suggestions with --yes:"
    )
    answers = shlex.split(" ".join(line for line in log.err.splitlines() if line.startswith("    --answer ")))
    assert [one.partition("=")[0] for one in answers[1::2]] == [
        "rankings.time.timezone",
        "relevance.events.time.timezone",
        "relevance.events.rules",
    ]
    made = log.init(*answers)
    assert (log.code, made["relevance"]["events"]["time"]["timezone"]) == (0, "UTC")


def test_event_tables_without_a_zone_share_one_answer(log: Log) -> None:
    shown, events = shop(lambda at: at.strftime("%Y-%m-%d %H:%M:%S"))
    fill(log.url, search_log=shown, clicks=events, likes=events)
    made = log.init("--yes", "--answer", "relevance.events.time.timezone=Europe/Berlin")
    assert (log.code, made["relevance"]["events"]["time"]["timezone"]) == (0, "Europe/Berlin"), log.err


def test_utc_is_not_the_default_if_it_puts_rows_in_the_future(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, events = shop(lambda at: at.strftime("%Y-%m-%d %H:%M:%S"))
    newest = datetime.strptime(max(row["served_at"] for row in shown), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    fill(log.url, search_log=shown, search_events=events)
    monkeypatch.setattr(proposal, "clock", lambda: newest.timestamp() - 52 * 60)
    assert log.init("--yes") == {}
    assert log.code == 2
    assert "UTC would put it 52 min in the future. Which zone is it in?" in log.err
    assert "--answer rankings.time.timezone=VALUE" in log.err
    assert "by --yes" not in log.err
    log.init("--yes", "--answer", "rankings.time.timezone=Asia/Daka")
    assert (log.code, "'Asia/Daka' is not a time zone; write e.g. UTC or Europe/Berlin" in log.err) == (2, True)
    made = log.init("--yes", "--answer", "rankings.time.timezone=Asia/Dhaka")
    assert log.code == 0, log.err
    zones = made["rankings"]["time"]["timezone"], made["relevance"]["events"]["time"]["timezone"]
    assert zones == ("Asia/Dhaka", "Asia/Dhaka")


def test_lists_with_their_time_in_another_table_get_a_joining_view(log: Log) -> None:
    """Item ids in the range of timestamps do not get in the way."""
    shown, events = ([{**r, "item_id": 10**12 + int(r["item_id"][1:])} for r in rows] for rows in shop())
    of_lists = ("request_id", "item_id", "position", "price")
    lines = [{key: row[key] for key in of_lists} for row in shown]
    firsts = {row["request_id"]: row for row in shown}.values()
    heads = [{"id": r["request_id"], **{k: v for k, v in r.items() if k not in of_lists}} for r in firsts]
    fill(log.url, search_result=lines, search_request=[*heads, {**heads[0], "id": "without"}], search_events=events)
    assert log.init("--yes") == {}
    assert (log.code, "search_result: no column has the time of each row" in log.err) == (2, True)
    (view,) = re.findall(r"CREATE VIEW .*;", log.err)
    engine = sa.create_engine(log.url)
    with engine.begin() as connection:
        connection.exec_driver_sql(view)
        assert connection.exec_driver_sql("SELECT count(*) FROM shown_lists WHERE item_id IS NULL").scalar() == 1
    engine.dispose()
    made = log.init("--yes")
    assert log.code == 0, log.err
    names = [made["rankings"][key] for key in ("table", "request", "item", "position")]
    assert names == ["shown_lists", "id", "item_id", "position"]
    assert (made["slices"], made["rankings"]["query"]) == (["device"], "query")


def test_list_columns_with_their_time_in_another_table_get_a_joining_view(log: Log) -> None:
    shown, events = shop()
    heads, lists = dict[str, Row](), dict[str, list[Any]]()
    for row in shown:
        heads[row["request_id"]] = {"id": row["request_id"], "served_at": row["served_at"]}
        lists.setdefault(row["request_id"], []).append(row["item_id"])
    rows = [{"request_id": request, "hits": json.dumps(items)} for request, items in lists.items()]
    fill(log.url, search_result=rows, search_request=[*heads.values()], search_events=events)
    assert log.init("--yes") == {}
    (view,) = re.findall(r"CREATE VIEW .*;", log.err)
    engine = sa.create_engine(log.url)
    with engine.begin() as connection:
        connection.exec_driver_sql(view)
    engine.dispose()
    made = log.init("--yes")
    assert (log.code, log.err) == (0, "")
    assert [made["rankings"][key] for key in ("table", "request", "items")] == ["shown_lists", "id", "hits"]


def test_an_unused_answer_is_reported(log: Log) -> None:
    shown, events = shop()
    fill(log.url, search_log=shown, search_events=events)
    assert log.init("--answer", "relevance.judgments.grade=stars")["rankings"]["table"] == "search_log"
    assert "--answer relevance.judgments.grade: the question did not arise, so it was not used" in log.err


@pytest.mark.parametrize("yes", [(), ("--yes",)])
@pytest.mark.parametrize("joined", [False, True])
def test_an_answer_overrides_a_choice_made_without_a_question(log: Log, joined: bool, yes: Sequence[str]) -> None:
    shown, events = shop()
    if joined:
        fill(log.url, search_log=shown, **by_kind(events))
        yes = (*yes, "--answer", "relevance.events.table=all of them")
    else:
        fill(log.url, search_log=shown, search_events=events)
    made = log.init("--answer", "relevance.events.rules=click=1 purchase=3", *yes)
    assert (log.code, log.err) == (0, "")
    rules = [{"type": "click", "grade": 1}, {"type": "purchase", "grade": 3}]
    assert made["relevance"]["events"]["rules"] == rules


@pytest.mark.parametrize(
    ("answer", "of_rankings"),
    [
        ("rankings.item=sku", True),
        ("rankings.time=seen_at", True),
        ("relevance.events.type=device", False),
        ("relevance.events.table=impressions", False),
    ],
)
def test_an_answer_overrides_a_guess(log: Log, answer: str, of_rankings: bool) -> None:
    """The four guesses: the item column that matches best, one time per list, no event type that lists have too, and
    no table of views.
    """
    shown, events = shop()
    shown = [{**r, "sku": 10**12 + int(r["item_id"][1:])} for r in shown]
    shown = [{**row, "seen_at": iso(NOW + timedelta(seconds=n))} for n, row in enumerate(shown)]
    rows = {(row["request_id"], row["item_id"]): row for row in shown}
    more = [rows[e["request_id"], e["item_id"]] for e in events]
    acts = [{**e, "sku": row["sku"], "device": row["device"]} for e, row in zip(events, more, strict=True)]
    views = [{key: row[key] for key in ("request_id", "item_id", "sku", "served_at")} for row in shown]
    fill(log.url, search_log=shown, search_events=acts, impressions=views)
    made = log.init("--yes", "--answer", answer)
    assert (log.code, log.err) == (0, "")
    key, _, wanted = answer.partition("=")
    found = (made["rankings"] if of_rankings else made["relevance"]["events"])[key.rpartition(".")[2]]
    assert (found["column"] if isinstance(found, dict) else found) == wanted


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("rankings.table=other", "'other': only search_log fits"),
        ("rankings.time=price", "'price': only served_at fits"),
        ("relevance.events.table=other", "'other': only search_events fits"),
        ("relevance.events.time=price", "'price': only occurred_at fits"),
        ("relevance.events.type=price", "'price': only event_type fits"),
        ("relevance.events.rules=click", "'click' is not a rule; write TYPE=GRADE"),
    ],
)
def test_an_answer_the_values_rule_out_is_refused_with_one_that_fits(log: Log, answer: str, wanted: str) -> None:
    shown, events = shop()
    fill(log.url, search_log=shown, search_events=events)
    assert log.init("--yes", "--answer", answer) == {}
    assert log.code == 2
    assert f"--answer {answer}: {wanted}" in log.err


def test_an_answer_for_one_of_several_tables_leaves_the_others_alone(log: Log) -> None:
    shown, events = shop()
    likes = [{"request_id": e["request_id"], "item_id": e["item_id"], "liked_at": e["occurred_at"]} for e in events]
    fill(log.url, search_log=shown, clicks=[{**e, "sent_at": e["occurred_at"]} for e in events], likes=likes)
    select = log.init("--yes", "--answer", "relevance.events.time=sent_at")["relevance"]["events"]["select"]
    assert log.code == 0, log.err
    assert ("sent_at AS happened_at" in select, "liked_at AS happened_at" in select) == (True, True)


def test_only_two_options_take_keys() -> None:
    """If you add such an option, test that it refuses unknown keys; `test_examination` does so for --random."""

    def keyed(command: click.Command, name: str) -> Iterator[tuple[str, str | None]]:
        yield from ((name, option.name) for option in command.params if "=" in (option.metavar or ""))
        if isinstance(command, click.Group):
            context = click.Context(command)
            for inner in command.list_commands(context):
                if (found := command.get_command(context, inner)) is not None:
                    yield from keyed(found, f"{name} {inner}")

    assert {*keyed(cli.cli, "rankmon")} == {("rankmon init", "answers"), ("rankmon examination fit", "random")}


def test_init_asks_again_after_a_wrong_answer_and_accepts_option_numbers(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, events = shop()
    acts = [{**e, "event_type": {"purchase": "add to list"}.get(e["event_type"], "zap")} for e in events]
    fill(log.url, search_log=shown, clicks=acts, likes=acts)
    monkeypatch.setattr("sys.stdin", io.StringIO("4\n3\nfoo\nzap=1 foo\nadd to list=2 zap=0.5\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    recipe = log.init()["relevance"]["events"]
    assert "  1  all of them\n  2  clicks\n  3  likes\n" in log.out
    assert "choose one of all of them, clicks, likes, or its number" in log.out + log.err
    assert (log.out + log.err).count("'foo' is not a rule; write TYPE=GRADE") == 2
    assert recipe["table"] == "likes"
    assert recipe["rules"] == [{"type": "add to list", "grade": 2}, {"type": "zap", "grade": 0.5}]


def test_label_events_with_blanks_in_their_names_need_no_answer(log: Log) -> None:
    shown, events = shop()
    acts = [{**e, "event_type": {"purchase": "add to cart"}.get(e["event_type"], "open item")} for e in events]
    fill(log.url, search_log=shown, search_events=acts)
    rules = log.init()["relevance"]["events"]["rules"]
    assert (log.code, log.err) == (0, "")
    assert [rule["type"] for rule in rules] == ["open item", "add to cart"]


def test_init_explains_why_it_suggests_reading_part_of_the_log(log: Log) -> None:
    shown, events = shop()
    old = [{**row, "request_id": f"old {row['request_id']}", "served_at": "2026-01-05T00:00:00Z"} for row in shown[:40]]
    fill(log.url, search_log=shown + old, search_events=events)
    log.init("--yes")
    assert log.out.endswith(
        "35 days: verdicts begin after 14, with a full baseline after 28. The log begins 2026-01-05.\n"
    )


def test_the_help_names_every_question() -> None:
    asked = " ".join((cli.cli.get_command(click.Context(cli.cli), "init").help or "").split())  # type: ignore[union-attr]
    assert [key for key in QUESTIONS if key not in asked] == []


def test_a_password_stays_out_of_the_file_and_the_output(
    log: Log, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKMON_SOURCE_PASSWORD", "")
    shown, events = shop(lambda at: at)
    fill(postgres_url, search_log=shown, search_events=events)
    url = sa.make_url(postgres_url).set(password="open-sesame").render_as_string(hide_password=False)
    log.init(url=url)
    assert log.code == 0, log.err
    assert "open-sesame" not in log.output.read_text() + log.out + log.err
    assert "password: ${RANKMON_SOURCE_PASSWORD}" in log.output.read_text()


def test_examined_tables_without_ranked_lists_are_named(log: Log) -> None:
    fill(log.url, users=[{"user_id": "u1", "born": 1990}, {"user_id": "u2", "born": 1991}])
    assert log.init() == {}
    assert (log.code, "no table has ranked lists" in log.err, "examined: users" in log.err) == (2, True, True)


def test_lists_of_objects_are_refused_with_a_remedy(log: Log) -> None:
    hits = [json.dumps([{"id": n, "score": 0.5}, {"id": 7, "score": 0.25}]) for n in range(9)]
    fill(
        log.url, searches=[{"search_id": f"s{n}", "hits": text, "at": 1_760_000_000 + n} for n, text in enumerate(hits)]
    )
    assert log.init() == {}
    said = "lists of objects instead of ids: searches.hits; map a view with a row per object and its place from 1 on"
    assert (log.code, said in log.err) == (2, True)


def test_the_hacker_news_log_is_mapped(log: Log, shared: Path) -> None:
    (csv,) = (shared / "data" / "hn-frontpage").glob("*.csv.gz")
    hackernews.fill(log.url, csv)
    made = log.init("--yes")
    assert log.code == 0, log.err
    assert made["rankings"] == {
        "table": "rankings",
        "request": "snapshot_id",
        "item": "item_id",
        "position": "position",
        "time": {"column": "served_at", "format": "%Y-%m-%dT%H:%M:%SZ"},
    }
    recipe = made["relevance"]["events"]
    assert (recipe["table"], recipe["request"], recipe["item"]) == ("upvotes", "snapshot_id", "item_id")
    assert recipe["time"] == {"column": "occurred_at", "format": "%Y-%m-%dT%H:%M:%SZ"}
