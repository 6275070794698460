"""Clean logs of any size in indexed and analysed tables, for the plans that databases have for these alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from monitor.types import Monitor, Recipe
from tests.support.dense import Dense
from tests.support.engines import _tables
from tests.support.logs import ATTRIBUTION, START, Log, Row, Style, column, events, judgments, local, moment, monitor

HOUR, HOURS = 3600, 10
WHOLE = (START, START + HOURS * HOUR)
SHARES = (WHOLE, *((START + first * HOUR, START + (first + hours) * HOUR) for first, hours in ((0, 5), (2, 2), (4, 1))))
"""Of the log, in seconds: all, a half, a fifth and a tenth, which a database may go about each in another way."""

LENGTH = 10
"""Items in each list."""

MEASURES = ("ndcg@5", "mrr")
RECIPES: dict[str, Callable[[Style], Recipe]] = {
    "events": events,
    "events alone": lambda style: events(style, count_unmatched=False),
    "column": lambda _: column(),
    "judgments": lambda _: judgments(),
}
LARGEST = 2**64 - 10**9
"""Of numbers without a sign, those from here on cannot be told from each other by a float."""


@cache
def sized(rows: int) -> Log:
    """A log of so many rows of rankings, all of them plain, with a few events that are late or on nothing."""
    chance, log = random.Random(rows), Log()
    requests, catalogue = rows // LENGTH, range(1, 5 * LENGTH)
    for number in range(requests):
        at = START + number * HOURS * HOUR // requests
        shown = chance.sample(catalogue, LENGTH)
        where = {"query": chance.choice("abcdefgh"), "device": chance.choice(("tv", "pc")), "country": "x"}
        grades = [chance.choice((None, 0, 0, 1, 2)) for _ in shown]
        log.show(number + 1, shown, at, grade=grades, **where)
        for item in shown:
            kind = chance.choice(("click", "click", "purchase", "dwell", "view"))
            if chance.random() < 0.15:
                after = chance.choice((1, 20, 300, ATTRIBUTION - 1, ATTRIBUTION + 5))
                log.happen(number + 1, item, at + after, kind, chance.choice((None, 10, 45)))
        if chance.random() < 0.02:
            log.happen(number + 1, 10**6, at + 7)
    for query in "abcdefgh":
        for item in catalogue[::3]:
            log.judge(query, item, chance.choice((0, 1, 2, 3)))
    return log


@cache
def expected(rows: int, kind: str) -> Dense:
    """What the log amounts to, by loops over its rows; the same whatever its ids and times are written as."""
    return Dense(sized(rows), monitored(kind, _MICROS), _MICROS, *WHOLE)


def monitored(kind: str, style: Style) -> Monitor:
    """A monitor of the log by one recipe."""
    return monitor(RECIPES[kind](style), style, MEASURES, bucket=HOUR)


def within(dense: Dense, since: int, until: int) -> Any:
    """The partials of the buckets in [since, until) seconds."""
    return SimpleNamespace(
        traffic={c: t for c, t in dense.traffic.items() if since <= c[0] < until},
        refused={key: n for key, n in dense.refused.items() if since <= key[0][0] < until},
        measures={k: {c: t for c, t in cells.items() if since <= c[0] < until} for k, cells in dense.measures.items()},
    )


# ---- tables ------------------------------------------------------------------------------------------------------

IDS: dict[str, Callable[[int], Any]] = {
    "text": lambda number: f"r{number}",
    "whole": lambda number: number,
    "unsigned": lambda number: LARGEST + number,
}


@dataclass(frozen=True)
class Engine:
    """A database system.

    Attributes:
        types: of ids by the keys of `IDS`, of other texts and of floats.
        style: how it has times.
        load: fills a table from a file of tab-separated values.
        ending: of CREATE TABLE.
        after: statements once all is there.
    """

    url: str
    types: dict[str, str]
    style: Style
    load: Callable[[sa.Connection, str, Path], object]
    ending: str = ""
    after: Sequence[str] = ()
    has_indexes: bool = True

    def write(self, rows: int, ids: str, folder: Path) -> None:
        """Fill the three tables, made anew, with an index on each time and on the request id of the rankings."""
        of = {"request": ids, "item": ids, "position": "whole", "grade": "float", "value": "float"}
        engine = sa.create_engine(self.url)
        quoted = engine.dialect.identifier_preparer.quote_identifier
        with engine.begin() as connection:
            for name, columns, written in _tables(sized(rows)):
                path = folder / f"{name}.tsv"
                path.write_text("".join(_line(row, columns, IDS[ids], self.style) for row in written))
                types = [self.style.sql if c == "at" else self.types[of.get(c, "label")] for c in columns]
                made = ", ".join(f"{quoted(c)} {kind}" for c, kind in zip(columns, types, strict=True))
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
                ending = self.ending.format("at" if "at" in columns else "tuple()")
                connection.exec_driver_sql(f"CREATE TABLE {name} ({made}) {ending}")
                self.load(connection, name, path)
                indexed = {"rankings": ("at", "request"), "events": ("at",)}.get(name, ()) if self.has_indexes else ()
                for column in indexed:
                    connection.exec_driver_sql(f"CREATE INDEX {name}_{column} ON {name} ({quoted(column)})")
            for statement in self.after:
                connection.exec_driver_sql(statement)
        engine.dispose()


def _line(row: Row, columns: Sequence[str], named: Callable[[int], Any], style: Style) -> str:
    def written(column: str) -> str:
        value = row[column]
        if value is None:
            return "\\N"
        if column in ("request", "item"):
            return str(named(value))
        return str(style.write(value) if column == "at" else value)

    return "\t".join(map(written, columns)) + "\n"


_MICROS = Style("BIGINT", "epoch_us", None, lambda micros: micros)


def sqlite(folder: Path) -> Engine:
    """SQLite."""

    def load(connection: sa.Connection, name: str, path: Path) -> None:
        lines = (line.rstrip("\n").split("\t") for line in path.open())
        rows = [[None if value == "\\N" else value for value in line] for line in lines]
        connection.exec_driver_sql(
            f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", list(map(tuple, rows))
        )

    types = {"text": "TEXT", "whole": "INTEGER", "label": "TEXT", "float": "REAL"}
    return Engine(f"sqlite:///{folder}/log.db", types, _MICROS, load, after=("ANALYZE",))


def postgresql(url: str) -> Engine:
    """PostgreSQL."""

    def load(connection: sa.Connection, name: str, path: Path) -> None:
        driver: Any = connection.connection.driver_connection
        with driver.cursor().copy(f"COPY {name} FROM STDIN") as copy:
            copy.write(path.read_bytes())

    types = {"text": "text", "whole": "bigint", "label": "text", "float": "double precision"}
    return Engine(url, types, Style("timestamptz", "native", None, moment), load, after=("ANALYZE",))


def mariadb(url: str) -> Engine:
    """MariaDB, by a user who may send it files."""

    def load(connection: sa.Connection, name: str, path: Path) -> None:
        connection.exec_driver_sql(f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {name}")

    text = "VARCHAR(60) COLLATE utf8mb4_bin"
    types = {"text": text, "whole": "BIGINT", "unsigned": "BIGINT UNSIGNED", "label": text, "float": "DOUBLE"}
    style = Style("DATETIME(6)", "native", "UTC", local("UTC"))
    return Engine(f"{url}?local_infile=1", types, style, load, after=("ANALYZE TABLE rankings, events, judgments",))


def duckdb(folder: Path) -> Engine:
    """DuckDB with tables of its own."""

    def load(connection: sa.Connection, name: str, path: Path) -> None:
        connection.exec_driver_sql(f"COPY {name} FROM '{path}' (DELIMITER '\t', HEADER false, NULLSTR '\\N')")

    types = {"text": "VARCHAR", "whole": "BIGINT", "unsigned": "UBIGINT", "label": "VARCHAR", "float": "DOUBLE"}
    style = Style("TIMESTAMP", "native", "UTC", local("UTC"))
    return Engine(f"duckdb:///{folder}/log.duckdb", types, style, load, after=("ANALYZE",))


def clickhouse(folder: Path) -> Engine:
    """ClickHouse's engine inside of this process; its index is the order of its tables."""

    def load(connection: sa.Connection, name: str, path: Path) -> None:
        connection.exec_driver_sql(f"INSERT INTO {name} SELECT * FROM file('{path}', 'TSV')")

    types = {"text": "Nullable(String)", "whole": "Nullable(Int64)", "unsigned": "Nullable(UInt64)"}
    types |= {"label": "Nullable(String)", "float": "Nullable(Float64)"}
    style = Style("DateTime64(6, 'UTC')", "native", None, moment)
    url = f"clickhousedb://default@localhost/default?interface=chdb&path={folder}"
    return Engine(url, types, style, load, "ENGINE = MergeTree ORDER BY {}", has_indexes=False)


def spark(url: str) -> Engine:
    """Spark, without indexes; statistics of all columns say which tables are sent whole to each executor."""

    def load(connection: sa.Connection, name: str, path: Path) -> None:
        columns = ", ".join(
            f"`{column}` {kind}" for column, kind, *_ in connection.exec_driver_sql(f"DESCRIBE {name}") if column
        )
        options = f"path '{path}', sep '\\t', nullValue '\\\\N', header 'false'"
        connection.exec_driver_sql(f"CREATE OR REPLACE TEMPORARY VIEW loaded ({columns}) USING csv OPTIONS ({options})")
        connection.exec_driver_sql(f"INSERT INTO {name} SELECT * FROM loaded")

    types = {"text": "STRING", "whole": "BIGINT", "label": "STRING", "float": "DOUBLE"}
    style = Style("TIMESTAMP", "native", "UTC", local("UTC"))
    after = [f"ANALYZE TABLE {name} COMPUTE STATISTICS FOR ALL COLUMNS" for name in ("rankings", "events", "judgments")]
    return Engine(url, types, style, load, "USING parquet", after, has_indexes=False)
