"""A long statement that is made once for all reads of a kind: they differ only in when they begin and end.

To put such a statement together and have it written out takes longer than many a database takes to answer it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import BindTyping

Reckoned = Callable[[int, int], Any]
"""(when a read begins, when it ends), in seconds -> a value for one of its statement's parameters."""


class Instant(sa.BindParameter[Any]):
    """A parameter that is an instant, or was reckoned from one."""

    inherit_cache = True


@dataclass(frozen=True)
class Ends:
    """The two ends of a read, and the parameters that were reckoned from them.

    Attributes:
        instants: seconds.
        reckoned: what each parameter is for another read.
    """

    instants: tuple[int, int]
    reckoned: dict[sa.BindParameter[Any], Reckoned] = field(default_factory=dict)
    _known: dict[object, sa.BindParameter[Any]] = field(default_factory=dict)

    @property
    def marks(self) -> tuple[Mark, Mark]:
        """When the read begins and ends."""
        return Mark.of(self, "since", lambda since, _: since), Mark.of(self, "until", lambda _, until: until)

    def parameter(self, what: object, value: Reckoned, kind: sa.types.TypeEngine[Any] | None) -> sa.BindParameter[Any]:
        """The parameter of that value, the same for the same `what`."""
        if what not in self._known:
            made = Instant("end", value(*self.instants), kind, unique=True)
            self._known[what], self.reckoned[made] = made, value
        return self._known[what]


class Mark(int):
    """An instant (seconds) that knows how it was reckoned from an end of a read.

    So does what comes of it by adding and subtracting seconds, and by `rounded_down` and `rounded_up`. Whatever else
    one reckons with it is a plain number.
    """

    ends: Ends
    origin: object
    reckoned: Reckoned
    away: int

    @classmethod
    def of(cls, ends: Ends, origin: object, reckoned: Reckoned, away: int = 0) -> Mark:
        """So many seconds after an instant; `origin` tells that one from others."""
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
        """The last multiple of `width` up to it."""
        reckoned, away = self.reckoned, self.away
        origin = ("edge", self.origin, away, width)
        return Mark.of(self.ends, origin, lambda *ends: (reckoned(*ends) + away) // width * width)

    def parameter(
        self, what: object, value: Callable[[int], Any], kind: sa.types.TypeEngine[Any] | None = None
    ) -> sa.BindParameter[Any]:
        """Something of this instant as a parameter. `what` tells it from other things of the same instant."""
        reckoned, away = self.reckoned, self.away
        return self.ends.parameter((self.origin, away, what), lambda *ends: value(reckoned(*ends) + away), kind)


def rounded_down(instant: int, width: int) -> int:
    """The last multiple of `width` up to an instant."""
    return instant.at_edge(width) if isinstance(instant, Mark) else instant // width * width


def rounded_up(instant: int, width: int) -> int:
    """The first multiple of `width` from an instant on."""
    return rounded_down(instant + (width - 1), width)


class Ready(NamedTuple):
    """A statement as the driver takes it."""

    text: str
    parameters: dict[str, Any] | tuple[Any, ...]


@dataclass(frozen=True)
class PreparedStatement:
    """A statement as the driver takes it, but for the ends of the read.

    Attributes:
        constants: parameters that are the same for each read.
        order: names of the parameters by their places in the text; None where they go by their names.
    """

    text: str
    constants: Mapping[str, Any]
    reckoned: Mapping[str, Reckoned]
    order: Sequence[str] | None

    @classmethod
    def of(cls, statement: sa.Executable, dialect: sa.Dialect, ends: Ends) -> PreparedStatement | None:
        """None if the statement is not the same for all reads of the kind, or its driver does not take values as is."""
        assert isinstance(statement, sa.ClauseElement)
        compiled: Any = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        names: Mapping[sa.BindParameter[Any], str] = compiled.bind_names
        if dialect.bind_typing is BindTyping.SETINPUTSIZES or any(_is_changed(p, dialect) for p in names):
            return None
        if any(isinstance(p, Instant) and p not in ends.reckoned for p in names):
            return None
        # By their places drivers get values under the names as they are, by their names as these stand in the text.
        values = compiled.construct_params(escape_names=not compiled.positional)
        reckoned = {names[p]: value for p, value in ends.reckoned.items() if p in names}
        constants = {name: value for name, value in values.items() if name not in reckoned}
        return cls(compiled.string, constants, reckoned, tuple(compiled.positiontup) if compiled.positional else None)

    def ready(self, since: int, until: int) -> Ready:
        """The statement for a read of [since, until) seconds."""
        values = {name: value(since, until) for name, value in self.reckoned.items()} | dict(self.constants)
        return Ready(self.text, values if self.order is None else tuple(values[name] for name in self.order))


def _is_changed(parameter: sa.BindParameter[Any], dialect: sa.Dialect) -> bool:
    return parameter.type.dialect_impl(dialect).bind_processor(dialect) is not None


class PreparedStatements:
    """Statements by the kind of read that they are for. Several threads may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[object, PreparedStatement | None] = {}

    def of(self, kind: object, make: Callable[[], PreparedStatement | None]) -> PreparedStatement | None:
        """The one of a kind, made if there is none yet; None if there cannot be one."""
        with self._lock:
            if kind not in self._made:
                self._made[kind] = make()
            return self._made[kind]
