"""What people are told: one notification as data, from which every channel makes its own form.

A notification says what fell, from what to what with interval and requests, since when, which slices, what to do next,
and where to look. It holds names of slices but no text of queries, no ids of requests, and no secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from monitor.core.findings import Finding, SliceFall
from monitor.core.incidents import Incident
from monitor.core.rules import COVERAGE, SEVERITIES, Severity
from monitor.core.types import format_duration

Kind = Literal["firing", "updated", "resolved", "withdrawn", "retrain", "test"]
VERSION = 1
"""Of the notification's form, raised when a field changes its meaning."""


@dataclass(frozen=True)
class Notification:
    """One thing to tell, for every channel alike. Instants in seconds since 1970.

    Attributes:
        key: the same whenever the same thing is told again; receivers drop what they had already.
        former_severity: with which it was told before, where that has changed.
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

    def plain(self) -> dict[str, Any]:
        """As JSON data, the form that the webhook documents."""
        data = {"version": VERSION, **asdict(self), "labels": dict(self.labels)}
        return {**data, "findings": [f.plain() for f in self.findings]}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Notification:
        """From what `plain` gave."""
        fields = {name: plain[name] for name in cls.__dataclass_fields__}
        findings = tuple(Finding.of(f) for f in plain["findings"])
        return cls(**{**fields, "labels": tuple(sorted(plain["labels"].items())), "findings": findings})


@dataclass(frozen=True)
class About:
    """The monitor that a notification is about; `page` is the address of rankmon's page with a slash at its end."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    runbook_url: str = ""
    page: str = ""

    @property
    def url(self) -> str:
        """The monitor's place on the page; empty without one."""
        return f"{self.page}#{self.name}" if self.page else ""


def notification(
    kind: Kind,
    about: About,
    incident: Incident,
    findings: Sequence[Finding],
    number: int,
    former_severity: Severity | None = None,
    reason: str = "",
) -> Notification:
    """Put one together.

    Args:
        findings: the conditions that fire, or those that did when it closed.
        number: how many came before it in this incident.
        reason: why it was withdrawn.
    """
    ordered = tuple(sorted(findings, key=_weight))
    lines = _LINES[kind](incident, ordered, reason)
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
        _title(kind, about.name, ordered),
        "\n".join([*lines, *links]),
        about.url,
        about.runbook_url,
        about.labels,
        ordered,
        former_severity,
    )


def _weight(finding: Finding) -> tuple[object, ...]:
    """What comes first in a message: the gravest, overall before its slices, the largest fall."""
    return -SEVERITIES.index(finding.severity), finding.dimension, finding.change or 0.0, finding.rule, finding.slice


def key(*parts: object) -> str:
    """A text that is the same for the same parts: forty hexadecimal digits."""
    return hashlib.sha1("\n".join(map(str, parts)).encode(), usedforsecurity=False).hexdigest()


# ---- wording ---------------------------------------------------------------------------------------------------


def _title(kind: Kind, monitor: str, findings: Sequence[Finding]) -> str:
    if kind == "test":
        return f"{monitor}: test of the paging"
    fell = _headline(findings[0]) if findings else "what was judged is gone"
    if kind == "retrain":
        return f"{monitor}: retraining recommended, {fell}"
    if kind in ("resolved", "withdrawn"):
        what = findings[0].judged if findings else "the incident"
        return f"{monitor}: {kind}, {what}{_back(findings[0]) if findings and kind == 'resolved' else ''}"
    return f"{monitor}: {fell}"


def _headline(finding: Finding) -> str:
    subject = f"{finding.judged} of {finding.where}" if finding.where else finding.judged
    if finding.change is not None and finding.change < 0:
        return (
            f"{subject} fell {-100 * finding.change:.1f} %, from {_number(finding.before)} to {_number(finding.value)}"
        )
    return f"{subject} is {_number(finding.value)}, below {_number(finding.threshold)}"


def _back(finding: Finding) -> str:
    return f" is back at {_number(finding.value)}"


def _firing(incident: Incident, findings: Sequence[Finding], _: str) -> list[str]:
    lines = [sentence(f) for f in findings]
    lines += [_slices(f.slices) for f in findings if f.slices][:1]
    lines += [f"Since {utc(incident.began_at)}; fired at {utc(incident.opened_at)}."]
    lines += [f"Labels: {_coverage(f)}." for f in findings[:1] if f.coverage is not None]
    return [*lines, f"What to do: {advice(findings)}"]


def _resolved(incident: Incident, findings: Sequence[Finding], _: str) -> list[str]:
    lasted = (incident.closed_at or incident.opened_at) - incident.began_at
    lines = [f"Over: {sentence(f)}" for f in findings]
    return [*lines, f"It lasted {lasting(lasted)}, from {utc(incident.began_at)} to {utc(incident.closed_at)}."]


def _withdrawn(incident: Incident, findings: Sequence[Finding], reason: str) -> list[str]:
    return [
        f"Withdrawn, which is no recovery: {reason}.",
        f"It had begun at {utc(incident.began_at)}; nothing is judged there any more.",
    ]


def _retrain(incident: Incident, findings: Sequence[Finding], _: str) -> list[str]:
    lines = [sentence(f) for f in findings]
    return [*lines, f"Since {utc(incident.began_at)}. Make sure first that the labels are sound, then retrain."]


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


def sentence(finding: Finding) -> str:
    """One condition in a sentence: what, how much with its interval, of how many requests, against what."""
    subject = f"{finding.judged} over {format_duration(finding.window)}"
    subject += f" of {finding.where}" if finding.where else ""
    text = f"{subject} is {_number(finding.value)}{_interval(finding)} in {finding.requests:,} requests"
    if finding.before is not None and finding.change is not None:
        way = "under" if finding.change < 0 else "over"
        text += f", {abs(100 * finding.change):.1f} % {way} {finding.compared_with} ({_number(finding.before)})"
    return f"{text}; rule {finding.rule} fires below {_number(finding.threshold)}."


def _interval(finding: Finding) -> str:
    if finding.lower is None or finding.upper is None:
        return ""
    return f" (95 %: {_number(finding.lower)} to {_number(finding.upper)})"


def _slices(slices: Sequence[SliceFall]) -> str:
    named = (
        f"{s.dimension}={s.slice} {_number(s.before)} to {_number(s.value)} ({100 * s.share:.0f} % of requests)"
        for s in slices
    )
    return f"Most of it in: {', '.join(named)}."


def _coverage(finding: Finding) -> str:
    now = f"{100 * (finding.coverage or 0):.1f} % have one"
    return now if finding.coverage_before is None else f"{now}, {100 * finding.coverage_before:.1f} % before"


def advice(findings: Sequence[Finding]) -> str:
    """What to do next, by what fell."""
    first = findings[0] if findings else None
    if any(f.judged == COVERAGE for f in findings):
        return "labels stopped coming: look at the event pipeline first, and do not retrain before it is mended."
    if first is not None and _labels_fell(first):
        return "fewer requests have labels than before: rule out the event pipeline before blaming the model."
    if any(f.dimension == "model_version" for f in findings):
        return "compare the model versions on the page; roll the fallen one back, or retrain."
    return "see on the page which slices fell and whether a model, feature or index changed then; roll back or retrain."


def _labels_fell(finding: Finding) -> bool:
    return (
        finding.coverage is not None
        and finding.coverage_before is not None
        and finding.coverage < 0.7 * finding.coverage_before
    )


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def lasting(seconds: int) -> str:
    """A length of time for people.

    >>> lasting(30), lasting(5400), lasting(190_000)
    ('1 min', '1 h 30 min', '2 d 4 h')
    """
    minutes = max(1, round(seconds / 60))
    days, hours = divmod(minutes // 60, 24)
    parts = [(days, "d"), (hours, "h"), (0 if days else minutes % 60, "min")]
    return " ".join(f"{n} {unit}" for n, unit in parts if n)


def utc(instant: int | None) -> str:
    """`2022-02-24 05:00 UTC`.

    >>> utc(0)
    '1970-01-01 00:00 UTC'
    """
    return "unknown" if instant is None else datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M UTC")
