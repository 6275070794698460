"""One finding in words: what fell, from what to what, how sure that is, and against what."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.conditions.advice import fell_as_labels
from monitor.conditions.findings import Finding
from monitor.conditions.rules import COVERAGE, is_beyond
from monitor.conditions.verdict_words import first_on_data, named, sentences
from monitor.messages.words import counted, lasting, utc
from monitor.types import format_duration

MAY_BE_WELL = 3 * 3600
"""Seconds for which a verdict's fall must have looked over for that to be told; for shorter it is chance most often."""

_UNJUDGED = {
    "window incomplete": "too little of the newest window was read",
    "no value": "the newest window has no value",
    "baseline too short": "there is too little to compare it with",
    "no traffic": "no requests came",
}
"""Why nothing can be said of a window."""


def each_sentence(findings: Sequence[Finding], is_over: bool = False, until: int = 0) -> list[str]:
    """The conditions of one incident in a sentence each, as `sentence`: none calls data sound that another doubts."""
    is_doubted = any(fires(f) and f.verdict and fell_as_labels(f) for f in findings)
    return [sentence(f, is_over, until, is_doubted) for f in findings]


def sentence(finding: Finding, is_over: bool = False, until: int = 0, is_doubted: bool = False) -> str:
    """One condition in a sentence: what, from what to what, how sure, of how many requests, against what.

    Args:
        until: end of the newest window that any rule of its monitor was judged by, seconds; 0 if that is not known.
        is_doubted: by another condition it may be that labels are lost.
    """
    if first_on_data([finding]) is not None:
        return " ".join(sentences(finding))
    length = lasting(finding.window) if finding.verdict else format_duration(finding.window)
    subject = f"{subject_of(finding)} over {length}"
    fell = _has_fallen(finding) and not (is_over and finding.verdict)
    told = (
        f"{'rose' if finding.rises else 'fell'} {from_to(finding)}" if fell else f"is {written(finding, finding.value)}"
    )
    text = f"{subject} {told} ({_interval(finding)}{finding.requests:,} requests)"
    if finding.before is not None and finding.change is not None:
        way = "below" if finding.change < 0 else "above"
        text += f", {abs(100 * finding.change):.1f} % {way} {finding.compared_with}{_baselines(finding, fell)}"
    if finding.verdict:
        sure = _sure(finding, is_doubted) if fires(finding) and not is_over else ""
        sure += " (Requests with nothing relevant count 0 here.)"
        return f"{text}.{sure}"
    fires_at = f"Rule {finding.rule} fires {side_of(finding)} {written(finding, finding.threshold)}."
    return f"{text}. {fires_at}{_by_chance(finding, is_over)}{_since(finding, is_over, until)}"


def _by_chance(finding: Finding, is_over: bool) -> str:
    """That a rule's own interval holds what it compares with; empty if it does not, or the rule does not fire."""
    before, lower, upper = finding.before, finding.lower, finding.upper
    if is_over or not fires(finding) or before is None or lower is None or upper is None:
        return ""
    return f" The 95 % interval contains {written(finding, before)}, so this may be chance." * (
        lower <= before <= upper
    )


def may_be_well(findings: Sequence[Finding]) -> list[str]:
    """Of an open incident, which falls that verdicts found may be over, and what of it is down all the same."""
    well = [f for f in findings if _may_be_well(f)]
    down = [f for f in findings if not (_may_be_well(f) or f.is_recovering or first_on_data([f]))]
    told = [
        f"{subject_of(f)} may be well again since {utc(f.end)}, by {lasting(f.well_for)} that were judged; that is not "
        f"sure yet{_still_down(down)}."
        for f in well[:1]
    ]
    return told + [f"The same goes for {', '.join(subject_of(f) for f in well[1:])}."] * bool(well[1:])


def _may_be_well(finding: Finding) -> bool:
    return bool(finding.verdict) and first_on_data([finding]) is None and finding.well_for >= MAY_BE_WELL


def _still_down(down: Sequence[Finding]) -> str:
    """That something of an incident fires still: the first of it, and by how much it is down; empty if nothing does."""
    if not down:
        return ""
    first, more = down[0], len(down) - 1
    fell = "" if first.loss <= 0 else f", {100 * first.loss:.1f} % {'up' if first.rises else 'down'}"
    others = f", and {more} more" if more else ""
    return f", and {subject_of(first)} still fires{fell}{others}"


def _since(finding: Finding, is_over: bool, until: int) -> str:
    """How far a rule's finding is on its way back, and whether it could be judged since; `until` as above."""
    is_held = finding.end < until or (finding.unjudged is not None and not is_over)
    told = f" It {'was' if is_held else 'is'} {recovery(finding)}." if finding.is_recovering and not is_over else ""
    if is_held:
        told += f" That was at {utc(finding.end)}; it could not be judged since{_why_unjudged(finding)}."
    return told


def _why_unjudged(finding: Finding) -> str:
    """Why a rule's finding could not be judged since, to follow that it could not; empty if that is not known."""
    if (found := finding.unjudged) is None:
        return ""
    if found.why != "too few requests":
        return f": {_UNJUDGED.get(found.why, found.why)}"
    which = "" if finding.judged == COVERAGE else " in the measure"
    few = f"{counted(found.requests, 'request')}{which}"
    return f": the newest window has {few}, fewer than min_requests, {found.least:,}"


def _sure(finding: Finding, is_doubted: bool) -> str:
    if finding.is_paused:
        return " That is too much to be chance. The data are not sound now; such hours are left out."
    if fell_as_labels(finding):
        return " That is too much to be chance. Labels became fewer by about as much, so it may be they that are lost."
    if finding.beside or is_doubted:
        return " That is too much to be chance."
    return " That is too much to be chance, and the data are sound."


def recovery(finding: Finding) -> str:
    """How far it is on its way back, of what stands above where it fires."""
    if finding.well_for and finding.well_needed:
        return f"recovering: well for {lasting(finding.well_for)} of {lasting(finding.well_needed)}"
    back, value = finding.back_from, finding.value
    if back is not None and value is not None and is_beyond(value, back, finding.rises):
        well = f"up to {written(finding, back)}" if finding.rises else f"from {written(finding, back)} on"
        return f"{'below' if finding.rises else 'above'} its threshold, well {well}"
    return "recovering"


def _baselines(finding: Finding, is_said: bool) -> str:
    """What it is compared with, unless that was said, and what that was when it fired, where it has moved since."""
    told = [] if is_said else [written(finding, finding.before)]
    then = written(finding, finding.before_when_fired)
    if finding.before_when_fired is not None and then != written(finding, finding.before):
        told.append(f"{then} when it fired")
    return f" ({', '.join(told)})" if told else ""


def fires(finding: Finding) -> bool:
    """Whether its value is past where it fires."""
    if finding.value is None or finding.threshold is None:
        return False
    return is_beyond(finding.value, finding.threshold, finding.rises)


def side_of(finding: Finding) -> str:
    """On which side of its threshold it fires."""
    return "above" if finding.rises else "below"


def _has_fallen(finding: Finding) -> bool:
    """Whether it fires, and stands on that side of what it is compared with."""
    return fires(finding) and finding.loss > 0


def from_to(finding: Finding) -> str:
    """From what it fell to what."""
    return f"from {written(finding, finding.before)} to {written(finding, finding.value)}"


def subject_of(finding: Finding) -> str:
    """What fell: the measure, and of which slice."""
    judged = coverage_name(finding) if finding.judged == COVERAGE else finding.judged
    return f"{judged} of {named(finding.dimension, finding.slice)}" if finding.dimension else judged


def coverage_name(finding: Finding) -> str:
    """The label coverage, and of what it is a share where that is not of the requests."""
    return "label coverage" + " (items with a judgment)" * finding.by_items


def _interval(finding: Finding) -> str:
    if finding.lower is None or finding.upper is None:
        return ""
    surely = "95 % by sampling alone" if finding.interval == "sampling" else "95 %"
    return f"{surely}: {written(finding, finding.lower)} to {written(finding, finding.upper)}; "


def written(finding: Finding, value: float | None) -> str:
    """A value of what is judged, as people write it."""
    if value is None:
        return "unknown"
    if finding.judged == COVERAGE:
        return f"{100 * value:.1f} %"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"
