"""One notification as data, from which every channel makes its own form.

Its text has five lines: what fell, from what to what and how sure; since when; where; what to do first; where to look.
The details hold everything else. It names slices, but contains no query text, request id or secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from monitor.conditions.assessment import Assessment, in_order
from monitor.conditions.evidence import Evidence, Matter, QualityEvidence, evidence_of
from monitor.conditions.incident import Incident
from monitor.conditions.kinds.degraded import Degraded
from monitor.conditions.rules import Severity
from monitor.messages import explanation as x
from monitor.messages.templates import render
from monitor.messages.words import CALLED, DAY, command, plain

Kind = Literal["firing", "updated", "resolved", "withdrawn", "acknowledged", "retrain", "report", "change", "test"]
VERSION = 1
"""Version of the notification's form, raised when a field changes its meaning."""

MOST_TOLD = 4
"""Most conditions with a sentence of their own."""


@dataclass(frozen=True)
class Notification:
    """One notification, for every channel alike. Instants in seconds since 1970.

    Attributes:
        key: the same whenever it is sent again, so that receivers can drop duplicates.
        former_severity: as sent before, if it has changed.
        evidence: of a request to retrain; see `retraining`.
        text: five lines for people; `details` has everything else.
        html: a report in full.
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
    findings: tuple[Evidence, ...] = ()
    former_severity: Severity | None = None
    matter: Matter = "quality"
    evidence: Mapping[str, Any] | None = field(default=None, hash=False)
    details: str = ""
    html: str = ""

    @property
    def full_text(self) -> str:
        return "\n".join(filter(None, (self.text, self.details)))

    @property
    def links(self) -> list[tuple[str, str]]:
        """(name, address) of the page and the runbook, of those that there are."""
        pairs = (("Open in rankmon", self.url), ("Runbook", self.runbook_url))
        return [(name, address) for name, address in pairs if address]

    @property
    def lines(self) -> list[str]:
        """The text's lines for channels that show `links` themselves."""
        return [line for line in self.text.splitlines() if not (self.url and line.startswith(f"Page: {self.url}"))]

    def plain(self) -> dict[str, Any]:
        """JSON data in the form that the webhook documents."""
        data = {"version": VERSION, **asdict(self), "labels": dict(self.labels)}
        for name in ("evidence", "html"):
            if not data[name]:
                del data[name]
        return {**data, "findings": [f.plain() for f in self.findings]}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Notification:
        fields = {name: plain[name] for name in cls.__dataclass_fields__ if name in plain}
        findings = tuple(evidence_of(f) for f in plain["findings"])
        return cls(**{**fields, "labels": tuple(sorted(plain["labels"].items())), "findings": findings})


@dataclass(frozen=True)
class About:
    """The monitor of a notification, and where there is more.

    Attributes:
        page: address of rankmon's page, ending in a slash.
        called: how to call rankmon, see `words.command`.
    """

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    runbook_url: str = ""
    page: str = ""
    called: str = CALLED

    def url(self, incident: str = "") -> str:
        """Address of the page of the monitor, or of an incident; empty without one."""
        return self.page and self.page + (f"incidents/{incident}" if incident else f"monitors/{self.name}")


@dataclass(frozen=True)
class _Told:
    kind: Kind
    about: About
    incident: Incident
    findings: tuple[Evidence, ...]
    former_severity: Severity | None
    reason: str
    over: Sequence[Evidence]
    most: int

    @property
    def url(self) -> str:
        return self.about.url("" if self.kind == "test" else self.incident.id)

    def lines(self, template: str) -> list[str]:
        a = Assessment(self.findings)
        first = self.findings[0] if self.findings else None
        return render(template, n=self, a=a, it=first, incident=self.incident, findings=self.findings, x=x)

    @property
    def is_over(self) -> bool:
        return self.kind in ("resolved", "withdrawn")

    @property
    def sentences(self) -> list[list[str]]:
        until = 0 if self.is_over else max((f.end for f in self.findings if not f.verdict), default=0)
        return x.each(self.findings, self.is_over, until)[: self.most]

    @property
    def more(self) -> int:
        return max(0, len(self.findings) - self.most)

    @property
    def over_by_name(self) -> list[str]:
        more = [f"{len(self.over) - MOST_TOLD} more"] * (len(self.over) > MOST_TOLD)
        return [x.condition(*f.name) for f in self.over[:MOST_TOLD]] + more

    @property
    def new_version(self) -> list[str]:
        return next((told for f in self.findings if (told := x.new_version(f))), [])

    @property
    def weak_version(self) -> list[str]:
        return next((told for f in self.findings if (told := x.weak_version(f))), [])

    @property
    def split(self) -> Degraded | None:
        known = (f for f in self.findings if isinstance(f, Degraded) and f.split is not None)
        return next((f for f in known if f.dimension or f.slices), None)

    @property
    def with_slices(self) -> QualityEvidence | None:
        falls = (f for f in self.findings if isinstance(f, QualityEvidence) and f.slices and not f.is_recovering)
        return next(falls, None)

    @property
    def changes(self) -> list[str]:
        told = dict[str, str]()
        for one in Assessment(self.findings).down.quality:
            told = {**dict(zip((c.what for c in one.concurrent), x.changes(one), strict=True)), **told}
        return [*told.values()]

    @property
    def followed(self) -> list[Evidence]:
        return [f for f in self.findings if getattr(f, "still_below", None) is not None]

    @property
    def decayed(self) -> list[Degraded]:
        return [f for f in self.findings if isinstance(f, Degraded) and f.below_reference is not None]

    @property
    def rose_little(self) -> list[Degraded]:
        known = (f for f in self.findings if isinstance(f, Degraded) and f.fires and f.upper is not None)
        return [f for f in known if (f.upper or 0.0) < (f.threshold or 0.0)]

    @property
    def worst(self) -> QualityEvidence | None:
        first = self.findings[0]
        if first.dimension or first.change is None or first.is_recovering:
            return None
        of_slices = (f for f in Assessment(self.findings).down.quality if f.dimension and f.judged == first.judged)
        found = max(of_slices, key=lambda f: f.loss, default=None)
        return None if found is None or found.loss < 1.5 * max(first.loss, 0.0) else found

    @property
    def coverage_span(self) -> int:
        """Seconds of the label coverage: for a verdict, the hours since the fall began, a day at most."""
        return min(DAY, self.findings[0].window)

    @property
    def explain(self) -> str:
        is_asked = self.kind in ("firing", "updated") and self.incident.matter == "quality" and self.about.called
        return command(self.about.called, f"explain-incident {self.incident.id}") if is_asked else ""

    @property
    def late_labels(self) -> list[str]:
        a = Assessment(self.findings)
        if self.kind != "resolved" or a.data is None or any(f.is_new_normal for f in self.findings):
            return []
        found = x.late_labels(self.incident, self.findings) if self.about.called else []
        return [command(self.about.called, one) for one in found]


def notification(
    kind: Kind,
    about: About,
    incident: Incident,
    findings: Sequence[Evidence],
    number: int,
    former_severity: Severity | None = None,
    reason: str = "",
    over: Sequence[Evidence] = (),
    most: int = MOST_TOLD,
) -> Notification:
    """The notification of a kind about an incident.

    Args:
        findings: the conditions that fire, or those that did when it closed.
        number: earlier notifications of this incident.
        reason: why it was withdrawn.
        over: reported conditions that ended while others continue.
        most: conditions with a sentence of their own.
    """
    ordered = in_order(findings, incident.opened_at)
    told = _Told(kind, about, incident, ordered, former_severity, reason, over, most)
    return Notification(
        kind,
        key(about.name, incident.id, kind, number),
        about.name,
        incident.id,
        incident.severity,
        incident.began_at,
        incident.opened_at,
        incident.closed_at,
        plain(f"{about.name}: {' '.join(told.lines('title'))}", one_line=True),
        plain("\n".join(told.lines("page"))),
        told.url,
        about.runbook_url,
        about.labels,
        ordered,
        former_severity,
        incident.matter,
        details=plain("\n".join(told.lines("details"))),
    )


def key(*parts: object) -> str:
    """Forty hexadecimal digits, the same for the same parts."""
    return hashlib.sha1("\n".join(map(str, parts)).encode(), usedforsecurity=False).hexdigest()
