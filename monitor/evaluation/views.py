"""What a monitor's rules are judged on, read from the store."""

from __future__ import annotations

from monitor.conditions.rules import Drop, Rule
from monitor.conditions.thresholds import View
from monitor.series.intervals import REACH
from monitor.series.windows import History
from monitor.store import Store
from monitor.types import Definition, Judgments, Monitor


class Views:
    """What a monitor's rules are judged on, read from the store as far back as they look."""

    def __init__(self, monitor: Monitor, store: Store) -> None:
        self._monitor = monitor
        self._store = store
        self._read: dict[tuple[Definition, int, int], History] = {}

    def of(self, rule: Rule, since: int, until: int) -> View:
        """What is needed to judge the windows that end in (since, until], and to describe them."""
        monitor, definition = self._monitor, self._monitor.judged_definition(rule)
        begin = since - max(r.reach + r.window for r in monitor.alerts) - REACH
        history = self._history(definition, begin, until)
        if isinstance(rule.limit, Drop) and (pinned := rule.limit.baseline.pinned) is not None and pinned[0] < begin:
            history = history.after(self._history(definition, pinned[0], min(pinned[1], begin)))
        traffic = self._history(monitor.traffic, begin, until)
        by_judgments = isinstance(monitor.recipe, Judgments)
        personal = frozenset(s.dimension for s in monitor.slices if s.column == monitor.rankings.query)
        return View(history, traffic, monitor.bucket, monitor.min_completeness, by_judgments, personal)

    def first(self) -> int | None:
        """Start of the oldest bucket from which on none was rolled up."""
        return self._store.retention.whole_since(self._monitor.traffic)

    def _history(self, definition: Definition, since: int, until: int) -> History:
        asked = (definition, since, until)
        if asked not in self._read:
            self._read[asked] = self._store.history(definition, since, until)
        return self._read[asked]
