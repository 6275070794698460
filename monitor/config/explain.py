"""Says in plain words what Pydantic found wrong, and never shows a value that may be a secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from monitor.config.report import nearest, path_of
from monitor.errors import Where
from monitor.section import FromFile, Key, Secret, bare, written_keys

RENAMED = {
    "max_quiet": "stale_after",
    "history": "lookback",
    "notify_data": "data_channels",
    "false_alarms": "false_alarm_budget",
    "keep": "retain",
}
"""Keys of earlier versions -> the name that they have now."""

Error = Mapping[str, Any]
Tell = Callable[[Where, Error, Any], str]


def explain(error: Error, root: Any) -> tuple[Where, str]:
    """The place of one of Pydantic's errors within a value of the kind `root`, and a sentence with the remedy."""
    where: Where = tuple(step for step in error["loc"] if step != "[key]")
    if error["type"] == "union_tag_invalid":
        where = (*where, error["ctx"]["tag"])
    tell = _SENTENCES.get(error["type"])
    return where, tell(where, error, root) if tell else f"is not valid ({error['msg']})"


def _key_at(where: Where, root: Any) -> Key | None:
    return written_keys(_kind_at(where[:-1], root)).get(str(where[-1])) if where else None


def _kind_at(where: Where, root: Any) -> Any:
    kind: Any = root
    for step in where:
        if found := written_keys(kind).get(str(step)):
            kind = found.kind
        else:
            arguments = [a for a in get_args(bare(kind)) if a is not ...]
            kind = arguments[-1] if arguments else None
    return kind


def _is_secret(where: Where, root: Any) -> bool:
    """Whether the value at a place is never shown."""
    keys = (_key_at(where[: depth + 1], root) for depth in range(len(where)))
    return any(key is not None and (FromFile in key.marks or Secret in key.marks) for key in keys)


def _missing(where: Where, _: Error, root: Any) -> str:
    found = _key_at(where, root)
    examples = found.info.examples if found is not None else None
    return "is missing" + (f"; add e.g. `{where[-1]}: {examples[0]}`" if examples else "")


def _unknown(where: Where, _: Error, root: Any) -> str:
    key, here = str(where[-1]), _kind_at(where[:-1], root)
    if (new := RENAMED.get(key)) in written_keys(here):
        return f"is now called `{new}`; rename it"
    place = _above(where, root) or nearest(key, map(str, written_keys(here)), _below(key, here))
    return f"there is no such key; {place}"


def _above(where: Where, root: Any) -> str:
    """Says that a key belongs to an enclosing mapping; empty if it does not."""
    for depth in range(len(where) - 2, -1, -1):
        if where[-1] in written_keys(_kind_at(where[:depth], root)):
            return f"it belongs under {path_of(where[:depth]) or 'the top level'}; move it there"
    return ""


def _below(key: str, kind: Any) -> str:
    """Says that a key belongs to a nested mapping, the shallowest; empty if it does not."""
    level: list[tuple[tuple[str, ...], Any]] = [((), kind)]
    while level:
        level = [((*path, name), found.kind) for path, of in level for name, found in written_keys(of).items()]
        for path, of in level:
            if key in written_keys(of):
                return f"it belongs under `{'.'.join(path)}`; move it there"
    return ""


def _own(_: Where, error: Error, root: Any) -> str:
    return str(error["ctx"]["error"])


def _empty(*_: object) -> str:
    return "is empty; give it a value, or remove the key"


def _found(error: Error) -> str:
    """What the file has there instead; not for secrets."""
    given = error["input"]
    if isinstance(given, dict | list):
        return "a mapping" if isinstance(given, dict) else "a list"
    return repr(given).lower() if isinstance(given, bool) else repr(given)


def _not_text(where: Where, error: Error, root: Any) -> str:
    if error["input"] is None:
        return _empty()
    if isinstance(error["input"], dict | list):
        return f"must be text, not {_found(error)}"
    kind = "truth value" if isinstance(error["input"], bool) else "number"
    shown = "" if _is_secret(where, root) else f": '{_found(error)}'"
    return f"is a {kind} to YAML, not text; put it in quotes{shown}"


def _not_a_list(where: Where, error: Error, root: Any) -> str:
    if error["input"] is None:
        return _empty()
    if not isinstance(error["input"], str | int | float):
        return "must be a list"
    return "must be a list; " + ("put it in [ and ]" if _is_secret(where, root) else f"write [{error['input']}]")


def _not_a_mapping(where: Where, error: Error, root: Any) -> str:
    if error["input"] is None:
        return _empty()
    keys = ", ".join(map(str, written_keys(_kind_at(where, root))))
    return "must be a mapping of keys to values" + (f"; its keys are {keys}" if keys else "")


def _must_be(what: str) -> Tell:
    def tell(_: Where, error: Error, root: Any) -> str:
        if error["input"] is None:
            return _empty()
        return f"must be {what.format(**error.get('ctx', {}))}, not {_found(error)}"

    return tell


_SENTENCES: dict[str, Tell] = {
    "missing": _missing,
    "unexpected_keyword_argument": _unknown,
    "union_tag_invalid": _unknown,
    "value_error": _own,
    "own": lambda _, error, root: str(error["ctx"]["text"]),
    "file": lambda _, error, root: str(error["ctx"]["text"]),
    "empty": _empty,
    "string_type": _not_text,
    "string_too_short": _empty,
    "list_type": _not_a_list,
    "tuple_type": _not_a_list,
    "dict_type": _not_a_mapping,
    "dataclass_type": _not_a_mapping,
    "too_short": lambda *_: "is empty; it needs at least one",
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
