"""SQL for databases that no test can run, translated by sqlglot and run on DuckDB, against DuckDB's own pull.

This shows that the sums are right, as far as sqlglot knows the dialect, but not that the engine accepts the SQL.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import sqlglot
from sqlalchemy.sql.visitors import replacement_traverse

from monitor.database_url import parse_url
from monitor.series.partials import to_partials
from monitor.series.readings import Aggregates
from monitor.source.engine import Database, Reader
from monitor.source.prepared import Ready
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.source.queries import Queries
from monitor.source.summing import Summing
from monitor.types import Monitor, Slice
from tests.source.test_dialects import DIALECTS, compiler_of
from tests.source.test_pushdown import Mild, measures, recipe_of
from tests.source.test_source import assert_same
from tests.support.engines import duckdb_over_parquet
from tests.support.examples import times
from tests.support.logs import END, START, Dirt, Soiled, monitor

TIMES = {  # with a zone, and without
    "mysql": ("TIMESTAMP", "DATETIME"),
    "trino": ("TIMESTAMP(6) WITH TIME ZONE", "TIMESTAMP(6)"),
    "bigquery": ("TIMESTAMP", "DATETIME"),
    "snowflake": ("TIMESTAMP_TZ", "TIMESTAMP_NTZ"),
    "redshift": ("TIMESTAMPTZ", "TIMESTAMP"),
    "mssql": ("DATETIMEOFFSET", "DATETIME2"),
    "oracle": ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP"),
}

UNKNOWN = {
    "oracle": {
        r"NUMTODSINTERVAL\((-?\d+), 'SECOND'\)": r"INTERVAL '\1' SECOND",
        r'(\w\."\w+") IS NOT INFINITE': r"NOT ISINF(\1)",
        r'(\w\."\w+") IS NOT NAN': r"NOT ISNAN(\1)",
    }
}
"""What sqlglot does not translate: dialect -> pattern -> how DuckDB writes it."""


class Translator:
    """Reads from DuckDB with statements in another dialect."""

    def __init__(self, reader: Reader, name: str, dialect: sa.Dialect) -> None:
        self._reader = reader
        self._name = name
        self.dialect = dialect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def _value(self, value: Any) -> str:
        if isinstance(value, datetime):
            return f"CAST('{value.isoformat(' ')}' AS {TIMES[self._name][value.tzinfo is None]})"
        return repr(value) if isinstance(value, int | float) else "'" + str(value).replace("'", "''") + "'"

    def _text(self, query: Any) -> str:
        def in_place(element: Any, **_: Any) -> Any:
            is_value = isinstance(element, sa.BindParameter)
            return sa.literal_column(self._value(element.value)) if is_value else None

        filled: Any = replacement_traverse(query, {}, in_place)
        text = str(filled.compile(dialect=self.dialect, compile_kwargs={"render_postcompile": True}))
        text = text.replace("%%", "%") if self.dialect.paramstyle in ("format", "pyformat") else text
        for way, in_duckdb in UNKNOWN.get(self._name, {}).items():
            text = re.sub(way, in_duckdb, text)
        (found,) = sqlglot.transpile(text, read=DIALECTS[self._name].grammar, write="duckdb")
        return found

    def columns(self, query: Any, most: int | None = None) -> list[list[Any]]:
        return self._reader.columns(sa.text(self._text(query).replace(":", r"\:")), most)

    def one(self, query: Any) -> Any:
        return self._reader.one(sa.text(self._text(query).replace(":", r"\:")))

    def rows_of(self, query: Any, most: int) -> list[dict[str, Any]]:
        return self._reader.rows_of(Ready(self._text(query), ()), most)


class ForeignPull(Pull):
    """Pulls from DuckDB in another dialect."""

    name: str

    @contextmanager
    def reading(self, to_sum: bool = False, is_checked: bool = True) -> Iterator[tuple[Any, Queries]]:
        dialect = compiler_of(self.name)
        with super().reading(False, is_checked) as (reader, queries):
            found = replace(queries, dialect=dialect)
            yield Translator(reader, self.name, dialect), found


class Foreign(PushDown):
    """Pushes down to DuckDB in another dialect."""

    def __init__(self, made: Monitor, database: Database, name: str) -> None:
        super().__init__(made, database, is_bound=True)
        self.pull: ForeignPull = ForeignPull(made, database)
        self.pull.name = name

    def _prepared(self, reader: Any, queries: Queries) -> Summing:
        return Summing(queries)


@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "mysql"])
@pytest.mark.parametrize("kind", ["events", "column"])
def test_every_dialect_gives_the_same_sums_on_any_log(name: str, kind: str, tmp_path: Path) -> None:
    engine = duckdb_over_parquet(tmp_path)
    database, summed = Database("s", parse_url(engine.url), 60), 0
    for seed in range(times(4)):
        chance = random.Random(f"{kind} {seed}")
        style = engine.styles[chance.choice(list(engine.styles))]
        first, maker = chance.choice((0, 1)), chance.choice((Mild, Mild, Soiled))
        position = chance.choice(("whole", "number", "decimal"))
        grade = chance.choice(("number", "decimal", *(["truth"] if kind != "events" else [])))
        engine.write(maker(seed, first, Dirt(), boolean=grade == "truth").make(), style, position, grade)
        slices = Slice("device", "device"), Slice("land", "grade" if grade == "truth" else "country")
        made = monitor(recipe_of(kind, style, chance), style, measures(chance), first, slices=slices)
        what = f"{name}, {kind} {seed}: {style}, {position}, {grade}, {made.measures}"
        foreign = Foreign(made, database, name)
        answers = Pull(made, database).read(START, END), foreign.read(START, END), foreign.pull.read(START, END)
        kernels = dict.fromkeys(m.kernel for m in made.measures)
        own, pushed, pulled = (to_partials(a, made.bucket, kernels, made.slices, {}) for a in answers)
        assert_same(pushed, own, what)
        assert_same(pulled, own, what)
        summed += isinstance(answers[1], Aggregates) and END - START - sum(r.until - r.since for r in answers[1].read)
        database.close()  # otherwise its file could not be rewritten
    assert summed > 0
