"""The evidence of a condition: a dataclass per kind, with its words, registered under its name.

A kind is one file in `monitor/conditions/kinds`: its evidence, detection, audience, resolution and Jinja templates.
Instants and lengths are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform, get_args

from monitor.codec import decoded
from monitor.conditions.rules import COVERAGE, Severity, is_beyond
from monitor.conditions.thresholds import ConditionName
from monitor.series.windows import SliceKey
from monitor.types import Drift, Monitor

Matter = Literal["quality", "data", "layout"]
MATTERS: tuple[Matter, ...] = get_args(Matter)

AS_MUCH = 0.75
"""Share of a fall, in logarithms, from which fewer labels or results may explain all of it. Worse lists cost labels
too, but the remaining ones are worth less as well."""

MOST_SLICES = 3

EVERYWHERE = 0.99
"""Share of the requests from which a slice is all traffic: its fall says nothing about where."""


@dataclass(frozen=True, slots=True)
class SliceFall:
    """The fall of one slice; `share` of the window's requests, `z` standard errors of its noise, if known.

    `before` is None for a new slice. For a missing slice `before` and `value` are its usual and its actual requests
    since `since`. `until` is the end of the last bucket of a model version that no longer serves. Instants in seconds.
    """

    dimension: str
    slice: str
    before: float | None
    value: float
    share: float = 0.0
    z: float | None = None
    since: int | None = None
    until: int | None = None

    @property
    def is_everywhere(self) -> bool:
        """Whether it is all traffic, and was there before: that says nothing about where."""
        return self.before is not None and self.share >= EVERYWHERE


Changed = Literal["requests", "items", "events", "no_results", "relevant", "gain"]


@dataclass(frozen=True, slots=True)
class ConcurrentChange:
    """A change at the start of a fall that may explain all of it.

    Attributes:
        value, usual: in the last day of the fall, and in the same hours of the last week before it; for a rule in its
            newest window or the first one wholly fallen, and in its baseline.
    """

    what: Changed
    value: float
    usual: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One condition at one evaluation, over [end - window, end).

    Attributes:
        judged: text of the measure, or what else is counted.
        since: end of the first fallen window.
        before: what the value is compared with; `compared_with` says so in words that follow a number.
        well_for, well_needed: how long it has been well now, and how long it must be to resolve.
        lacks: what a baseline still needs, once a data problem is over.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    audience: ClassVar[Matter] = "data"
    is_grave: ClassVar[bool] = False
    """Whether it has the severity of a fall in quality and also goes to the quality channels."""
    is_of_slices: ClassVar[bool] = False
    """Whether it concerns only the slices in its evidence; the others are judged."""
    grows_into: ClassVar[str] = ""
    """Kind that it becomes if it lasts."""
    is_short_of_labels: ClassVar[bool] = False
    """Whether labels of its time may still arrive."""
    headline: ClassVar[str] = "{{ it|topic }}"
    text: ClassVar[str] = ""
    advice: ClassVar[str] = ""
    fired: ClassVar[str] = "verdict {{ it.title }}"
    recovered: ClassVar[str] = "{{ it.title }}: normal again"
    sound: ClassVar[str] = "The data problem is over."
    """Template of the first line once it is resolved, if it is not about the quality."""

    rule: str
    severity: Severity
    judged: str = ""
    dimension: str = ""
    slice: str = ""
    end: int
    window: int
    since: int
    requests: int = 0
    value: float | None = None
    before: float | None = None
    compared_with: str = ""
    coverage: float | None = None
    coverage_before: float | None = None
    slices: tuple[SliceFall, ...] = ()
    well_for: int = 0
    well_needed: int = 0
    lacks: str = ""
    rises: bool = False

    @classmethod
    def concerns(cls, monitor: Monitor) -> bool:
        """Whether a monitor with `drift` can come to it."""
        return True

    @property
    def verdict(self) -> str:
        """Its kind; empty where an alert rule found it."""
        return self.kind

    @property
    def name(self) -> ConditionName:
        return self.rule, self.dimension, self.slice

    @property
    def where(self) -> str:
        """`device=mobile`, or empty for overall."""
        return f"{self.dimension}={self.slice}" if self.dimension else ""

    @property
    def change(self) -> float | None:
        """Relative change from `before` to the value; None if undefined."""
        return self.value / self.before - 1 if self.value is not None and self.before else None

    @property
    def loss(self) -> float:
        """Relative change for the worse, above 0; 0 if unknown."""
        change = self.change or 0.0
        return change if self.rises else -change

    @property
    def is_recovering(self) -> bool:
        """Whether it is back above its threshold, though not resolved."""
        return False

    @property
    def is_new_normal(self) -> bool:
        """Whether it resolved because the present state counts as usual."""
        return False

    @property
    def is_incomplete(self) -> bool:
        """Whether it resolved with something left to do: hours or labels still missing, a table out of date."""
        return False

    @property
    def affected(self) -> set[SliceKey]:
        """All slices that it is about, also those that a message has no room for."""
        return {(one.dimension, one.slice) for one in self.slices}

    @property
    def lacking_since(self) -> list[int]:
        """Starts of the hours in which requests began to drop, before that was enough to fire."""
        return [one.since for one in self.slices if one.since is not None]

    def plain(self) -> dict[str, Any]:
        return {"kind": self.kind, "verdict": self.verdict, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class QualityEvidence(Evidence):
    """A fall of a measure.

    Attributes:
        lower, upper, interval: 95 % interval of the value and its method, see `series.intervals`.
        before_when_fired: `before` at the evaluation that fired; a trailing baseline moves on from there.
        counts_unlabelled: whether a request without a label counts 0, so that lost labels lower the measure.
    """

    audience: ClassVar[Matter] = "quality"
    headline: ClassVar[str] = ""
    """Template instead of how far it fell."""

    lower: float | None = None
    upper: float | None = None
    interval: str = "none"
    threshold: float | None = None
    before_when_fired: float | None = None
    concurrent: tuple[ConcurrentChange, ...] = ()
    counts_unlabelled: bool = True

    @property
    def fires(self) -> bool:
        known = self.value is not None and self.threshold is not None
        return known and is_beyond(self.value or 0.0, self.threshold or 0.0, self.rises)

    @property
    def is_recovering(self) -> bool:
        return self.value is not None and self.threshold is not None and not self.fires

    @property
    def is_of_labels(self) -> bool:
        """Whether it judges the label coverage and not a measure."""
        return self.judged == COVERAGE

    @property
    def may_be_chance(self) -> bool:
        """Whether it fires although the value's interval contains its reference."""
        if not self.fires or self.before is None or self.lower is None or self.upper is None:
            return False
        return self.lower <= self.before <= self.upper


def accounts_for(now: float, before: float, left: float) -> bool:
    """Whether the share of requests without results explains a fall; `left` is the value relative to the one before."""
    return before < now < 1 and left > 0 and (1 - now) / (1 - before) <= left**AS_MUCH


REGISTRY: dict[str, type[Evidence]] = {}

Kind = TypeVar("Kind", bound=Evidence)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def register(kind: type[Kind]) -> type[Kind]:
    """Decorator: makes a frozen dataclass of a kind of condition, and registers it under its name."""
    made = dataclass(frozen=True, kw_only=True)(kind)
    REGISTRY[made.kind] = made
    return made


def kinds() -> Mapping[str, type[Evidence]]:
    """Name -> kind of condition, by name."""
    _import_all()
    return dict(sorted(REGISTRY.items()))


@cache
def _import_all() -> None:
    """A tenth of the time of `rankmon status`, which needs few of them."""
    for name in _built_in():
        import_module(f"monitor.conditions.kinds.{name}")


def _built_in() -> list[str]:
    return [found.name for found in iter_modules(import_module("monitor.conditions.kinds").__path__)]


def kind_of(name: str) -> type[Evidence] | None:
    """The kind of a condition's name; None for a rule's name."""
    return kinds().get(name) if name != "threshold" else None


def condition_names() -> frozenset[str]:
    """Names of all conditions without a rule; no rule may use one."""
    return frozenset((*_built_in(), *REGISTRY)) - {"threshold"}


def is_grave_on_data(name: str) -> bool:
    """Whether a condition on data is as severe as one on quality, so it goes to both audiences."""
    kind = kind_of(name)
    return kind is not None and kind.is_grave and kind.audience == "data"


def severity_of(drift: Drift, name: str) -> Severity:
    """Severity of a condition without a rule."""
    kind = kind_of(name)
    return drift.severity if kind is not None and kind.is_grave else drift.data_severity


def evidence_of(plain: Mapping[str, Any]) -> Evidence:
    """The evidence from `Evidence.plain` data; unknown fields are ignored."""
    kind = plain["kind"]
    found: Evidence = decoded(REGISTRY[kind] if kind in REGISTRY else kinds()[kind], plain)
    return found
