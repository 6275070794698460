"""SQL for databases that no test can run: compiled by their real dialects, recorded for review, and parsed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import sqlalchemy as sa
import sqlglot
from sqlalchemy.dialects import registry
from sqlalchemy.engine.default import DefaultDialect

from monitor.errors import SourceError
from monitor.source.choice import in_full
from monitor.source.dialects import dialect_of, known_dialects
from monitor.source.dialects.base import Dialect
from monitor.source.engine import ColumnTypes, Reader
from monitor.source.pull import _check_zones
from monitor.source.queries import Queries
from monitor.source.summing import Summing
from monitor.types import EventRule, Monitor, Slice
from tests.support.logs import BUCKET, END, START, Style, column, events, judgments, monitor

GOLDEN = Path(__file__).parents[1] / "golden" / "sql"
NATIVE = Style("", "native", None, lambda micros: micros)
NAIVE = NATIVE._replace(zone="UTC")
EPOCH = Style("", "epoch_ms", None, lambda micros: micros)
MEASURES = ("ndcg@3", "mrr", "precision@2")
RULES = (EventRule(1, "click"), EventRule(2, "dwell", 30))


class Compiled(NamedTuple):
    """A dialect that is compiled but not run.

    Attributes:
        name: of the dialect and its driver in SQLAlchemy.
        style: the driver's parameter style.
        grammar: the dialect's name in sqlglot.
    """

    name: str
    style: Any
    grammar: str


DIALECTS = {
    "mysql": Compiled("mysql.pymysql", "pyformat", "mysql"),
    "trino": Compiled("trino", "qmark", "trino"),
    "bigquery": Compiled("bigquery", "pyformat", "bigquery"),
    "snowflake": Compiled("snowflake", "pyformat", "snowflake"),
    "redshift": Compiled("redshift.redshift_connector", "format", "redshift"),
    "mssql": Compiled("mssql.pyodbc", "qmark", "tsql"),
    "oracle": Compiled("oracle.oracledb", "named", "oracle"),
}


def compiler_of(name: str) -> sa.Dialect:
    """SQLAlchemy's dialect as its driver sets it up."""
    compiled = DIALECTS[name]
    made: sa.Dialect = registry.load(compiled.name)(paramstyle=compiled.style)
    return made


def made(recipe: Any, style: Style) -> Monitor:
    """A monitor with one slice."""
    return monitor(recipe, style, MEASURES, slices=(Slice("device", "device"),))


def statements(dialect: sa.Dialect) -> Iterator[tuple[str, sa.Select[Any] | sa.CompoundSelect[Any]]]:
    """(what it is, statement): everything that is sent in one cycle, by events and by a column."""
    recipe = events(NATIVE, rules=RULES)
    queries = Queries(made(recipe, NATIVE), dialect)
    summing = Summing(queries)
    yield "push-down, by events", summing.cells(START, START + 3 * BUCKET)
    unmatched = summing.unmatched(recipe, START, START + BUCKET)
    assert unmatched is not None
    yield "push-down, events on nothing", unmatched
    yield "push-down, rows without a request", summing.nameless(START, END)
    yield "the newest request", queries.newest(START, END)
    yield "the newest event", queries.newest_event(recipe, START, END)
    yield "rows from the future", queries.future(END)
    yield "a sample of times", queries.sample(queries.times[0])
    yield "pull, requests", queries.requests(START, END)
    yield "pull, events", queries.event_rows(recipe, START, END, (START - BUCKET, END))
    for name, style in (("times without a zone", NAIVE), ("times as numbers", EPOCH)):
        counted = Queries(made(column(max_grade=3), style), dialect)
        yield f"push-down, by a column, {name}", Summing(counted).cells(START, START + 3 * BUCKET)
        yield f"pull, by a column, {name}", counted.graded_rows(START, END, sparse=True)
        if (rows := counted.bucket_counts(START, END)) is not None:
            yield f"rows of each bucket, {name}", rows


def sent(statement: sa.Select[Any] | sa.CompoundSelect[Any], dialect: sa.Dialect) -> str:
    """The text that the driver is given."""
    return str(statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True}))


def parsed(text: str, name: str) -> sqlglot.Expression:
    """sqlglot's tree of a text, with its parameters replaced by marks that every grammar has."""
    marked = re.sub(r"%\(\w+(:\w+)?\)s|%s|:\w+", "?", text).replace("%%", "%")
    (tree,) = sqlglot.parse(marked, read=DIALECTS[name].grammar, error_level=sqlglot.ErrorLevel.RAISE)
    assert tree is not None
    return tree


@pytest.mark.parametrize("name", DIALECTS)
def test_the_sql_equals_the_reviewed_record(name: str) -> None:
    """RANKMON_GOLDEN=write in the environment writes the record anew, for review."""
    dialect = compiler_of(name)
    found = "".join(f"-- {what}\n{sent(s, dialect)};\n\n" for what, s in statements(dialect))
    path = GOLDEN / f"{name}.sql"
    if os.environ.get("RANKMON_GOLDEN") == "write":
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("dialect", known_dialects(), ids=lambda one: str(one.names[0]))
def test_rows_are_grouped_by_the_same_expression_that_is_selected(dialect: Dialect) -> None:
    """To a server, two parameters with one value are different expressions."""
    engine = SimpleNamespace(name=dialect.names[0], identifier_preparer=DefaultDialect().identifier_preparer)
    queries = Queries(made(column(max_grade=3), EPOCH), cast(sa.Dialect, engine))
    text = str(queries.requests(START, END).compile())
    (kind,) = re.findall(r"(CASE WHEN .* END) AS rankmon_kind", text)
    assert ":" not in kind
    assert f", {'rankmon_kind' if dialect.groups_by_name else kind}, " in text.partition("GROUP BY")[2]


@pytest.mark.parametrize("name", DIALECTS)
def test_every_statement_parses_with_doubles_and_without_windows(name: str) -> None:
    dialect = compiler_of(name)
    for what, statement in statements(dialect):
        tree = parsed(sent(statement, dialect), name)
        assert tree.find(sqlglot.exp.Command) is None, what
        assert len(tree.selects) == len(statement.selected_columns), what
        if what.startswith("push-down"):
            assert tree.find(sqlglot.exp.Window) is None, what
        assert {cast.to.this.value for cast in tree.find_all(sqlglot.exp.Cast)} <= {"DOUBLE"}, what


def test_an_invalid_statement_does_not_parse() -> None:
    for name in DIALECTS:
        with pytest.raises(sqlglot.ParseError):
            parsed("SELECT CASE WHEN a THEN 1 FROM t", name)


def test_oracle_avoids_its_decimal_double_precision() -> None:
    text = (GOLDEN / "oracle.sql").read_text(encoding="utf-8")
    assert "DOUBLE PRECISION" not in text
    assert "e+308" not in text, "Oracle's decimal numbers end at 1e126"
    assert '(e."value" IS NOT INFINITE) AND (e."value" IS NOT NAN)' in text


def test_sql_server_sums_in_doubles_instead_of_32_bits() -> None:
    text = (GOLDEN / "mssql.sql").read_text(encoding="utf-8")
    assert "sum(CAST(v.summed AS DOUBLE PRECISION)) AS summed" in text
    assert "CAST(sum(" not in text


def test_bigquery_parameters_say_which_times_have_a_zone() -> None:
    texts = (GOLDEN / "bigquery.sql").read_text(encoding="utf-8").split("\n\n")
    kinds = {text.partition("\n")[0]: set(re.findall(r":(TIMESTAMP|DATETIME)\)s", text)) for text in texts}
    assert kinds["-- pull, requests"] == {"TIMESTAMP"}
    assert kinds["-- pull, by a column, times without a zone"] == {"DATETIME"}
    assert kinds["-- pull, by a column, times as numbers"] == set()


def test_every_unproven_dialect_is_compiled_here() -> None:
    unproven = {dialect.names[0] for dialect in known_dialects() if not dialect.is_proven} - {"databricks"}
    assert unproven <= set(DIALECTS)
    assert {dialect_of(compiler_of(name).name).names[0] for name in DIALECTS} == set(DIALECTS)


@pytest.mark.parametrize("name", DIALECTS)
def test_booleans_are_compared_as_every_engine_can(name: str) -> None:
    dialect = compiler_of(name)
    slices = Slice("device", "device"), Slice("new", "is_new")
    types = ColumnTypes({"grade": "boolean", "is_new": "boolean"}, {"grade": "boolean"})
    graded = Queries(monitor(column(), NATIVE, slices=slices), dialect, types)
    judged = Queries(monitor(judgments(), NATIVE, slices=slices), dialect, types)
    found = [
        Summing(graded).cells(START, END),
        graded.graded_rows(START, END, sparse=True),
        judged.judgment_counts(judged.monitor.recipe, START, END),
    ]
    for statement in found:
        text = sent(statement, dialect)
        assert not re.findall(r"IS (?:true|false|[01])\b|WHEN (?:true|1) ", text), (
            "Trino has had IS TRUE only since 2026"
        )
        assert re.search(r"= (?:true|1)\b", text)


@pytest.mark.parametrize(
    ("name", "code"),
    [("mssql", bool), ("snowflake", 13), ("oracle", SimpleNamespace(name="DB_TYPE_BOOLEAN")), ("redshift", 16)],
)
def test_each_drivers_boolean_type_code_is_known(name: str, code: object) -> None:
    assert dialect_of(name).is_boolean(told(name, code))
    assert not dialect_of(name).is_boolean(told(name, {"mssql": str, "snowflake": 2}.get(name, 1)))


def told(name: str, code: object) -> Any:
    """The type that a reader makes of a driver's type code."""
    answer = SimpleNamespace(cursor=SimpleNamespace(description=[("flag", code)]), close=lambda: None)
    connection: Any = SimpleNamespace(dialect=compiler_of(name), execute=lambda *_, **__: answer)
    watch: Any = SimpleNamespace(step=nullcontext)
    (found,) = Reader(connection, lambda: False, watch).types(sa.select(sa.column("flag")))
    return found


def test_sql_server_separates_slices_equal_under_its_collation() -> None:
    dialect = compiler_of("mssql")
    types = ColumnTypes({"device": told("mssql", str)})
    queries = Queries(made(column(max_grade=3), NATIVE), dialect, types=types)
    queries = replace(queries, lax_texts=dialect_of("mssql").lax_texts(None, ()))
    exactly = "CAST(r.[device] AS VARBINARY(8000))"
    assert sent(queries.requests(START, END), dialect).endswith(f"r.[device], {exactly}")
    text = sent(Summing(queries).cells(START, END), dialect)
    assert f"min({exactly}) AS exact_0, max({exactly}) AS most_slice_0, min(r.[device]) AS slice_0" in text
    assert text.endswith("GROUP BY v.bucket, v.slice_0, v.mixed_0, v.exact_0")


def test_a_zone_that_oracles_driver_drops_is_refused() -> None:
    kind = SimpleNamespace(name="DB_TYPE_TIMESTAMP_TZ")
    types = ColumnTypes({"at": told("oracle", SimpleNamespace(name="DB_TYPE_TIMESTAMP"))}, {"at": told("oracle", kind)})
    queries = Queries(made(events(NAIVE), NAIVE), compiler_of("oracle"), types=types)
    with pytest.raises(SourceError, match=r"take SYS_EXTRACT_UTC\(at\) in a `select:`, and declare timezone: UTC"):
        _check_zones(queries)
    _check_zones(replace(queries, types=replace(types, labels=types.rankings)))


@pytest.mark.parametrize("name", DIALECTS)
def test_nan_is_one_slice_where_nan_is_not_equal_to_itself(name: str) -> None:
    text = (GOLDEN / f"{name}.sql").read_text(encoding="utf-8")
    is_itself = not re.search(r"most_slice_0\S* OR \S*slice_0\S* != \S*slice_0", text)
    assert is_itself == (name not in ("trino", "bigquery"))


def test_explained_sql_writes_times_so_that_they_compare() -> None:
    def explained(name: str, style: Style) -> str:
        dialect = compiler_of(name)
        return in_full(Queries(made(column(), style), dialect).newest(START, END), dialect)

    assert ">= DATETIME '2026-01-01 12:00:00' AND" in explained("bigquery", NAIVE)
    assert ">= TIMESTAMP '2026-01-01 12:00:00+00:00' AND" in explained("bigquery", NATIVE)
    assert ">= '2026-01-01 12:00:00+00:00' AND" in explained("snowflake", NATIVE)
    assert ">= TIMESTAMP '2026-01-01 12:00:00' AND" in explained("snowflake", NAIVE)


def test_ids_to_inspect_are_numbers_where_the_column_needs_them() -> None:
    def spellings(name: str, text: str, code: object) -> list[object]:
        return list(dialect_of(name).spellings(text, code))

    assert spellings("trino", "12", "bigint") == spellings("bigquery", "12", "INTEGER") == [12]
    assert spellings("trino", "12", "varchar") == spellings("snowflake", "12", 0) == ["12"]
    assert spellings("sqlite", "12", None) == ["12", b"12", 12]
    assert spellings("trino", "r12", "bigint") == []


@pytest.mark.parametrize(
    "said",
    [
        "The incoming request has too many parameters. The server supports a maximum of 2100 parameters.",
        "('07002', '[07002] [Microsoft][ODBC Driver 18 for SQL Server]COUNT field incorrect or syntax error (0)')",
    ],
)
def test_too_many_parameters_for_sql_server_is_a_passing_resources_error(said: str) -> None:
    fault = dialect_of("mssql").fault_of(Exception(said))
    assert fault is not None
    assert fault.reason == "resources"
    assert not fault.lasting


def test_sql_server_statements_nest_at_most_ten_cases() -> None:
    dialect, recipe = compiler_of("mssql"), events(NATIVE, attribution=BUCKET)
    deep = monitor(recipe, NATIVE, ("ndcg", "dcg", "rbp", "ndcg(ideal=local)@60", "mrr@7"))
    text = sent(Summing(Queries(deep, dialect)).cells(START, START + 168 * BUCKET), dialect)
    depth = deepest = 0
    for word in re.findall(r"\b(?:CASE|END)\b", text):
        depth += 1 if word == "CASE" else -1
        deepest = max(deepest, depth)
    assert depth == 0
    assert deepest <= 10
