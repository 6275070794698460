"""`check-config --connect` samples the data and reports plausible but wrong mappings, with key and remedy."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

import monitor.cli as cli
from monitor.source.checks.labels import _why_unmatched
from tests.support.statements import execute

CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
sources:
  shop: {{url: "{url}"}}
monitors:
  - name: search
    source: shop
    rankings:
      table: search_log
      request: request_id
      item: item_id
      position: position
      time: {{column: served_at, format: epoch_s}}
    relevance:
      events:
        table: search_events
        request: request_id
        item: item_id
        type: kind
        time: {{column: occurred_at, format: epoch_s}}
        rules: [{{type: tap, grade: 1}}, {{type: buy, grade: 3}}]
        attribution: 1h
    measures: [ndcg@10]
"""
TABLES = (
    "CREATE TABLE search_log (request_id TEXT, item_id TEXT, position INTEGER, rank0 INTEGER, sku TEXT, "
    "served_at BIGINT, local_at TEXT)",
    "CREATE TABLE search_events (request_id TEXT, item_id TEXT, kind TEXT, occurred_at BIGINT, local_at TEXT)",
)

ZONE, FORMAT = "Asia/Karachi", "%Y-%m-%d %H:%M:%S"
HOURS = 5

Check = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def check(database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Check a sound configuration after changes to its text: (exit code, output, errors and warnings)."""
    _fill(database_url, int(time.time()))
    path = tmp_path / "rankmon.yaml"

    def asked(*changes: tuple[str, str]) -> tuple[int, list[str], list[str]]:
        text = CONFIG.format(folder=tmp_path, url=database_url)
        for before, after in changes:
            assert before in text
            text = text.replace(before, after, 1)
        path.write_text(text, encoding="utf-8")
        code = cli.run(["check-config", "--connect", "-c", str(path)])
        said = capsys.readouterr()
        return code, said.out.splitlines(), [line.replace(f"{path}:", "") for line in said.err.splitlines()]

    return asked


def local(at: int) -> str:
    """A moment in a zone east of Greenwich whose clocks never change."""
    return datetime.fromtimestamp(at, ZoneInfo(ZONE)).strftime(FORMAT)


def _fill(url: str, now: int) -> None:
    """A request a minute for ten hours, five items each, and an event within the minute on most of them."""
    rng, shown, events = random.Random(3), [], []
    for i in range(600):
        at = now - 60 * i
        shown += [(f"r{i}", f"i{p}", p, p - 1, f"sku-{p}", at, local(at)) for p in range(1, 6)]
        if i % 4:
            kind = "buy" if i % 20 == 1 else "tap"
            happened = at + rng.randint(1, 59)
            events.append((f"r{i}", f"i{rng.randint(1, 5)}", kind, happened, local(happened)))
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in TABLES:
            connection.exec_driver_sql(statement)
        for table, rows in (("search_log", shown), ("search_events", events)):
            written = ", ".join(
                "(" + ", ".join(f"'{v}'" if isinstance(v, str) else str(v) for v in r) + ")" for r in rows
            )
            connection.exec_driver_sql(f"INSERT INTO {table} VALUES {written}")
    engine.dispose()


def test_a_sound_mapping_gets_a_summary_and_no_warnings(check: Check) -> None:
    code, out, err = check()
    assert (code, err) == (0, [])
    assert any(line.startswith("search: sampled 540 requests from 24h, 75 % with a label; ") for line in out)
    assert "100 % match" in " ".join(out)
    assert out[-1] == "configuration is valid and all databases answer"


def test_the_age_of_the_newest_request_is_reported_in_days_and_hours(check: Check, database_url: str) -> None:
    execute(database_url, f"UPDATE search_log SET served_at = served_at - {(3 * 24 + 2) * 3600}")
    wide = ("    measures: [ndcg@10]\n", "    measures: [ndcg@10]\n    windows: [7d]\n")
    assert "search: source shop answers, newest request is 3 d 2 h old" in check(wide)[1]


IN_COLUMNS = "item: item_id\n      position: position"


def in_lists(url: str, listed: str, more: str = "") -> tuple[tuple[str, str], ...]:
    """Changes that read the log through a SELECT with lists in a column."""
    function = {"hits": "json_group_array", "ids": "json_agg"}["hits" if url.startswith("sqlite") else "ids"]
    select = f"SELECT request_id, served_at, {listed.format(f'{function}(item_id)')} AS hits FROM search_log"
    select += f" GROUP BY request_id, served_at {more.format(select=select)}"
    return ("table: search_log", f'select: "{select}"'), (IN_COLUMNS, "items: hits")


def test_lists_in_a_column_pass_like_rows(check: Check, database_url: str) -> None:
    code, out, err = check(*in_lists(database_url, "{}"))
    assert (code, err) == (0, check()[2])
    assert re.search(r"sampled \d+ requests", " ".join(out))


def test_values_other_than_lists_in_a_list_column_are_reported(check: Check, database_url: str) -> None:
    listed = "CASE WHEN request_id NOT LIKE '%1' THEN '5' ELSE CAST({} AS TEXT) END"
    (said,) = [line for line in check(*in_lists(database_url, listed))[2] if "null_item" in line]
    assert "10: monitors[0].rankings.items: search: " in said
    assert "requests have no ids in 'hits', refused as null_item; if they had no results, write" in said


def test_duplicate_lists_in_a_column_are_reported(check: Check, database_url: str) -> None:
    _, _, err = check(*in_lists(database_url, "CAST({} AS TEXT)", "UNION ALL {select} GROUP BY request_id, served_at"))
    assert any("have rows logged twice" in said and "read each row once, in a `select:`" in said for said in err), err


def test_positions_from_0_are_reported_with_the_base_to_declare(check: Check) -> None:
    code, out, err = check(("position: position", "position: rank0"))
    assert (code, out[-1]) == (0, "configuration is valid and all databases answer, but see the warnings")
    assert err == [
        "rankmon: warning: 11: monitors[0].rankings.position: search: 540 of 2,700 positions in 'rank0' are 0 and "
        "would be refused; if they start at 0, write `position: {column: rank0, base: 0}`"
    ]
    assert check(("position: position", "position: {column: rank0, base: 0}"))[2] == []


def test_a_column_that_holds_no_ranks_is_reported_without_offering_a_base(check: Check) -> None:
    for base in ("served_at", "{column: served_at, base: 0}"):
        (said,) = (line for line in check(("position: position", f"position: {base}"))[2] if "position: search" in line)
        assert re.search(r"the lowest of [\d,]+ in 'served_at' is 1[\d.e+]+, where no list starts; name the", said)


def test_slices_that_vary_within_requests_or_with_every_request_are_reported(check: Check) -> None:
    def sliced(text: str) -> list[str]:
        return check(("    relevance:\n", f"{text}    relevance:\n"))[2]

    (said,) = sliced("    slices: [sku]\n")
    assert (
        "monitors[0].slices[0]: search: the rows of 540 of 540 requests (100 %) differ in 'sku', and such req" in said
    )
    (said,) = sliced("      model_version: sku\n    slices: []\n")
    assert "monitors[0].rankings.model_version: search: the rows of 540 of 540 requests (100 %) differ in 'sku'" in said
    (said,) = sliced("    slices: [{column: request_id, max_values: 5}]\n")
    assert "slices[0]: search: 540 values of 'request_id' among 540 requests: all but 5 of them count as" in said


COLUMNS = "request_id, item_id, position, rank0, sku, served_at, local_at"


def pasted(err: list[str]) -> list[tuple[str, str]]:
    """The `select:` that a warning offers, as a change to the configuration."""
    (select,) = (found[1] for line in err if (found := re.search(r'`select: "(.*?)"`', line)))
    return [("table: search_log", f'select: "{select}"')]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            f"INSERT INTO search_log SELECT {COLUMNS} FROM search_log",
            r"(\d+) of \1 requests .* logged twice; .* DISTINCT",
        ),
        (
            "INSERT INTO search_log SELECT request_id, item_id, position, rank0, sku, served_at + 2, local_at "
            "FROM search_log WHERE request_id LIKE '%7'",
            r"logged twice.* the copies differ in other columns, so keep one of each: .* MIN\(served_at\) AS served_at "
            r"FROM search_log GROUP BY request_id, item_id, position\"",
        ),
        (
            "INSERT INTO search_log SELECT request_id || '-2', item_id || 'b', position + 5, rank0, sku, "
            "served_at + 20, local_at FROM search_log WHERE request_id LIKE '%5'",
            r"start at position 6 or later, e.g. if the next page of a list is logged as a separate request.* WHERE "
            r"position < 6\"",
        ),
    ],
    ids=["twice", "twice at other times", "pages as requests"],
)
def test_copies_and_pages_of_lists_are_reported_with_a_select_that_fixes_them(
    check: Check, database_url: str, change: str, told: str
) -> None:
    assert check()[2] == []
    execute(database_url, change)
    _, _, err = check()
    assert len(err) == 1
    assert re.search(told, err[0])
    assert check(*pasted(err))[2] == []


def test_pages_that_restart_at_position_1_are_reported(check: Check, database_url: str) -> None:
    page = "SELECT request_id, item_id || 'b', position, rank0, sku, served_at + 20, local_at FROM search_log"
    execute(database_url, f"INSERT INTO search_log {page}")
    (told,) = check()[2]
    assert re.search(r"\(100 %\) have several items at one position, e.g. if each page", told)
    assert "position + 5 * (page - 1) AS position FROM search_log" in told
    (ranked,) = re.findall(r"ROW_NUMBER.*? AS position", told)
    select = f"SELECT request_id, item_id, served_at, {ranked} FROM search_log"
    assert check(("table: search_log", f'select: "{select}"'))[2] == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("lists", "told"), [("%4", []), ("%", ["positions? in 'position' are not whole numbers"])])
def test_positions_that_are_not_numbers_are_not_taken_for_ranks(
    check: Check, database_url: str, lists: str, told: list[str]
) -> None:
    nowhere = "9e999" if database_url.startswith("sqlite") else "CAST('NaN' AS double precision)"
    where = f"CASE WHEN position > 3 AND request_id LIKE '{lists}' THEN {nowhere} ELSE position END AS position"
    select = f"SELECT request_id, item_id, served_at, {where} FROM search_log"
    err = check(("table: search_log", f'select: "{select}"'))[2]
    assert len(err) == len(told)
    assert all(re.search(text, line) for text, line in zip(told, err, strict=True)), err


def test_items_at_several_positions_of_a_list_are_reported(check: Check, database_url: str) -> None:
    other = "SELECT request_id, item_id, 6 - position, rank0, sku, served_at, local_at FROM search_log"
    execute(database_url, f"INSERT INTO search_log {other} WHERE request_id LIKE '%4'")
    (told,) = check()[2]
    assert re.search(r"\(10 %\) have an item at several positions, e.g. if two servers log a list differently", told)


def test_base_0_is_not_offered_when_only_some_lists_start_at_0(check: Check, database_url: str) -> None:
    execute(database_url, "UPDATE search_log SET position = position - 1, sku = 'app' WHERE request_id LIKE '%4'")
    (told,) = check()[2]
    assert re.search(
        r"\d+ of \d+ lists start at 0 in 'position', which is refused, and the others at 1; `base: 0`", told
    )
    (case,) = re.findall(r"CASE.*? AS position", told)
    select = f"SELECT request_id, item_id, served_at, {case.replace('client', 'sku')} FROM search_log"
    assert check(("table: search_log", f'select: "{select}"'))[2] == []


@pytest.mark.parametrize(("join", "is_told"), [("CROSS JOIN", True), ("LEFT JOIN", False)])
def test_a_select_that_drops_empty_lists_is_reported_unless_some_arrive(
    check: Check, database_url: str, join: str, is_told: bool
) -> None:
    call = "json_each('[1]')" if database_url.startswith("sqlite") else "unnest(ARRAY[1])"
    select = f"SELECT s.* FROM search_log AS s {join} {call} AS one{' ON true' if 'LEFT' in join else ''}"
    changed = "table: search_log", f'select: "{select}"'
    said = [line for line in check(changed)[2] if "drops lists without results" in line]
    assert [line.partition("rankings.")[2].partition(":")[0] for line in said] == ["select"] * is_told
    execute(database_url, "UPDATE search_log SET position = NULL, item_id = NULL WHERE request_id LIKE '%4'")
    assert not [line for line in check(changed)[2] if "drops lists without results" in line]


def test_lists_with_only_position_0_are_reported_as_empty(check: Check, database_url: str) -> None:
    execute(database_url, "DELETE FROM search_log WHERE request_id LIKE '%4' AND position > 1")
    execute(database_url, "UPDATE search_log SET position = 0, item_id = '' WHERE request_id LIKE '%4'")
    (told,) = (line for line in check()[2] if "rankings.position" in line)
    assert re.search(r"\d+ of \d+ lists have only position 0, as LEFT ARRAY JOIN writes empty lists", told)
    select = "SELECT search_log.*, CASE WHEN position = 0 THEN 0 ELSE 5 END AS found FROM search_log"
    named = (
        ("table: search_log", f"select: {select}"),
        ("position: position", "position: position\n      results: found"),
    )
    assert not [line for line in check(*named)[2] if "rankings.position" in line]


def test_lists_with_one_position_but_no_item_are_reported_as_empty(check: Check, database_url: str) -> None:
    execute(database_url, "DELETE FROM search_log WHERE request_id LIKE '%4' AND position > 1")
    execute(database_url, "UPDATE search_log SET item_id = NULL WHERE request_id LIKE '%4'")
    (told,) = (line.partition("rankings.")[2] for line in check()[2] if "null_item" in line)
    assert re.match(
        r"item: search: \d+ of \d+ requests have one row with a position but no item, refused as null_item", told
    )
    select = (
        "SELECT request_id, item_id, served_at, CASE WHEN item_id <> '' THEN position END AS position FROM search_log"
    )
    assert not [line for line in check(("table: search_log", f'select: "{select}"'))[2] if "null_item" in line]


def test_missing_positions_are_reported_but_empty_lists_are_not(check: Check, database_url: str) -> None:
    execute(database_url, "UPDATE search_log SET position = NULL, item_id = NULL WHERE request_id LIKE '%4'")
    assert not [line for line in check()[2] if "are NULL" in line]
    execute(database_url, "UPDATE search_log SET position = NULL WHERE request_id LIKE '%5' OR request_id LIKE '%6'")
    assert [line for line in check()[2] if re.search(r"[\d,]+ of [\d,]+ positions in 'position' are NULL", line)]


def test_base_0_for_positions_from_1_is_reported(check: Check) -> None:
    _, _, (said,) = check(("position: position", "position: {column: position, base: 0}"))
    assert "no position in 'position' is 0, the lowest is 1, so all would be off by one" in said


def test_a_text_column_as_position_is_reported(check: Check, database_url: str) -> None:
    code, _, (said, *_) = check(("position: position", "position: sku"))
    assert "11: monitors[0].rankings.position: search: " in said
    assert ("'sku' is text, such as 'sku-1'" in said) == (code == 0) == database_url.startswith("sqlite")


def test_event_types_that_never_occur_are_reported_with_those_that_do(check: Check) -> None:
    code, _, err = check(("type: tap", "type: click"), ("type: buy", "type: purchase"))
    assert code == 0
    there = "among the 450 sampled; types found: 'tap' (93 %), 'buy' (7 %)"
    assert [line.partition("search: ")[2] for line in err if "rules[" in line] == [
        f"no event of the type 'click' {there}",
        f"no event of the type 'purchase' {there}",
    ]
    assert any("none of the 540 sampled requests has a label" in line for line in err)


def test_a_rule_whose_type_never_occurs_is_reported_by_its_key(check: Check) -> None:
    _, _, (said,) = check(("type: buy", "type: purchase"))
    assert said.startswith("rankmon: warning: 20: monitors[0].relevance.events.rules[1]: ")


def test_types_without_a_rule_are_mentioned_but_not_warned_about(check: Check) -> None:
    _, out, err = check(("{type: tap, grade: 1}, ", ""))
    assert err == []
    assert any(line.endswith("; 93 % of all events have types that no rule names: 'tap'") for line in out)
    assert "no rule names" not in " ".join(check()[1])


def test_a_missing_event_type_is_reported_as_null(check: Check, database_url: str) -> None:
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE search_events SET kind = NULL WHERE kind = 'buy'")
    engine.dispose()
    _, out, (said,) = check()
    assert said.endswith("no event of the type 'buy' among the 450 sampled; types found: 'tap' (93 %), NULL (7 %)")
    assert any(line.endswith("; 7 % of all events have types that no rule names: NULL") for line in out)


def test_a_remedy_keeps_its_e_g(check: Check, database_url: str) -> None:
    if not database_url.startswith("sqlite"):
        return  # other databases refuse to compare text with a number
    column = ("time: {column: served_at, format: epoch_s}", "time: {column: local_at, format: epoch_s}")
    assert "declare e.g. format: '%Y-%m-%d %H:%M:%S'" in " ".join(check(column)[2])


def test_events_that_match_no_impression_are_reported(check: Check) -> None:
    _, _, err = check(
        ("        request: request_id\n        item: item_id", "        request: item_id\n        item: item_id")
    )
    assert any(
        "monitors[0].relevance.events.request: search: " in line
        and " %) match no impression within the attribution window; do request and item use the same ids" in line
        for line in err
    )


def _unmatched(err: list[str]) -> str:
    """The warning about unmatched events; empty if there is none."""
    return next((line for line in err if "match no impression" in line), "")


def test_unlogged_items_are_recognized_by_their_events(check: Check, database_url: str) -> None:
    execute(database_url, "DELETE FROM search_log WHERE item_id = 'i5'")
    told = _unmatched(check()[2])
    assert re.search(
        r"\d+ of \d+ events \(\d\d %\) match no impression within the attribution window; a few % are normal", told
    )
    assert "name a logged request, but an item that was not logged: is every shown item logged" in told
    assert "a request that was never logged" not in told


def test_unlogged_requests_are_recognized_by_their_events(check: Check, database_url: str) -> None:
    execute(database_url, "DELETE FROM search_log WHERE substr(request_id, length(request_id)) = '3'")
    told = _unmatched(check()[2])
    assert "name a request that was never logged: are all requests logged, and still there?" in told
    assert "an item that was not" not in told


def test_events_after_the_attribution_window_are_reported_as_late(check: Check, database_url: str) -> None:
    execute(database_url, "UPDATE search_events SET occurred_at = occurred_at + 5400 WHERE item_id IN ('i1', 'i2')")
    assert check(LATE)[2] == []
    _, _, err = check(("attribution: 1h", "attribution: 5m"))
    (late,) = (line for line in err if "relevance.events.attribution: " in line)
    assert re.search(
        r"\d+ of \d+ events on shown items \((3[5-9]|4[0-5]) %\) happen more than 5m after serving, and do "
        r"not count; half of all happen within 1 min, 95 % within 1 h 31 min: is the attribution long enough",
        late,
    )
    assert re.search(
        r"; \d+ come long after their impression, half of them by 1 h 3[01] min or more: is", _unmatched(err)
    )


@pytest.mark.parametrize("share", ["'i1', 'i2'", "'i1', 'i2', 'i3', 'i4', 'i5'"])
def test_events_days_late_are_not_blamed_on_unlogged_impressions(check: Check, database_url: str, share: str) -> None:
    check()
    execute(database_url, f"UPDATE search_log SET served_at = served_at - 259200 WHERE item_id IN ({share})")
    execute(database_url, "INSERT INTO search_log SELECT 'x' || request_id, item_id, 1, 0, '', served_at + 259200, '' "
                          "FROM search_log WHERE item_id = 'i1'")  # fmt: skip
    told = _unmatched(check()[2])
    assert re.search(r"\d+ come long after their impression, half of them by 3 d or more: is the `attribution`", told)
    assert "not logged" not in told
    assert "select" not in told


def test_impressions_too_slow_to_find_are_not_called_missing() -> None:
    told = _why_unmatched(None)
    assert "their rankings were searched only within the attribution window" in told
    assert "not logged" not in told


def test_a_few_unmatched_events_are_normal(check: Check, database_url: str) -> None:
    execute(database_url, "DELETE FROM search_log WHERE substr(request_id, length(request_id) - 1) = '33'")
    code, out, err = check()
    assert (code, _unmatched(err)) == (0, "")
    assert re.search(r" 9[5-9] % match", " ".join(out))


def test_a_missing_column_or_table_is_reported_by_its_key_without_sql_aliases(check: Check) -> None:
    for before, after, place in (
        ("item: item_id", "item: skuu", "10: monitors[0].rankings.item: search: source shop: "),
        ("type: kind", "type: sort", "18: monitors[0].relevance.events.type: search: source shop: "),
        ("search_events", "clicks", "15: monitors[0].relevance.events.table: search: source shop: "),
    ):
        code, _, (said,) = check((before, after))
        assert code == 2
        assert said.startswith(f"rankmon: {place}")
        assert after.rpartition(" ")[2] in said
        assert "r." not in said.partition("source shop: ")[2].partition("; compare")[0]
        assert "LINE 1" not in said


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (
            "search_log ALTER request_id TYPE uuid USING gen_random_uuid()",
            "16: monitors[0].relevance.events.request: search: source shop: request of rankings and labels cannot be "
            "compared: search_log.request_id is uuid, search_events.request_id is text",
            "; convert one of them in a `select:`",
        ),
        (
            "search_log ALTER item_id TYPE int USING 1",
            "17: monitors[0].relevance.events.item: search: source shop: item of rankings and labels cannot be "
            "compared: search_log.item_id is integer, search_events.item_id is text",
            "; convert one of them in a `select:`",
        ),
        (
            "search_events ALTER kind TYPE int USING 1",
            "18: monitors[0].relevance.events.type: search: source shop: invalid input syntax for type integer: ",
            "convert it in a `select:`",
        ),
    ],
    ids=["request", "item", "type"],
)
@pytest.mark.parametrize("way", ["pull", "pushdown"])
def test_columns_postgresql_cannot_compare_are_named_with_their_key(
    check: Check, database_url: str, change: str, line: str, said: str, way: str, tmp_path: Path
) -> None:
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {change}")
    engine.dispose()
    code, _, (told,) = check(("measures:", f"engine: {way}\n    measures:"))
    assert (code, codes_of_readers(tmp_path)["backfill"]) == (2, 2)
    assert told.startswith(f"rankmon: {line}")
    assert told.endswith(said)


MISTAKES = {
    "column": ("item: item_id", "item: skuu"),
    "table": ("search_events", "clicks"),
    "query": ("table: search_log", 'select: "SELEC 1"'),
    "function": ("table: search_log", 'select: "SELECT nothing(1) FROM search_log"'),
    "format": ("column: served_at, format: epoch_s", "column: served_at, format: epoch_ms"),
    "time": ("column: served_at, format: epoch_s", "column: sku, format: epoch_s"),
}
READERS = (("backfill", "--from", "2026-01-01"), ("once",), ("explain",), ("inspect", "r1"))


def codes_of_readers(folder: Path) -> dict[str, int]:
    """Exit code of each command that reads the source."""
    return {name: cli.run([name, "-c", str(folder / "rankmon.yaml"), *more]) for name, *more in READERS}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("way", ["auto", "pull"])
def test_a_mapping_mistake_is_a_configuration_error_in_every_command(
    check: Check, tmp_path: Path, mistake: str, way: str
) -> None:
    before, after = MISTAKES[mistake]
    code, _, _ = check((before, after), ("measures:", f"engine: {way}\n    measures:"))
    codes = codes_of_readers(tmp_path)
    assert (code, codes["backfill"], codes["once"]) == (2, 2, 2)
    assert codes["explain"] in (0, 2), "explain reads no times"
    assert codes["inspect"] in (0, 2), "inspect does not check that times are plausible"


def test_old_data_is_sampled_too(check: Check, database_url: str) -> None:
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE search_log SET served_at = served_at - 100000000")
        connection.exec_driver_sql("UPDATE search_events SET occurred_at = occurred_at - 100000000")
    engine.dispose()
    _, out, err = check(("position: position", "position: rank0"))
    assert "search: source shop answers, no request in 24h" in out
    assert "540 of 2,700 positions in 'rank0' are 0" in err[0]


def test_a_folder_as_source_file_is_reported(check: Check, database_url: str, tmp_path: Path) -> None:
    code, _, (said, *_) = check((f'shop: {{url: "{database_url}"}}', f'shop: {{url: "sqlite:///{tmp_path}"}}'))
    assert code == 3
    assert f"3: sources.shop: search: source shop: {tmp_path} is a folder; name the file in it" in said


def test_a_database_missing_on_its_server_is_reported(check: Check, database_url: str) -> None:
    if not database_url.startswith("postgresql"):
        return
    name = database_url.rpartition("/")[2]
    _, _, (said, *_) = check((f'/{name}"}}\n', '/nowhere"}\n'))
    assert "no such database on that server; name another in the URL, or create it" in said


PARQUET = 'rankings:\n      select: "SELECT * FROM read_parquet({})"\n'
NOT_THERE = "; the SQL of a `select:` or a view names missing files: name them in full"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("file", "rankings", "place", "said"),
    [
        (":memory:", PARQUET.format("'/none/*.parquet'"), "8: monitors[0].rankings.select", NOT_THERE),
        ("/none.duckdb", "", "3: sources.shop", "; no such file: name another in the URL"),
        ("{folder}/log.parquet", "", "3: sources.shop", "; for Parquet or CSV, set the URL to duckdb:///"),
        ("{folder}/log.csv", "", "3: sources.shop", "; for Parquet or CSV, set the URL to duckdb:///"),
    ],
)
def test_a_missing_or_wrong_duckdb_file_is_reported(
    check: Check, database_url: str, tmp_path: Path, file: str, rankings: str, place: str, said: str
) -> None:
    pytest.importorskip("duckdb_engine")
    for name in ("log.parquet", "log.csv"):
        (tmp_path / name).write_text("request_id,item_id,position\n" * 9, encoding="utf-8")
    table = "rankings:\n      table: search_log\n"
    url = f"duckdb:///{file.format(folder=tmp_path)}"
    code, _, (told, *_) = check((database_url, url), (table, rankings or table))
    assert code == (2 if "monitors" in place else 3), "a file in the URL may still appear"
    assert told.startswith(f"rankmon: {place}: search: source shop: ")
    assert said in told
    assert "^" not in told


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_empty_or_differing_parquet_files_are_reported_with_a_remedy(
    check: Check, database_url: str, tmp_path: Path
) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("duckdb_engine")
    columns = "'r' request_id, 'i' item_id, 1 AS position, 0 served_at"
    for name, more in (("early", ""), ("later", ", 'tv' device")):
        duckdb.sql(f"SELECT {columns}{more}").write_parquet(str(tmp_path / f"{name}.parquet"))

    def said(files: str, *changes: tuple[str, str]) -> tuple[int, str]:
        rankings = PARQUET.format(f"'{tmp_path}/{files}'")
        url, table = "duckdb:///:memory:", "rankings:\n      table: search_log\n"
        events = "events:\n        select: \"SELECT 'r' request_id, 'i' item_id, 'tap' AS kind, 0 AS occurred_at\"\n"
        no_table = ("events:\n        table: search_events\n", events)
        code, _, err = check((database_url, url), (table, rankings), no_table, *changes)
        return code, " ".join(err)

    code, text = said("*.parquet", ("    measures:", "    slices: [device]\n    measures:"))
    assert code == 2
    assert "there is no column 'device' in the rankings' SELECT" in text
    assert "if only some of the files have it, add union_by_name=true to read_parquet(...)" in text
    (tmp_path / "zero.parquet").touch()
    code, text = said("zero.parquet")
    assert code == 3
    assert "a Parquet file is damaged or half written: write it under a different name and rename it" in text


# ---- types of events, and whole seconds ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["pull", "pushdown"])
def test_a_type_missing_from_a_postgresql_enum_gets_the_same_warning_as_text(
    check: Check, database_url: str, tmp_path: Path, way: str
) -> None:
    if database_url.startswith("sqlite"):
        return
    engine = ("attribution: 1h", f"attribution: 1h\n    engine: {way}")
    nobody = ("type: buy, grade: 3", "type: purchase, grade: 3")
    told = check(engine, nobody)
    execute(database_url, "CREATE TYPE kinds AS ENUM ('tap', 'buy')")
    execute(database_url, "ALTER TABLE search_events ALTER kind TYPE kinds USING kind::kinds")
    code, out, err = check(engine, nobody)
    assert (code, err) == (0, told[2])
    assert any("no event of the type 'purchase' among the " in line for line in err)
    assert out[1].partition(" old")[2] == told[1][1].partition(" old")[2]
    assert cli.run(["inspect", "r1", "-c", str(tmp_path / "rankmon.yaml")]) == 0


def test_events_cut_to_whole_seconds_are_not_mistaken_for_a_wrong_zone(check: Check, database_url: str) -> None:
    engine = sa.create_engine(database_url)
    with engine.connect() as connection:  # moves requests to whole minutes, whatever second it is now
        phase = connection.exec_driver_sql("SELECT MAX(served_at) FROM search_log").scalar_one() % 60
    engine.dispose()
    for table, column, more in (("search_log", "served_at", "+ 700"), ("search_events", "occurred_at", "")):
        execute(database_url, f"UPDATE {table} SET {column} = ({column} - {phase}) * 1000 {more}")
    execute(
        database_url, "UPDATE search_events SET occurred_at = occurred_at - occurred_at % 60000 WHERE item_id > 'i2'"
    )
    execute(database_url, "UPDATE search_log SET served_at = served_at - served_at % 60000 + 700")
    in_ms = [(how, how.replace("epoch_s", "epoch_ms")) for how in (SERVED, HAPPENED)]
    (told,) = [line for line in check(*in_ms)[2] if "early_event" in line]
    assert "event times are cut to whole seconds and request times are not" in told
    assert "zone" not in told
    (cut,) = re.findall(r"as by (.*)$", told)
    select = f"SELECT request_id, item_id, position, {cut} FROM search_log"
    assert check(*in_ms, ("table: search_log", f'select: "{select}"'))[2] == []


# ---- zones ---------------------------------------------------------------------------------------------------------

SERVED, HAPPENED = "time: {column: served_at, format: epoch_s}", "time: {column: occurred_at, format: epoch_s}"


def in_zone(zone: str) -> str:
    return f'time: {{column: local_at, format: "{FORMAT}", timezone: {zone}}}'


def test_rankings_in_a_wrong_zone_are_recognized_by_future_rows(check: Check) -> None:
    code, out, err = check((SERVED, in_zone("UTC")))
    (said,) = [line for line in err if "rankings.time" in line]
    assert said.startswith("rankmon: warning: 12: monitors[0].rankings.time: search: ")
    told = r"27\d rows are dated in the next hour, \d+ in the hour before now, and the latest (5 h|4 h 59 min) ahead"
    assert re.search(told, said)
    assert "is 'local_at' written in UTC? If not, set its zone as `timezone`" in said
    assert "; that would also explain why only 0 % of the requests have a label" in said
    assert (code, out[-1]) == (0, "configuration is valid and all databases answer, but see the warnings")
    assert check((SERVED, in_zone(ZONE)))[2] == []


def test_events_in_a_wrong_zone_are_reported(check: Check) -> None:
    _, _, err = check((HAPPENED, in_zone("Europe/Paris")))
    (said,) = [line for line in err if "events.time" in line]
    assert "monitors[0].relevance.events.time: search: " in said
    assert "is 'local_at' written in Europe/Paris? If not, set its zone as `timezone`" in said
    assert check((HAPPENED, in_zone(ZONE)))[2] == []


def test_a_fast_clock_or_stray_future_rows_raise_no_zone_warning(check: Check, database_url: str) -> None:
    execute(database_url, "UPDATE search_log SET served_at = served_at + 200")
    execute(database_url, "UPDATE search_events SET occurred_at = occurred_at + 200")
    stray = "INSERT INTO search_log SELECT 's' || request_id, item_id, position, rank0, sku, served_at + {}, local_at "
    execute(database_url, stray.format("1800") + "FROM search_log WHERE request_id IN ('r1', 'r2')")
    execute(database_url, stray.format("90000") + "FROM search_log")
    code, out, err = check()
    assert (code, err) == (0, [])
    assert "rows dated in the future" in out[1]


@contextmanager
def written(url: str, delay: int) -> Iterator[None]:
    """Keep logging requests served `delay` seconds ago while the block runs."""
    ended, engine = threading.Event(), sa.create_engine(url)

    def write() -> None:
        for i in count():
            at = int(time.time()) - delay
            with suppress(sa.exc.OperationalError), engine.begin() as connection:
                row = f"'live-{i}', 'i1', 1, 0, 'sku-1', {at}, '{local(at)}'"
                connection.exec_driver_sql(f"INSERT INTO search_log VALUES ({row})")
            if ended.wait(0.3):
                break

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        engine.dispose()


@pytest.mark.parametrize(
    ("zone", "delay", "is_told"), [("Asia/Tashkent", 0, False), ("Asia/Dhaka", 0, True), (ZONE, 1800, False)]
)
def test_a_live_log_that_is_whole_hours_old_is_reported(
    check: Check, database_url: str, zone: str, delay: int, is_told: bool
) -> None:
    execute(database_url, "DELETE FROM search_log")
    with written(database_url, delay):
        time.sleep(0.5)
        said = [line for line in check((SERVED, in_zone(zone)))[2] if "h old to the second" in line]
    assert len(said) == is_told
    if said:
        assert "monitors[0].rankings.time: search: the newest request is 1 h old to the second" in said[0]
        assert "is 'local_at' written in Asia/Dhaka? If not, set its zone as `timezone`" in said[0]


def test_a_live_log_an_hour_and_a_minute_old_hints_at_a_wrong_zone(check: Check, database_url: str) -> None:
    execute(database_url, "DELETE FROM search_log")
    dhaka = in_zone("Asia/Dhaka")  # an hour ahead of the zone that both columns are written in
    with written(database_url, 60):
        time.sleep(0.5)
        err = check((SERVED, dhaka), (HAPPENED, dhaka))[2]
    (said,) = (line for line in err if "newest request" in line)
    assert re.search(
        r"the newest request is 1 h 1 min old although requests come all the time: unless the log lags by", said
    )


LAGOS = in_zone("Africa/Lagos")  # an hour ahead of UTC all year
LATE = ("attribution: 1h", "attribution: 24h")


def written_in_utc(url: str) -> None:
    """Set `local_at` to the time of the epoch columns, in UTC."""
    for table, column in (("search_log", "served_at"), ("search_events", "occurred_at")):
        in_sqlite, in_postgresql = f"datetime({column}, 'unixepoch')", f"to_timestamp({column}) AT TIME ZONE 'UTC'"
        text = in_sqlite if url.startswith("sqlite") else f"to_char({in_postgresql}, 'YYYY-MM-DD HH24:MI:SS')"
        execute(url, f"UPDATE {table} SET local_at = {text}")


def of_zones(err: list[str]) -> list[str]:
    return [line.partition("monitors[0].")[2] for line in err if "zone" in line]


def test_events_read_an_hour_too_early_are_reported_with_the_zone_that_fixes_it(
    check: Check, database_url: str
) -> None:
    written_in_utc(database_url)
    for more in ([], [LATE]):
        (said,) = [line for line in of_zones(check((HAPPENED, LAGOS), *more)[2]) if "same zone" not in line]
        assert said.startswith("relevance.events.time: search: events start 1 h before serving, half of them by ")
        assert (
            "; what would fix it: `timezone: UTC` for 'local_at'; that would also explain why only 0 % of the" in said
        )
        assert of_zones(check((HAPPENED, in_zone("UTC")), *more)[2]) == []


def test_rankings_read_an_hour_too_early_are_recognized_by_their_events(check: Check, database_url: str) -> None:
    written_in_utc(database_url)
    for more in ([], [LATE]):
        (said,) = of_zones(check((SERVED, LAGOS), *more)[2])
        assert said.startswith("rankings.time: search: events start 1 h after serving, half of them by 1 h")
        assert "; what would fix it: `timezone: UTC` for 'local_at'" in said
        assert of_zones(check((SERVED, in_zone("UTC")), *more)[2]) == []


def test_both_remedies_are_offered_when_either_zone_may_be_wrong(check: Check, database_url: str) -> None:
    written_in_utc(database_url)
    (said,) = of_zones(check((SERVED, LAGOS), (HAPPENED, in_zone("UTC")))[2])
    assert said.startswith("rankings.time: ")
    assert "fix it: `timezone: UTC` for 'local_at' or `timezone: Africa/Lagos` for 'local_at'; that would" in said


def test_the_newest_request_hints_at_the_zone_when_both_times_are_an_hour_early(
    check: Check, database_url: str
) -> None:
    execute(database_url, "UPDATE search_log SET served_at = served_at - 120")
    execute(database_url, "UPDATE search_events SET occurred_at = occurred_at - 120")
    written_in_utc(database_url)
    (said,) = of_zones(check((SERVED, LAGOS), (HAPPENED, LAGOS))[2])
    assert said.startswith(
        "rankings.time: search: the newest request is 1 h 2 min old, and Africa/Lagos is 1 h ahead of UTC"
    )
    assert of_zones(check((SERVED, LAGOS))[2])[0].startswith("rankings.time: search: events start 1 h after")


@pytest.mark.parametrize("age", [0, 2400, 7300])
def test_a_lagging_log_raises_no_zone_warning(check: Check, database_url: str, age: int) -> None:
    execute(database_url, f"UPDATE search_log SET served_at = served_at - {age + 3600}")
    execute(database_url, f"UPDATE search_events SET occurred_at = occurred_at - {age + 3600}")
    written_in_utc(database_url)
    zones = [in_zone("UTC")] if age == 0 else [in_zone("UTC"), LAGOS]
    for zone in zones:
        assert of_zones(check((SERVED, zone), (HAPPENED, zone))[2]) == []


def test_late_events_raise_no_zone_warning(check: Check, database_url: str) -> None:
    execute(database_url, "UPDATE search_log SET served_at = served_at - 172800")
    spread = "occurred_at - 172800 + 3700 + 40 * (occurred_at - 600 * (occurred_at / 600))"  # after one to eight hours
    execute(database_url, f"UPDATE search_events SET occurred_at = {spread}")
    written_in_utc(database_url)
    assert of_zones(check((SERVED, in_zone("UTC")), (HAPPENED, in_zone("UTC")), LATE)[2]) == []


def test_events_on_items_shown_at_other_times_are_reported_when_labels_are_missing(
    check: Check, database_url: str
) -> None:
    spread = "occurred_at - 10000 - 40 * (occurred_at - 600 * (occurred_at / 600))"
    execute(database_url, f"UPDATE search_events SET occurred_at = {spread}")
    (said,) = of_zones([line for line in check()[2] if "name items they showed" in line])
    assert re.search(
        r"time: search: only 0 of 540 requests have a label, although \d+ events name items they showed: half of them "
        r"by \d h( \d+ min)? before serving, while the attribution is 1h; are both times in the same zone\?",
        said,
    )


def test_a_load_that_ended_an_hour_ago_raises_no_zone_warning(check: Check, database_url: str) -> None:
    execute(database_url, "UPDATE search_log SET served_at = served_at - 3600")
    execute(database_url, "UPDATE search_events SET occurred_at = occurred_at - 3600")
    assert check()[2] == []


def name_again(url: str, every: int, most: int = 600) -> None:
    """Make the request ids of the last `most` minutes repeat every `every` minutes, in both tables."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for table in ("search_log", "search_events"):
            statement = sa.text(f"UPDATE {table} SET request_id = :new WHERE request_id = :old")
            connection.execute(statement, [{"new": f"r{i % every}", "old": f"r{i}"} for i in range(every, most)])
    engine.dispose()


def of_ids(err: list[str]) -> list[str]:
    return [line for line in err if "monitors[0].rankings.request: " in line]


def test_ids_reused_in_other_buckets_are_reported(check: Check, database_url: str) -> None:
    name_again(database_url, 180)
    code, out, err = check(("attribution: 1h", "attribution: 4h"))
    assert (code, out[-1]) == (0, "configuration is valid and all databases answer, but see the warnings")
    assert of_ids(err) == [
        "rankmon: warning: 9: monitors[0].rankings.request: search: 180 of 180 ids in 'request_id' (100 %) are reused "
        "after max_request_span, 1m, and within 4h, like session ids: an event counts for every serving of its "
        "request id within the attribution window, 4h, so values are too high; name a column with a unique id per "
        "served ranking, here and in the events, or build one in both: "
        "`select: \"SELECT session || '-' || search_no AS request, …\"`"
    ]


def test_ids_reused_after_the_attribution_window_are_separate_requests(check: Check, database_url: str) -> None:
    name_again(database_url, 180)
    assert of_ids(check()[2]) == []
    assert of_ids(check(("attribution: 1h", "attribution: 179m"))[2]) == []


def test_a_few_reused_ids_raise_no_warning(check: Check, database_url: str) -> None:
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        for i in range(0, 600, 24):
            connection.execute(sa.text(f"UPDATE search_log SET request_id = 'r{i}' WHERE request_id = 'r{i + 7}'"))
    engine.dispose()
    assert of_ids(check()[2]) == []


def test_a_handful_of_ids_for_all_requests_is_reported(check: Check, database_url: str) -> None:
    name_again(database_url, 7)
    (said,) = of_ids(check()[2])
    assert "7 of 7 ids in 'request_id' (100 %) are reused after max_request_span, 1m, and within 1h" in said


# ---- slices named in rules and measures ----------------------------------------------------------------------------

RULE = """
    slices: [{{column: {column}, as: surface}}]
    alerts: [{{name: drop, measure: ndcg@10, window: 24h, floor: 0.2, slices: [{slices}]}}]"""
MEASURES = "    measures: [ndcg@10]"


def rule(column: str, slices: str) -> tuple[str, str]:
    return MEASURES, MEASURES + RULE.format(column=column, slices=slices)


def test_a_rule_slice_missing_from_the_data_is_reported_with_a_suggestion(check: Check, database_url: str) -> None:
    surface(database_url)
    code, _, err = check(rule("sku", "surface, surface=TV, surface=web"))
    assert code == 0
    (told,) = [line for line in err if "cannot fire" in line]
    assert "monitors[0].alerts[0].slices[1]: search: none of the " in told
    assert "has surface=TV, and without one rule drop cannot fire on it; did you mean 'tv'? There are " in told
    assert told.rpartition("There are ")[2] in ("'tv', 'web'", "'web', 'tv'")


def test_an_examination_slice_missing_from_the_data_is_reported(check: Check, database_url: str) -> None:
    surface(database_url)
    own = '"dcg(examination={1:1,2:0.5},examination[surface=%s]={1:1,2:0.4})@2"'
    edit = MEASURES, f"    measures: [ndcg@10, {own % 'TV'}, {own % 'web'}]\n    slices: [{{column: sku, as: surface}}]"
    (told,) = [line for line in check(edit)[2] if "examination" in line]
    assert "monitors[0].measures[1]: search: none of the " in told
    assert "has surface=TV, and without one its examination is not used; did you mean 'tv'? There are " in told


def test_a_rule_slice_raises_no_warning_when_its_column_is_empty(check: Check, database_url: str) -> None:
    execute(database_url, "UPDATE search_log SET sku = NULL")
    assert [line for line in check(rule("sku", "surface=TV"))[2] if "cannot fire" in line] == []


def surface(url: str) -> None:
    """Mark every other request as web and the rest as tv."""
    execute(url, "UPDATE search_log SET sku = CASE WHEN served_at / 60 = served_at / 120 * 2 THEN 'web' ELSE 'tv' END")
