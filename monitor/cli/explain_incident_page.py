"""What `rankmon explain-incident` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monitor.cli.incidents import line
from monitor.cli.tables import count, number, percent, table
from monitor.core.findings import Finding
from monitor.core.messages import sentence, utc
from monitor.core.verdict_words import NAMES

if TYPE_CHECKING:
    from monitor.store.alerts import StoredIncident, Transition

Document = Mapping[str, Any]

LONGEST = 60
DAY, WEEK = 86_400, 604_800


def lines(found: StoredIncident, document: Document | None, missing: str, steps: Sequence[Transition]) -> list[str]:
    """All of it, a line each."""
    return [
        line(found),
        *_fell(found, document),
        *(() if document is None else _parts(document)),
        *([f"\nNot captured: {missing}."] if missing else []),
        *_steps(steps),
    ]


def _parts(document: Document) -> Iterator[str]:
    yield from _split(document)
    yield from _slices(document)
    yield from _labels(document)
    yield from _versions(document["versions"])
    captured = document.get("captured")
    if captured is not None:
        yield from compared(captured["comparison"])
        yield from _requests(captured)
        yield from _queries(captured["queries"])
        yield f"\nSource read at {utc(int(captured['taken_at']))}: {_periods(captured)}."
        yield from (f"Note: {note}." for note in captured["notes"])


def _fell(found: StoredIncident, document: Document | None) -> Iterator[str]:
    """What fell from what to what, and since when: when it opened, and now if that is another thing."""
    incident = found.incident
    opening = None if document is None or document["fell"] is None else Finding.of(document["fell"])
    if opening is not None:
        yield f"\nWhen it opened, {_by(opening)}: {shown(sentence(opening), 1000)}"
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
    where = "by the verdict" if found["from"] == "verdict" else f"against {_before(document)}"
    yield (
        f"\nSplit by {shown(found['by'])}, {where}: {number(found['before'])} -> {number(found['value'])}, "
        f"change {found['value'] - found['before']:+.4f}"
    )
    yield f"  within slices {found['within']:+.4f}, from another mix {found['mix']:+.4f}"


def _before(document: Document) -> str:
    """What the window is compared with, in words."""
    apart = document["window"][0] - document["compared"][0][0]
    unit = "weeks" if apart % WEEK == 0 else "days"
    number_ = len(document["compared"])
    return f"the same hours of {number_} {unit} before" if number_ > 1 else f"the same hours {apart // DAY} days before"


def _slices(document: Document) -> Iterator[str]:
    for title, name in (("By what they add to the change", "slices"), ("By z, the surest fall first", "slices_by_z")):
        if document[name]:
            yield f"\n{title}:"
            yield from table(
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
                    for p in document[name][:8]
                ],
            )


def _labels(document: Document) -> Iterator[str]:
    c = document["coverage"]
    yield "\nLabels and traffic:"
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


def _versions(found: Sequence[Document]) -> Iterator[str]:
    if found:
        yield "\nModel versions in the window, of all traffic:"
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
    first, second = shown(found["first"]["version"]), shown(found["second"]["version"])
    surely = "" if found["lower"] is None else f" (95 %: {found['lower']:+.4f} to {found['upper']:+.4f})"
    on = f"on {found['shared']:,} queries that both got" if found["by"] == "query" else "all requests, not paired"
    on += "" if found.get("at_one_time", True) else ", though at different times"
    yield f"\n{second} against {first}, {on}: {found['difference']:+.4f}{surely}"
    what = "queries" if found["by"] == "query" else f"requests of {second} against the median one of {first}"
    figures = (found["better"], found["worse"], found["unchanged"])
    yield "  {}: {:,} better, {:,} worse, {:,} unchanged".format(what, *figures)


def _requests(captured: Document) -> Iterator[str]:
    if captured["requests"]:
        yield "\nRequests that lost most:"
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


def _queries(found: Document | None) -> Iterator[str]:
    if found is None or not found["worst"]:
        return
    yield f"\nQueries that lost most (of the requests, {percent(found['common_share'])} are of queries seen before):"
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
