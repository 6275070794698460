"""Verdicts in words: what a notification says of one, why a condition changed, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from monitor.conditions.arrivals import ARRIVALS, LABELS_LATE, MISREAD, SOURCE_STALE
from monitor.conditions.findings import Finding, SliceFall
from monitor.conditions.incident import Incident
from monitor.conditions.verdict_conditions import (
    COLLAPSED,
    DEGRADED,
    GROWS,
    LOW,
    REFUSED,
    SHORT,
    SLICE_COLLAPSED,
    SLICE_SUSPECT,
    SUSPECT,
    VERDICTS,
)
from monitor.conditions.verdict_data import (
    BEGAN,
    GREW,
    INSTEAD_OF,
    LEFT,
    LEFT_OVER,
    MANY,
    MANY_USUAL,
    NEW_NORMAL,
    RISEN_FOR,
    ROWS_OF,
    WORTHLESS,
)
from monitor.conditions.verdict_findings import BELOW, PART
from monitor.drift.verdicts import SLICE_KINDS
from monitor.messages.words import between, counted, lasting, plain, utc
from monitor.types import format_duration

LONGEST_SLICE = 60
MOST_BEFORE = 24 * 3600
"""Seconds before labels are seen to be lost for which some may have been."""
LITTLE_BY_LITTLE = 36 * 3600
"""Seconds within which a fall may have begun, from which on it may have no one beginning."""

NAMES = {
    DEGRADED: "degraded",
    SUSPECT: "labels suspect",
    COLLAPSED: "labels or relevance collapsed",
    LOW: "traffic low",
    "slice_missing": "slices missing",
    SLICE_SUSPECT: "labels of slices suspect",
    SLICE_COLLAPSED: "labels or relevance of slices collapsed",
    REFUSED: "rows refused",
    SHORT: "positions missing",
    SOURCE_STALE: "source stale",
    LABELS_LATE: "labels late",
    MISREAD: "source misread",
    "healthy": "healthy",
    "not_enough_data": "not enough data",
}
"""Verdict -> its name for people."""


def topic(finding: Finding) -> str:
    """A verdict's name, with the slices that it is about."""
    return f"{NAMES[finding.verdict]}: {_slices(finding)}" if finding.rule in SLICE_KINDS else NAMES[finding.verdict]


def headline(finding: Finding) -> str:
    """A verdict on the data in a few words, for a title."""
    if finding.verdict in (SUSPECT, COLLAPSED):
        return f"{NAMES[finding.verdict]}, coverage {_from_to(_percent(finding.before), _percent(finding.value))}"
    if finding.verdict == LOW:
        return f"traffic low, {_count(finding.value)} requests where {_count(finding.before)} are usual"
    if finding.verdict == SHORT:
        return f"positions missing, {_items(finding.value)} items a request where {_items(finding.before)} are usual"
    if finding.verdict in _SUBJECTS:
        return f"{NAMES[finding.verdict]}, no {_SUBJECTS[finding.verdict]} for {lasting(finding.window)}"
    return topic(finding)


def sentences(finding: Finding) -> list[str]:
    """A verdict on the data, with the figures that it rests on, and for how long it has not been found any more."""
    return [*_found(finding), *_calm(finding)]


def _calm(finding: Finding) -> list[str]:
    """That what is told is of hours ago, which a verdict on the data stands for until they are sound for certain."""
    if (risen := int(dict(finding.figures).get(RISEN_FOR, 0))) > 0:
        return [
            f"That was at {utc(finding.end)}; for {lasting(risen)} since it has been more than half of what is "
            "expected, and its hours are judged. It is over once most of that comes: be it that traffic is back, or "
            "that what is expected has followed it down."
        ]
    if not finding.well_for:
        return []
    well, needed = lasting(finding.well_for), lasting(finding.well_needed)
    return [f"That was at {utc(finding.end)}; for {well} since it has not been so, and after {needed} it is over."]


def _found(finding: Finding) -> list[str]:
    over = format_duration(finding.window)
    if finding.verdict in (SUSPECT, COLLAPSED):
        changed = _from_to(_percent(finding.before), _percent(finding.value))
        share = "Label coverage" if finding.counts_unlabelled else "The share of requests with a label"
        told = f"{_why_labels(finding)} {share} over {over} went {changed}."
        return [told, *_events(finding), *_many(finding)]
    if finding.verdict == LOW:
        low_since = dict(finding.figures).get(BEGAN)
        since = "" if low_since is None else f"; it has been low since {utc(int(low_since))}"
        usual = f"where about {_count(finding.before)} are usual at these hours"
        told = f"Traffic is low: {_count(finding.value)} requests over {over}, {usual}{since}."
        return [told] + [f"Nothing came any more of {_missing(finding)}."] * bool(finding.slices)
    if finding.verdict == "slice_missing":
        return [f"Slices are missing that had traffic before: {_missing(finding)}.", *_instead(finding)]
    if finding.verdict in (SLICE_SUSPECT, SLICE_COLLAPSED):
        began = "Labels or relevance of slices collapsed a day ago or more" * (finding.verdict == SLICE_COLLAPSED)
        explained = ", and that explains the fall of their measure" if finding.counts_unlabelled else ""
        return [
            f"{began or 'Labels of slices are suspect'}: most of theirs are gone{explained}. Label coverage: "
            f"{_coverages(finding)}. The other slices are judged as ever.",
            *_events(finding, " of these slices, those that match an impression"),
        ]
    if finding.verdict == SHORT:
        return [
            f"Lists are shorter: {_items(finding.value)} items a request in the last hours, down to the rank that is "
            f"looked at, where {_items(finding.before)} are usual. The measure is another one then, and clicks on what "
            "is missing match nothing."
        ]
    if finding.verdict in ARRIVALS:
        return [_not_arrived(finding)]
    return [_refused(finding)]


def _instead(finding: Finding) -> list[str]:
    """What came when slices went missing, which may be these by another name."""
    came = {n.removeprefix(INSTEAD_OF): value for n, value in finding.figures if n.startswith(INSTEAD_OF)}
    if not came:
        return []
    dimension = finding.slices[0].dimension
    new = ", ".join(f"{named(dimension, name)} ({_count(value)} requests)" for name, value in came.items())
    was = "is new since" if len(came) == 1 else "are new since"
    return [f"{new} {was}: perhaps the same by another name, and not judged until there is a past of it."]


def _many(finding: Finding) -> list[str]:
    """That far more requests came than usual, which may be what there are no labels of."""
    figures = dict(finding.figures)
    if MANY not in figures:
        return []
    came, usual = (_count(figures[name]) for name in (MANY, MANY_USUAL))
    by = (f"{named(s.dimension, s.slice)} ({_count(s.value)}, {_count(s.before)} usual)" for s in finding.slices)
    most = f", most of them of {', '.join(by)}" * bool(finding.slices)
    return [f"Far more requests came than usual: {came} in the last hours, where about {usual} are usual{most}."]


def _refused(finding: Finding) -> str:
    figures, over = dict(finding.figures), format_duration(finding.window)
    if "rows" not in figures:  # kept by a version that had none
        return f"Far more rows of the rankings than usual were refused over {over}; the page counts them by reason."
    usual = figures.get("rows_before", 0.0)
    before = f"where {_count(usual)} are usual" if usual >= 1 else "where none are usual"
    reasons = [counted(int(n), name.removeprefix(ROWS_OF)) for name, n in figures.items() if name.startswith(ROWS_OF)]
    why = f"In these hours and those around them: {', '.join(reasons)}." if reasons else "The page tells why."
    return f"{_count(figures['rows'])} rows of the rankings were refused over {over}, {before}. {why}"


_SUBJECTS = {SOURCE_STALE: "request", LABELS_LATE: "event"}


def _not_arrived(finding: Finding) -> str:
    if finding.verdict == MISREAD:
        return (
            f"The daily self-audit read the bucket of {utc(finding.since)} again in two ways, and they disagree: "
            f"{finding.compared_with}. Stored values may be wrong."
        )
    newest, allowed = utc(finding.since), lasting(int(dict(finding.figures)["allowed"]))
    if finding.verdict == SOURCE_STALE:
        return f"The source shows no request since {newest}; up to {allowed} are usual (`stale_after`, `ingest_delay`)."
    return (
        f"Labels stay behind: no event since {newest}, where {finding.requests:,} requests since would usually have "
        f"brought {_count(finding.before)}; up to {allowed} are no fault (`lateness` and an hour)."
    )


def is_new_normal(finding: Finding) -> bool:
    """Whether a verdict on the data is over though nothing came back."""
    return NEW_NORMAL in dict(finding.figures)


def taken_as_normal(finding: Finding) -> str:
    """That a verdict on the data is over though nothing came back."""
    if finding.verdict == "slice_missing":
        return f"Missing slices ({_slices(finding)}) stay away; that is taken as the new normal."
    if finding.verdict == SHORT:
        return "Lists stay as short; that is taken as the new normal, and the quality is judged again, by a new level."
    figures = dict(finding.figures)
    if LEFT not in figures:  # kept by a version that did not count it
        return "Traffic stays low; that is taken as the new normal."
    over = f", taken over {lasting(int(figures[LEFT_OVER]))}," if LEFT_OVER in figures else ""
    stays = f"Traffic stays at {share_of(figures[LEFT])}{over} of what it was in the same hours before it fell"
    return f"{stays}{'.' if finding.lacks else ', and this is what is expected from now on.'}"


def not_judged_yet(finding: Finding) -> str:
    """That the data are sound, but that there is nothing yet to judge the model by."""
    return f"The quality is not judged yet, which lacks {finding.lacks}."


def _why_labels(finding: Finding) -> str:
    is_collapsed = finding.verdict == COLLAPSED
    if WORTHLESS in dict(finding.figures):
        said = "Labels or relevance collapsed: for a day or more" if is_collapsed else "Labels are suspect: "
        return f"{said}{' ' * is_collapsed}every request has a value of 0, though as many have labels as ever."
    if is_collapsed:
        return "Labels or relevance collapsed: labels have been missing for a day or more."
    if not finding.counts_unlabelled:
        return "Labels are suspect: too many are missing for the requests that have one to speak for the others."
    return "Labels are suspect: fewer requests have labels, and that explains the fall of the measure."


def _events(finding: Finding, of: str = "") -> list[str]:
    figures = dict(finding.figures)
    told = []
    if "events" in figures:
        before = f", {figures['events_before']:.3g} before" if "events_before" in figures else ""
        told.append(f"Events per request{of}: {figures['events']:.3g}{before}.")
    if "unmatched" in figures:
        before = f", {_percent(figures['unmatched_before'])} before" if "unmatched_before" in figures else ""
        told.append(
            f"Events that match no impression within the attribution: {_percent(figures['unmatched'])}{before}."
        )
    return told


def advice(finding: Finding) -> str:
    """What to do about a verdict on the data."""
    figures = dict(finding.figures)
    if finding.verdict in (SUSPECT, COLLAPSED):
        return _advice_on_labels(finding, figures)
    if finding.verdict == LOW:
        meanwhile = (
            "hours that are as low are not judged" if RISEN_FOR in figures else "the quality is not judged meanwhile"
        )
        return f"see whether people stay away or rankings are not logged; {meanwhile}."
    if finding.verdict == SOURCE_STALE:
        return "see whether rankings are still logged, and loaded into this source; hours wait for theirs meanwhile."
    if finding.verdict == MISREAD:
        return (
            "run `rankmon verify` over the last days to see how many hours are affected, and report it to whoever "
            "maintains rankmon; it is over once an audit agrees again."
        )
    if finding.verdict == LABELS_LATE:
        return "see the event pipeline; if labels take so long from now on, raise `lateness`, or hours close without."
    if finding.verdict == "slice_missing":
        if any(name.startswith(INSTEAD_OF) for name in figures):
            return (
                "see whether they were renamed: if so, give both the same name in the rankings (`select:`), or the new "
                "one is judged after two weeks only; else whether they are switched off, or no longer logged."
            )
        return "see whether they are switched off on purpose, or no longer logged."
    if finding.verdict in (SLICE_SUSPECT, SLICE_COLLAPSED):
        where = f"look at how these slices' {'events' if finding.counts_unlabelled else 'labels'} are logged"
        if _match_less(figures, 0.01):
            where = "look at how these slices' events are joined to requests, for more events than usual match nothing"
        if finding.verdict == SLICE_SUSPECT:
            return f"{where}; do not retrain on their hours, nor judge the model by them."
        return (
            f"{where}; if that is sound, look at what they are shown. If they will never have labels again, leave them "
            "out of the rankings (`select:`)."
        )
    if finding.verdict == SHORT:
        return (
            "see whether positions are logged no longer, or fewer items shown on purpose: then this is what is usual "
            "after four whole days, and `rankmon baseline begin` has the quality judged by its new level."
        )
    return "see by which reason rows are refused, and what changed in the logging then."


def _advice_on_labels(finding: Finding, figures: Mapping[str, float]) -> str:
    if MANY in figures:
        where = "see who sends so many requests, for robots leave no labels; else look at the event pipeline"
    elif WORTHLESS in figures:
        where = "look at where grades come from, for they all say irrelevant"
    elif _match_less(figures, 0.1):
        where = "look at how events are joined to requests, for more of them than usual match nothing"
    elif not finding.counts_unlabelled:
        where = "look at where labels come from"
    else:
        where = "look at the event pipeline, for labels stopped coming"
    if finding.verdict == COLLAPSED and not finding.counts_unlabelled and WORTHLESS not in figures:
        normal = "that is what is usual after four whole days, if not next to none have one"
        return f"{where}; if fewer requests are to have one from now on, {normal}."
    if finding.verdict == COLLAPSED:
        return f"{where}; if events are sound, people really stopped choosing: look at the ranking itself."
    return f"{where}; do not retrain on these hours, and do not judge the model by them."


def _match_less(figures: Mapping[str, float], least: float) -> bool:
    """Whether a share of the events of `least` at least, and more than twice the usual one, match no impression."""
    return figures.get("unmatched", 0.0) > max(least, 2 * figures.get("unmatched_before", 0.0))


def late_labels(incident: Incident, findings: Sequence[Finding]) -> list[str]:
    """What has labels counted that came too late, once the data are sound again: a command of rankmon's."""
    if not any(_is_short_of_labels(f) for f in findings):
        return []
    day = utc(incident.began_at - MOST_BEFORE).partition(" ")[0]
    return [f"backfill -m {shlex.quote(incident.monitor)} --from {day} --again"]


def _is_short_of_labels(finding: Finding) -> bool:
    kinds = {SUSPECT, COLLAPSED, SLICE_SUSPECT, SLICE_COLLAPSED, LABELS_LATE}
    return finding.verdict in kinds and WORTHLESS not in dict(finding.figures)


def origin(finding: Finding) -> list[str]:
    """Where a fall comes from: within slices, or another mix of them; of a slice, how much of the whole it makes."""
    figures = dict(finding.figures)
    if "within" not in figures:
        return []
    within, mix = figures["within"], figures["mix"]
    if PART in figures:
        shares = f"{_percent(figures['share'])} of requests, {_percent(figures['share_before'])} before"
        whole = _from_to(_mean(figures["before"]), _mean(figures["value"]))
        place = named(finding.dimension, finding.slice)
        return [
            f"When it fired, all traffic had gone {whole}: {figures[PART]:+.3f} by {place} itself ({shares}), "
            f"{within:+.3f} within {finding.dimension} in all, {mix:+.3f} from another mix of it."
        ]
    if not finding.slices:
        return []
    dimension = finding.slices[0].dimension
    return [
        f"When it fired, of the change {within:+.3f} were within {dimension} and {mix:+.3f} from another mix of it."
    ]


def beginning(incident: Incident, findings: Sequence[Finding]) -> str:
    """When an incident began, and where that is by a verdict on the model how surely it is known."""
    of_it = (f.began_within for f in findings if f.since == incident.began_at and f.began_within is not None)
    within, at = next(of_it, None), utc(incident.began_at)
    if within is None:
        return at
    first, last = within
    if last - first > LITTLE_BY_LITTLE:
        return f"about {at} (perhaps little by little, from {utc(first)} or before on)"
    return f"about {at} ({between(first, last)})"


def reason(was: str, became: str, finding: Finding | None) -> str:
    """Why a condition that a verdict made changed its state."""
    assert finding is not None  # nothing changes without a verdict
    name = NAMES[finding.verdict]
    if finding.verdict in ARRIVALS:
        over = "an audit agrees" if finding.verdict == MISREAD else "it came again"
        return f"verdict {name}" if became == "firing" else f"{name} no longer: {over}"
    if finding.verdict != DEGRADED:
        if became == "firing":
            return f"verdict {name}"
        if GREW in dict(finding.figures):
            return f"{name} for a day: now {NAMES[GROWS[finding.verdict]]}"
        return f"{name} no longer, for as long as it takes to be sure"
    if became == "firing":
        return f"verdict {name}: too far below the baseline to be chance"
    return f"as expected of late again{and_below(finding)}" if and_below(finding) else "back at the baseline"


def and_below(finding: Finding) -> str:
    """That what is over is at the level of late, but clearly below the reference; empty if it is not."""
    below = dict(finding.figures).get(BELOW)
    return "" if below is None else f", but {-100 * below:.1f} % below the reference"


AS_LABELS = 0.5
"""Of a fall, from which on that of the share of requests with a label may be all there is to it."""


def decayed(change: float, of_labels: float | None = None) -> str:
    """That the level is below its reference by a relative change, of which no alarm tells.

    Args:
        of_labels: relative change of the share of requests with a label, if known.

    >>> decayed(-0.0712)
    'the level has fallen by 7.1 % since the reference, too slowly for an alarm: retrain'
    >>> decayed(-0.0712, -0.065).partition("alarm")[2]
    ', and the share of requests with a label by 6.5 %: see whether labels are lost, else retrain'
    """
    fell = f"the level has fallen by {-100 * change:.1f} % since the reference, too slowly for an alarm"
    if of_labels is None or of_labels > AS_LABELS * change:
        return f"{fell}: retrain"
    labels = f"the share of requests with a label by {-100 * of_labels:.1f} %"
    return f"{fell}, and {labels}: see whether labels are lost, else retrain"


LEAST_UNJUDGED = 0.05
"""Of the requests, from which on it is told that they are not judged."""


def not_judged(share: float) -> list[str]:
    """That many requests are of slices without a baseline, so that nobody is told if these get worse.

    >>> not_judged(0.4956)
    ['50 % of the requests are not judged, for their slices are too new to have a baseline']
    """
    if share < LEAST_UNJUDGED:
        return []
    return [f"{share_of(share)} of the requests are not judged, for their slices are too new to have a baseline"]


def condition(rule: str, dimension: str, value: str) -> str:
    """A condition by what makes it, a verdict or a rule, and the slice that it is about."""
    what = f"verdict {NAMES[rule]}" if rule in VERDICTS else f"rule {rule}"
    return f"{what} of {named(dimension, value)}" if dimension else what


def named(dimension: str, value: str) -> str:
    """A slice on one line, however long or odd its value is."""
    return f"{dimension}={shown(value)}"


def shown(value: str) -> str:
    """A value of a slice, or a version, as it fits a line; a long one is cut, and blanks at its ends are seen."""
    printed = plain(value, one_line=True)
    printed = printed if printed == printed.strip() else f"'{printed}'"
    return printed if len(printed) <= LONGEST_SLICE else printed[:LONGEST_SLICE] + "..."


def _slices(finding: Finding) -> str:
    return ", ".join(named(s.dimension, s.slice) for s in finding.slices) or "unknown"


def _missing(finding: Finding) -> str:
    return ", ".join(f"{named(s.dimension, s.slice)}{_gone(finding, s)}" for s in finding.slices) or "unknown"


def _gone(finding: Finding, one: SliceFall) -> str:
    """Since when a slice is missing, and how many requests it lacks."""
    if one.since is None:  # kept by a version that did not count them
        return ""
    usual = "" if one.before is None else f", where about {_count(one.before)} are usual"
    return f" ({_count(one.value)} requests in {lasting(finding.end - one.since)} since {utc(one.since)}{usual})"


def lacking_since(findings: Sequence[Finding]) -> list[int]:
    """Starts of the first hours in which requests were lacking, before it was enough of them to be told; seconds."""
    missing = [one.since for f in findings for one in f.slices if one.since is not None]
    return [*(int(dict(f.figures)[BEGAN]) for f in findings if BEGAN in dict(f.figures)), *missing]


def _coverages(finding: Finding) -> str:
    found = (f"{named(s.dimension, s.slice)} {_from_to(_percent(s.before), _percent(s.value))}" for s in finding.slices)
    return ", ".join(found)


def _from_to(before: str, now: str) -> str:
    return f"from {before} to {now}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


def share_of(value: float) -> str:
    """A share in percent, a small one to a tenth."""
    return f"{100 * value:.{0 if value >= 0.01 else 1}f} %"


def _mean(value: float) -> str:
    return f"{value:.3f}"


def _items(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def first_on_data(findings: Sequence[Finding]) -> Finding | None:
    """The first verdict that is on the data, and not on the model."""
    return next((f for f in findings if f.verdict and f.verdict != DEGRADED), None)
