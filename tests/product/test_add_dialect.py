"""A database is added by one object: registering it is enough for every part to find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.exc import DatabaseError, NoSuchModuleError

from monitor.config import load
from monitor.database_url import parse_url
from monitor.errors import SourceError
from monitor.source import dialects
from monitor.source.choice import choose, explain_choice
from monitor.source.dialects import dialect_of, driver_help, register
from monitor.source.dialects.base import Dialect
from monitor.source.dialects.faults import Fault
from monitor.source.dialects.subquery import Quoting
from monitor.source.engine import Database
from monitor.source.queries import Queries
from monitor.source.summing import Summing
from tests.support.logs import BUCKET, START, Style, events, monitor

CONFIG = """\
store: {url: sqlite:///rankmon.db}
sources:
  toys: {url: "toydb://u@host/d"}
monitors:
  - name: search
    source: toys
    rankings:
      select: SELECT `request`, item#, position, at FROM log --all
      request: request
      item: item
      position: position
      time: at
    relevance:
      column: {grade: label}
    measures: [ndcg@10]
"""
STYLE = Style("", "epoch_ms", None, lambda micros: micros)


class Toy(Dialect):
    """A database with `#` in names, its own cast to doubles, and an error of its own."""

    names = ("toydb",)
    package = "toydb-sqlalchemy"
    schemes = {"toydb": "toydb"}
    mistaken_for = {"toy": "toydb"}
    is_proven = is_in_process = True
    quoting = Quoting(ticks=True, hashes=True, dashes=True)
    faults = (Fault("connect", ("T-800",), ("toys are asleep",), "wake them: run `toyctl wake`"),)

    def double(self, value: Any) -> Any:
        return sa.func.toy_double(value, type_=sa.Double)


class ToyCompiler(SQLiteDialect_pysqlite):
    """What a SQLAlchemy dialect package would provide."""

    name = "toydb"
    supports_statement_cache = False


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Dialect:
    monkeypatch.setattr(dialects, "_BY_NAME", dict(dialects._BY_NAME))
    monkeypatch.setitem(registry.impls, "toydb", lambda: ToyCompiler)
    return register(Toy())


def test_a_new_dialect_is_accepted_as_a_source_with_its_own_quoting(toy: Dialect, tmp_path: Path) -> None:
    path = tmp_path / "rankmon.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    assert load(path, {}).source("toys").url.get_backend_name() == "toydb"


def test_a_missing_driver_is_reported_with_the_dialects_package(toy: Dialect) -> None:
    assert driver_help(parse_url("toydb://h/d"), NoSuchModuleError("toydb")) == (
        "the driver toydb is not installed; pip install toydb-sqlalchemy"
    )
    assert "let the URL begin with toydb://" in driver_help(parse_url("toy://h/d"), NoSuchModuleError("toy"))
    assert "toydb" in driver_help(parse_url("mongodb://h/d"), NoSuchModuleError("mongodb"))
    assert "did you mean toydb://" in driver_help(parse_url("toybd://h/d"), NoSuchModuleError("toybd"))


def test_a_new_dialects_errors_are_reported_with_their_remedy(toy: Dialect) -> None:
    database = Database("toys", parse_url("toydb://"), 60)
    with pytest.raises(SourceError, match="run `toyctl wake`") as caught, database.reading():
        raise DatabaseError("SELECT 1", {}, Exception("T-800: all toys are asleep"))
    assert caught.value.reason == "connect"


def test_a_new_dialect_is_pushed_down_in_its_own_sql(toy: Dialect) -> None:
    made = monitor(events(STYLE), STYLE, ("ndcg@3", "recall@3"))
    assert choose(made, "toydb").way == "pushdown"
    queries = Queries(made, ToyCompiler())
    assert queries.sql is toy is dialect_of("toydb")
    assert "toy_double(" in str(Summing(queries).cells(START, START + BUCKET).compile(dialect=ToyCompiler()))
    assert choose(made, "unheard_of").way == "pull"


def test_the_choice_of_engine_is_explained_for_a_new_dialect(toy: Dialect, tmp_path: Path) -> None:
    path = tmp_path / "toys.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE rankings (request, item, position, at, query, device, country)")
        connection.exec_driver_sql("CREATE TABLE events (request, item, at, type, value)")
    engine.dispose()
    database = Database("s", parse_url(f"toydb:///{path}"), 60)
    choice, statements = explain_choice(monitor(events(STYLE), STYLE), database, START, START + BUCKET)
    assert choice.way == "pushdown"
    assert "toy_double(" in statements[0]
    database.close()
