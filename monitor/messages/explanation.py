"""Explanations of conditions: sentences with figures, causes, what to do, and why a condition changed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from monitor.causes.newcomers import Newcomer
from monitor.conditions.assessment import Assessment
from monitor.conditions.checkpoint import Announcement
from monitor.conditions.evidence import ConcurrentChange, Evidence, QualityEvidence, kind_of
from monitor.conditions.examined import Misfit
from monitor.conditions.incident import Incident
from monitor.conditions.kinds.degraded import Degraded
from monitor.conditions.kinds.labels_suspect import LabelsSuspect
from monitor.conditions.kinds.threshold import Threshold
from monitor.conditions.verdicts import DataEvidence
from monitor.messages.templates import fill, render, subject
from monitor.messages.words import between, lasting, named, utc
from monitor.units import HOUR

MOST_BEFORE = 24 * HOUR
"""Seconds before labels are found lost for which some may have been lost."""
LITTLE_BY_LITTLE = 36 * HOUR
"""Uncertainty of a fall's start, seconds, from which it may have no single start."""

TITLES = {"healthy": "healthy", "not_enough_data": "not enough data", "announced": "announced, not judged"}
"""Of verdicts that are not conditions."""

_CHANGES = {
    "requests": "far more requests",
    "items": "a different list length",
    "events": "more events per request",
    "no_results": "more requests without results",
    "relevant": "more requests with something relevant",
    "gain": "more gain per request",
}


def title_of(verdict: str) -> str:
    """A verdict's name for people."""
    kind = kind_of(verdict)
    return TITLES.get(verdict, verdict) if kind is None else kind.title


def condition(rule: str, dimension: str, value: str) -> str:
    """A condition by its verdict or rule, and its slice."""
    what = f"rule {rule}" if kind_of(rule) is None else f"verdict {title_of(rule)}"
    return f"{what} for {named(dimension, value)}" if dimension else what


def sentence(it: Evidence, is_over: bool = False) -> str:
    """One condition in words: from what to what, how sure, of how many requests, against what."""
    return " ".join(sentences(it, is_over))


def sentences(
    it: Evidence, is_over: bool = False, until: int = 0, is_doubted: bool = False, is_short: bool = False
) -> list[str]:
    """The sentences of `sentence`, the most important first.

    Args:
        until: end of the newest window judged by any rule of its monitor, seconds; 0 if unknown.
        is_doubted: another condition suspects lost labels.
        is_short: omits what another condition said.
    """
    found = fill(it.text, it=it, is_over=is_over, until=until, is_doubted=is_doubted, is_short=is_short)
    if it.audience != "quality" and it.well_for:
        well = f"Normal for {lasting(it.well_for)}; resolves after {lasting(it.well_needed)}."
        found.append(f"That was at {utc(it.end)}. {well}")
    return found


def each(findings: Sequence[Evidence], is_over: bool = False, until: int = 0) -> list[list[str]]:
    """The conditions of one incident, as `sentences`; none calls data sound that another doubts."""
    is_doubted = Assessment(findings).is_doubted
    first = next((f for f in findings if isinstance(f, Degraded)), None)
    return [sentences(f, is_over, until, is_doubted, f is not first) for f in findings]


def each_sentence(findings: Sequence[Evidence], until: int = 0) -> list[str]:
    """The conditions of one incident, a text each."""
    return [" ".join(told) for told in each(findings, until=until)]


def advice(findings: Sequence[Evidence]) -> str:
    """What to do next."""
    return " ".join(render("advice", a=Assessment(findings)))


def before_retraining(findings: Sequence[Evidence]) -> str:
    """What to do before the model is retrained, in a few words; empty if nothing."""
    return " ".join(render("before_retraining", a=Assessment(findings)))


def on_retraining(findings: Sequence[Evidence]) -> str:
    """Advice while retraining is requested: what to do first."""
    if first := before_retraining(findings):
        return f"Not yet: first {first}; retrain only if that does not help."
    return "Recommended, unless something that changed when it fell can be rolled back."


def held_back_by(one: ConcurrentChange) -> str:
    """Why retraining is not requested."""
    return f"{_CHANGES[one.what]} came with the fall and may explain all of it"


def changes(it: Evidence) -> list[str]:
    """The changes that came with a fall; empty if none did."""
    return render("changes", it=it) if isinstance(it, QualityEvidence) else []


def new_version(it: Evidence) -> list[str]:
    """Which version of the model began to serve when a fall began, and what it served; empty if none did."""
    return render("new_version", new=it.new_version, end=it.end) if isinstance(it, Degraded) else []


def weak_version(it: Evidence) -> list[str]:
    """Which model version is clearly worse than the others; empty if already named, or if none is."""
    if not isinstance(it, Degraded) or it.weak_version is None:
        return []
    is_named = it.new_version is not None and it.new_version.version == it.weak_version.version
    return [] if is_named else render("weak_version", one=it.weak_version)


def begun_lately(one: Newcomer) -> str:
    """How a new slice or version compares with the others."""
    return " ".join(render("newcomer", one=one))


def announced(one: Announcement) -> str:
    """What was announced, by whom, and what comes of it."""
    after = "; then a new level is learnt" if one.is_new_level else ""
    what = f": {one.note}" if one.note else ""
    return f"{utc(one.since)} to {utc(one.until)} by {one.author}{what} (neither judged nor learnt from{after})"


def may_be_well(findings: Sequence[Evidence]) -> list[str]:
    """Which falls of an open incident may be over, and what is still down."""
    found = Assessment(findings)
    well, down = found.maybe_well, found.still_down
    if not well:
        return []
    subjects = ", ".join(subject(f) for f in well)
    told = f"{subjects} may have recovered since {utc(well[0].end)} ({lasting(well[0].well_for)}, not sure yet)"
    if not down:
        return [f"{told}."]
    fell = "" if down[0].loss <= 0 else f", {100 * down[0].loss:.1f} % {'up' if down[0].rises else 'down'}"
    more = f", and {len(down) - 1} more" if len(down) > 1 else ""
    return [f"{told}; {subject(down[0])} still fires{fell}{more}."]


def misfit(one: Misfit) -> str:
    """Says that a measure's table of examination does not match the log."""
    where = f" for {named(*one.part)}" if any(one.part) else ""
    found = f"the log says {one.value:.2f} (95 %: {one.lower:.2f} to {one.upper:.2f})"
    return f"Warning: its table does not match the log: at rank {one.rank}{where} it says {one.used:.2f}, {found}"


def beginning(incident: Incident, findings: Sequence[Evidence]) -> str:
    """When an incident began, and for a verdict how sure that is."""
    alarms = [f for f in findings if isinstance(f, Degraded | DataEvidence) and f.since == incident.began_at]
    within = next((f.began_within for f in alarms if f.began_within is not None), None)
    at = utc(incident.began_at)
    if within is None:
        return f"{at} or before" if any(isinstance(f, DataEvidence) for f in alarms) else at
    first, last = within
    if last - first > LITTLE_BY_LITTLE:
        return f"about {at} (perhaps gradually, from {utc(first)} or before)"
    return at if first == last else f"some time {between(first, last)}"


def reason(was: str, became: str, it: Evidence | None) -> str:
    """Why a condition changed its state, in a few words."""
    if became == "withdrawn":
        return "there is nothing left to judge"
    if it is not None and not isinstance(it, Threshold):
        grown = kind_of(it.grows_into) if isinstance(it, DataEvidence) and it.grew else None
        if grown is not None and became != "firing":
            return f"{it.title} for a day: now {grown.title}"
        return " ".join(fill(it.fired if became == "firing" else it.recovered, it=it))
    if it is None or it.value is None or it.threshold is None:
        return "not observed for long enough"
    value = f"{it.value:.4g}"
    if became == "ok":
        return f"{value}: back to normal" if was == "firing" else f"{value}: did not last"
    side = f"{'above' if it.rises else 'below'} {it.threshold:.4g}"
    return f"{value} is {side}" if became == "pending" else f"{value}: {side} for as long as the rule requires"


def late_labels(incident: Incident, findings: Sequence[Evidence]) -> list[str]:
    """The command that counts late labels, once a data problem is over."""
    if not any(f.is_short_of_labels and not (isinstance(f, LabelsSuspect) and f.worthless) for f in findings):
        return []
    day = utc(incident.began_at - MOST_BEFORE).partition(" ")[0]
    return [f"backfill -m {shlex.quote(incident.monitor)} --from {day} --again"]
