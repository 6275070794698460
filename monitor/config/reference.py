"""The reference of all configuration keys as Markdown, made from the same schema that checks them."""

from __future__ import annotations

from typing import Any

from monitor.config.schema import json_schema

_HEAD = """\
# Configuration reference

One YAML file. Start from one of the files in `config/examples`; editors complete and check with
`config/rankmon.schema.json`. Made from the schema by `make docs`; do not edit.

- Durations are text with a unit: `90s`, `15m`, `24h`, `7d`.
- `${NAME}` is taken from the environment, `${NAME:-text}` falls back to the text, `$${` is a literal `${`.
- Every secret can stand in a file instead (`url_file`, `password_file`), relative to the configuration.
- `rankmon check-config` names all mistakes at once, `rankmon check-config --connect` also asks the databases.
"""


def reference() -> str:
    """All keys, one section for each part of the file."""
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
        for name, more in _referred(value):
            target = schema["$defs"][name]
            if name not in seen and "properties" in target:
                seen.add(name)
                _section(schema, target, f"{path}{key}{more}.", f"`{path}{key}{more}`", parts, seen)


def _referred(value: Any, more: str = "") -> list[tuple[str, str]]:
    """(name of a definition, how it is reached) in a property's schema: directly, as an item, or by a free name."""
    if not isinstance(value, dict):
        return []
    if "$ref" in value:
        return [(value["$ref"].rpartition("/")[2], more)]
    found = _referred(value.get("items"), f"{more}[]")
    for named in value.get("patternProperties", {}).values():
        found += _referred(named, f"{more}.NAME")
    for choice in (*value.get("anyOf", ()), *value.get("oneOf", ()), *value.get("allOf", ())):
        found += _referred(choice, more)
    return found
