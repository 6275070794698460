"""MariaDB and MySQL: collations, opt-in hash joins, accounts of name and host."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

import monitor.source.dialects.base as base
from monitor.source.dialects.base import SLOW_SORT, Dialect, Expression, IdKind, Options
from monitor.source.dialects.faults import Fault
from monitor.source.dialects.subquery import Quoting
from monitor.types import ITEM, PLACE

_TEXTS = (15, 245, *range(247, 255))
"""Type codes a collation applies to: texts, JSON, enums and sets."""

_TO_JOIN = (
    f"join_cache_level = 4, SESSION join_buffer_size = {8 * 1024**2}, SESSION join_buffer_space_limit = {32 * 1024**2}"
)
"""Enables MariaDB's hash joins where no index serves. Otherwise it rescans one side per few rows of the other, far
slower for a log without an index on request ids. Sizes in bytes."""
_NO_ROWID_FILTER = "SESSION optimizer_switch = 'rowid_filter=off'"
"""A hash join with a rowid filter finds no match (MDEV-24767)."""
_HAS_ROWID_FILTER = (10, 4, 3)
"""The MariaDB version that introduced it; older ones refuse the switch."""

_COLLATIONS = re.compile(r"Illegal mix of collations \((\w+),\w+\) and \((\w+),\w+\)")
_NUMBERED = re.compile(r"""\(\d+, (?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\)""")
_HOST = re.compile(r".*@'?([^'\s]*)")


class MySQL(Dialect):
    """MySQL and MariaDB: comparisons convert types, texts by collation; only MariaDB hash-joins."""

    names = ("mysql", "mariadb")
    members = {
        (True, True): "CAST(JSON_VALUE(t.{column}, '$.{path}') AS SIGNED)",
        (True, False): "JSON_VALUE(t.{column}, '$.{path}')",
    }
    extra = "mysql"
    schemes = {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
    modules = ("pymysql",)
    has_several_drivers = True
    is_proven = by_one_processor = groups_by_name = True
    slow = SLOW_SORT
    casts_constants = False
    later_by = "INTERVAL {} SECOND"
    clock = "UNIX_TIMESTAMP()"
    name_quote = "`"
    account_query = "SELECT CURRENT_USER()"
    tables_query = "SELECT table_name FROM information_schema.tables WHERE table_schema = coalesce(:schema, database())"
    quoting = Quoting(ticks=True)
    whole_numbers = {3: ("INT", 32), 8: ("BIGINT", 64), 246: ("DECIMAL", 999)}
    float_numbers = {4: ("FLOAT", 24), 5: ("DOUBLE", 53)}
    loose_texts = collated_texts = _TEXTS
    bit = 16
    grants = (
        (re.compile(r"command denied to user .*? (?:for|in) table '?(`.+`|[^\s']+)"), "GRANT SELECT ON {} TO {}"),
        (re.compile(r"to database '([^']+)'"), "GRANT SELECT ON {}.* TO {}"),
    )
    faults = (
        Fault(
            "connect",
            (),
            ("denied for user ''@", "denied to user ''@"),
            "the server took this user for its anonymous one, which matches this machine more closely: create the user "
            "for this machine (CREATE USER 'name'@'localhost'), or drop the anonymous one (DROP USER ''@'localhost')",
        ),
        Fault(
            "connect",
            (),
            ("must set password", "password has expired"),
            "this user's password has expired: reset it (ALTER USER ... IDENTIFIED BY ...), and configure the new one",
        ),
    )

    def driver_options(self, url: URL, limit: float) -> Options:
        """Arguments; PyMySQL's read limit covers only the first answers, see `opened`."""
        connect, driver = {"connect_timeout": base.CONNECT_TIMEOUT}, self.driver_of(url)
        if driver == "pymysql":
            return {"program_name": base.PROGRAM, **connect, "read_timeout": base.CONNECT_TIMEOUT}
        if driver == "mysqldb":
            patience = base.whole_seconds(limit) + base.GRACE
            return {**connect, "read_timeout": patience, "write_timeout": patience}
        return {}

    def opened(self, driver: Any, url: URL, selects: Sequence[str] | None) -> None:
        """Lifts PyMySQL's read timeout after connecting; from then on the watch limits the wait.

        The timeout is per connection and must be short at first, or a mute server would block as long as a statement.
        """
        if self.driver_of(url) == "pymysql" and "read_timeout" not in url.query:
            driver._read_timeout = None

    def begin(self, connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
        """The connection in one snapshot, with times in UTC."""
        wanted = f"max_execution_time = {base.milliseconds(limit)}"
        if getattr(connection.dialect, "is_mariadb", False):
            wanted = f"max_statement_time = {limit}, SESSION {_TO_JOIN}"
            if (connection.dialect.server_version_info or ()) >= _HAS_ROWID_FILTER:
                wanted += f", {_NO_ROWID_FILTER}"
        connection.exec_driver_sql(f"SET SESSION {wanted}, SESSION time_zone = '+00:00'")
        connection.exec_driver_sql("SET SESSION TRANSACTION READ ONLY")
        connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        return connection

    def reworded(self, said: str, is_missing: bool) -> str:
        """The message without the driver's tuple around it, which holds the number first.

        >>> MySQL().reworded(str((1146, "Table 'shop.log' doesn't exist")), True)
        "Table 'shop.log' doesn't exist (1146)"
        >>> MySQL().reworded("lost connection", False)
        'lost connection'
        """
        if not _NUMBERED.fullmatch(said):
            return said
        number, text = ast.literal_eval(said)
        return f"{text} ({number})"

    def grantee(self, account: str, user: str) -> str:
        """A name and host pattern, from a text like name@host."""
        name, match = user.replace("'", "''"), _HOST.match(account)
        return f"'{name}'@'{match[1]}'" if match else f"'{name}'"

    def why_not_compared(self, said: str, names: tuple[str, str], columns: tuple[str, str]) -> str:
        if not (mixed := _COLLATIONS.search(said)):
            return ""
        exact = f"CONVERT({columns[0]} USING utf8mb4) COLLATE utf8mb4_bin"
        remedy = f"give both the same with ALTER TABLE, or use `{exact} AS {columns[0]}` in a `select:`"
        return f"{names[0]} is {mixed[1]}, {names[1]} is {mixed[2]}; {remedy}"

    def is_number(self, code: Any) -> bool:
        """Whether a type is not text: MySQL reads '45 ms' as 45, the pull refuses it."""
        return code not in _TEXTS

    def id_kind(self, code: Any) -> IdKind:
        return "number" if code is not None and self.is_number(code) else "text"

    def unrolled(self, table: str, column: str, code: Any, kind: IdKind) -> str:
        """As in `Dialect`; ids that are texts compare exactly with those of any collation."""
        value = f"t.{column}"
        if code is not None and self.is_number(code):
            return ""
        lists = (
            f"CASE WHEN {value} IS NULL THEN '[]' WHEN NOT JSON_VALID({value}) THEN '[null]' WHEN JSON_TYPE({value}) = "
            f"'ARRAY' THEN {value} WHEN JSON_TYPE({value}) = 'NULL' THEN '[]' ELSE '[null]' END"
        )
        item = "CONVERT(i.element USING utf8mb4) COLLATE utf8mb4_bin"
        item = f"CASE WHEN i.written LIKE '\"%' OR i.written REGEXP '^-?[0-9]+$' THEN {item} END"
        if kind == "number":  # MariaDB reads a text as 0, and too large a number as the largest
            fits = f"CAST(i.element AS DECIMAL(20)) BETWEEN {-(2**63)} AND {2**63 - 1}"
            item = f"CASE WHEN i.element REGEXP '^-?[0-9]{{1,19}}$' AND {fits} THEN CAST(i.element AS SIGNED) END"
        return (
            f"SELECT t.*, {item} AS {ITEM}, i.place AS {PLACE} FROM {table} AS t LEFT JOIN JSON_TABLE({lists}, '$[*]' "
            "COLUMNS (place FOR ORDINALITY, element TEXT PATH '$', written JSON PATH '$')) AS i ON 1"
        )

    def must_try_to_compare(self, one: Any, other: Any) -> bool:
        """True: texts of one type may have different collations."""
        return True

    def double(self, value: Expression) -> Expression:
        """The value times a float 1; older versions cannot cast to DOUBLE."""
        return value * self.number(1)
