"""What to do next, by what fell: whether at the labels first, at a version of the model, or at what changed."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.conditions.concurrent_words import advice_on_beside
from monitor.conditions.findings import AS_MUCH, Beside, Finding, NewVersion, Unjudged, weight
from monitor.conditions.rules import COVERAGE, is_beyond
from monitor.conditions.verdict_words import advice as advice_on_data
from monitor.conditions.verdict_words import first_on_data
from monitor.conditions.version_words import advice_on_version, advice_on_weak, first_on_version, first_on_weak

NO_RESULTS = "no_results"
"""Text of the measure that says how many requests find nothing."""


def advice(findings: Sequence[Finding]) -> str:
    """What to do next, by what fell."""
    if (on_data := first_on_data(findings)) is not None:
        return advice_on_data(on_data)
    findings = [f for f in findings if not f.is_recovering] or findings
    if findings and findings[0].is_recovering:
        if (held := next((f.unjudged for f in findings if f.unjudged is not None), None)) is not None:
            return _until_it_is_judged(held)
        if any(is_beyond(f.value or 0.0, f.back_from or 0.0, f.rises) for f in findings):
            return (
                "watch whether it goes on rising; if it stays there, see on the page what fell and what changed then."
            )
        return "nothing but watch it; it is over once it has been well for as long as the rule says."
    if any(f.judged == COVERAGE for f in findings):
        return f"{_of_labels(findings)}; do not retrain before it is mended."
    if labels_are_suspect(findings):
        return f"{_of_labels(findings)}; only then at the model."
    if (beside := changed_beside(findings)) is not None and not advised_on_version(findings):
        return advice_on_beside(beside, _steps(findings))
    if not any(map(fell_as_labels, findings[:1])):
        return _steps(findings)
    if to_do := advised_on_version(findings):
        return f"{to_do} Labels became fewer by about as much: see that those of this version are logged."
    return f"look at the labels first, for they became fewer by about as much; if they are sound, {_steps(findings)}"


def _of_labels(findings: Sequence[Finding]) -> str:
    """Where to look first when labels are fewer. It tells judgments from others, but not a column from events."""
    if any(f.by_items for f in findings):
        return "look first at which items nobody has judged, be they new or their judgments lost"
    where = "where labels come from (the event pipeline, or the job that fills them in)"
    return f"look first at {where}, for there are fewer"


def _until_it_is_judged(held: Unjudged) -> str:
    """What to do about a rule that stays as it is because it cannot be judged."""
    if held.why == "too few requests":
        return "wait for more requests, or lower min_requests of the rule; until it is judged again it stays open."
    return "see why it cannot be judged; until it is again it stays open."


def _steps(findings: Sequence[Finding]) -> str:
    """What to do next where labels are sound."""
    if findings and findings[0].judged == NO_RESULTS:
        return "see why searches find nothing: the index, the catalogue, filters, or how queries are read."
    if to_do := advised_on_version(findings):
        return to_do
    if any(_is_of_a_version(f) for f in findings):
        return (
            "compare the model versions on the page; roll the fallen one back if it serves still, else see what else "
            "changed, or retrain."
        )
    return "see on the page what fell and whether a model, feature or index changed then; roll back or retrain."


def _is_of_a_version(finding: Finding) -> bool:
    """Whether it is one version of the model that fell, or that is new and worse than the rest."""
    new = (s.dimension for s in finding.slices if s.before is None)
    return "model_version" in (finding.dimension, *new)


def labels_are_suspect(findings: Sequence[Finding]) -> bool:
    """Whether it may be the labels that broke, and not the model. A verdict has looked at them already."""
    if any(f.judged == COVERAGE for f in findings):
        return True
    if any(f.verdict for f in findings):
        return first_on_data(findings) is not None
    first = min(findings, key=weight, default=None)  # a slice that ranks worse has fewer clicks, and so fewer labels
    now, before = (first.coverage, first.coverage_before) if first is not None else (None, None)
    return now is not None and before is not None and now < 0.7 * before


def fell_as_labels(finding: Finding) -> bool:
    """Whether labels that became fewer may be all there is to a verdict's fall, be they lost or of worse lists."""
    now, before, change = finding.coverage, finding.coverage_before, finding.change
    if not (finding.verdict and finding.counts_unlabelled) or finding.is_recovering:
        return False
    if now is None or not before or change is None:
        return False
    return -1 < change < 0 and now / before <= (1 + change) ** AS_MUCH


def changed_beside(findings: Sequence[Finding]) -> Beside | None:
    """What changed when a fall began that is not on its way back, and may be all there is to it."""
    return next((one for f in findings if not f.is_recovering for one in f.beside), None)


def advised_on_version(findings: Sequence[Finding]) -> str:
    """What to do about a version that may be to blame; empty where there is none."""
    if (new := _new_version(findings)) is not None:
        return advice_on_version(new)
    return next((advice_on_weak(f.weak_version) for f in findings if f.weak_version is not None), "")


def before_retraining(findings: Sequence[Finding]) -> str:
    """What is to be done before the model is retrained, by the same advice, in a few words; empty where nothing is."""
    down = [f for f in findings if not f.is_recovering]
    if findings and not down:
        return "watch whether it recovers"
    if labels_are_suspect(down):
        return "see to the labels"
    if (new := _new_version(down)) is not None:
        return first_on_version(new)
    if (weak := next((f.weak_version for f in down if f.weak_version is not None), None)) is not None:
        return first_on_weak(weak)
    return "see what else changed with the fall" if changed_beside(down) is not None else ""


def on_retraining(findings: Sequence[Finding]) -> str:
    """What to say while somebody is asked to retrain: what is to be done first, and that the request stands."""
    if first := before_retraining(findings):
        return f"Asked for, and that stands, but first {first}: retrain only if that does not help."
    return "Recommended. Make sure first that the labels are sound."


def _new_version(findings: Sequence[Finding]) -> NewVersion | None:
    """The version of the model that began to serve when the first fall did."""
    return next((f.new_version for f in findings if f.new_version is not None), None)
