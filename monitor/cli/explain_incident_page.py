"""What `rankmon explain-incident` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monitor.cli.incidents import line
from monitor.cli.tables import count, number, percent, table
from monitor.core.diagnosis import BASELINE, BEFORE
from monitor.core.findings import Finding
from monitor.core.messages import sentence
from monitor.core.thresholds import ConditionName
from monitor.core.verdict_words import NAMES
from monitor.core.versions import ALL_THE_TIME
from monitor.core.words import lasting, utc

if TYPE_CHECKING:
    from monitor.store.alerts import StoredIncident, Transition

Document = Mapping[str, Any]

FAILED = "could not be captured"
LONGEST = 60
DAY, WEEK = 86_400, 604_800


@dataclass(frozen=True)
class Told:
    """What there is to tell of one condition of an incident.

    Attributes:
        fired_at: when it began to fire, seconds.
        document: the diagnosis, or what of it the store knows.
        missing: why there is no more of it.
        restated: what has become of its figures since it was taken, see `diagnosis.moved`; None: nothing.
    """

    condition: ConditionName
    fired_at: int
    document: Document | None = None
    missing: str = ""
    restated: Document | None = None


def lines(found: StoredIncident, told: Sequence[Told], steps: Sequence[Transition]) -> list[str]:
    """All of it, a line each."""
    first, *others = told
    return [
        line(found),
        *_fell(found, first.document),
        *_restated(first),
        *(() if first.document is None else _parts(first.document)),
        *_missing(first),
        *(text for one in others for text in _other(one, first.missing)),
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


def _other(one: Told, said: str) -> Iterator[str]:
    """A condition that fired beside the first, with what single requests say of it; `said` why the first lacks that."""
    document = one.document
    fell = None if document is None or document["fell"] is None else Finding.of(document["fell"])
    rule, dimension, value = one.condition
    what = f"{rule} of {dimension}={value}" if dimension else rule
    yield f"\nAlso, at {utc(one.fired_at)}, {shown(what) if fell is None else _by(fell)}:" + (
        "" if fell is None else f" {shown(sentence(fell), 1000)}"
    )
    yield from _restated(one)
    if document is not None and document.get("captured") is not None:
        yield from _captured(document)
    if one.missing != said:
        yield from _missing(one)


def _parts(document: Document) -> Iterator[str]:
    yield from _split(document)
    yield from _slices(document)
    yield from _labels(document)
    yield from _versions(document)
    if document.get("captured") is not None:
        yield from compared(document["captured"]["comparison"])
        yield from _captured(document)


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
    yield from (f"At {utc(f.end)}, {_by(f)}: {shown(sentence(f), 1000)}" for f in later)
    closed = "" if incident.closed_at is None else f", {incident.state} at {utc(incident.closed_at)}"
    yield f"Since {utc(incident.began_at)}; fired at {utc(incident.opened_at)}{closed}."


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
    yield (
        f"\nSplit by {shown(found['by'])}, {against}: {number(found['before'])} -> {number(found['value'])}, "
        f"change {found['value'] - found['before']:+.4f}"
    )
    yield f"  within slices {found['within']:+.4f}, from another mix {found['mix']:+.4f}"


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
    return f"the same hours of {number_} {unit} before" if number_ > 1 else f"the same hours {apart // DAY} days before"


def _slices(document: Document) -> Iterator[str]:
    for title, name in (("By what they add to the change", "slices"), ("By z, the surest fall first", "slices_by_z")):
        for what in (BASELINE, BEFORE):
            # Slices of the two are in tables of their own: a fall against the one is none against the other.
            parts = [p for p in document[name] if p.get("against", BEFORE) == what]
            if parts:
                yield f"\n{title}, {_against(document, what)}:"
                yield from _table(parts)


def _table(parts: Sequence[Document]) -> list[str]:
    return table(
        ("slice", "before", "now", "share before", "share", "within", "mix", "z"),
        [
            (
                shown(f"{p['dimension']}={p['slice']}"),
                number(p["before"]),
                number(p["value"]),
                percent(p["share_before"]),
                percent(p["share"]),
                f"{p['within']:+.4f}",
                f"{p['mix']:+.4f}",
                f"{p['z']:+.1f}",
            )
            for p in parts[:8]
        ],
    )


def _labels(document: Document) -> Iterator[str]:
    c = document["coverage"]
    yield f"\nLabels and traffic, {_against(document, BEFORE)}:"
    name, of = (
        ("judged", "items with a judgment") if document["by_judgments"] else ("labelled", "requests with a label")
    )
    rows = [
        (of, percent(c[f"{name}_before"]), percent(c[name])),
        ("events per request", number(c["events_before"]), number(c["events"])),
        ("events that match nothing", percent(c["unmatched_before"]), percent(c["unmatched"])),
        ("requests", count(c["requests_before"] / max(1, len(document["compared"]))), count(c["requests"])),
    ]
    yield from table(("", "before", "now"), rows)


def _versions(document: Document) -> Iterator[str]:
    found = document["versions"]
    if found:
        yield f"\nModel versions in the window, of all traffic, {_against(document, BEFORE)}:"
        yield from table(
            ("version", "requests", "value", "95 % interval", "requests before", "before"),
            [
                (
                    shown(v["version"]),
                    count(v["requests"]),
                    number(v["value"]),
                    interval(v),
                    count(v["requests_before"]),
                    number(v["before"]),
                )
                for v in found
            ],
        )


def interval(found: Document) -> str:
    """`0.7000 – 0.7500`; a dash where there is none."""
    return "–" if found["lower"] is None else f"{number(found['lower'])} – {number(found['upper'])}"


def compared(found: Document | None) -> Iterator[str]:
    """Two versions against each other."""
    if found is None:
        return
    one, other = found["first"], found["second"]
    first, second = shown(one["version"]), shown(other["version"])
    surely = "" if found["lower"] is None else f" (95 %: {found['lower']:+.4f} to {found['upper']:+.4f})"
    is_paired = found["by"] == "query"
    on = f"on {found['shared']:,} queries that both got" if is_paired else "all requests, not paired"
    is_one_time = found.get("at_one_time", True)
    yield "" if is_one_time else f"\nAt different times: {_times(one, other)}the difference may be of the time."
    yield f"{second} against {first}, {on}{_together(found)}: {found['difference']:+.4f}{surely}"
    what = "queries" if is_paired else f"requests of {second} against the median one of {first}"
    yield f"  {what}: {_signs(found)}"
    if not is_paired and found.get("queries"):
        yield f"  the {found['shared']:,} queries that both got: {_signs(found['queries'])}"
    empty = [f"{shown(v['version'])} {v['empty']:,} of {v['read']:,}" for v in (one, other) if v.get("read")]
    if empty:
        yield f"  requests with nothing relevant: {', '.join(empty)}"


def _signs(found: Document) -> str:
    return "{better:,} better, {worse:,} worse, {unchanged:,} unchanged".format(**found)


def _times(one: Document, other: Document) -> str:
    """When two versions served that did not do so together, with a semicolon at its end."""
    if one.get("since") is None or other.get("since") is None:
        return ""
    before, after = sorted((one, other), key=lambda version: int(version["since"]))
    names = shown(before["version"]), shown(after["version"])
    if before["until"] <= after["since"]:
        return f"{names[0]} until {utc(before['until'])}, {names[1]} from {utc(after['since'])}; "
    return "{} from {} to {}, {} from {} to {}; ".format(
        names[0], utc(before["since"]), utc(before["until"]), names[1], utc(after["since"]), utc(after["until"])
    )


def _together(found: Document) -> str:
    """Of how much of each version's requests it is, where that is not all."""
    shares = found.get("together", (1.0, 1.0))
    if not found.get("at_one_time", True) or min(shares) >= ALL_THE_TIME:
        return ""
    names = (shown(found[which]["version"]) for which in ("first", "second"))
    told = ", ".join(f"{percent(share)} of {name}" for name, share in zip(names, shares, strict=True))
    return f", while both served ({told})"


def _requests(document: Document) -> Iterator[str]:
    captured = document["captured"]
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


def shown(text: object, longest: int = LONGEST) -> str:
    """Text that comes out of a database, on one line; a terminal obeys control characters."""
    plain = "".join(c if c.isprintable() else "?" for c in str(text))
    return plain if len(plain) <= longest else plain[:longest] + "..."
