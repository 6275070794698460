"""The JSON Schema of the configuration file, for editors."""

from __future__ import annotations

from typing import Any

from monitor.config.shape import Root


def json_schema() -> dict[str, Any]:
    """The schema as plain data; `python -m monitor.config` prints it."""
    schema: dict[str, Any] = _without_null(Root.model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "rankmon configuration"}


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
