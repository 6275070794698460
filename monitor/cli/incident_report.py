"""Text of `rankmon explain-incident`: five lines, the events, then tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from monitor.cli.commands.incidents import line
from monitor.cli.render import table
from monitor.conditions.assessment import with_first_version
from monitor.conditions.evidence import Evidence
from monitor.messages.diagnosis import (
    LEADING,
    Document,
    Part,
    Told,
    hour_by_hour,
    missing,
    parts_of,
    restated,
    slice_name,
)
from monitor.messages.explanation import advice, beginning, may_be_well, new_version, sentence, title_of, weak_version
from monitor.messages.tables import number, percent
from monitor.messages.words import shown, utc

if TYPE_CHECKING:
    from monitor.store.alerts import StoredIncident, Transition

SURE = -2.0
"""Standard errors below which a slice fell significantly."""


def lines(
    found: StoredIncident,
    told: Sequence[Told],
    steps: Sequence[Transition],
    hours: Sequence[Document] = (),
    until: int | None = None,
    link: str = "",
    full: bool = True,
) -> list[str]:
    """The incident in lines; a table shared with an earlier condition is shown once.

    Args:
        hours: of an incident on the data, see `hours_of`.
        until: end of its monitor's last judged window, seconds.
        link: where there is more.
        full: include requests, queries and other conditions.
    """
    first, *others = told
    said: set[tuple[Part, ...]] = set()
    parts: list[Iterable[Part]] = [summary(found, first, link), _steps(steps)]
    if full:
        parts += [["", line(found, until)], _fell(found, first.fell), restated(first)]
    parts += [parts_of(first.diagnosis, said, full), missing(first), hour_by_hour(hours)]
    if full:
        parts += [_other(one, first.missing, said) for one in others]
    elif others or first.diagnosis is not None:
        parts.append(["\n--full adds requests, queries, and each condition on its own."])
    return in_text(one for part in parts for one in part)


def in_text(parts: Iterable[Part]) -> list[str]:
    """The lines of all parts."""
    return [text for part in parts for text in ([part] if isinstance(part, str) else table(*part))]


def summary(found: StoredIncident, first: Told, link: str) -> Iterator[str]:
    """Five lines: the fall and how sure it is, since when, where, what to do first, where there is more."""
    incident, fell = found.incident, first.fell
    known = [f for f in found.findings if f.name == first.condition] if incident.is_open else []
    known = [*known, *([] if fell is None else [fell]), *found.findings]
    what = sentence(known[0]).partition(". ")[0] if known else incident.matter
    yield f"What:   {incident.monitor}: {shown(what, 1000)}"
    end = f"{incident.state} at {utc(incident.closed_at)}" if incident.closed_at is not None else "still open"
    known = with_first_version(known, incident.opened_at)
    yield f"Since:  {beginning(incident, known)}; fired at {utc(incident.opened_at)}; {end}"
    yield f"Where:  {_where(first.diagnosis, found.findings)}"
    left = known if incident.is_open else [f for f in found.findings if f.is_incomplete]
    yield f"To do:  {shown(advice(left), 1000) if left else 'nothing; it is over'}"
    yield f"More:   {link or f'rankmon incidents show {incident.id}'}"


def _where(document: Document | None, findings: Sequence[Evidence]) -> str:
    parts = {} if document is None else {slice_name(p): p for p in document["slices"] if p.get("before") is not None}
    sure = {name: p for name, p in parts.items() if (p.get("z") or 0.0) <= SURE and p["within"] < 0}
    told = [
        f"{name} {number(p['before'])} -> {number(p['value'])} ({percent(p['share'])} of requests)"
        for name, p in list(sure.items())[:LEADING]
    ]
    told += [f"and {len(sure) - LEADING} more"] * (len(sure) > LEADING)
    if not told:
        named = [f"{s.dimension}={s.slice}" for f in findings for s in f.slices] + [
            f.where for f in findings if f.where
        ]
        told = [shown(name) for name in dict.fromkeys(named)][:LEADING]
    return ", ".join(told) + ", when it fired" * bool(sure) or "all traffic; no slice stands out"


def _steps(steps: Sequence[Transition]) -> Iterator[str]:
    if steps:
        yield "\nTimeline:"
    for step in steps:
        where = f" for {shown(f'{step.dimension}={step.value}')}" if step.dimension else ""
        yield f"  {utc(step.at)}  {step.rule}{where}: {step.was} -> {step.became}, {shown(step.reason, 200)}"


def _fell(found: StoredIncident, opening: Evidence | None) -> Iterator[str]:
    incident = found.incident
    if opening is not None:
        when = "When it opened" if opening.end <= incident.opened_at else f"At {utc(opening.end)}"
        yield f"\n{when}, {_by(opening)}: {shown(sentence(opening), 1000)}"
    later = [f for f in found.findings if opening is None or f.end != opening.end]
    is_over = not incident.is_open
    yield from (f"At {utc(f.end)}, {_by(f)}: {shown(sentence(f, is_over), 1000)}" for f in later)
    closed = "" if incident.closed_at is None else f", {incident.state} at {utc(incident.closed_at)}"
    known = with_first_version([*([] if opening is None else [opening]), *found.findings], incident.opened_at)
    yield f"Since {beginning(incident, known)}; fired at {utc(incident.opened_at)}{closed}."
    yield from (" ".join(told) for told in map(new_version, known) if told)
    yield from (told for f in found.findings for told in weak_version(f))
    yield from [] if is_over else may_be_well(found.findings)


def _by(finding: Evidence) -> str:
    return f"by verdict {title_of(finding.verdict)}" if finding.verdict else f"by rule {finding.rule}"


def _other(one: Told, not_captured: str, said: set[tuple[Part, ...]]) -> Iterator[Part]:
    """A condition that fired with the first; `not_captured`: why the first lacks request details."""
    rule, dimension, value = one.condition
    what = f"{rule} of {dimension}={value}" if dimension else rule
    over = ", which is over by now" if one.is_over else ""
    by, text = (shown(what), "") if one.fell is None else (_by(one.fell), f" {shown(sentence(one.fell), 1000)}")
    yield f"\nAlso, at {utc(one.fired_at)}, {by}{over}:{text}"
    yield from restated(one)
    yield from parts_of(one.diagnosis, said)
    if one.missing != not_captured:
        yield from missing(one)
