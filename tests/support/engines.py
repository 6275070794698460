"""Logs in the databases that rankmon reads beside SQLite and PostgreSQL, each real, and what each can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.support.logs import EVENTS, JUDGMENTS, RANKINGS, Log, Row, Style, local, moment

EPOCHS = {
    "epoch ms": Style("BIGINT", "epoch_ms", None, lambda micros: micros // 1000),
    "epoch us": Style("BIGINT", "epoch_us", None, lambda micros: micros),
}


@dataclass(frozen=True)
class Kind:
    """A database system.

    Attributes:
        url: how rankmon reaches it.
        writer: how tests write to it.
        types: of columns that hold text, whole and other numbers and truth values.
        styles: the ways of writing a time that it has.
        ending: of CREATE TABLE.
    """

    url: str
    writer: str
    types: dict[str, str]
    styles: dict[str, Style]
    ending: str = ""
    parquet: Path | None = None

    def write(self, log: Log, style: Style, position: str, grade: str) -> None:
        """Fill the three tables, made anew. `position` and `grade` are keys of `types`."""
        special = {"position": position, "grade": grade, "value": "number", "item": "whole"}
        engine = sa.create_engine(self.writer)
        quote = engine.dialect.identifier_preparer.quote_identifier
        with engine.begin() as connection:
            for name, columns, rows in _tables(log):
                kinds = [style.sql if c == "at" else self.types[special.get(c, "text")] for c in columns]
                made = ", ".join(f"{quote(c)} {kind}" for c, kind in zip(columns, kinds, strict=True))
                if self.parquet is not None:
                    connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}_")
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}") if self.parquet is None else None
                table = name if self.parquet is None else f"{name}_"
                connection.exec_driver_sql(f"CREATE TABLE {table} ({made}) {self.ending}")
                written = [{c: _written(row[c], c, style) for c in columns} for row in rows]
                if written:
                    connection.execute(
                        sa.table(table, *(sa.column(sa.quoted_name(c, True)) for c in columns)).insert(), written
                    )
                if self.parquet is not None:
                    path = self.parquet / f"{name}.parquet"
                    connection.exec_driver_sql(f"COPY {table} TO '{path}' (FORMAT parquet)")
                    connection.exec_driver_sql(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
        engine.dispose()


def _tables(log: Log) -> Sequence[tuple[str, Sequence[str], Sequence[Row]]]:
    return (
        ("rankings", RANKINGS, log.rankings),
        ("events", EVENTS, log.events),
        ("judgments", JUDGMENTS, log.judgments),
    )


def _written(value: Any, column: str, style: Style) -> Any:
    return style.write(value) if column == "at" and isinstance(value, int) else value


def duckdb_over_parquet(folder: Path) -> Kind:
    """DuckDB with views on Parquet files."""
    url = f"duckdb:///{folder / 'log.duckdb'}"
    types = {"text": "VARCHAR", "whole": "BIGINT", "number": "DOUBLE", "decimal": "DECIMAL(9, 3)", "truth": "BOOLEAN"}
    styles = EPOCHS | {
        "epoch s": Style("DOUBLE", "epoch_s", None, lambda micros: micros / 1_000_000),
        "timestamptz": Style("TIMESTAMPTZ", "native", None, moment),
        "timestamp UTC": Style("TIMESTAMP", "native", "UTC", local("UTC")),
    }
    return Kind(url, url, types, styles, parquet=folder)


def mariadb(url: str) -> Kind:
    """MariaDB; texts tell lower from upper case, as ids must."""
    text = "VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    types = {"text": text, "whole": "BIGINT", "number": "DOUBLE", "decimal": "DECIMAL(9, 3)", "truth": "BOOLEAN"}
    styles = EPOCHS | {"datetime UTC": Style("DATETIME(6)", "native", "UTC", local("UTC"))}
    return Kind(url, url, types, styles)


def clickhouse(folder: Path) -> Kind:
    """ClickHouse's engine inside of this process, with its tables in that folder."""
    url = f"clickhousedb://default@localhost/default?interface=chdb&path={folder}"
    types = {"text": "Nullable(String)", "whole": "Nullable(Int64)", "number": "Nullable(Float64)"}
    types |= {"decimal": "Nullable(Decimal(9, 3))", "truth": "Nullable(Bool)"}
    epochs = {name: style._replace(sql="Nullable(Int64)") for name, style in EPOCHS.items()}
    styles = epochs | {"datetime UTC": Style("Nullable(DateTime64(6, 'UTC'))", "native", None, moment)}
    return Kind(url, url, types, styles, "ENGINE = MergeTree ORDER BY tuple()")
