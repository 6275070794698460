"""Says in plain words what Pydantic found wrong, and never shows a value that may be a secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from monitor.config.mapping import Shape
from monitor.config.report import Where, nearest, path_of
from monitor.config.shape import Root

SECRETS = frozenset({"url", "urls", "password", "secret", "bearer_token", "basic_auth_users"})
"""Keys whose values are never shown."""

RENAMED = {
    "max_quiet": "stale_after",
    "history": "lookback",
    "notify_data": "data_channels",
    "false_alarms": "false_alarm_budget",
    "keep": "retain",
}
"""Keys of earlier versions -> the name that they have now."""

Error = Mapping[str, Any]
Tell = Callable[[Where, Error, type[Shape]], str]


def explain(error: Error, root: type[Shape] = Root) -> tuple[Where, str]:
    """The place of one of Pydantic's errors in a file of the shape `root`, and a sentence with the remedy."""
    where: Where = tuple(step for step in error["loc"] if step != "[key]")
    tell = _SENTENCES.get(error["type"])
    return where, tell(where, error, root) if tell else f"is not valid ({error['msg']})"


def field_at(where: Where, root: type[Shape] = Root) -> FieldInfo | None:
    """The field that a place belongs to; None where there is none."""
    holder = _kind_at(where[:-1], root) if where else None
    fields = _fields(holder)
    return fields.get(where[-1]) if where else None


def _kind_at(where: Where, root: type[Shape]) -> Any:
    kind: Any = root
    for step in where:
        kind = _inside(_bare(kind), step)
    return _bare(kind)


def _inside(kind: Any, step: str | int) -> Any:
    if field := _fields(kind).get(step):
        return field.annotation
    arguments = get_args(kind)
    return arguments[-1] if arguments else None


def _bare(kind: Any) -> Any:
    """A type without its annotations, and without the None that stands for leaving it out."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = get_args(kind)[0]
    return kind


def _fields(kind: Any) -> dict[str | int, FieldInfo]:
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return {}
    return {field.alias or name: field for name, field in kind.model_fields.items()}


def _missing(where: Where, _: Error, root: type[Shape]) -> str:
    field = field_at(where, root)
    examples = field.examples if field is not None else None
    return "is missing" + (f"; add e.g. `{where[-1]}: {examples[0]}`" if examples else "")


def _unknown(where: Where, _: Error, root: type[Shape]) -> str:
    key, here = str(where[-1]), _kind_at(where[:-1], root)
    if (new := RENAMED.get(key)) in _fields(here):
        return f"is now called `{new}`; rename it"
    place = _above(where, root) or nearest(key, map(str, _fields(here)), _below(key, here))
    return f"there is no such key; {place}"


def _above(where: Where, root: type[Shape]) -> str:
    """That a key belongs to a mapping around the one where it stands; empty if it does not."""
    for depth in range(len(where) - 2, -1, -1):
        if where[-1] in _fields(_kind_at(where[:depth], root)):
            return f"it is one of {path_of(where[:depth]) or 'the file itself'}; move it there"
    return ""


def _below(key: str, kind: Any) -> str:
    """That a key belongs to a mapping inside the one where it stands, the least deep one; empty if it does not."""
    level: list[tuple[tuple[str, ...], Any]] = [((), kind)]
    while level:
        level = [((*path, str(name)), _bare(f.annotation)) for path, of in level for name, f in _fields(of).items()]
        for path, of in level:
            if key in _fields(of):
                return f"it is one of `{'.'.join(path)}`; move it there"
    return ""


def _own(_: Where, error: Error, root: type[Shape]) -> str:
    return str(error["ctx"]["error"])


def _empty(*_: object) -> str:
    return "is empty; give it a value, or take the key out"


def _found(error: Error) -> str:
    """What stands there instead. Not for SECRETS."""
    given = error["input"]
    if isinstance(given, dict | list):
        return "a mapping" if isinstance(given, dict) else "a list"
    return repr(given).lower() if isinstance(given, bool) else repr(given)


def _not_text(where: Where, error: Error, _: type[Shape]) -> str:
    if error["input"] is None:
        return _empty()
    if isinstance(error["input"], dict | list):
        return f"must be text, not {_found(error)}"
    kind = "truth value" if isinstance(error["input"], bool) else "number"
    shown = "" if SECRETS & set(where) else f": '{_found(error)}'"
    return f"is a {kind} to YAML, not text; put it in quotes{shown}"


def _not_a_list(where: Where, error: Error, root: type[Shape]) -> str:
    if error["input"] is None:
        return _empty()
    if not isinstance(error["input"], str | int | float):
        return "must be a list"
    return "must be a list; " + ("put it in [ and ]" if SECRETS & set(where) else f"write [{error['input']}]")


def _not_a_mapping(where: Where, error: Error, root: type[Shape]) -> str:
    if error["input"] is None:
        return _empty()
    keys = ", ".join(map(str, _fields(_kind_at(where, root))))
    return "must be a mapping of keys to values" + (f"; its keys are {keys}" if keys else "")


def _must_be(what: str) -> Tell:
    def tell(_: Where, error: Error, root: type[Shape]) -> str:
        if error["input"] is None:
            return _empty()
        return f"must be {what.format(**error.get('ctx', {}))}, not {_found(error)}"

    return tell


_SENTENCES: dict[str, Tell] = {
    "missing": _missing,
    "extra_forbidden": _unknown,
    "value_error": _own,
    "empty": _empty,
    "string_type": _not_text,
    "string_too_short": _empty,
    "list_type": _not_a_list,
    "dict_type": _not_a_mapping,
    "model_type": _not_a_mapping,
    "model_attributes_type": _not_a_mapping,
    "too_short": lambda *_: "is empty; it must hold at least one",
    "too_long": _must_be("at most {max_length} long"),
    "literal_error": _must_be("{expected}"),
    "int_type": _must_be("a whole number"),
    "int_parsing": _must_be("a whole number"),
    "int_from_float": _must_be("a whole number"),
    "float_type": _must_be("a number"),
    "float_parsing": _must_be("a number"),
    "finite_number": _must_be("a finite number"),
    "bool_type": _must_be("true or false"),
    "bool_parsing": _must_be("true or false"),
    "greater_than": _must_be("above {gt}"),
    "greater_than_equal": _must_be("at least {ge}"),
    "less_than_equal": _must_be("at most {le}"),
}
