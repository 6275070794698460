"""One monitor being built: what it says itself, what the defaults say, and where mistakes in it are reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from monitor.config.report import Report, Where
from monitor.config.shape import BUILT_IN, Monitor, Settings


@dataclass(frozen=True)
class Scope:
    """A monitor's shape at its place in the file."""

    where: Where
    shape: Monitor
    defaults: Settings
    report: Report

    def setting(self, name: str) -> Any:
        """Value of a setting: the monitor's own, else the defaults', else what is built in; None if there is none."""
        for settings in (self.shape, self.defaults, BUILT_IN):
            if (value := getattr(settings, name)) is not None:
                return value
        return None

    def place(self, name: str) -> Where:
        """Where a setting was made; where it could be, if it is built in."""
        inherited = getattr(self.shape, name) is None and getattr(self.defaults, name) is not None
        return ("defaults", name) if inherited else (*self.where, name)

    def refuse(self, text: str, *steps: str | int) -> None:
        """Report a mistake at a place inside the monitor."""
        self.report.add((*self.where, *steps), text)

    def refuse_setting(self, name: str, text: str, *steps: str | int) -> None:
        """Report a mistake in a setting, wherever it was made."""
        self.report.add((*self.place(name), *steps), text)
