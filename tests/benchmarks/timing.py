"""Times of calls that run in turn, so that a busy moment of the machine hits all of them alike."""

import gc
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any


def interleaved(
    calls: Sequence[tuple[str, Callable[[], Any]]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Name -> median seconds. Repeat a name to time a short call more often."""
    taken: dict[str, list[float]] = {name: [] for name, _ in calls}
    for _ in range(rounds):
        for name, call in calls:
            taken[name].append(seconds(call, clock))
    return {name: median(times) for name, times in taken.items()}


def seconds(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long one call takes, after a garbage collection."""
    gc.collect()
    began = clock()
    call()
    return clock() - began
