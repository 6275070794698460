"""One notification as data, from which every channel makes its own form.

Its text has five lines: what fell, from what to what and how sure; since when; where; what to do first; where to look.
The details hold everything else. It names slices, but contains no query text, request id or secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from monitor.conditions.assessment import Assessment, in_order
from monitor.conditions.evidence import Evidence, Matter, QualityEvidence, evidence_of
from monitor.conditions.incident import Incident
from monitor.conditions.kinds.degraded import Degraded
from monitor.conditions.kinds.threshold import Threshold
from monitor.conditions.rules import Severity
from monitor.messages import explanation as x
from monitor.messages.templates import AS_BUILT_IN, OwnTemplates
from monitor.messages.words import CALLED, brief, command, plain
from monitor.units import DAY

Kind = Literal["firing", "updated", "resolved", "withdrawn", "acknowledged", "retrain", "report", "change", "test"]
ENDS: tuple[Kind, ...] = ("resolved", "withdrawn")
"""Kinds that end an incident: retried while any daemon has the receiver."""

VERSION = 1
"""Version of the notification's form, raised when a field changes its meaning."""

VARIABLES: Mapping[str, str] = {
    "n": "the notification",
    "labels": "the monitor's labels by name: `{{ labels.team }}`",
    "incident": "the incident",
    "findings": "the conditions that fire (or fired when it closed), most severe first",
    "it": "the first of `findings`; none in a test message or if the monitor is gone",
    "a": "what the findings say as a whole",
    "x": "functions that put findings into words",
}
"""What a notification's templates are given."""

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
        again: the sentence at the start of `text` that says why it is sent again; empty the first time.
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
    runbook_url: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    findings: tuple[Evidence, ...] = ()
    former_severity: Severity | None = None
    matter: Matter = "quality"
    evidence: Mapping[str, Any] | None = field(default=None, hash=False)
    details: str = ""
    html: str = ""
    again: str = ""

    def sent_again(self, why: str) -> Notification:
        """This notification, its text beginning with a sentence that says why it is sent again."""
        text = self.text.removeprefix(self.again).lstrip()
        return replace(self, text=f"{why} {text}", again=why, former_severity=None)

    @property
    def is_over(self) -> bool:
        """Whether it says that the incident is over."""
        return self.kind in ENDS

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

    def line(self, name: str) -> str:
        """What its text says under a name, such as `Where`; empty if it has no such line."""
        found = (line.partition(": ") for line in self.text.splitlines())
        return next((rest for begin, _, rest in found if begin == name), "")

    def plain(self) -> dict[str, Any]:
        """JSON data in the form that the webhook documents."""
        data = {"version": VERSION, **asdict(self), "labels": dict(self.labels)}
        for name in ("evidence", "html", "again"):
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
        templates: a user's templates.
    """

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    runbook_url: str = ""
    page: str = ""
    called: str = CALLED
    templates: OwnTemplates = AS_BUILT_IN

    def url(self, incident: str = "") -> str:
        """Address of the page of the monitor, or of an incident; empty without one."""
        return self.page and self.page + (f"incidents/{incident}" if incident else f"monitors/{self.name}")


@dataclass(frozen=True)
class Since:
    """What changed since the messages before.

    Attributes:
        over: reported conditions that ended while others continue, and why.
        begun: conditions that began to fire.
        opened_with: the most important condition of the first message, once the incident is over.
        is_restated: whether the data, the labels or a rule changed.
        now: time of a first message, seconds; 0 if unknown.
    """

    over: Sequence[tuple[Evidence, str]] = ()
    begun: Sequence[Evidence] = ()
    opened_with: Evidence | None = None
    is_restated: bool = False
    now: int = 0


NOTHING_SINCE = Since()


@dataclass(frozen=True)
class Message:
    """A notification, as templates see it.

    Attributes:
        kind: `firing`, `updated`, `resolved`, `withdrawn`, `retrain` or `test`.
        about: the monitor: `name`, `labels`, `runbook_url`, `page`.
        incident, findings: the variables with these names.
        former_severity: severity in the message before, if it changed; otherwise none.
        reason: why it was withdrawn.
        since: what changed since the messages before.
        most: how many findings get their own sentences.
    """

    kind: Kind
    about: About
    incident: Incident
    findings: tuple[Evidence, ...]
    former_severity: Severity | None
    reason: str
    since: Since
    most: int

    @property
    def url(self) -> str:
        """Address of the incident page, or in a test message of the monitor page; empty without one."""
        return self.about.url("" if self.kind == "test" else self.incident.id)

    def lines(self, template: str) -> list[str]:
        """The lines of a rendered template."""
        a = Assessment(self.findings)
        first = self.findings[0] if self.findings else None
        facts = (self, dict(self.about.labels), self.incident, self.findings, first, a, x)
        return self.about.templates.render(template, **dict(zip(VARIABLES, facts, strict=True)))

    @property
    def is_over(self) -> bool:
        """Whether the incident is closed."""
        return self.kind in ENDS

    @property
    def sentences(self) -> list[list[str]]:
        """The sentences of each finding, most important first."""
        until = 0 if self.is_over else max((f.end for f in self.findings if not f.verdict), default=0)
        return x.each(self.findings, self.is_over, until)[: self.most]

    @property
    def more(self) -> int:
        """How many findings have no sentences here."""
        return max(0, len(self.findings) - self.most)

    @property
    def is_restated(self) -> bool:
        """Whether the data, the labels or a rule changed since the previous message."""
        return self.since.is_restated

    @property
    def over_by_name(self) -> list[str]:
        """Conditions that were reported and have ended, by name, and why."""
        return self._called(self.since.over)

    @property
    def begun_by_name(self) -> list[str]:
        """Conditions that began to fire, by name."""
        return self._called([(one, "") for one in self.since.begun])

    @property
    def open_by_name(self) -> list[str]:
        """Conditions that fire, by name."""
        return self._called([(one, "") for one in self.findings])

    def _called(self, some: Sequence[tuple[Evidence, str]]) -> list[str]:
        """The first few by name, why, and how many more.

        With the measure if they judge several, and with `all traffic` where others of the same rule are of slices.
        """
        every = [*(one for one, _ in self.since.over), *self.findings]
        of_slices, judged = {f.rule for f in every if f.dimension}, {f.judged for f in every}
        found = []
        for one, why in some[:MOST_TOLD]:
            what = f" on {brief(one.judged)}" * (len(judged) > 1 and isinstance(one, QualityEvidence))
            place = " for all traffic" * (one.rule in of_slices and not one.dimension)
            said = why.removeprefix(f"{one.title}: ")
            found.append(f"{x.condition(*one.name)}{what}{place}{f' ({said})' if said else ''}")
        return found + [f"{len(some) - MOST_TOLD} more"] * (len(some) > MOST_TOLD)

    @property
    def late(self) -> int:
        """Seconds from the end of the window that fired to the first message; 0 if unknown."""
        return max(self.since.now - self.incident.opened_at, 0) if self.kind == "firing" else 0

    @property
    def opened_with(self) -> Evidence | None:
        """What the first message was about, if the message on the end is about something else."""
        first = self.since.opened_with
        return first if first is not None and first.name not in {f.name for f in self.findings} else None

    @property
    def new_version(self) -> list[str]:
        """Sentences on the model version with which the fall began; empty if none did."""
        return next((told for f in self.findings if (told := x.new_version(f))), [])

    @property
    def weak_version(self) -> list[str]:
        """Sentences on a model version that is clearly worse than the others; empty if none is."""
        return next((told for f in self.findings if (told := x.weak_version(f))), [])

    @property
    def split(self) -> Degraded | None:
        """The first finding that knows how much came from within slices and how much from a changed mix."""
        known = (f for f in self.findings if isinstance(f, Degraded) and f.split is not None)
        return next((f for f in known if f.dimension or f.slices), None)

    @property
    def changes(self) -> list[str]:
        """Sentences on what else changed with the fall."""
        told = dict[str, str]()
        for one in Assessment(self.findings).down.quality:
            told = {**dict(zip((c.what for c in one.concurrent), x.changes(one), strict=True)), **told}
        return [*told.values()]

    @property
    def followed(self) -> list[Evidence]:
        """Findings that are over only because their baseline fell."""
        return [f for f in self.findings if isinstance(f, Threshold) and f.still_below is not None]

    @property
    def decayed(self) -> list[Degraded]:
        """Falls that ended clearly below the reference."""
        return [f for f in self.findings if isinstance(f, Degraded) and f.below_reference is not None]

    @property
    def rose_little(self) -> list[Degraded]:
        """Falls that ended though the value still lies below the threshold."""
        known = (f for f in self.findings if isinstance(f, Degraded) and f.fires and f.upper is not None)
        return [f for f in known if (f.upper or 0.0) < (f.threshold or 0.0)]

    @property
    def worst(self) -> QualityEvidence | None:
        """The slice that fell much further than all traffic; none if there is none."""
        first = self.findings[0]
        if first.dimension or first.change is None or first.is_recovering:
            return None
        of_slices = (f for f in Assessment(self.findings).down.quality if f.dimension and f.judged == first.judged)
        found = max(of_slices, key=lambda f: f.loss, default=None)
        return None if found is None or found.loss < 1.5 * max(first.loss, 0.0) else found

    @property
    def coverage_span(self) -> int:
        """Seconds over which label coverage is measured: for a verdict, since the fall began, at most a day."""
        return min(DAY, self.findings[0].window)

    @property
    def explain(self) -> str:
        """The command that explains the incident; empty if there is none."""
        is_asked = self.kind in ("firing", "updated") and self.incident.matter == "quality" and self.about.called
        return command(self.about.called, f"explain-incident {self.incident.id}") if is_asked else ""

    @property
    def late_labels(self) -> list[str]:
        """Commands that count labels that arrived late."""
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
    since: Since = NOTHING_SINCE,
    most: int = MOST_TOLD,
) -> Notification:
    """The notification of a kind about an incident.

    Args:
        findings: the conditions that fire, or those that did when it closed.
        number: earlier notifications of this incident.
        reason: why it was withdrawn.
        since: what changed since the messages before.
        most: conditions with a sentence of their own.
    """
    ordered = in_order(findings, incident.opened_at)
    told = Message(kind, about, incident, ordered, former_severity, reason, since, most)
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
