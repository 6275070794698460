"""Logs on Spark: small ones full of dirt, and large ones that Spark makes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyhive.hive import HiveParamEscaper

from tests.support.engines import EPOCHS, Kind, _tables, _written
from tests.support.large import HOUR, LENGTH, START
from tests.support.logs import _WRITTEN, Log, Style, local
from tests.support.spark import SparkServer

TYPES = {"text": "STRING", "whole": "BIGINT", "number": "DOUBLE", "decimal": "DECIMAL(9, 3)", "truth": "BOOLEAN"}
STYLES = EPOCHS | {
    "epoch s": Style("DOUBLE", "epoch_s", None, lambda micros: micros / 1_000_000),
    "timestamp": Style("TIMESTAMP", "native", "UTC", local("UTC")),
    "timestamp_ntz": Style("TIMESTAMP_NTZ", "native", "UTC", local("UTC")),
    "timestamp_ntz local": Style("TIMESTAMP_NTZ", "native", "Europe/Berlin", local("Europe/Berlin")),
}
"""The ways of writing a time with which Spark can reckon."""

TEXTS = {name: style._replace(sql="STRING") for name, style in _WRITTEN.items() if style.form.startswith("%")}
"""Those that only the pull reads."""

_ESCAPER = HiveParamEscaper()


@dataclass(frozen=True)
class OnSpark(Kind):
    """A database on a Spark server."""

    server: SparkServer | None = None

    def write(self, log: Log, style: Style, position: str, grade: str) -> None:
        """Fill the three tables, made anew. `position` and `grade` are keys of `types`."""
        special = {"position": position, "grade": grade, "value": "number", "item": "whole"}
        statements = []
        for name, columns, rows in _tables(log):
            kinds = [style.sql if c == "at" else self.types[special.get(c, "text")] for c in columns]
            values = [[_written(row[c], c, style) for c in columns] for row in rows]
            statements += [f"DROP TABLE IF EXISTS {name}", table_of(name, columns, kinds, values)]
        assert self.server is not None
        self.server.execute(*statements, database=self.url.rpartition("/")[2])


def table_of(name: str, columns: Sequence[str], kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A statement that makes a table of these rows."""
    quoted = [f"`{c.replace('`', '``')}`" for c in columns]
    values = [f"({', '.join(str(_ESCAPER.escape_item(value)) for value in row)})" for row in rows]
    # Without rows it is one of NULLs, and then left out.
    given = ", ".join(values or [f"({', '.join(['NULL'] * len(columns))})"])
    cast = ", ".join(f"CAST({c} AS {kind}) AS {c}" for c, kind in zip(quoted, kinds, strict=True))
    where = "" if rows else " WHERE FALSE"
    return f"CREATE TABLE {name} USING parquet AS SELECT {cast} FROM VALUES {given} AS v({', '.join(quoted)}){where}"


def on_spark(server: SparkServer) -> OnSpark:
    """A new database."""
    url = server.create_database()
    return OnSpark(url, url, TYPES, STYLES, server=server)


# ---- large ones ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Large:
    """Rankings of `requests` lists over [since, until) seconds, with a click on every tenth item."""

    url: str
    requests: int
    since: int
    until: int

    @property
    def rows(self) -> int:
        """Items shown."""
        return self.requests * LENGTH


def write_large(server: SparkServer, requests: int, hours: int, as_text: bool = False) -> Large:
    """A log that Spark makes by itself, in tables of its own; one click in a hundred comes too late to count.

    Args:
        as_text: requests and items are named by text.
    """
    url = server.create_database()
    name = "concat('{}-', lpad(CAST({} AS STRING), 24, '0'))" if as_text else "{1}"
    span = hours * HOUR
    # Every list starts somewhere in a catalogue and takes its items at the same distance, so that none comes twice.
    lists = f"""SELECT id AS n, pmod(xxhash64(id, 1), {span}) AS second, pmod(xxhash64(id, 2), 999983) AS first,
        1 + pmod(xxhash64(id, 3), 49999) AS step, pmod(xxhash64(id, 4), 100) AS kind FROM range({requests})"""
    items = f"SELECT *, explode(sequence(1, {LENGTH})) AS place FROM ({lists})"
    device = "CASE WHEN kind < 60 THEN 'mobile' WHEN kind < 95 THEN 'desktop' ELSE 'tablet' END"
    request, item = name.format("request", "n"), name.format("item", "pmod(first + step * place, 999983)")
    rankings = f"""SELECT {request} AS request_id, {item} AS item_id, place AS position,
        timestamp_seconds({START} + second) AS served_at, {device} AS device FROM ({items})"""
    late = "CASE WHEN pmod(xxhash64(n, place, 6), 100) = 0 THEN 1800 ELSE 0 END"
    events = f"""SELECT {request} AS request_id, {item} AS item_id, 'click' AS type, timestamp_seconds({START} + second
        + 1 + pmod(xxhash64(n, place, 5), 600) + {late}) AS occurred_at FROM ({items})
        WHERE pmod(xxhash64(n, place, 7), 10) = 0"""
    made = [f"CREATE TABLE {t} USING parquet AS {s}" for t, s in (("rankings", rankings), ("events", events))]
    server.execute(*made, database=url.rpartition("/")[2])
    return Large(url, requests, START, START + span)
