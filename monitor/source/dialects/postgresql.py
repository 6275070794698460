"""PostgreSQL: types in one round trip, per-transaction settings, collations and extension types."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import ProgrammingError

import monitor.source.dialects.base as base
from monitor.database_url import postgresql_arguments
from monitor.errors import SourceError
from monitor.source.dialects.base import Condition, Dialect, Expression, IdKind, Options, written
from monitor.source.dialects.faults import Fault, state_of
from monitor.source.dialects.subquery import Quoting
from monitor.types import ITEM, PLACE

WORK_MEMORY = 128
"""Megabytes per step of a statement that sums; one request takes about 200 bytes."""

PADDED = 1042
"""Type code of blank-padded text (char)."""

REAL, DOUBLE, NUMERIC, OID = 700, 701, 1700, 26
_TEXTS = (25, 1043)
_INTEGERS = (20, 21, 23)
_UUID = 2950
_JSON = (*_TEXTS, PADDED, 114, 3802)
"""Types whose values are read as JSON."""
_IDS = {
    "text": ("text", "(jsonb_typeof(i.element) = 'string' OR rtrim({0}, '0123456789') IN ('', '-'))"),
    "number": (  # by a pattern it would take twice as long
        "bigint",
        "rtrim({0}, '0123456789') IN ('', '-') AND {0} NOT IN ('', '-') "
        "AND (length(ltrim({0}, '-')) < 19 "
        "OR length(ltrim({0}, '-')) = 19 AND ltrim({0}, '-') COLLATE \"C\" <= '9223372036854775807')",
    ),
    "uuid": ("uuid", "{0} ~ '^[0-9a-fA-F]{{8}}(-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}$'"),
}
"""Kind of id -> type, and whether the text of an element of a list in JSON is such an id."""
_X = "[0-9a-fA-F]"
_UNICODE = (  # all but 0, and halves of a pair alone, which no text can hold
    rf"[1-9a-cefA-CEF]{_X}{{3}}|0[1-9a-fA-F]{_X}{{2}}|00[1-9a-fA-F]{_X}|000[1-9a-fA-F]|[dD][0-7]{_X}{{2}}"
    rf"|[dD][89abAB]{_X}{{2}}\\u[dD][c-fC-F]{_X}{{2}}"
)
_SCALAR = (
    rf'("([^"\\\x01-\x1f]|\\(["\\/bfnrt]|u({_UNICODE})))*"'
    r"|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?|true|false|null)"
)
_FLAT = rf"^\s*\[\s*({_SCALAR}(\s*,\s*{_SCALAR})*)?\s*\]\s*$".replace("\\", r"\\")
"""Pattern of a list without lists and objects in JSON, for E''; `IS JSON` came with PostgreSQL 16."""
_OWN = 16_384
"""Type codes from here belong to extensions, such as citext."""
_ORDERED = (*_INTEGERS, 25, PADDED, 1043, NUMERIC)
_UNEQUAL = {114, 142, 600, 601, 602, 603, 604, 628, 718}
"""Types the pull cannot group by: JSON, XML and geometry."""
_VARIED_ARRAYS = {1231: "numeric[]"}
"""Array types whose equal values may differ in writing, and whose text differs from the driver's."""

_LONGEST_NAME = 63  # bytes, longest application name
_NO_FUNCTION = "42883"
_NO_OPERATOR = "operator does not exist: "
_LEAST = re.compile(r"\bmin\((.+?)\)")
"""The type in PostgreSQL's message that a type has no min(), in any language."""

_OF_A_CONSTANT = re.compile(r"\$\d+ = ")
"""In the context of an error about a bound value, in any language."""

_PARTS = """
WITH RECURSIVE part(oid) AS (
    SELECT inhrelid FROM pg_inherits WHERE has_table_privilege(inhparent, 'SELECT')
    UNION SELECT i.inhrelid FROM pg_inherits i JOIN part p ON i.inhparent = p.oid
)
SELECT n.nspname, c.relname, pg_table_is_visible(c.oid)
FROM part p JOIN pg_class c ON c.oid = p.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attinhcount = 0)
"""
"""(schema, name, whether it is found without the schema) of all that inherit, at any remove, from readable tables, and
have no column of their own."""

_LAX_COLLATIONS = sa.select(sa.text("EXISTS (SELECT FROM pg_collation WHERE NOT collisdeterministic)"))

_REPLACED: sa.ColumnElement[bool] = sa.literal_column(
    "EXISTS (SELECT FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation WHERE l.locktype = 'relation' AND "
    "l.pid = pg_backend_pid() AND coalesce(c.relfilenode <> 0 AND c.relfilenode <> pg_relation_filenode(c.oid), "
    "c.oid IS NULL))"
)
"""Whether a locked table was truncated, rewritten or created after the transaction's snapshot: its rows are then
invisible here, though it was never empty for others."""

_TELLS_REPLACED = sa.select(
    sa.text("EXISTS (SELECT FROM pg_class WHERE relname = 'pg_locks')"),
    sa.text("EXISTS (SELECT FROM pg_proc WHERE proname = 'pg_relation_filenode')"),
)
"""Whether that can be asked: PostgreSQL-compatible servers may lack these functions."""

_REFUSED = r' "?(.+?)"?(?= (?:LINE \d+|DETAIL|HINT|CONTEXT):|$)'


class PostgreSQL(Dialect):
    """PostgreSQL: hash joins where statistics would mislead; types and replaced tables in one answer."""

    names = ("postgresql",)
    members = {
        (is_text, is_whole): form.format(value + " #>> '{{{comma}}}'")
        for is_text, value in ((True, "t.{column}::jsonb"), (False, "to_jsonb(t.{column})"))
        for is_whole, form in ((True, "({})::bigint"), (False, "{}"))
    }
    extra = "postgresql"
    schemes = {"postgresql": "postgresql+psycopg"}
    modules = ("psycopg",)
    mistaken_for = {"postgres": "postgresql"}
    has_several_drivers = True
    is_proven = selects_first = keeps_parts = by_one_processor = True
    explains_bounds = True
    clock = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"
    tables_query = (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = coalesce(:schema, current_schema())"
    )
    quoting = Quoting(arrays=True, hashes=True, dashes=True)
    # By default it spills to disk early. JIT costs more than it saves on statements this long. `joined` keeps it from
    # nested loops; to disable them would hit those of a `select:` too, such as LATERAL's.
    prepares_to_sum = tuple(
        sa.func.set_config(written(f"'{name}'"), written(f"'{value}'"), sa.true())
        for name, value in {"jit": "off", "work_mem": f"{WORK_MEMORY}MB"}.items()
    )
    time_literals = ("TIMESTAMPTZ ", "TIMESTAMP ")  # TIMESTAMP drops the zone
    integers = _INTEGERS
    small_integers = (21, 23)
    whole_numbers = {23: ("integer", 31), 20: ("bigint", 63), NUMERIC: ("numeric", 999)}
    float_numbers = {REAL: ("real", 24), DOUBLE: ("double precision", 53)}
    strict_texts = (*_TEXTS, PADDED)
    collated_texts = (PADDED,)
    arrays = ("1005", "1007", "1009", "1014", "1015", "1016", "1231", "2951")  # whole numbers, texts, numeric, UUIDs
    time_types = {"1184": (True, True), "1114": (True, False)}
    faults = (
        Fault(
            "timeout",
            (),
            ("due to conflict with recovery",),
            "a replica cancels statements that delay its replay: raise its max_standby_streaming_delay, or enable "
            "its hot_standby_feedback",
        ),
        Fault(
            "data",
            (),
            ("(after year 10k)", "(before year 1)"),
            "a date, such as one to slice by, is infinite or out of range: use it as text in a "
            "`select:`, e.g. `updated_on::text`",
        ),
        Fault(
            "data",
            (),
            ("invalid input value for enum",),
            "the configuration names a value that this type does not have: check the event types, and what "
            "conditions select by; add it to the type (ALTER TYPE ... ADD VALUE), or remove it",
        ),
        Fault(
            "connect",
            (),
            ("no password supplied",),
            "it requires a password: set the source's `password:` or `password_file:`",
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
        return postgresql_arguments(url, base.PROGRAM, base.CONNECT_TIMEOUT, base.SILENCE)

    def begin(self, connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
        """The connection with transaction-local settings, set in one round trip."""
        connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        settings = {"statement_timeout": str(base.milliseconds(limit)), "TimeZone": "UTC"}
        if who and "application_name" not in url.query:
            settings["application_name"] = f"{base.PROGRAM} {base.plain_name(who)}"[:_LONGEST_NAME]
        connection.execute(sa.select(*(sa.func.set_config(name, value, True) for name, value in settings.items())))
        return connection

    def parts_of(self, connection: sa.Connection) -> Collection[tuple[str, ...]]:
        """Partitions, and other tables that inherit all their columns."""
        found = list(connection.exec_driver_sql(_PARTS))
        return {(s, name) for s, name, _ in found} | {(name,) for _, name, is_visible in found if is_visible}

    def column_types(self, reader: Any, relations: Sequence[sa.FromClause], to_sum: bool) -> tuple[list[Any], bool]:
        """Column types and whether a table was replaced, in one answer.

        Locks the tables until the transaction ends. After waiting for a writer, a table may look empty.
        """
        known = reader.info  # belongs to the reused driver connection
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
        if not said.startswith(_NO_OPERATOR):
            return ""
        one, _, other = said.removeprefix(_NO_OPERATOR).partition(" = ")
        return f"{names[0]} is {one}, {names[1]} is {other}; convert one of them in a `select:`"

    # ---- types -------------------------------------------------------------------------------------------------

    def is_number(self, code: Any) -> bool:
        """Whether a type is numeric; PostgreSQL converts nothing implicitly."""
        return code in (*_INTEGERS, REAL, DOUBLE, NUMERIC)

    def has_order(self, code: Any) -> bool:
        """Whether the type is one of those known to be ordered."""
        return code in _ORDERED

    def is_varied(self, code: Any) -> bool:
        """True for `numeric` (1.0 and 1.00) and citext (case)."""
        return bool(code == NUMERIC or code >= _OWN)

    def must_try_to_compare(self, one: Any, other: Any) -> bool:
        """True for different types: they may lack an operator."""
        return bool(one != other)

    def lax_texts(self, reader: Any, codes: Collection[Any]) -> Collection[Any]:
        """All text types if nondeterministic collations exist."""
        can_have = (getattr(reader.dialect, "server_version_info", None) or (0,)) >= (12,)
        if not can_have or not any(code in _TEXTS for code in codes) or not reader.one(_LAX_COLLATIONS):
            return self.collated_texts
        return *self.collated_texts, *_TEXTS

    def fault_of(self, error: BaseException) -> Fault | None:
        """A constant that cannot be converted is the configuration's, and no fault of a row."""
        fault = super().fault_of(error)
        context = str(getattr(getattr(error, "diag", None), "context", None) or "")
        return fault._replace(lasting=True) if fault is not None and _OF_A_CONSTANT.search(context) else fault

    def id_kind(self, code: Any) -> IdKind:
        return "uuid" if code == _UUID else "number" if self.is_number(code) else "text"

    def is_enum(self, reader: Any, column: Expression) -> bool:
        (code,) = reader.types(sa.select(column))
        return bool(reader.one(sa.text("SELECT typtype = 'e' FROM pg_type WHERE oid = :code").bindparams(code=code)))

    def check_slice(self, reader: Any, column: Expression, name: str, code: Any, is_bound: bool) -> None:
        """Raises SourceError for types without a least value; for some names min() has another type."""
        if code in _VARIED_ARRAYS:
            told = f"column {name!r} is {_VARIED_ARRAYS[code]}, where equal values can have different spellings"
            raise SourceError(told + "; use engine: auto" * is_bound, "data", lasting=True)
        if self.has_order(code) or self.is_varied(code) or self.is_boolean(code):
            return
        if which := _without_least(reader, column, code):
            remedy = f"; use `{name}::text` in a `select:`{'' if code in _UNEQUAL else ', or engine: auto'}"
            told = f"column {name!r} is {which}, which has no smallest value"
            raise SourceError(told + remedy * is_bound, "data", lasting=True)

    def as_read(self, value: Expression, code: Any) -> Expression:
        """A `real` as its shortest decimal, such as 0.9."""
        return sa.cast(sa.cast(value, sa.Text), sa.Double) if code == REAL else value

    # ---- SQL ---------------------------------------------------------------------------------------------------

    def exactly(self, value: Expression, code: Any) -> Expression:
        """The value in collation C; a plain cast would strip the blanks of padded text."""
        if code == PADDED:
            value = sa.case((value.isnot(None), sa.func.format(written("'%s'"), value, type_=sa.Text)))
        return sa.collate(value, "C")

    def fenced(self, query: sa.Select[Any]) -> sa.Select[Any]:
        """The query with OFFSET 0, which stops the planner from merging it."""
        return query.offset(written("0"))

    def joined(
        self,
        query: sa.Select[Any],
        first: tuple[sa.FromClause, Expression],
        *more: tuple[sa.FromClause, Expression, Condition],
        is_outer: bool,
    ) -> sa.Select[Any]:
        """By FULL JOIN, for which PostgreSQL has no nested loop, however few rows it expects.

        CASE and the fence keep the planner from turning it into another join where NULL would be refused.
        """
        rows = first[0]
        for other, _, same in more:
            rows = rows.join(other, same, full=True)
        kept = [first[1], *(known for _, known, _ in more[: 0 if is_outer else None])]
        lacks = sa.or_(*(known.is_(None) for known in kept))
        return self.fenced(query.select_from(rows).where(sa.case((lacks, sa.false()), else_=sa.true())))

    def unrolled(self, table: str, column: str, code: Any, kind: IdKind) -> str:
        value = f"t.{column}"
        if code is None or code in _JSON:
            (name, is_id), text = _IDS[kind], "(i.element #>> '{}')"
            item = f"CASE WHEN {is_id.format(text)} THEN {text}::{name} END"
            lists = (
                f"jsonb_array_elements({_list_in_text(value) if code in (*_TEXTS, PADDED) else _list_in_json(value)})"
            )
        elif _is_no_array(code):
            return ""
        else:  # unnest() makes one list of an array with several dimensions
            one = f"CASE WHEN array_ndims({value}) > 1 THEN array_append(({value})[1:0], NULL) ELSE {value} END"
            item, lists = "i.element", f"unnest({one})"
        return (
            f"SELECT t.*, {item} AS {ITEM}, i.place AS {PLACE} FROM {table} AS t "
            f"LEFT JOIN LATERAL {lists} WITH ORDINALITY AS i(element, place) ON true"
        )

    def unix_seconds(self, time: Expression) -> Expression | None:
        """Whole seconds since 1970; avoids EXTRACT's slow decimals and a rounding cast."""
        return sa.func.floor(sa.func.date_part(written("'epoch'"), time, type_=sa.Double), type_=sa.Double)


def _is_no_array(code: int) -> bool:
    """Whether a type is of PostgreSQL itself and not an array."""
    from psycopg.postgres import types  # an extra, and loaded where there are codes

    known = types.get(code)
    return known is not None and known.array_oid != code


def _list_in_text(value: str) -> str:
    """As `_list_in_json`; only a list without lists and objects is read as JSON: reading anything else fails."""
    empty = f"coalesce({value}, 'null') ~ E'^\\\\s*null\\\\s*$'"
    return f"CASE WHEN {value} ~ E'{_FLAT}' THEN {value}::jsonb WHEN {empty} THEN '[]' ELSE '[null]' END"


def _list_in_json(value: str) -> str:
    """The list that a value is; a list of one NULL if it is anything else."""
    value = f"{value}::jsonb"
    kind = f"coalesce(jsonb_typeof({value}), 'null')"
    return f"CASE {kind} WHEN 'array' THEN {value} WHEN 'null' THEN '[]' ELSE '[null]' END"


def _without_least(reader: Any, column: Expression, code: int) -> str:
    """The column's type if it has no least value; else empty."""
    try:
        (found,) = reader.types(sa.select(sa.func.min(column)))
    except ProgrammingError as error:
        which = _LEAST.search(str(error.orig))
        if error.orig is None or which is None or state_of(error.orig) != _NO_FUNCTION:
            raise
        return which[1]
    return "a name of the catalogue's" if found == OID != code else ""
