"""What people are told: one notification as data, from which every channel makes its own form.

A notification says what fell, from what to what with interval and requests, since when, which slices, what to do next,
and where to look. It holds names of slices but no text of queries, no ids of requests, and no secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from monitor.conditions.advice import advice, before_retraining, fell_as_labels
from monitor.conditions.concurrent_words import told_beside
from monitor.conditions.finding_words import (
    coverage_name,
    each_sentence,
    fires,
    from_to,
    may_be_well,
    recovery,
    side_of,
    subject_of,
    written,
)
from monitor.conditions.findings import Changed, Finding, SliceFall, weight
from monitor.conditions.incident import Incident, Matter
from monitor.conditions.rules import COVERAGE, Severity
from monitor.conditions.verdict_words import (
    and_below,
    beginning,
    condition,
    first_on_data,
    headline,
    is_new_normal,
    late_labels,
    named,
    not_judged_yet,
    origin,
    taken_as_normal,
    topic,
)
from monitor.conditions.version_words import new_version, weak_version, with_first_version
from monitor.messages.words import CALLED, DAY, command, lasting, over_the_last, plain, utc

Kind = Literal["firing", "updated", "resolved", "withdrawn", "retrain", "test"]
VERSION = 1
"""Of the notification's form, raised when a field changes its meaning."""

MOST_TOLD = 4
"""Conditions that are told in sentences; more would fill a telephone."""


@dataclass(frozen=True)
class Notification:
    """One thing to tell, for every channel alike. Instants in seconds since 1970.

    Attributes:
        key: the same whenever the same thing is told again; receivers drop what they had already.
        former_severity: with which it was told before, where that has changed.
        matter: what the incident is about.
        evidence: with a request to retrain, what it rests on; see `retraining`.
        title: one line.
        text: everything, for people.
        url: the page's place.
    """

    kind: Kind
    key: str
    monitor: str
    incident: str
    severity: Severity
    began_at: int
    opened_at: int
    closed_at: int | None
    title: str
    text: str
    url: str
    runbook_url: str
    labels: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...] = ()
    former_severity: Severity | None = None
    matter: Matter = "quality"
    evidence: Mapping[str, Any] | None = field(default=None, hash=False)

    def plain(self) -> dict[str, Any]:
        """As JSON data, the form that the webhook documents."""
        data = {"version": VERSION, **asdict(self), "labels": dict(self.labels)}
        if self.evidence is None:
            del data["evidence"]
        return {**data, "findings": [f.plain() for f in self.findings]}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Notification:
        """From what `plain` gave."""
        fields = {name: plain[name] for name in cls.__dataclass_fields__ if name in plain}
        findings = tuple(Finding.of(f) for f in plain["findings"])
        return cls(**{**fields, "labels": tuple(sorted(plain["labels"].items())), "findings": findings})


@dataclass(frozen=True)
class About:
    """The monitor that a notification is about, and where there is more.

    Attributes:
        page: address of rankmon's page with a slash at its end.
        called: how rankmon is called, see `words.command`.
    """

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    runbook_url: str = ""
    page: str = ""
    called: str = CALLED

    @property
    def url(self) -> str:
        """Address of the monitor's own page; empty without one."""
        return f"{self.page}monitors/{self.name}" if self.page else ""


def notification(
    kind: Kind,
    about: About,
    incident: Incident,
    findings: Sequence[Finding],
    number: int,
    former_severity: Severity | None = None,
    reason: str = "",
    over: Sequence[Finding] = (),
) -> Notification:
    """Put one together.

    Args:
        findings: the conditions that fire, or those that did when it closed.
        number: how many came before it in this incident.
        reason: why it was withdrawn.
        over: conditions of which people were told that they fire, and that do no more while others go on.
    """
    ordered = in_order(findings, incident)
    lines = [*_no_longer(over), *_LINES[kind](incident, ordered, reason)]
    if former_severity is not None:
        lines = [f"Now {incident.severity}, was {former_severity}.", *lines]
    lines += _commands(kind, about, incident, ordered)
    links = [f"Runbook: {about.runbook_url}"] * bool(about.runbook_url) + [f"Page: {about.url}"] * bool(about.url)
    return Notification(
        kind,
        key(about.name, incident.id, kind, number),
        about.name,
        incident.id,
        incident.severity,
        incident.began_at,
        incident.opened_at,
        incident.closed_at,
        plain(_title(kind, about.name, ordered), one_line=True),
        plain("\n".join([*lines, *links])),
        about.url,
        about.runbook_url,
        about.labels,
        ordered,
        former_severity,
        incident.matter,
    )


def in_order(findings: Sequence[Finding], incident: Incident) -> tuple[Finding, ...]:
    """Findings of an incident as people are told them: what matters most comes first."""
    return tuple(sorted(with_first_version(findings, incident.opened_at), key=weight))


def key(*parts: object) -> str:
    """A text that is the same for the same parts: forty hexadecimal digits."""
    return hashlib.sha1("\n".join(map(str, parts)).encode(), usedforsecurity=False).hexdigest()


# ---- wording ---------------------------------------------------------------------------------------------------


def _title(kind: Kind, monitor: str, findings: Sequence[Finding]) -> str:
    if kind == "test":
        return f"{monitor}: test of the paging"
    if not findings:
        return f"{monitor}: {kind}"
    first = findings[0]
    if (on_data := first_on_data([first])) is not None and kind in ("firing", "updated"):
        return f"{monitor}: {headline(on_data)}"
    if kind == "retrain":
        to_do = before_retraining(findings)
        return f"{monitor}: {f'{to_do} before retraining' if to_do else 'retraining recommended'}, {_headline(first)}"
    if kind == "withdrawn":
        about = f"the alert on {subject_of(first)}" if first_on_data([first]) is None else topic(first)
        return f"{monitor}: withdrawn, {about}"
    if kind == "resolved":
        if first_on_data([first]) is not None:
            ended = "taken as the new normal" if any(is_new_normal(f) for f in findings) else "no more"
            return f"{monitor}: resolved, {topic(first)} {ended}"
        if (low := next((f for f in findings if _rose_little(f)), None)) is not None:
            return f"{monitor}: resolved, but {subject_of(low)} rose to {written(low, low.value)} only{_below(low)}"
        if (lost := next((f for f in findings if f.still_below is not None), None)) is not None:
            stays = f"{subject_of(lost)} stays at {written(lost, lost.value)}"
            return f"{monitor}: resolved, but {stays}, its baseline followed"
        below = and_below(first)
        # Or too low, but no more than chance explains.
        back = "at" if below or (first.verdict and fires(first)) else "back at"
        return f"{monitor}: resolved, {subject_of(first)} is {back} {written(first, first.value)}{below}"
    return f"{monitor}: {_headline(first)}{_worst(findings)}"


def _worst(findings: Sequence[Finding]) -> str:
    """The slice that fell furthest, where it fell by half as much again as the mean of all."""
    first = findings[0]
    if first.dimension or first.change is None or first.is_recovering:
        return ""
    of_slices = [f for f in findings if f.dimension and f.judged == first.judged and not f.is_recovering]
    worst = max(of_slices, key=lambda f: f.loss, default=first)
    if worst.change is None or worst.loss < 1.5 * max(first.loss, 0.0):
        return ""
    return f"; {named(worst.dimension, worst.slice)} by {100 * worst.loss:.1f} %"


def _headline(finding: Finding) -> str:
    if finding.is_recovering and finding.unjudged is not None:
        return f"{subject_of(finding)} was at {written(finding, finding.value)}, {recovery(finding)}; not judged since"
    if finding.is_recovering:
        return f"{subject_of(finding)} is at {written(finding, finding.value)}, {recovery(finding)}"
    if finding.loss > 0:
        moved = "rose" if finding.rises else "fell"
        return f"{subject_of(finding)} {moved} {100 * finding.loss:.1f} %, {from_to(finding)}"
    below = f", {side_of(finding)} {written(finding, finding.threshold)}" if fires(finding) else ""
    return f"{subject_of(finding)} is {written(finding, finding.value)}{below}"


def _firing(incident: Incident, findings: Sequence[Finding], _: str) -> list[str]:
    lines = [*_sentences(findings), *_slices(findings), *_causes(findings)]
    lines += [f"Since {beginning(incident, findings)}; fired at {utc(incident.opened_at)}."]
    return [*lines, *_coverage(findings), f"What to do: {advice(findings)}", *may_be_well(findings)]


def _commands(kind: Kind, about: About, incident: Incident, findings: Sequence[Finding]) -> list[str]:
    """What to call for more, or to mend what is left; nothing where rankmon cannot be called."""
    if not about.called:
        return []
    if kind in ("firing", "updated") and incident.matter == "quality":
        return [f"More: {command(about.called, f'explain-incident {incident.id}')}"]
    is_sound = kind == "resolved" and first_on_data(findings) is not None
    if not is_sound or any(is_new_normal(f) for f in findings):
        return []
    found = late_labels(incident, findings)
    return [f"To count labels of then that were loaded only later: {command(about.called, one)}" for one in found]


def _resolved(incident: Incident, findings: Sequence[Finding], _: str) -> list[str]:
    lasted = (incident.closed_at or incident.opened_at) - incident.began_at
    over = f"It lasted {lasting(lasted)}, from {utc(incident.began_at)} to {utc(incident.closed_at)}."
    if first_on_data(findings) is not None:
        left = [taken_as_normal(f) for f in findings if is_new_normal(f)]
        unjudged = [not_judged_yet(f) for f in findings if f.lacks][:1]
        if left:
            to_do = "What to do: nothing if it is so on purpose; else see where it is lost."
            return [*left, over, *unjudged, to_do]
        to_do = "What to do: nothing more" + ("." if unjudged else "; the quality is judged again.")
        return ["The data are sound again.", over, *unjudged, to_do]
    if lost := [f for f in findings if f.still_below is not None]:
        return [*_sentences(findings, is_over=True), *_not_recovered(lost), over, _AFTER_A_MOVE]
    if any(_rose_little(f) for f in findings):
        return [*_sentences(findings, is_over=True), over, "What to do: watch it; a fall that is left fires anew."]
    if below := [f for f in findings if and_below(f)]:
        return [*_sentences(findings, is_over=True), *_decayed(below), over, _AFTER_A_DECAY]
    held = "for long enough to be sure" if findings and findings[0].verdict else "for as long as the rule says"
    return [*_sentences(findings, is_over=True), over, f"What to do: nothing more; it has held {held}."]


_AFTER_A_MOVE = "What to do: nothing if this is the level from now on; else the fall is still to be mended."


_AFTER_A_DECAY = "What to do: nothing if this is the level from now on; else see what fell slowly, or retrain."


def _decayed(below: Sequence[Finding]) -> list[str]:
    """Of what is over where the level had fallen slowly before: that it is back at that, and not at the reference."""
    told = (f"{subject_of(f)} is as expected of late again{and_below(f)}." for f in below[:MOST_TOLD])
    return [f"{one} The level had fallen too slowly for an alarm." for one in told]


def _not_recovered(lost: Sequence[Finding]) -> list[str]:
    """Of what is over only because the baseline followed it down: that it is no recovery."""
    return [
        f"It is over because the baseline has moved, and no recovery: {subject_of(f)} at {written(f, f.value)} is still"
        f" {side_of(f)} {written(f, f.still_below)}, where it fired."
        for f in lost[:MOST_TOLD]
    ]


def _withdrawn(incident: Incident, findings: Sequence[Finding], reason: str) -> list[str]:
    return [
        f"Withdrawn, which is no recovery: {reason}.",
        f"It had begun at {utc(incident.began_at)} and was closed at {utc(incident.closed_at)}.",
        "What to do: nothing if you changed this yourself; else see on the page what is judged now.",
    ]


def _retrain(incident: Incident, findings: Sequence[Finding], _: str) -> list[str]:
    lines = [*_sentences(findings), *_slices(findings), *_causes(findings)]
    lines += [f"Since {beginning(incident, findings)}."]
    lines += _coverage(findings)
    to_do = "make sure that the labels are sound, then retrain the model."
    if before_retraining(findings):
        to_do = f"{advice(findings)} The request to retrain stands until this is over."
    elif any(map(fell_as_labels, findings[:1])):
        to_do = advice(findings)
    return [*lines, f"What to do: {to_do}", *may_be_well(findings)]


def _test(incident: Incident, findings: Sequence[Finding], _: str) -> list[str]:
    return [
        f"This is a test that somebody asked for at {utc(incident.opened_at)}; nothing has fallen.",
        "What to do: nothing. Whoever reads this would have been paged.",
    ]


_LINES = {
    "firing": _firing,
    "updated": _firing,
    "resolved": _resolved,
    "withdrawn": _withdrawn,
    "retrain": _retrain,
    "test": _test,
}


def _no_longer(over: Sequence[Finding]) -> list[str]:
    """What is over, before what goes on."""
    if not over:
        return []
    told, more = [condition(f.rule, f.dimension, f.slice) for f in over[:MOST_TOLD]], len(over) - MOST_TOLD
    told += [f"{more} more"] * (more > 0)
    return [f"No longer: {', '.join(told)}. What goes on:"]


def _below(finding: Finding) -> str:
    change = finding.change
    return "" if change is None else f", {-100 * change:.1f} % below {finding.compared_with}"


def _sentences(findings: Sequence[Finding], is_over: bool = False) -> list[str]:
    # Those that are over need not have ended with the same window.
    until = 0 if is_over else max((f.end for f in findings if not f.verdict), default=0)
    told, more = each_sentence(findings, is_over, until)[:MOST_TOLD], len(findings) - MOST_TOLD
    return [*told, f"And {more} more, which the page shows."] if more > 0 else told


def _rose_little(finding: Finding) -> bool:
    """Whether a verdict is over, and the value yet surely lower than tolerated."""
    surely = finding.upper is not None and finding.threshold is not None and finding.upper < finding.threshold
    return bool(finding.verdict) and fires(finding) and surely


def _slices(findings: Sequence[Finding]) -> list[str]:
    """Where the first of them that fell on all traffic fell most."""
    first = next((f for f in findings if f.slices and not f.is_recovering and first_on_data([f]) is None), None)
    if first is None:
        return []
    told = (f"{_fall(first, s)} ({100 * s.share:.0f} % of requests)" for s in first.slices)
    return [f"Most of it{', when it fired,' if first.verdict else ''} in {', '.join(told)}."]


def _fall(finding: Finding, fall: SliceFall) -> str:
    place = named(fall.dimension, fall.slice)
    if fall.before is None:
        return f"new {place} at {written(finding, fall.value)}"
    return f"{place} from {written(finding, fall.before)} to {written(finding, fall.value)}"


def _origin(findings: Sequence[Finding]) -> list[str]:
    """How much of the first fall that a verdict found is the model's, and how much the mix of its requests."""
    return next((told for f in findings if (told := origin(f))), [])


def _version(findings: Sequence[Finding]) -> list[str]:
    began = next(([told] for f in findings if (told := new_version(f))), [])
    return [*began, *next(([told] for f in findings if (told := weak_version(f))), [])]


def _causes(findings: Sequence[Finding]) -> list[str]:
    """What a fall may come from: slices or their mix, a version of the model, or what else changed then."""
    return [*_origin(findings), *_version(findings), *_changed(findings)]


def _changed(findings: Sequence[Finding]) -> list[str]:
    """What changed with what is down still; each thing once, of all traffic rather than of its slices."""
    told = dict[Changed, str]()
    for finding in findings:
        if not finding.is_recovering:
            told = {**dict(zip((one.what for one in finding.beside), told_beside(finding), strict=True)), **told}
    return [*told.values()]


def _coverage(findings: Sequence[Finding]) -> list[str]:
    """The label coverage, unless it is what is told of anyway."""
    first = findings[0] if findings else None
    if first is None or first.coverage is None or any(f.judged == COVERAGE for f in findings):
        return []
    before = "" if first.coverage_before is None else f", {100 * first.coverage_before:.1f} % before"
    # That of a verdict is of the hours since the fall began, of a day at most.
    over = f" {over_the_last(min(DAY, first.window))}" if first.verdict else ""
    name = coverage_name(first).capitalize()
    return [f"{name}{over}: {100 * first.coverage:.1f} %{before}.{_as_labels(first)}"]


def _as_labels(finding: Finding) -> str:
    """That labels became fewer by about as much as a verdict's measure fell."""
    told = " That fell by about as much as the measure: see first whether labels are being lost."
    return told * fell_as_labels(finding)
