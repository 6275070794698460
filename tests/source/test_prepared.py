"""Statements made once for many reads: each read sends what would have been made for it alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, oracle, postgresql, sqlite

from monitor.database_url import parse_url
from monitor.source.dialects import dialect_of
from monitor.source.engine import ColumnTypes, Database
from monitor.source.prepared import Ends, Mark, PreparedStatement, PreparedStatements, Ready, rounded_down, rounded_up
from monitor.source.pushdown import PushDown
from monitor.source.queries import Queries
from monitor.source.summing import Summing
from monitor.types import EventRule, Position, Relation, TimeColumn
from tests.source.test_pushdown_ways import EPOCH, fill, small
from tests.support.logs import BUCKET, END, START, column, events

NATIVE = TimeColumn("at")
FORMATS = {
    "native": NATIVE,
    "native utc": TimeColumn("at", timezone="UTC"),
    "seconds": TimeColumn("at", "epoch_s"),
    "microseconds": TimeColumn("at", "epoch_us"),
}


def summing(
    time: TimeColumn, dialect: sa.Dialect, by_column: bool = False, position: str = "position", **changes: Any
) -> Summing:
    """The summing of a monitor whose columns have times of that kind."""
    recipe = column() if by_column else replace(events(EPOCH), time=time, **changes)
    made = small(recipe)
    made = replace(made, rankings=replace(made.rankings, time=time, position=Position(position)))
    types = ColumnTypes({position: next(iter(dialect_of(dialect.name).integers), None)})
    return Summing(Queries(made, dialect, types), is_thorough=False)


def in_places(text: str, values: Any) -> tuple[str, list[Any]]:
    """(the text with a mark for each parameter, the values in their order)"""
    found: list[Any] = []
    if "$1" in text:
        found = [values[int(number) - 1] for number in re.findall(r"\$(\d+)", text)]
        return re.sub(r"\$\d+", "?", text), found
    if isinstance(values, tuple):
        return text, [*values]

    class Noted(dict[str, Any]):
        def __getitem__(self, name: str) -> str:
            found.append(values[name])
            return "?"

    return text % Noted(), found


def plain(made: Summing, since: int, until: int) -> tuple[str, list[Any]]:
    """The statement as it is made for this read alone."""
    dialect = made.queries.dialect
    compiled: Any = made.cells(since, until).compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    values = compiled.construct_params(escape_names=not compiled.positional)
    order = compiled.positiontup
    return in_places(compiled.string, tuple(values[n] for n in order) if compiled.positional else values)


def numbered(text: str, values: list[Any]) -> tuple[str, list[Any]]:
    """The same with the first bucket's number in the text, as in a statement for one read."""
    parts, left = text.split("?"), [*values]
    found, kept = parts[0], list[Any]()
    for part in parts[1:]:
        value = left.pop(0)
        is_number = found.endswith(" - CAST(")
        found += (f"{float(value):.16e}" if is_number else "?") + part
        kept += [] if is_number else [value]
    return found.replace("::BIGINT", "").replace("::INTEGER", ""), kept


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("attribution", [300, 900, 5000])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_prepared_statement_equals_one_made_for_each_read(kind: str, attribution: int, by_column: bool) -> None:
    dialect = postgresql.psycopg.dialect()
    made = summing(FORMATS[kind], dialect, by_column, **({} if by_column else {"attribution": attribution}))
    reads = [
        (START + a * BUCKET + b, START + c * BUCKET + d)
        for a, b, c, d in ((0, 0, 4, 0), (9, 0, 13, 0), (1, 0, 2, 0), (7, 0, 8, 0), (3, 17, 9, 0), (12, 17, 40, 0))
    ]
    texts = set()
    for since, until in [*reads, *((s + 30 * BUCKET, u + 33 * BUCKET) for s, u in reads)]:
        ready, (expected, values) = made.ready(since, until), plain(made, since, until)
        assert isinstance(ready, Ready)
        found = numbered(*in_places(ready.text, ready.parameters))
        assert found == (expected.replace("::BIGINT", "").replace("::INTEGER", ""), values), (since, until)
        texts.add(ready.text)
    assert len(texts) <= 3, "one bucket or several, a block or less"


@pytest.mark.parametrize("position", ["position", "end", "end_1", "instant", "rank.pos", "a:b", "50 %"])
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg", "pg8000", "mysqldb", "pymysql"])
def test_every_driver_gets_the_same_values(driver: str, position: str) -> None:
    dialect = getattr(mysql if "mysql" in driver else postgresql, driver).dialect()
    made = summing(FORMATS["seconds"], dialect, position=position)
    for since in (START, START + 7 * BUCKET):
        ready, (_, values) = made.ready(since, since + 6 * BUCKET), plain(made, since, since + 6 * BUCKET)
        assert isinstance(ready, Ready)
        assert isinstance(ready.parameters, tuple) is dialect.positional
        sent = in_places(ready.text, ready.parameters)[1]
        number = since // BUCKET
        assert [v for v in sent if v != number] == values
        assert sent.count(number) == 2, "of requests and of events"


@pytest.mark.parametrize(
    ("time", "dialect", "why"),
    [
        (TimeColumn("at", timezone="Europe/Berlin"), postgresql.psycopg.dialect(), "clocks are changed"),
        (TimeColumn("at", "%Y-%m-%dT%H:%M:%SZ"), sqlite.dialect(), "it is cut into buckets one by one"),
        (NATIVE, mysql.dialect(), "and there too"),
        (TimeColumn("at", "epoch_s"), oracle.dialect(), "it was not tried"),
    ],
)
def test_statements_that_differ_in_more_than_parameters_are_not_prepared(
    time: TimeColumn, dialect: sa.Dialect, why: str
) -> None:
    assert not isinstance(summing(time, dialect).ready(START, END), Ready), why


def test_arithmetic_on_an_end_stays_relative_to_it() -> None:
    ends = Ends((1000, 5000))
    since, until = ends.marks
    for mark, other in ((since + 60, 160), (60 + since, 160), (since - 60, 40), (until + 5, 905), (since - 7 + 9, 102)):
        assert isinstance(mark, Mark)
        parameter = dialect_of("sqlite").instant(TimeColumn("at", "epoch_s"), mark)
        assert isinstance(parameter, sa.BindParameter)
        assert ends.reckoned[parameter](100, 900) == other
        assert parameter.value == mark
    for mark, other in (
        (rounded_down(since, 600), 0),
        (rounded_up(since - 1, 600), 600),
        (rounded_down(until + 60, 600) - 7, 593),
        (rounded_up(until, 100), 900),
    ):
        parameter = dialect_of("sqlite").instant(TimeColumn("at", "epoch_s"), mark)
        assert ends.reckoned[parameter](100, 900) == other  # type: ignore[index]
    for instant in (0, 599, 600, 601, 1234):
        assert rounded_down(instant, 600) == instant - instant % 600
        assert rounded_up(instant, 600) == instant + -instant % 600
    for number in (until - since, since % 600, since // 600, -since, since * 2, since + since, since + 0.5):
        assert not isinstance(number, Mark)
    assert dialect_of("x").instant(NATIVE, since) is dialect_of("x").instant(NATIVE, since), (
        "the same instant is the same parameter"
    )
    assert dialect_of("x").instant(NATIVE, since) is not dialect_of("x").instant(TimeColumn("other"), since)


def test_an_instant_relative_to_neither_end_prevents_a_template() -> None:
    dialect, ends = postgresql.psycopg.dialect(), Ends((START, END))
    since, _ = ends.marks
    table = sa.table("t", sa.column("at"))
    instant = dialect_of(dialect.name).instant
    from_an_end = sa.select(table.c.at).where(table.c.at >= instant(NATIVE, since))
    assert PreparedStatement.of(from_an_end, dialect, ends) is not None
    assert PreparedStatement.of(from_an_end.where(table.c.at < instant(NATIVE, START + 7)), dialect, ends) is None


def test_values_converted_for_the_driver_prevent_a_template() -> None:
    ends, dialect = Ends((START, END)), sqlite.dialect()
    since, _ = ends.marks
    table = sa.table("t", sa.column("at", sa.DateTime()))
    instant = dialect_of(dialect.name).instant
    from_an_end = sa.select(table.c.at).where(table.c.at >= instant(NATIVE, since))
    assert PreparedStatement.of(from_an_end, dialect, ends) is None


@pytest.mark.parametrize("name", ["end", "instant", "50 %", "a:b", "is it?", "%(end_1)s"])
def test_names_and_text_that_look_like_parameters_come_through(postgres_url: str, name: str) -> None:
    fill(postgres_url)
    signs = "'50 % :now ? %s %(x)s'"
    made = small(events(EPOCH, rules=(EventRule(1, "50 % o'ff :now ?"), EventRule(2, "click"))))
    select = f'SELECT *, "position" AS "{name}" FROM rankings WHERE {signs} <> device OR device IS NULL'
    made = replace(made, rankings=replace(made.rankings, relation=Relation(select=select), position=Position(name)))
    database = Database("s", parse_url(postgres_url), 60)
    source = PushDown(made, database, is_bound=True)
    with sa.create_engine(postgres_url).begin() as writing:
        kind = {"kind": "50 % o'ff :now ?"}
        writing.execute(sa.text("UPDATE events SET type = :kind WHERE request = 'r2-1'"), kind)
    pulled = source.pull.read(START, END)
    for _ in range(2):
        found = source.read(START, END)
        assert found.traffic[:, 4].sum() == pulled.events.sum() == 12  # type: ignore[union-attr]
    database.close()


def test_a_statement_is_made_once_for_consecutive_reads(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(postgres_url)
    made: list[tuple[int, int]] = []
    cells: Callable[..., Any] = Summing.cells

    def noted(self: Summing, since: int, until: int) -> Any:
        made.append((since, until))
        return cells(self, since, until)

    monkeypatch.setattr(Summing, "cells", noted)
    source = PushDown(small(), Database("s", parse_url(postgres_url), 60), is_bound=True)
    found = [source.read(START + n * 3 * BUCKET, END + n * 3 * BUCKET) for n in range(3)]
    assert made == [(START, END)]
    assert found[0].traffic[:, 0].sum() == 12  # type: ignore[union-attr]
    assert found[1].traffic[:, 0].sum() == 3, "those of the last bucket"  # type: ignore[union-attr]
    assert found[2].traffic[:, 0].sum() == 0  # type: ignore[union-attr]


def test_threads_wait_for_the_one_that_makes_the_statement() -> None:
    statements, made = PreparedStatements(), list[int]()
    together = threading.Barrier(8, timeout=20)

    def make() -> PreparedStatement:
        made.append(1)
        return PreparedStatement("", {}, {}, None)

    def ask() -> None:
        together.wait()
        assert statements.of("kind", make) is statements.of("kind", make)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


@pytest.mark.parametrize("column_is", ["bigint", "integer"])
def test_seconds_may_outgrow_32_bits_after_the_first_read(postgres_url: str, column_is: str) -> None:
    """32 bits end in 2038, and the statement was made for earlier reads."""
    with sa.create_engine(postgres_url).begin() as writing:
        writing.exec_driver_sql(
            f"CREATE TABLE rankings (request text, item int, position int, at {column_is}, query text, device text)"
        )
        writing.exec_driver_sql("CREATE TABLE events (request text, item int, type text, value int, at bigint)")
    made = summing(FORMATS["seconds"], postgresql.psycopg.dialect()).monitor
    source = PushDown(made, Database("s", parse_url(postgres_url), 60), is_bound=True)
    last = 2**31 // BUCKET * BUCKET
    for since in (last - 5 * BUCKET, last - BUCKET, last + BUCKET):
        assert source.read(since, since + 4 * BUCKET).summed == 0  # type: ignore[union-attr]
