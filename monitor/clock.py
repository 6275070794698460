"""Clocks. Only the outermost layer reads one; everything below gets the time as an argument."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Tells the time in seconds since 1970, and how many of them pass in one real second."""

    @property
    def speed(self) -> float:
        """Seconds of this clock in a real one."""

    def now(self) -> float:
        """Seconds since 1970 UTC."""


@dataclass(frozen=True)
class SystemClock:
    speed: float = 1.0

    def now(self) -> float:
        return time.time()


@dataclass(frozen=True)
class ReplayClock:
    """Starts at `start` when it is made and runs `speed` times as fast as real time: for replays and the demo."""

    start: float
    speed: float = 1.0
    _began: float = field(default_factory=time.monotonic, repr=False)

    def now(self) -> float:
        return self.start + (time.monotonic() - self._began) * self.speed


@dataclass
class ManualClock:
    """Stays at `time` until somebody sets it."""

    time: float
    speed: float = 1.0

    def now(self) -> float:
        return self.time
