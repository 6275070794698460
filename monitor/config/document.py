"""Reads a YAML file into plain data: records the line of every value, and fills in ${NAME}.

Words are read as YAML 1.2 does: only `true` and `false` are truth values, so that `no`, `on` and `12:30` stay text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from monitor.config.report import Report
from monitor.errors import ConfigError, Where

MOST_NODES = 100_000
"""Values a file may hold once its aliases are written out; more is a mistake, or an attack."""

_FIRST = "`store:`, `sources:` and `monitors:`"
_TAG = "tag:yaml.org,2002:"
_VARIABLE = re.compile(r"\$\$\{|\$\{[^}]*\}?")
_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<has_default>:-(?P<default>[^}]*))?\}")


def read(path: Path, environ: Mapping[str, str], report: Report, first: str = _FIRST) -> dict[str, Any]:
    """The file's data. Mistakes that leave the rest readable go into `report`; `first` are the keys it begins with.

    Raises:
        ConfigError: the file is not there, is no UTF-8, no YAML, or no mapping of keys to values.
    """
    node = _compose(_text(path, report), report)
    if isinstance(node, yaml.MappingNode):
        return _Reading(environ, report).mapping(node, ())
    what = "is empty" if node is None else "is not a mapping"
    report.add((), f"{what}; write keys and values, starting with {first}")
    report.raise_if_any()
    return {}


def _text(path: Path, report: Report) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            [f"{path}: no such file; name rankmon's configuration with --config or RANKMON_CONFIG"]
        ) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror}); give a file that this user may read"]) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        report.add_line(raw.count(b"\n", 0, error.start) + 1, "is not written in UTF-8; save the file as UTF-8")
    report.raise_if_any()
    return ""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012  none of YAML 1.1's


_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]{1,18}|0x[0-9a-fA-F]{1,15}|0o[0-7]{1,20}", list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"(?:{_pattern})\Z"), _first)


def _integer(text: str) -> int:
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


_SCALARS: dict[str, Callable[[str], Any]] = {
    _TAG + "null": lambda text: None,
    _TAG + "bool": lambda text: text.lower() == "true",
    _TAG + "int": _integer,
    _TAG + "float": lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
}


_fast: Callable[[str], Any] = _Loader
if yaml.__with_libyaml__:

    class _Fast(Composer, yaml.CSafeLoader):
        """libyaml's parser, nine times as fast, below Python's composer, which survives any depth."""

        yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)

    _fast = _Fast


def _compose(text: str, report: Report) -> yaml.Node | None:
    with suppress(yaml.YAMLError, RecursionError):
        node: yaml.Node | None = _fast(text).get_single_node()
        return node
    try:  # the parser in Python says what is wrong, in the same words whatever libyaml there is
        return _Loader(text).get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        report.add_line(line, "contains a control character; remove it")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        report.add_line(1 if mark is None else mark.line + 1, _what_is_wrong(error.problem or ""))
    except RecursionError:
        report.add_line(1, "is nested too deeply; flatten it")
    report.raise_if_any()
    return None


_SYNTAX = (
    (r"'\\t' that cannot start", "a tab is used for indentation; indent with spaces"),
    (r"(.) that cannot start|'(.)' that cannot start", "a value starts with {}; put it in quotes"),
    (
        r"mapping values are not allowed",
        "an unexpected colon; put text that contains ': ' or ends with ':' in quotes",
    ),
    (r"could not find expected ':'", "a key without a colon; write `key: value`, or check the indentation above"),
    (r"undefined alias", "a value starts with *; put it in quotes"),
    (r"duplicate anchor|alphabetic or numeric", "a value starts with & or *; put it in quotes"),
    (r"expected <block end>", "the line does not fit the lines above; compare indentation and quotes"),
    (
        r"expected ',' or '[\]}]'",
        "a [list] or {{mapping}} is not closed, misses a comma, or contains text that needs quotes",
    ),
    (r"another document", "a second document starts with ---; keep one per file"),
    (r"unexpected end of stream", "a quoted text is not closed; add the closing quote"),
)


def _what_is_wrong(problem: str) -> str:
    """PyYAML's complaint in plain words, without file content, which might be secret."""
    for pattern, text in _SYNTAX:
        if found := re.search(pattern, problem):
            return "invalid YAML: " + text.format(next((g for g in found.groups() if g), ""))
    return "invalid YAML; check quotes, colons and indentation around here"


class _Reading:
    """Turns nodes into data and records where each value is."""

    def __init__(self, environ: Mapping[str, str], report: Report) -> None:
        self._environ = environ
        self._report = report
        self._merged: set[int] = set()
        self._nodes = 0

    def value(self, node: yaml.Node, where: Where) -> Any:
        """The data of a node, and of all it holds."""
        self._count(node, where)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, where)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*where, index)) for index, item in enumerate(node.value)]
        return self.mapping(node, where) if isinstance(node, yaml.MappingNode) else None

    def _count(self, node: yaml.Node, where: Where) -> None:
        self._nodes += 1
        if self._nodes > MOST_NODES or len(where) > 50:
            self._report.add_line(node.start_mark.line + 1, "is too large; an alias must not contain itself")
            self._report.raise_if_any()

    def _item(self, node: yaml.Node, where: Where) -> Any:
        self._report.lines[where] = node.start_mark.line + 1
        return self.value(node, where)

    def mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, Any]:
        """The data of a node that maps keys to values."""
        self._merge(node, where)
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if (key := self._key(key_node)) is not None:
                self._report.lines[*where, key] = key_node.start_mark.line + 1
                data[key] = self.value(value_node, (*where, key))
        return data

    def _merge(self, node: yaml.MappingNode, where: Where) -> None:
        """Fill `<<: *anchor` in. It comes first, so that the mapping's own keys win over it."""
        if id(node) in self._merged:
            return
        self._merged.add(id(node))
        self._refuse_twice(node, where)
        try:
            yaml.constructor.SafeConstructor().flatten_mapping(node)
        except yaml.constructor.ConstructorError as error:
            line = node.start_mark.line + 1 if error.problem_mark is None else error.problem_mark.line + 1
            self._report.add_line(line, "<< takes a mapping; write e.g. `<<: *common` after `&common` on a mapping")
            node.value = [pair for pair in node.value if pair[0].tag != _TAG + "merge"]

    def _refuse_twice(self, node: yaml.MappingNode, where: Where) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                self._report.lines[*where, key.value] = line
                self._report.add((*where, key.value), f"appears twice, first in line {seen[key.value]}; keep one")
            elif isinstance(key, yaml.ScalarNode):
                seen[key.value] = line

    def _key(self, node: yaml.Node) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "str":
            return str(node.value)
        self._report.add_line(node.start_mark.line + 1, "a key must be text; put it in quotes")
        return None

    def _scalar(self, node: yaml.ScalarNode, where: Where) -> Any:
        if node.tag == _TAG + "str":
            return self._filled_in(str(node.value), where)
        if node.tag in _SCALARS:
            with suppress(ValueError):
                return _SCALARS[node.tag](str(node.value))
        self._report.add_unknown(where, "starts with ! or is <<; put it in quotes")
        return ""

    def _filled_in(self, text: str, where: Where) -> str:
        filled = _VARIABLE.sub(lambda found: self._variable(found[0], where), text)
        if filled != text:
            self._report.written[where] = (text, filled)
        return filled

    def _variable(self, written: str, where: Where) -> str:
        if written == "$${":
            return "${"
        reference = _REFERENCE.fullmatch(written)
        if reference is None:
            self._report.add_unknown(where, "holds a ${ that is not ${NAME} or ${NAME:-default}; a literal ${ is $${")
            return ""
        name, value = reference["name"], self._environ.get(reference["name"])
        if reference["has_default"]:
            return value or reference["default"]
        if value is None:
            remedy = f"set it, or give a default as ${{{name}:-default}}"
            self._report.add_unknown(where, f"the environment variable {name} is not set; {remedy}")
            return ""
        return value
