"""PostgreSQL: typed answers in one round trip, settings for each transaction, collations and types of its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import ProgrammingError

from monitor.database_url import postgresql_arguments
from monitor.errors import SourceError
from monitor.source.dialects import base
from monitor.source.dialects.base import Dialect, Expression, Options, written
from monitor.source.dialects.faults import Fault, state_of
from monitor.source.dialects.subquery import Quoting

WORK_MEMORY = 128
"""Megabytes that PostgreSQL may take for each step of a statement that sums up; one request takes about 200 bytes."""

PADDED = 1042
"""Type code of texts whose blanks at the end do not count."""

REAL, DOUBLE, NUMERIC, OID = 700, 701, 1700, 26
_TEXTS = (25, 1043)
_INTEGERS = (20, 21, 23)
_OWN = 16_384
"""From this type code on it is what extensions bring, such as citext."""
_ORDERED = (*_INTEGERS, 25, PADDED, 1043, NUMERIC)
_UNEQUAL = {114, 142, 600, 601, 602, 603, 604, 628, 718}
"""Types that the pull cannot group by: JSON as text, XML and those of geometry."""
_VARIED_ARRAYS = {1231: "numeric[]"}
"""Types of which equal values may be written in different ways, and as texts are not what a driver makes of them."""

_LONGEST_NAME = 63  # bytes of an application's name
_NO_FUNCTION = "42883"
_NO_OPERATOR = "operator does not exist: "
_LEAST = re.compile(r"\bmin\((.+?)\)")
"""In what PostgreSQL says of a type that has no least, in whatever language: the type."""

_LAX_COLLATIONS = sa.select(sa.text("EXISTS (SELECT FROM pg_collation WHERE NOT collisdeterministic)"))

_REPLACED: sa.ColumnElement[bool] = sa.literal_column(
    "EXISTS (SELECT FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation WHERE l.locktype = 'relation' AND "
    "l.pid = pg_backend_pid() AND coalesce(c.relfilenode <> 0 AND c.relfilenode <> pg_relation_filenode(c.oid), "
    "c.oid IS NULL))"
)
"""Whether a table that PostgreSQL holds for a transaction was emptied, rewritten or made after the transaction's view
of the data was taken: of what such a table holds it then sees nothing, though it was never without rows for others."""

_TELLS_REPLACED = sa.select(
    sa.text("EXISTS (SELECT FROM pg_class WHERE relname = 'pg_locks')"),
    sa.text("EXISTS (SELECT FROM pg_proc WHERE proname = 'pg_relation_filenode')"),
)
"""Whether that can be asked: servers that speak as PostgreSQL does lack the one or the other."""

_REFUSED = r' "?(.+?)"?(?= (?:LINE \d+|DETAIL|HINT|CONTEXT):|$)'


class PostgreSQL(Dialect):
    """It hashes where statistics would mislead it, and tells types and replaced tables in one answer."""

    names = ("postgresql",)
    extra = "postgresql"
    schemes = {"postgresql": "postgresql+psycopg"}
    modules = ("psycopg",)
    mistaken_for = {"postgres": "postgresql"}
    has_several_drivers = True
    is_proven = by_hash = keeps_parts = by_one_processor = True
    explains_bounds = True
    clock = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"
    tables_query = (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = coalesce(:schema, current_schema())"
    )
    quoting = Quoting(arrays=True, hashes=True, dashes=True)
    # It would take to its disk early. And it cannot tell how many groups there will be, takes them for few, and would
    # go through all of one side of a join for each row of the other. To compile these long statements each time takes
    # longer than it saves.
    prepares_to_sum = tuple(
        sa.func.set_config(written(f"'{name}'"), written(f"'{value}'"), sa.true())
        for name, value in {
            **{"jit": "off", "work_mem": f"{WORK_MEMORY}MB"},
            **{f"enable_{way}": "off" for way in ("nestloop", "mergejoin", "sort")},
        }.items()
    )
    integers = _INTEGERS
    small_integers = (21, 23)
    whole_numbers = {23: ("integer", 31), 20: ("bigint", 63), NUMERIC: ("numeric", 999)}
    float_numbers = {REAL: ("real", 24), DOUBLE: ("double precision", 53)}
    strict_texts = (*_TEXTS, PADDED)
    collated_texts = (PADDED,)
    arrays = ("1005", "1007", "1009", "1014", "1015", "1016", "1231", "2951")  # of whole numbers, texts, numeric, UUIDs
    time_types = {"1184": (True, True), "1114": (True, False)}
    faults = (
        Fault(
            "timeout",
            (),
            ("due to conflict with recovery",),
            "a replica ends statements that hold up what it replays: raise its max_standby_streaming_delay, or turn on "
            "its hot_standby_feedback; what was cut off is read again",
        ),
        Fault(
            "data",
            (),
            ("(after year 10k)", "(before year 1)"),
            "a date that is read, such as one to slice by, is infinite or of another era: take its text in a "
            "`select:`, as by `updated_on::text`",
        ),
        Fault(
            "data",
            (),
            ("invalid input value for enum",),
            "the configuration names a value that this type does not have: see the types of events, and what "
            "conditions select by; add it to the type (ALTER TYPE ... ADD VALUE), or take it out",
        ),
        Fault(
            "connect",
            (),
            ("no password supplied",),
            "it wants a password: give the source's `password:` or `password_file:`",
        ),
    )
    grants = (
        (re.compile(rf"permission denied for schema{_REFUSED}"), "GRANT USAGE ON SCHEMA {} TO {}"),
        (re.compile(rf"permission denied for database{_REFUSED}"), "GRANT CONNECT ON DATABASE {} TO {}"),
        (re.compile(rf"permission denied for function{_REFUSED}"), "GRANT EXECUTE ON FUNCTION {} TO {}"),
        (
            re.compile(rf"permission denied for (?:(?:foreign )?table|(?:materialized )?view|relation){_REFUSED}"),
            "GRANT SELECT ON {} TO {}",
        ),
    )

    # ---- session -----------------------------------------------------------------------------------------------

    def driver_options(self, url: URL, limit: float) -> Options:
        """As for the store."""
        return postgresql_arguments(url, base.PROGRAM, base.CONNECT_TIMEOUT, base.SILENCE)

    def begin(self, connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
        """Settings go for this transaction only, and all at once, for each statement is a way there and back."""
        connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        settings = {"statement_timeout": str(base.milliseconds(limit)), "TimeZone": "UTC"}
        if who and "application_name" not in url.query:
            settings["application_name"] = f"{base.PROGRAM} {base.plain_name(who)}"[:_LONGEST_NAME]
        connection.execute(sa.select(*(sa.func.set_config(name, value, True) for name, value in settings.items())))
        return connection

    def column_types(self, reader: Any, relations: Sequence[sa.FromClause], to_sum: bool) -> tuple[list[Any], bool]:
        """In one answer, with whether a table was replaced.

        Nobody can change these tables until the transaction ends. If who changed one had to be waited for, it may seem
        to be empty.
        """
        known = reader.info  # of the driver's connection, which is used again and again
        if "rankmon_tells_replaced" not in known:
            known["rankmon_tells_replaced"] = all(reader.described(_TELLS_REPLACED)[1])
        replaced = _REPLACED if known["rankmon_tells_replaced"] else sa.false()
        row: sa.FromClause = sa.select(replaced.label("replaced")).subquery("one")
        empty = [sa.select(*relation.c).where(sa.false()).subquery() for relation in relations]
        columns = [row.c.replaced, *(column for relation in empty for column in relation.c)]
        for relation in empty:
            row = row.outerjoin(relation, sa.true())
        settings = self.prepares_to_sum if to_sum else ()
        codes, found = reader.described(sa.select(*columns, *settings).select_from(row))
        return codes[1 : len(columns)], found[0]

    # ---- errors ------------------------------------------------------------------------------------------------

    def why_not_compared(self, said: str, names: tuple[str, str], columns: tuple[str, str]) -> str:
        """It names the two types."""
        if not said.startswith(_NO_OPERATOR):
            return ""
        one, _, other = said.removeprefix(_NO_OPERATOR).partition(" = ")
        return f"{names[0]} is {one}, {names[1]} is {other}; convert one of them in a `select:`"

    # ---- types -------------------------------------------------------------------------------------------------

    def is_number(self, code: Any) -> bool:
        """It converts nothing by itself."""
        return code in (*_INTEGERS, REAL, DOUBLE, NUMERIC)

    def has_order(self, code: Any) -> bool:
        """Of these types it is known."""
        return code in _ORDERED

    def is_varied(self, code: Any) -> bool:
        """`numeric` has 1.0 and 1.00, and citext has capitals."""
        return bool(code == NUMERIC or code >= _OWN)

    def must_try_to_compare(self, one: Any, other: Any) -> bool:
        """Types that differ may have an operator or none."""
        return bool(one != other)

    def lax_texts(self, reader: Any, codes: Collection[Any]) -> Collection[Any]:
        """All texts, where there are collations that hold unlike ones to be equal."""
        can_have = (getattr(reader.dialect, "server_version_info", None) or (0,)) >= (12,)
        if not can_have or not any(code in _TEXTS for code in codes) or not reader.one(_LAX_COLLATIONS):
            return self.collated_texts
        return *self.collated_texts, *_TEXTS

    def is_enum(self, reader: Any, column: Expression) -> bool:
        """It says so in its catalogue."""
        (code,) = reader.types(sa.select(column))
        return bool(reader.one(sa.text("SELECT typtype = 'e' FROM pg_type WHERE oid = :code").bindparams(code=code)))

    def check_slice(self, reader: Any, column: Expression, name: str, code: Any, is_bound: bool) -> None:
        """Not every type has a least value, and that of some names is another type's."""
        if code in _VARIED_ARRAYS:
            told = f"column {name!r} is {_VARIED_ARRAYS[code]}, of which equal values may be written in different ways"
            raise SourceError(told + "; take engine: auto" * is_bound, "data", lasting=True)
        if self.has_order(code) or self.is_varied(code) or self.is_boolean(code):
            return
        if which := _without_least(reader, column, code):
            remedy = f"; take `{name}::text` in a `select:`{'' if code in _UNEQUAL else ', or engine: auto'}"
            told = f"column {name!r} is {which}, of which no value is the least"
            raise SourceError(told + remedy * is_bound, "data", lasting=True)

    def as_read(self, value: Expression, code: Any) -> Expression:
        """Of a `real` the shortest number, as 0.9."""
        return sa.cast(sa.cast(value, sa.Text), sa.Double) if code == REAL else value

    # ---- SQL ---------------------------------------------------------------------------------------------------

    def exactly(self, value: Expression, code: Any) -> Expression:
        """By its bytes; a cast would strip padded texts of their blanks."""
        if code == PADDED:
            value = sa.case((value.isnot(None), sa.func.format(written("'%s'"), value, type_=sa.Text)))
        return sa.collate(value, "C")

    def fenced(self, query: sa.Select[Any]) -> sa.Select[Any]:
        """An offset keeps the query as it is."""
        return query.offset(written("0"))

    def unix_seconds(self, time: Expression) -> Expression | None:
        """EXTRACT makes slow decimals, and a cast to a whole number would round."""
        return sa.func.floor(sa.func.date_part(written("'epoch'"), time, type_=sa.Double), type_=sa.Double)

    def time_literal(self, value: datetime) -> str:
        """Its TIMESTAMP forgets the zone."""
        return "TIMESTAMPTZ " if value.tzinfo else "TIMESTAMP "


def _without_least(reader: Any, column: Expression, code: int) -> str:
    """Of which type a column is, if none of its values is the least; else empty."""
    try:
        (found,) = reader.types(sa.select(sa.func.min(column)))
    except ProgrammingError as error:
        which = _LEAST.search(str(error.orig))
        if error.orig is None or which is None or state_of(error.orig) != _NO_FUNCTION:
            raise
        return which[1]
    return "a name of the catalogue's" if found == OID != code else ""
