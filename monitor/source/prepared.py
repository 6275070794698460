"""Statements compiled once per kind of read, varying only in range: compiling can take longer than the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import BindTyping

Reckoned = Callable[[int, int], Any]
"""(start, end) of a read in seconds -> a parameter's value."""


class Instant(sa.BindParameter[Any]):
    """A parameter that is, or derives from, an instant."""

    inherit_cache = True


@dataclass(frozen=True)
class Ends:
    """The ends of a read, and the parameters derived from them.

    Attributes:
        instants: seconds.
        reckoned: how to compute each parameter for another read.
    """

    instants: tuple[int, int]
    reckoned: dict[sa.BindParameter[Any], Reckoned] = field(default_factory=dict)
    _known: dict[object, sa.BindParameter[Any]] = field(default_factory=dict)

    @property
    def marks(self) -> tuple[Mark, Mark]:
        """Start and end of the read."""
        return Mark.of(self, "since", lambda since, _: since), Mark.of(self, "until", lambda _, until: until)

    def parameter(self, what: object, value: Reckoned, kind: sa.types.TypeEngine[Any] | None) -> sa.BindParameter[Any]:
        """A parameter for the value, the same one for the same `what`."""
        if what not in self._known:
            made = Instant("end", value(*self.instants), kind, unique=True)
            self._known[what], self.reckoned[made] = made, value
        return self._known[what]


class Mark(int):
    """An instant (seconds) that remembers its derivation from an end of a read.

    So do sums and differences with seconds, `rounded_down` and `rounded_up`; other arithmetic gives plain numbers.
    """

    ends: Ends
    origin: object
    reckoned: Reckoned
    away: int

    @classmethod
    def of(cls, ends: Ends, origin: object, reckoned: Reckoned, away: int = 0) -> Mark:
        """The mark `away` seconds after an instant; `origin` identifies that instant."""
        made = cls(reckoned(*ends.instants) + away)
        made.ends, made.origin, made.reckoned, made.away = ends, origin, reckoned, away
        return made

    def __add__(self, seconds: int) -> int:
        is_plain = isinstance(seconds, int) and not isinstance(seconds, Mark)
        return self._moved(seconds) if is_plain else super().__add__(seconds)

    __radd__ = __add__

    def __sub__(self, seconds: int) -> int:
        is_plain = isinstance(seconds, int) and not isinstance(seconds, Mark)
        return self._moved(-seconds) if is_plain else super().__sub__(seconds)

    def _moved(self, seconds: int) -> Mark:
        return Mark.of(self.ends, self.origin, self.reckoned, self.away + seconds)

    def at_edge(self, width: int) -> Mark:
        """The last multiple of `width` at or before it."""
        reckoned, away = self.reckoned, self.away
        origin = ("edge", self.origin, away, width)
        return Mark.of(self.ends, origin, lambda *ends: (reckoned(*ends) + away) // width * width)

    def parameter(
        self, what: object, value: Callable[[int], Any], kind: sa.types.TypeEngine[Any] | None = None
    ) -> sa.BindParameter[Any]:
        """A value derived from this instant as a parameter; `what` identifies it."""
        reckoned, away = self.reckoned, self.away
        return self.ends.parameter((self.origin, away, what), lambda *ends: value(reckoned(*ends) + away), kind)


def rounded_down(instant: int, width: int) -> int:
    """The last multiple of `width` at or before an instant."""
    return instant.at_edge(width) if isinstance(instant, Mark) else instant // width * width


def rounded_up(instant: int, width: int) -> int:
    """The first multiple of `width` at or after an instant."""
    return rounded_down(instant + (width - 1), width)


class Ready(NamedTuple):
    """A compiled statement and its parameters, ready for the driver."""

    text: str
    parameters: dict[str, Any] | tuple[Any, ...]


@dataclass(frozen=True)
class PreparedStatement:
    """A compiled statement that only needs the ends of the read.

    Attributes:
        constants: parameters that are the same for each read.
        order: parameter names by position; None if the driver takes names.
    """

    text: str
    constants: Mapping[str, Any]
    reckoned: Mapping[str, Reckoned]
    order: Sequence[str] | None

    @classmethod
    def of(cls, statement: sa.Executable, dialect: sa.Dialect, ends: Ends) -> PreparedStatement | None:
        """None if the statement varies between reads of its kind, or its driver needs values converted."""
        assert isinstance(statement, sa.ClauseElement)
        compiled: Any = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        names: Mapping[sa.BindParameter[Any], str] = compiled.bind_names
        changed = [p for p in names if p.type.dialect_impl(dialect).bind_processor(dialect) is not None]
        if changed or dialect.bind_typing is BindTyping.SETINPUTSIZES:
            return None
        if any(isinstance(p, Instant) and p not in ends.reckoned for p in names):
            return None
        # Positional drivers get values by raw name, others by the name as escaped in the text.
        values = compiled.construct_params(escape_names=not compiled.positional)
        reckoned = {names[p]: value for p, value in ends.reckoned.items() if p in names}
        constants = {name: value for name, value in values.items() if name not in reckoned}
        return cls(compiled.string, constants, reckoned, tuple(compiled.positiontup) if compiled.positional else None)

    def ready(self, since: int, until: int) -> Ready:
        """The statement for a read of [since, until) seconds."""
        values = {name: value(since, until) for name, value in self.reckoned.items()} | dict(self.constants)
        return Ready(self.text, values if self.order is None else tuple(values[name] for name in self.order))


class PreparedStatements:
    """Statements by kind of read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[object, PreparedStatement | None] = {}

    def of(self, kind: object, make: Callable[[], PreparedStatement | None]) -> PreparedStatement | None:
        """The statement of a kind, made on first use; None if it cannot be prepared."""
        with self._lock:
            if kind not in self._made:
                self._made[kind] = make()
            return self._made[kind]
