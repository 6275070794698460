"""What `rankmon explain-incident` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monitor.causes.diagnosis import BASELINE, BEFORE
from monitor.cli.commands.incidents import line
from monitor.cli.explain_incident_hours import hour_by_hour
from monitor.cli.explain_incident_versions import compared, shown, versions
from monitor.cli.render import count, number, percent, table
from monitor.conditions.finding_words import may_be_well, sentence
from monitor.conditions.findings import Finding
from monitor.conditions.thresholds import ConditionName
from monitor.conditions.verdict_words import NAMES, beginning
from monitor.conditions.version_words import new_version, weak_version, with_first_version
from monitor.messages.words import lasting, utc

if TYPE_CHECKING:
    from monitor.store.alerts import StoredIncident, Transition

Document = Mapping[str, Any]

FAILED = "could not be captured"
DAY, WEEK = 86_400, 604_800

EVERY_EVENT = 4
"""Version of diagnoses from which on the events of all traffic are all that came."""

MOST_ROWS = 8
"""Of a table of slices."""

LEADING = 3
"""Slices that must stand in another order for a second table of them."""


@dataclass(frozen=True)
class Told:
    """What there is to tell of one condition of an incident.

    Attributes:
        fired_at: when it began to fire, seconds.
        document: the diagnosis, or what of it the store knows.
        missing: why there is no more of it.
        is_over: it does not fire any more, though the incident goes on.
        restated: what has become of its figures since it was taken, see `diagnosis.moved`; None: nothing.
    """

    condition: ConditionName
    fired_at: int
    document: Document | None = None
    missing: str = ""
    restated: Document | None = None
    is_over: bool = False


def lines(
    found: StoredIncident,
    told: Sequence[Told],
    steps: Sequence[Transition],
    hours: Sequence[Document] = (),
    until: int | None = None,
) -> list[str]:
    """All of it, a line each; a table that a condition shares with one before it is shown once.

    Args:
        hours: of an incident on the data, see `explain_incident_hours`.
        until: end of the last window of its monitor that was judged, seconds.
    """
    first, *others = told
    said: set[tuple[str, ...]] = set()
    return [
        line(found, until),
        *_fell(found, first.document),
        *_restated(first),
        *_parts(first.document, said),
        *_missing(first),
        *hour_by_hour(hours),
        *(text for one in others for text in _other(one, first.missing, said)),
        *_steps(steps),
    ]


def _missing(one: Told) -> Iterator[str]:
    missing = shown(one.missing, 1000)
    if missing.startswith(FAILED):
        yield f"\nC{missing[1:]}."
    elif missing:
        yield f"\nNot captured: {missing}."


def _restated(one: Told) -> Iterator[str]:
    """That what is shown was found out by figures that are others now."""
    if one.restated is None or one.document is None:
        return
    captured, then, now = one.document.get("captured"), one.restated["value"], one.restated["value_now"]
    at = "" if captured is None else f" at {utc(int(captured['taken_at']))}"
    if one.restated["end_now"] is None:
        yield f"Captured{at}: value then {number(then)}; the data were read again since, and by them it does not fire."
        return
    before = (one.restated["before"], one.restated["before_now"])
    yield (
        f"Captured{at} of the figures as they were: value then {number(then)}, now {number(now)}; compared with then "
        f"{number(before[0])}, now {number(before[1])}. The data were read again since; what follows is as captured."
    )


def _other(one: Told, missing: str, said: set[tuple[str, ...]]) -> Iterator[str]:
    """A condition that fired beside the first; `missing` is why the first lacks what single requests say."""
    document = one.document
    fell = None if document is None or document["fell"] is None else Finding.of(document["fell"])
    rule, dimension, value = one.condition
    what = f"{rule} of {dimension}={value}" if dimension else rule
    over = ", which is over by now" if one.is_over else ""
    yield f"\nAlso, at {utc(one.fired_at)}, {shown(what) if fell is None else _by(fell)}{over}:" + (
        "" if fell is None else f" {shown(sentence(fell), 1000)}"
    )
    yield from _restated(one)
    yield from _parts(document, said)
    if one.missing != missing:
        yield from _missing(one)


def _parts(document: Document | None, said: set[tuple[str, ...]]) -> Iterator[str]:
    """All of a diagnosis but what is in `said`, to which it is added."""
    if document is None:
        return
    parts = [
        _split(document),
        _left_out(document),
        *_slices(document),
        _labels(document),
        versions(document, _against(document, BEFORE)),
    ]
    if document.get("captured") is not None:
        began = document["began_at"] if document["fell"] is None else document["fell"]["since"]
        parts += [compared(document["captured"]["comparison"], began), _captured(document)]
    for part in map(tuple, parts):
        if part not in said:
            yield from part
        said.add(part)


def _captured(document: Document) -> Iterator[str]:
    """What single requests say."""
    captured = document["captured"]
    yield from _requests(document)
    yield from _queries(document)
    yield f"\nSource read at {utc(int(captured['taken_at']))}: {_periods(captured)}."
    yield from (f"Note: {note}." for note in captured["notes"])


def _fell(found: StoredIncident, document: Document | None) -> Iterator[str]:
    """What fell from what to what, and since when: when it opened, and now if that is another thing."""
    incident = found.incident
    opening = None if document is None or document["fell"] is None else Finding.of(document["fell"])
    if opening is not None:
        when = "When it opened" if opening.end <= incident.opened_at else f"At {utc(opening.end)}"
        yield f"\n{when}, {_by(opening)}: {shown(sentence(opening), 1000)}"
    later = [f for f in found.findings if opening is None or f.end != opening.end]
    is_over = not incident.is_open
    yield from (f"At {utc(f.end)}, {_by(f)}: {shown(sentence(f, is_over), 1000)}" for f in later)
    closed = "" if incident.closed_at is None else f", {incident.state} at {utc(incident.closed_at)}"
    known = with_first_version([*([] if opening is None else [opening]), *found.findings], incident.opened_at)
    yield f"Since {beginning(incident, known)}; fired at {utc(incident.opened_at)}{closed}."
    yield from [told for f in known if (told := new_version(f))]
    yield from [told for f in found.findings if (told := weak_version(f))]
    yield from [] if is_over else may_be_well(found.findings)


def _by(finding: Finding) -> str:
    """What made the condition."""
    is_verdict = bool(finding.verdict)
    return f"by verdict {NAMES.get(finding.verdict, finding.verdict)}" if is_verdict else f"by rule {finding.rule}"


def _split(document: Document) -> Iterator[str]:
    found = document["split"]
    if found is None:
        why = "there is no dimension to split by" if document["compared"] else "nothing from before the fall is stored"
        yield f"\nNo split: {why}."
        return
    against = _against(document, BASELINE if found["from"] == "verdict" else BEFORE)
    split = "All traffic, split" if document["dimension"] else "Split"
    yield (
        f"\n{split} by {shown(found['by'])}, {against}: {number(found['before'])} -> {number(found['value'])}, "
        f"change {found['value'] - found['before']:+.4f}"
    )
    yield f"  within slices {found['within']:+.4f}, from another mix {found['mix']:+.4f}"


def _left_out(document: Document) -> Iterator[str]:
    """The times before that would have been compared with."""
    if spans := document.get("left_out"):
        days = ", ".join(sorted(utc(since)[:10] for since, _ in spans))
        yield f"  not compared with the same hours from {days} on: the data were bad then, or an alarm was open"


def _against(document: Document, what: str) -> str:
    """What slices are compared with, in words, and which hours if these are not the whole window."""
    if what == BASELINE:
        window = document["split"].get("window", document["window"])
        length = (
            "" if list(window) == list(document["window"]) else f"the {lasting(window[1] - window[0])} until it fired "
        )
        return f"{length}against the verdict's baseline of the same hours"
    return f"against {_before(document)}" if document["compared"] else "against nothing"


def _before(document: Document) -> str:
    """What the window is compared with, in words."""
    apart = document["window"][0] - document["compared"][0][0]
    unit = "weeks" if apart % WEEK == 0 else "days"
    number_ = len(document["compared"])
    if number_ > 1:
        return f"the same hours of {number_} {unit} before"
    return f"the same hours {'a day' if apart == DAY else f'{apart // DAY} days'} before"


def _slices(document: Document) -> Iterator[Iterator[str]]:
    """Slices by what they add, and by z where that is another order, each against what it is compared with."""
    told: dict[str, list[Any]] = {}
    for title, name in (("By what they add to the change", "slices"), ("By z, the surest fall first", "slices_by_z")):
        for what in (BASELINE, BEFORE):
            # Slices of the two are in tables of their own: a fall against the one is none against the other.
            parts = [p for p in document[name] if p.get("against", BEFORE) == what]
            leading = [(p["dimension"], p["slice"]) for p in parts[:LEADING]]
            if parts and told.get(what) != leading:
                yield iter([f"\n{title}, {_against(document, what)}:", *_table(parts), *_new(parts)])
            told[what] = leading


def _table(parts: Sequence[Document]) -> list[str]:
    return table(
        ("slice", "before", "now", "share before", "share", "within", "mix", "z"),
        [
            (
                shown(f"{p['dimension']}={p['slice']}"),
                "new" if p.get("new_since") else number(p["before"]),
                number(p["value"]),
                percent(p["share_before"]),
                percent(p["share"]),
                "–" if p.get("new_since") else f"{p['within']:+.4f}",
                f"{p['mix']:+.4f}",
                "–" if p.get("new_since") else f"{p['z']:+.1f}",
            )
            for p in parts[:MOST_ROWS]
        ],
    )


def _new(parts: Sequence[Document]) -> list[str]:
    """Of slices that are new, since when they are there, and how they compare with the others in the same hours."""
    found = [p for p in parts[:MOST_ROWS] if p.get("new_since")]
    return [
        f"  {shown(p['dimension'] + '=' + p['slice'])} is new since {utc(p['new_since'])}: {_beside(p)}" for p in found
    ]


def _beside(part: Document) -> str:
    value, others = part["value"], part["others"]
    if others is None:
        return f"{number(value)}, and there are no others in these hours"
    apart = f" ({100 * (value / others - 1):+.1f} %)" if others else ""
    return f"{number(value)}, the others {number(others)} in the same hours{apart}"


def _labels(document: Document) -> Iterator[str]:
    c = document["coverage"]
    of_slice = f" of {shown(document['dimension'] + '=' + document['slice'])}" if document["dimension"] else ""
    if lost := document.get("unlabelled"):
        of_slice = f" without {', '.join(map(shown, lost))}, which had lost the labels"
    yield f"\nLabels and traffic{of_slice}{_last_of(document)}, {_against(document, BEFORE)}:"
    name, of = (
        ("judged", "items with a judgment") if document["by_judgments"] else ("labelled", "requests with a label")
    )
    rows = [
        (of, percent(c[f"{name}_before"]), percent(c[name])),
        *_of_events(document),
        ("requests with nothing relevant", percent(c.get("empty_before")), percent(c.get("empty"))),
        ("requests", count(c["requests_before"] / max(1, len(document["compared"]))), count(c["requests"])),
    ]
    yield from table(("", "before", "now"), rows)


def _of_events(document: Document) -> Iterator[tuple[str, str, str]]:
    """The rows on events, of those figures that there are: labels of another recipe come of none."""
    c = document["coverage"]
    if any(c[name] is not None for name in ("events_before", "events")):
        yield _events(document), number(c["events_before"]), number(c["events"])
    if any(c[name] is not None for name in ("unmatched_before", "unmatched")):
        yield "events that match nothing", percent(c["unmatched_before"]), percent(c["unmatched"])


def _events(document: Document) -> str:
    """Which events are counted: of a slice nothing tells whose those were that match nothing."""
    is_part = bool(document["dimension"] or document.get("unlabelled"))
    return "events per request" + ", those that match" * (is_part or document["version"] < EVERY_EVENT)


def _last_of(document: Document) -> str:
    """How much of the fall was looked at, where that is not all."""
    fell, (since, until) = document["fell"], document["window"]
    is_all = fell is None or fell["window"] <= until - since
    return "" if is_all else f", the last {lasting(until - since)} of {lasting(fell['window'])}"


def _requests(document: Document) -> Iterator[str]:
    captured = document["captured"]
    if captured.get("why"):
        yield f"\nNo requests are named: {captured['why']}."
    if captured["requests"]:
        yield f"\nRequests that lost most, {_against(document, BEFORE)}:"
        yield from table(
            ("request", "served (UTC)", "slice", "version", "value", "expected"),
            [
                (
                    shown(r["request"]),
                    utc(r["served_at"]).removesuffix(" UTC"),
                    shown(r["slice"]),
                    shown(r["version"]),
                    number(r["value"]),
                    number(r["expected"]),
                )
                for r in captured["requests"]
            ],
            left=(0, 1, 2, 3),
        )
        yield from _bare(document)
    now, before = captured.get("left_out", (None, None))
    if now or before:
        yield f"  Requests with nothing relevant are no part of this: {percent(now)}, before {percent(before)}."


def _bare(document: Document) -> Iterator[str]:
    """That requests lost all for they got no label, which is nothing remarkable where few get one."""
    captured = document["captured"]
    bare = sum(bool(r.get("bare")) for r in captured["requests"])
    if not bare:
        return
    many = f"All {bare}" if bare == len(captured["requests"]) else f"{bare} of these {len(captured['requests'])}"
    none = "have no item that is judged relevant" if document["by_judgments"] else "got no label at all (no click, say)"
    now, before = captured.get("bare", (None, None))
    yield (
        f"  {many} {none}, which is all that their value of 0 says: so it is with {percent(now)} of the requests, "
        f"before with {percent(before)}."
    )


def _queries(document: Document) -> Iterator[str]:
    found = document["captured"]["queries"]
    if found is None or not found["worst"]:
        return
    yield f"\nQueries that lost most, {_against(document, BEFORE)}:"
    yield f"  of the requests, {percent(found['common_share'])} are of queries seen before"
    with_text = any("text" in q for q in found["worst"])
    yield from table(
        ("query", "requests before", "now", "before", "value", "adds", "z", *(["text"] if with_text else [])),
        [
            (
                q["query"],
                count(q["requests_before"]),
                count(q["requests"]),
                number(q["before"]),
                number(q["value"]),
                f"{q['within']:+.4f}",
                "–" if q["z"] is None else f"{q['z']:+.1f}",
                *([shown(q.get("text", ""))] if with_text else []),
            )
            for q in found["worst"]
        ],
        left=(0, 7),
    )


def _periods(captured: Document) -> str:
    window, *past = captured["periods"]
    before = sum(period["requests"] for period in past)
    return f"{window['requests']:,} requests of the window, {before:,} of {len(past)} periods before it"


def _steps(steps: Sequence[Transition]) -> Iterator[str]:
    if steps:
        yield "\nStep by step:"
    for step in steps:
        where = f" of {step.dimension}={step.value}" if step.dimension else ""
        yield f"  {utc(step.at)}  {step.rule}{shown(where)}: {step.was} -> {step.became}, {shown(step.reason, 200)}"
