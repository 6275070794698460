"""A diagnosis for people: what was captured when a condition started firing, as headings, tables and notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from monitor.causes.diagnosis import BASELINE, BEFORE
from monitor.conditions.evidence import Evidence, evidence_of
from monitor.conditions.thresholds import ConditionName
from monitor.messages.comparison import OF_VERSIONS, compared
from monitor.messages.explanation import new_version, sentence, title_of
from monitor.messages.tables import DASH, TextTable, count, number, percent, signed, tabled, tenths
from monitor.messages.words import lasting, shown, utc
from monitor.types import NONE
from monitor.units import DAY, HOUR, WEEK

Document = Mapping[str, Any]
Part: TypeAlias = str | TextTable
"""A line, or a table. A line that opens a section begins with a line break, a note with two spaces."""

FAILED = "could not be captured"

EVERY_EVENT = 4
"""Diagnosis version since which the events of all traffic are complete."""

MAX_ROWS = 8
"""Rows of a slice table."""

LEADING = 3
"""Slices that must differ in order for a second table, and slices named in the summary."""

COLUMNS = "  within: by its own value; mix: by its share of requests; z: in standard errors"

FIRST, LAST = 24, 24
"""Steps shown of a long incident on the data."""

STILL_COMING, IN_PART = "labels still arriving", "stored in part"


@dataclass(frozen=True)
class Told:
    """One condition of an incident.

    Attributes:
        fired_at: when it began to fire, seconds.
        diagnosis: as JSON data, or the store's part of it.
        missing: why the rest is missing.
        restated: how its figures have changed since, see `diagnosis.moved`; None: they did not.
        is_over: it stopped firing, but the incident continues.
    """

    condition: ConditionName
    fired_at: int
    diagnosis: Document | None = None
    missing: str = ""
    restated: Document | None = None
    is_over: bool = False

    @property
    def fell(self) -> Evidence | None:
        """The fall as it began to fire."""
        return None if self.diagnosis is None or self.diagnosis["fell"] is None else evidence_of(self.diagnosis["fell"])


def explanation_parts(first: Told, hours: Sequence[Document], is_open: bool) -> list[Part]:
    """What is known of an incident by its first condition, or by its hours if it has any: no request, no query."""
    if hours:
        return list(hour_by_hour(hours))
    fell = None if is_open else first.fell
    then = [] if fell is None else [f"When it fired: {shown(' '.join((sentence(fell), *new_version(fell))), 1000)}"]
    return [*then, *restated(first), *parts_of(first.diagnosis, set(), full=False), *missing(first)]


def missing(one: Told) -> Iterator[str]:
    """Why some of it is not known."""
    why = shown(one.missing, 1000)
    if why.startswith(FAILED):
        yield f"\nC{why[1:]}."
    elif why:
        yield f"\nNot captured: {why}."


def restated(one: Told) -> Iterator[str]:
    """How its figures have changed since it was captured."""
    if one.restated is None or one.diagnosis is None:
        return
    captured, then, now = one.diagnosis.get("captured"), one.restated["value"], one.restated["value_now"]
    at = "" if captured is None else f" at {utc(int(captured['taken_at']))}"
    if one.restated["end_now"] is None:
        yield f"Captured{at}: value then {number(then)}; data or measure have changed, and it no longer fires."
        return
    yield (
        f"Captured{at} of the figures as they were: value then {number(then)}, now {number(now)}; compared with then "
        f"{number(one.restated['before'])}, now {number(one.restated['before_now'])}. The data or the measure have "
        "changed since; the rest is as captured."
    )


def parts_of(document: Document | None, said: set[tuple[Part, ...]], full: bool = True) -> Iterator[Part]:
    """All of a diagnosis except what is in `said`, which is extended."""
    if document is None:
        return
    captured = document.get("captured")
    parts: list[Iterable[Part]] = [_when(document), _split(document), _left_out(document), *_slices(document, full)]
    parts += [[COLUMNS] * bool(document["slices"]), _labels(document), _versions(document)]
    if captured is not None:
        began = document["began_at"] if document["fell"] is None else document["fell"]["since"]
        parts.append(compared(captured["comparison"], began))
        parts += [_requests(document), _queries(document), _source(captured)] if full else []
    for part in map(tuple, parts):
        if part not in said:
            yield from part
        said.add(part)


def _when(document: Document) -> Iterator[str]:
    """The time that all figures are of, however old it is now."""
    since, until = document["window"]
    yield f"\nWhen it fired, over {lasting(until - since)} until {utc(until)}:"


def _split(document: Document) -> Iterator[str]:
    found = document["split"]
    if found is None:
        is_known = bool(document["coverage"]["requests_before"])
        why = "there is no dimension to split by" if is_known else "no requests from before the fall are stored"
        yield f"\nNot split by slices: {why}."
        return
    split = "All traffic, split" if document["dimension"] else "Split"
    yield (
        f"\n{split} by {shown(found['by'])}, {_against(document, BASELINE if found['from'] == 'verdict' else BEFORE)}: "
        f"{number(found['before'])} -> {number(found['value'])}, change {signed(found['value'] - found['before'])}"
    )
    yield f"  within slices {signed(found['within'])}, from a different mix {signed(found['mix'])}"


def _left_out(document: Document) -> Iterator[str]:
    if spans := document.get("left_out"):
        days = ", ".join(sorted(utc(since)[:10] for since, _ in spans))
        yield f"  not compared with the same hours from {days} on: the data were bad, or an alarm was open"


def _against(document: Document, what: str = BEFORE) -> str:
    """The reference of slices in words, with its hours if not the whole window."""
    if what != BASELINE:
        return f"against {_before(document)}" if document["compared"] else "against nothing"
    window = document["split"].get("window", document["window"])
    is_all = list(window) == list(document["window"])
    length = "" if is_all else f"the {lasting(window[1] - window[0])} before it fired "
    return f"{length}against the verdict's baseline of the same hours"


def _before(document: Document) -> str:
    apart, times = document["window"][0] - document["compared"][0][0], len(document["compared"])
    if times > 1:
        return f"the same hours of the {times} {'weeks' if apart % WEEK == 0 else 'days'} before"
    return f"the same hours {'a day' if apart == DAY else f'{apart // DAY} days'} before"


def slice_name(part: Document) -> str:
    """`device=mobile`."""
    return shown(f"{part['dimension']}={part['slice']}")


def _slices(document: Document, full: bool = True) -> Iterator[list[Part]]:
    """Slices by contribution, and by z where that order differs, each against its reference."""
    told: dict[str, list[Any]] = {}
    orders = (("By contribution to the change", "slices"), ("By z, most significant fall first", "slices_by_z"))
    for title, name in orders[: 1 + full]:
        for what in (BASELINE, BEFORE):
            # Separate tables per reference: falls against different references do not compare.
            parts = [p for p in document[name] if p.get("against", BEFORE) == what]
            leading = [(p["dimension"], p["slice"]) for p in parts[:LEADING]]
            if parts and told.get(what) != leading:
                most = parts[:MAX_ROWS]
                body: list[Part] = [tabled(_SLICES, most), *map(_new, filter(_is_new, most))]
                yield [f"\n{title}, {_against(document, what)}:", *body]
            told[what] = leading


def _is_new(part: Document) -> bool:
    return bool(part.get("new_since"))


_SLICES = {
    "slice": slice_name,
    "before": lambda p: "new" if _is_new(p) else number(p["before"]),
    "then": lambda p: number(p["value"]),
    "share before": lambda p: percent(p["share_before"]),
    "share": lambda p: percent(p["share"]),
    "within": lambda p: DASH if _is_new(p) else signed(p["within"]),
    "mix": lambda p: signed(p["mix"]),
    "z": lambda p: DASH if _is_new(p) else tenths(p["z"]),
}


def _new(part: Document) -> str:
    value, others = part["value"], part["others"]
    told = f"  {slice_name(part)} is new since {utc(part['new_since'])}: {number(value)}"
    if others is None:
        return f"{told}, and there are no others in these hours"
    apart = f" ({100 * (value / others - 1):+.1f} %)" if others else ""
    return f"{told}, the others {number(others)} in the same hours{apart}"


def _labels(document: Document) -> Iterator[Part]:
    c, lost = document["coverage"], document.get("unlabelled")
    of_slice = f" of {slice_name(document)}" if document["dimension"] else ""
    if lost:
        of_slice = f" without {', '.join(map(shown, lost))}, which had lost their labels"
    yield f"\nLabels and traffic{of_slice}{_last_of(document)}, {_against(document)}:"
    is_part = bool(document["dimension"] or lost) or document["version"] < EVERY_EVENT
    before = c["requests_before"] / max(1, len(document["compared"]))
    rows = [
        ("items with a judgment", percent(c["judged_before"]), percent(c["judged"]))
        if document["by_judgments"]
        else ("requests with a label", percent(c["labelled_before"]), percent(c["labelled"])),
        ("events per request" + ", those that match" * is_part, number(c["events_before"]), number(c["events"])),
        ("events that match nothing", percent(c["unmatched_before"]), percent(c["unmatched"])),
        ("requests with nothing relevant", percent(c.get("empty_before")), percent(c.get("empty"))),
        ("requests", count(before), count(c["requests"])),
    ]
    yield TextTable(("", "before", "then"), tuple(row for row in rows if row[1:] != (DASH, DASH)))


def _last_of(document: Document) -> str:
    fell, (since, until) = document["fell"], document["window"]
    is_all = fell is None or fell["window"] <= until - since
    return "" if is_all else f", the last {lasting(until - since)} of {lasting(fell['window'])}"


def _versions(document: Document) -> Iterator[Part]:
    found, of = document["versions"], "of all traffic"
    read, lost = (document.get("captured") or {}).get("versions", []), document.get("unlabelled", ())
    if (document["dimension"] or lost) and any(v["version"] != NONE for v in read):
        whose = f"without {', '.join(map(shown, lost))}" if lost else f"of {slice_name(document)}"
        found, of = read, f"{whose}, from the requests read"
    if found:
        yield f"\nModel versions in the window, {of}, {_against(document)}:"
        yield tabled(_VERSIONS, found)


_VERSIONS = {
    **OF_VERSIONS,
    "total requests before": lambda v: count(v["requests_before"]),
    "before": lambda v: number(v["before"]),
}
_REQUESTS = {
    "request": lambda r: shown(r["request"]),
    "served (UTC)": lambda r: utc(r["served_at"]).removesuffix(" UTC"),
    "slice": lambda r: shown(r["slice"]),
    "version": lambda r: shown(r["version"]),
    "value": lambda r: number(r["value"]),
    "expected": lambda r: number(r["expected"]),
}


def _requests(document: Document) -> Iterator[Part]:
    captured = document["captured"]
    if captured.get("why"):
        yield f"\nNo requests listed: {captured['why']}."
    if captured["requests"]:
        yield f"\nRequests that lost most, {_against(document)}:"
        yield tabled(_REQUESTS, captured["requests"], left=(0, 1, 2, 3))
        yield from _bare(document)
    now, before = captured.get("left_out", (None, None))
    if now or before:
        who = "In the slices that fell, requests" if captured.get("of_fallen") else "Requests"
        yield f"  {who} with nothing relevant are not part of this: {percent(now)}, {percent(before)} before."


def _bare(document: Document) -> Iterator[str]:
    captured = document["captured"]
    if not (bare := sum(bool(r.get("bare")) for r in captured["requests"])):
        return
    many = f"All {bare}" if bare == len(captured["requests"]) else f"{bare} of these {len(captured['requests'])}"
    has, counts = ("has", "it counts") if bare == 1 else ("have", "they count")
    none = f"{has} no item judged relevant" if document["by_judgments"] else "got no label at all (no click, say)"
    now, before = captured.get("bare", (None, None))
    yield f"  {many} {none}, so {counts} as 0, like {percent(now)} of all requests ({percent(before)} before)."


def _queries(document: Document) -> Iterator[Part]:
    found = document["captured"]["queries"]
    if found is None or not found["worst"]:
        return
    yield f"\nQueries that lost most, {_against(document)}:"
    yield f"  {percent(found['common_share'])} of the requests are for queries seen before"
    with_text = any("text" in q for q in found["worst"])
    columns = _QUERIES | ({"text": lambda q: shown(q.get("text", ""))} if with_text else {})
    yield tabled(columns, found["worst"], (0, 7))


_QUERIES = {
    "query": lambda q: q["query"],
    "total requests before": lambda q: count(q["requests_before"]),
    "now": lambda q: count(q["requests"]),
    "before": lambda q: number(q["before"]),
    "value": lambda q: number(q["value"]),
    "adds": lambda q: signed(q["within"]),
    "z": lambda q: tenths(q["z"]),
}


def _source(captured: Document) -> Iterator[str]:
    window, *past = captured["periods"]
    before = f"{sum(period['requests'] for period in past):,} in {len(past)} earlier periods"
    at = utc(int(captured["taken_at"]))
    yield f"\nSource read at {at}: {window['requests']:,} requests in the window, {before}."
    yield from (f"Note: {note}." for note in captured["notes"])


# ---- hours of an incident on the data -------------------------------------------------------------------------------


def hour_by_hour(hours: Sequence[Document]) -> Iterator[Part]:
    """The steps of an incident on the data, a table for all traffic and one per slice."""
    has_events = any(h["events"] is not None for h in hours)
    columns = {title: show for title, show in _HOURS.items() if has_events or title not in ("events", "unmatched")}
    for dimension, value in dict.fromkeys((h["dimension"], h["slice"]) for h in hours):
        mine = [h for h in hours if (h["dimension"], h["slice"]) == (dimension, value)]
        step = mine[0]["seconds"]
        title = "Hour by hour" if step == HOUR else f"In steps of {lasting(step)}"
        of = f", {shown(f'{dimension}={value}')}" if dimension else ""
        every = "events per request; unmatched: share without an impression"
        which = "matched events per request" if dimension else every
        yield f"\n{title}{of}" + f" ({which})" * has_events + ":"
        yield from _shortened(tabled(columns, mine, left=(0, len(columns) - 1)))


def _shortened(every: TextTable) -> Iterator[Part]:
    more = len(every.rows) - FIRST - LAST
    if more <= 0:
        yield every
        return
    blanks = ("",) * (len(every.head) - 1)
    yield every._replace(rows=(*every.rows[:FIRST], (f"… {more} more", *blanks), *every.rows[-LAST:]))


def _state(hour: Document) -> str:
    is_stored, verdict = hour["requests"] is not None, hour["verdict"]
    said = [] if verdict is None else [str(title_of(verdict))]
    if is_stored:
        said += [IN_PART] * (not hour["whole"]) + [STILL_COMING] * (not hour["final"])
    return ", ".join(said) or (DASH if is_stored else "not stored separately")


_HOURS = {
    "from (UTC)": lambda h: utc(h["start"]).removesuffix(" UTC"),
    "requests": lambda h: count(h["requests"]),
    "labelled": lambda h: percent(h["labelled"]),
    "events": lambda h: number(h["events"]),
    "unmatched": lambda h: percent(h["unmatched"]),
    "refused": lambda h: count(h["refused"]),
    "verdict": _state,
}
