"""Simulated partials in a store, and the configuration of a monitor over them: nothing is read from a source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from monitor.config import load
from monitor.config.values import Config
from monitor.drift.series import Hours
from monitor.series.partials import FIELDS, REQUESTS, SQUARES, TOTAL, TRAFFIC_FIELDS, Partials
from monitor.store import Store
from monitor.types import OVERALL, Monitor
from monitor.units import HOUR

CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
sources: {{shop: {{url: "sqlite:///{folder}/shop.db"}}}}
monitors:
  - name: search
    source: shop
    rankings: {{table: rankings, request: request, item: item, position: position, time: time}}
    slices: [device]
    relevance: {{column: {{grade: grade, max_grade: 3}}}}
    measures: [ndcg@10]
    notify: [log]
"""


def configured(folder: Path, more: str = "    drift: {}\n", name: str = "rankmon.yaml") -> Config:
    """A configuration file in `folder` with some more lines of its monitor, loaded."""
    path = folder / name
    path.write_text(CONFIG.format(folder=folder) + more, encoding="utf-8")
    return load(path, {})


def put(
    store: Store, monitor: Monitor, hours: Hours, kernel: str = "ndcg@10", version: Callable[[int], str] | None = None
) -> None:
    """Store steps as final buckets of a monitor, by the values of its slice `device`.

    Args:
        version: which one of the model serves all requests of a step, by its start.
    """
    found = Partials(int(hours.starts[0]), int(hours.starts[-1]) + HOUR)
    keys = [OVERALL, *(("device", name) for name in hours.slices)]
    keys_of_versions: dict[tuple[str, str], None] = {}
    for row, start in enumerate(hours.starts.tolist()):
        for column, key in enumerate(keys):
            sums, crowd = _sums(hours, row, column - 1), _crowd(hours, row, column - 1)
            if key == OVERALL or crowd[TRAFFIC_FIELDS.index("requests")]:
                found.measures.setdefault(kernel, {})[(start, *key)] = sums
                found.traffic[start, *key] = crowd
        if version is not None:
            key = ("model_version", version(start))
            found.measures[kernel][(start, *key)] = _sums(hours, row, -1)
            found.traffic[(start, *key)] = _crowd(hours, row, -1)
            keys_of_versions[key] = None
    found.admitted = [*keys[1:], *keys_of_versions]
    starts = hours.starts.tolist()
    with store.hold(monitor.name) as lease:
        store.write(lease, monitor, found, dict.fromkeys(monitor.definitions, starts), 1e6, starts, force=True)


def _sums(hours: Hours, row: int, column: int) -> np.ndarray:
    """Of one slice; of all of them for column -1."""
    which = slice(None) if column < 0 else slice(column, column + 1)
    found = np.zeros(len(FIELDS))
    found[REQUESTS] = hours.requests[row, which].sum()
    found[TOTAL], found[SQUARES] = hours.total[row, which].sum(), hours.squares[row, which].sum()
    return found


def _crowd(hours: Hours, row: int, column: int) -> np.ndarray:
    which = slice(None) if column < 0 else slice(column, column + 1)
    found = np.zeros(len(TRAFFIC_FIELDS))
    found[TRAFFIC_FIELDS.index("requests")] = hours.served[row, which].sum()
    found[TRAFFIC_FIELDS.index("labelled")] = hours.labelled[row, which].sum()
    if column < 0:
        found[TRAFFIC_FIELDS.index("events")] = hours.events[row]
        found[TRAFFIC_FIELDS.index("unmatched")] = hours.unmatched[row]
        found[TRAFFIC_FIELDS.index("rank_one")] = hours.rank_one[row]
    return found
