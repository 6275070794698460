"""Which series a changed configuration starts, and which key changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from monitor.store import Store
from monitor.types import TRAFFIC, Monitor

_OWN = {"algorithm": "rankmon's algorithm", "depth": "the largest k of measures"}


def new_series(monitor: Monitor, store: Store) -> str:
    """Says that a monitor's stored series will not continue, and why; empty if they do. Raises StoreError."""
    replaced, defined = store.replaced(monitor), {d.kernel: json.loads(d.text) for d in monitor.definitions}
    if not replaced:
        return ""
    changed = dict.fromkeys(
        key for kernel, text in replaced.items() for key in _changed(json.loads(text), defined[kernel])
    )
    kernels = ", ".join(kernel for kernel in replaced if kernel != TRAFFIC) or TRAFFIC
    which = "all its series" if replaced.keys() == defined.keys() else f"its series of {kernels}"
    told = f"{which} start from nothing with this configuration, because {', '.join(changed)} changed"
    return f"{told}; `rankmon backfill --from DATE` reads their past" + _instead(changed)


def _instead(changed: Mapping[str, None]) -> str:
    if not any(key.endswith(".select") for key in changed):
        return ""
    return (
        ". Any change to a `select:` does this; to add a column without it, let the `select:` read a view or SELECT *"
    )


def _changed(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The keys of the configuration that differ between two definitions."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            step = {"relation": (), "recipe": ("relevance", after.get("recipe", {}).get("kind", ""))}.get(name, (name,))
            yield from _changed(before.get(name), after.get(name), (*path, *step))
    elif before != after:
        yield _OWN.get(path[-1], ".".join(path))
