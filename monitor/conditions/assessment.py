"""The conditions of one incident together: their order, what may explain them, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from monitor.conditions.evidence import ConcurrentChange, Evidence, QualityEvidence, SliceFall
from monitor.conditions.kinds.degraded import Degraded
from monitor.conditions.kinds.threshold import Threshold, Unjudged
from monitor.conditions.kinds.version_worse import VersionWorse
from monitor.conditions.rules import SEVERITIES, is_beyond
from monitor.conditions.versions import NewVersion, WeakVersion
from monitor.types import MODEL_VERSION
from monitor.units import HOUR

NO_RESULTS = "no_results"
"""Text of the measure of requests without results."""

MAY_BE_WELL = 3 * HOUR
"""Seconds for which a fall must look over to be reported so: shorter is mostly chance."""

LOST_LABELS = 0.7
"""Ratio to the earlier label coverage below which a rule's fall may be due to labels."""


def in_order(findings: Sequence[Evidence], opened_at: int) -> tuple[Evidence, ...]:
    """What is still down first, then the most severe, overall before its slices, the largest fall."""
    return tuple(sorted(with_first_version(findings, opened_at), key=_weight))


def _weight(it: Evidence) -> tuple[object, ...]:
    grave, place = -SEVERITIES.index(it.severity), (it.dimension, it.slice)
    return it.is_recovering, grave, bool(it.dimension), -it.loss, it.rule, place


def with_first_version(findings: Sequence[Evidence], opened_at: int) -> list[Evidence]:
    """Evidence of an incident in which only the first fall names a new version: later falls follow it."""
    by_verdict = (f for f in findings if f.verdict)
    first = min(by_verdict, key=lambda f: (f.since, f.dimension), default=None)
    return [
        replace(f, new_version=None) if isinstance(f, Degraded) and not (f is first and f.since <= opened_at) else f
        for f in findings
    ]


def first_on_data(findings: Sequence[Evidence]) -> Evidence | None:
    """The first that a verdict found in the data, not in the model."""
    return next((f for f in findings if f.verdict and not isinstance(f, QualityEvidence)), None)


@dataclass(frozen=True)
class Assessment:
    """Facts about some conditions of an incident, in the order of `in_order`."""

    findings: Sequence[Evidence]

    @cached_property
    def data(self) -> Evidence | None:
        """The first condition on data that a verdict found; not if a more severe rule says that labels are missing."""
        found = first_on_data(self.findings)
        if found is None or found.is_short_of_labels:
            return found
        missing = [f for f in self.down.quality if f.is_of_labels and f.fires]
        return None if any(SEVERITIES.index(f.severity) > SEVERITIES.index(found.severity) for f in missing) else found

    @cached_property
    def quality(self) -> list[QualityEvidence]:
        return [f for f in self.findings if isinstance(f, QualityEvidence)]

    @cached_property
    def down(self) -> Assessment:
        """Only those that are not recovering."""
        return Assessment([f for f in self.findings if not f.is_recovering])

    @property
    def is_recovering(self) -> bool:
        """Whether all of them are recovering."""
        return bool(self.findings) and not self.down.findings

    @cached_property
    def held(self) -> Unjudged | None:
        """Why a rule cannot be judged now."""
        rules = (f for f in self.findings if isinstance(f, Threshold))
        return next((f.unjudged for f in rules if f.unjudged is not None), None)

    @property
    def is_below_its_resolve(self) -> bool:
        """Whether a rule's value must still rise to resolve."""
        rules = (f for f in self.findings if isinstance(f, Threshold))
        values = ((f.value or 0.0, f.back_from or 0.0, f.rises) for f in rules)
        return any(is_beyond(*one) for one in values)

    @property
    def is_of_coverage(self) -> bool:
        """Whether a rule on the label coverage is among them."""
        return any(f.is_of_labels for f in self.quality)

    @cached_property
    def labels_are_suspect(self) -> bool:
        """Whether labels may have broken instead of the model. Verdicts have checked that already."""
        if self.is_of_coverage:
            return True
        if any(f.verdict for f in self.findings):
            return self.data is not None
        first = min(self.findings, key=_weight, default=None)  # a slice that ranks worse has fewer labels as well
        now, before = (first.coverage, first.coverage_before) if first is not None else (None, None)
        return now is not None and before is not None and now < LOST_LABELS * before

    @property
    def doubt(self) -> str:
        """The fault of the data that a verdict finds while only rules fire; empty if none."""
        found = [f.doubt for f in self.findings if isinstance(f, Threshold)]
        return found[0] if len(found) == len(self.findings) and found else ""

    @property
    def fell_as_labels(self) -> bool:
        """Whether lost labels may explain the first."""
        first = self.findings[0] if self.findings else None
        return isinstance(first, Degraded) and first.fell_as_labels

    @property
    def is_doubted(self) -> bool:
        """Whether by any of them labels may be lost."""
        return any(isinstance(f, Degraded) and f.fires and f.fell_as_labels for f in self.findings)

    @property
    def by_items(self) -> bool:
        """Whether label coverage counts items with a judgment."""
        return any(isinstance(f, Threshold) and f.by_items for f in self.findings)

    @property
    def may_be_chance(self) -> bool:
        """Whether rules alone fire, and each value may be noise by its own interval."""
        return bool(self.findings) and all(isinstance(f, Threshold) and f.may_be_chance for f in self.findings)

    @property
    def is_of_no_results(self) -> bool:
        """Whether the first is on requests without results."""
        return bool(self.findings) and self.findings[0].judged == NO_RESULTS

    @property
    def is_of_a_version(self) -> bool:
        """Whether one model version fell, or is new and worse than the others."""
        dimensions = ((f.dimension, *(s.dimension for s in f.slices if s.before is None)) for f in self.findings)
        return any(MODEL_VERSION in some for some in dimensions)

    @property
    def former_version(self) -> SliceFall | None:
        """The model version that a rule says fell, if none of those that it names serves any more."""
        found = [s for f in self.quality for s in f.slices if s.dimension == MODEL_VERSION]
        return found[0] if found and all(s.until is not None for s in found) else None

    @cached_property
    def with_slices(self) -> QualityEvidence | None:
        """The fall that says in which slices: of those that do not recover a verdict's, which knows their noise."""
        falls = sorted((f for f in self.down.quality if f.slices), key=lambda f: not f.verdict)
        return next(iter(falls), None)

    @property
    def places(self) -> list[tuple[str, str]]:
        """(dimension, value) of where they fire, each once; all traffic, which has no dimension, is first."""
        return sorted(dict.fromkeys((f.dimension, f.slice) for f in self.findings), key=any)

    @property
    def only_slice(self) -> tuple[str, str] | None:
        """(dimension, value) of the slice that fell, if it is one."""
        of_slices = self.with_slices.slices if self.with_slices is not None else ()
        found = {(one.dimension, one.slice) for one in of_slices}
        found |= {(f.dimension, f.slice) for f in self.quality if f.dimension}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def worse_version(self) -> VersionWorse | None:
        return next((f for f in self.findings if isinstance(f, VersionWorse)), None)

    @cached_property
    def concurrent(self) -> ConcurrentChange | None:
        """A change that came with a fall that is not recovering, and may explain it."""
        return next((one for f in self.down.quality for one in f.concurrent), None)

    @cached_property
    def new_version(self) -> NewVersion | None:
        """The version that began to serve with the first fall."""
        return next((f.new_version for f in self.findings if isinstance(f, Degraded) and f.new_version), None)

    @cached_property
    def weak_version(self) -> WeakVersion | None:
        return next((f.weak_version for f in self.findings if isinstance(f, Degraded) and f.weak_version), None)

    @property
    def maybe_well(self) -> list[Degraded]:
        """The falls that may be over, without certainty yet."""
        return [f for f in self.findings if isinstance(f, Degraded) and f.well_for >= MAY_BE_WELL]

    @property
    def still_down(self) -> list[QualityEvidence]:
        """The falls that fire and do not recover."""
        well = self.maybe_well
        return [f for f in self.quality if f not in well and not f.is_recovering]
