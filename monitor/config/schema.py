"""The JSON Schema of the configuration file, for editors, and the reference of its keys as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from monitor.config.values import File
from monitor.fields import WRITTEN
from monitor.section import Derived, Flat, FromFile, Section, keys_of

_HEAD = """\
# Configuration reference

One YAML file. Start from a file in `config/examples`; editors complete and check it with
`config/rankmon.schema.json`. Generated from the schema by `make docs`; do not edit.

- Durations are text with a unit: `90s`, `15m`, `24h`, `7d`.
- `${NAME}` is taken from the environment, `${NAME:-text}` falls back to the text, `$${` is a literal `${`.
- Every secret can be in a file instead (`url_file`, `password_file`), relative to the configuration.
- `rankmon check-config` lists all mistakes at once; `rankmon check-config --connect` also connects to the databases.
"""


def json_schema() -> dict[str, Any]:
    """The schema as plain data; `python -m monitor.config` prints it."""
    root: dict[str, Any] = _without_null(TypeAdapter(File).json_schema())
    definitions, kinds = root.pop("$defs"), {kind.__name__: kind for kind in _below(Section)}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {n: _shaped(kinds[n], part, definitions) for n, part in definitions.items() if n in kinds},
        **_shaped(File, root, definitions),
        "title": "rankmon configuration",
    }
    for kind in kinds.values():
        for key in keys_of(kind).values():
            if Flat in key.marks:
                schema["$defs"].pop(key.kind.__origin__.__name__, None)
    return schema


def _below(kind: type[Section]) -> Iterator[type[Section]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _shaped(kind: type[Section], part: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a section as people write it: keys of flat fields, files that hold values, defaults as text."""
    properties, required = dict[str, Any](), set(part.get("required", ()))
    choices: list[list[dict[str, Any]]] = [[{"required": [name]} for name in kind.JUST_ONE]]
    for name, others in kind.STANDS_FOR.items():
        is_there: dict[str, Any] = {"required": [name]}
        other = {"anyOf": [{"required": [one]} for one in others]}
        choices.append([is_there | {"not": other}, {"required": list(others), "not": is_there}])
        required -= others.keys()
    for name, key in keys_of(kind).items():
        if Flat in key.marks:
            inner = _shaped(key.kind.__origin__, definitions[key.kind.__origin__.__name__], definitions)
            properties |= inner["properties"]
            required |= set(inner["required"])
            choices.append(inner.get("oneOf", []))
        elif name in part["properties"]:
            properties[name] = _with_default(part["properties"][name])
        if Derived in key.marks:
            required.discard(name)
        if FromFile in key.marks:
            text = f"File that holds the {name.replace('_', ' ').replace('url', 'URL')}, relative to this file."
            properties[f"{name}_file"] = {"type": "string", "description": text}
            choices += [[{"required": [one]} for one in (name, f"{name}_file")]] if name in required else []
            required.discard(name)
    shaped = {**part, "properties": properties, "required": [n for n in properties if n in required]}
    each = [{"oneOf": choice} for choice in choices if choice]
    return shaped | (each[0] if len(each) == 1 else {"allOf": each} if each else {})


def _with_default(part: dict[str, Any]) -> dict[str, Any]:
    """A key's schema with its default as text, named in the description; one that is made up elsewhere is left out."""
    default = part.get("default")
    if isinstance(default, int) and part.get("type") == "string":
        part = {**part, "default": WRITTEN[part["pattern"]](default)}
    text, shown = part.get("description", ""), str(part.get("default", "")).lower()
    said = text.partition("Default: ")[2].lower()
    if isinstance(default, dict | list) or default in (None, "") or (said and shown not in said):
        return {name: value for name, value in part.items() if name != "default"}
    return part if said else {**part, "description": f"{text} Default: {shown}."}


def _without_null(part: Any) -> Any:
    """`part` without the null that stands for leaving a key out: where a key is, it has a value."""
    if isinstance(part, list):
        return [_without_null(p) for p in part]
    if not isinstance(part, dict):
        return part
    kept = {k: _without_null(v) for k, v in part.items() if not (k == "default" and v is None)}
    kept.pop("title", None) if isinstance(kept.get("title"), str) else None
    choices = [c for c in kept.get("anyOf", []) if c != {"type": "null"}]
    if len(choices) == 1:
        del kept["anyOf"]
        kept |= choices[0]
    elif choices:
        kept["anyOf"] = choices
    return kept


def reference() -> str:
    """All keys as Markdown, one section for each part of the file."""
    schema = json_schema()
    parts = [_HEAD]
    _section(schema, schema, "", "The file", parts, set())
    return "\n".join(parts)


def _section(
    schema: dict[str, Any], node: dict[str, Any], path: str, title: str, parts: list[str], seen: set[str]
) -> None:
    properties = node.get("properties", {})
    required = set(node.get("required", ()))
    parts += [f"\n## {title}\n", "| key | meaning |", "|---|---|"]
    for key, value in properties.items():
        text = str(value.get("description", "")).replace("|", "\\|")
        parts.append(f"| `{key}`{' (required)' if key in required else ''} | {text} |")
    for key, value in properties.items():
        if "properties" in value:
            _section(schema, value, f"{path}{key}.", f"`{path}{key}`", parts, seen)
        for name, more in _referred(value):
            target = schema["$defs"][name]
            if name not in seen and "properties" in target:
                seen.add(name)
                _section(schema, target, f"{path}{key}{more}.", f"`{path}{key}{more}`", parts, seen)


def _referred(value: Any, more: str = "") -> Iterator[tuple[str, str]]:
    """(name of a definition, how it is reached) in a property's schema: directly, as an item, or by a free name."""
    if not isinstance(value, dict):
        return
    if "$ref" in value:
        yield value["$ref"].rpartition("/")[2], more
    yield from _referred(value.get("items"), f"{more}[]")
    for named in (*value.get("patternProperties", {}).values(), value.get("additionalProperties")):
        yield from _referred(named, f"{more}.NAME")
    for name, inner in value.get("properties", {}).items() if more else ():
        yield from _referred(inner, f"{more}.{name}")
    for choice in (*value.get("anyOf", ()), *value.get("oneOf", ()), *value.get("allOf", ())):
        yield from _referred(choice, more)
