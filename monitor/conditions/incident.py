"""Incidents: one at a time per monitor and matter, from its first firing condition until none fires.

It closes as `resolved` if the last of them recovered, as `withdrawn` if their subject is gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, get_args

from monitor.conditions.evidence import MATTERS, Matter, kind_of
from monitor.conditions.rules import Rule, Severity, worst
from monitor.conditions.thresholds import Change, ConditionName
from monitor.series.windows import SliceKey

IncidentState = Literal["firing", "resolved", "withdrawn"]

Label = Literal["right", "wrong", "known"]
"""What people say of an incident: it was one, it was none, or they knew of its cause before."""

LABELS: tuple[Label, ...] = get_args(Label)


def matter_of(name: ConditionName, rules: Iterable[Rule] = ()) -> Matter:
    """The matter of a condition; rules on the label coverage concern the data."""
    kind = kind_of(name[0])
    if kind is not None:
        return kind.audience
    return "data" if any(rule.is_about_data for rule in rules if rule.name == name[0]) else "quality"


def by_matter(
    changes: Iterable[Change], rules: Sequence[Rule], opened: Iterable[Incident] = ()
) -> dict[Matter, list[Change]]:
    """Changes by matter, in order; what fires in an `opened` incident ends in it, even if its rule was changed."""
    found: dict[Matter, list[Change]] = {matter: [] for matter in MATTERS}
    held = {name: incident.matter for incident in opened for name in incident.firing or {}}
    for change in sorted(changes, key=_order):
        matter = held.pop(change.name, None) if change.was == "firing" else None
        found[matter or matter_of(change.name, rules)].append(change)
    return found


def _order(change: Change) -> tuple[int, SliceKey, ConditionName]:
    return change.at, change.key, change.name


@dataclass(frozen=True, slots=True)
class Firing:
    """A condition that fires within an incident; `since` is the end of its first fallen window, seconds."""

    severity: Severity
    retrain: bool
    since: int


@dataclass(frozen=True)
class Incident:
    """One incident; instants in seconds, ends of windows.

    Attributes:
        began_at: when the first of its conditions first fell, or requests began to drop.
        origin: the monitor's first name, if it was renamed.
        severity, retrain: the highest severity so far; whether retraining was ever recommended.
    """

    monitor: str
    began_at: int
    opened_at: int
    state: IncidentState = "firing"
    severity: Severity = "info"
    retrain: bool = False
    closed_at: int | None = None
    firing: Mapping[ConditionName, Firing] | None = None
    matter: Matter = "quality"
    origin: str | None = None

    @property
    def id(self) -> str:
        """Ten hexadecimal digits, the same for the same buckets."""
        more = f"\n{self.matter}" if self.matter != "quality" else ""
        return hashlib.sha256(f"{self.origin or self.monitor}\n{self.opened_at}{more}".encode()).hexdigest()[:10]

    @property
    def is_open(self) -> bool:
        return self.state == "firing"


@dataclass(frozen=True)
class Placed:
    """A change with its incident; None for a pending condition outside of any."""

    change: Change
    incident: str | None


def gather(
    monitor: str,
    current: Incident | None,
    changes: Iterable[Change],
    matter: Matter = "quality",
    origin: str | None = None,
) -> tuple[list[Incident], list[Placed]]:
    """(incidents, oldest first; changes with their incidents) after changes, in any order, to the open one.

    `origin`: the monitor's first name, if it was renamed.
    """
    found: list[Incident] = [] if current is None else [current]
    placed: list[Placed] = []
    ordered = sorted(changes, key=_order)
    for at, group in groupby(ordered, key=lambda c: c.at):
        some = list(group)
        was = found[-1] if found and found[-1].is_open else None
        now = _after(was or Incident(monitor, at, at, matter=matter, origin=origin), was is None, at, some)
        if now is not None:
            found[-1 if was is not None else len(found) :] = [now]
        placed += [Placed(change, now.id if now is not None else None) for change in some]
    return found, placed


def _after(was: Incident, is_new: bool, at: int, changes: Sequence[Change]) -> Incident | None:
    firing = dict(was.firing or {})
    fired = list(firing.values())
    for change in changes:
        firing.pop(change.name, None)
        if change.became == "firing":
            firing[change.name] = Firing(change.severity, change.retrain, change.since)
            fired.append(firing[change.name])
    if is_new and not fired:
        return None
    since = [f.since for f in fired]
    incident = replace(was, began_at=min(since)) if is_new else was
    incident = replace(
        incident,
        began_at=min([incident.began_at, *since]),
        severity=worst([incident.severity, *(f.severity for f in fired)]),
        retrain=incident.retrain or any(f.retrain for f in fired),
    )
    if not firing:
        gone = all(c.became == "withdrawn" for c in changes if c.was == "firing")
        closed_at = max(at, incident.opened_at)  # longer buckets than those that opened it may end before that
        return replace(incident, state="withdrawn" if gone else "resolved", closed_at=closed_at, firing={})
    return replace(incident, firing=firing)
