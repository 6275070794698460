"""What there is to say of data that broke, or that do not arrive: how much came, how much is usual, how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from monitor.conditions.arrivals import LABELS_LATE, MISREAD, SOURCE_STALE, Lack, Misread
from monitor.conditions.findings import MOST_SLICES, Finding, SliceFall
from monitor.conditions.rules import COVERAGE
from monitor.conditions.thresholds import Condition, ConditionName
from monitor.conditions.verdict_conditions import (
    BACK,
    CALM,
    COLLAPSED,
    GROWS,
    LOW,
    REFUSED,
    SHORT,
    SLICE_COLLAPSED,
    SLICE_SUSPECT,
    SUSPECT,
    Seen,
    severity_of,
)
from monitor.conditions.verdict_evidence import WEEK, Evidence
from monitor.conditions.verdict_hours import step_of
from monitor.drift.constants import LEFT_OUT_DAYS, LISTS_RATIO, MISSING_RATIO, NEXT_TO_NONE, TRAFFIC_AGAIN_RATIO
from monitor.drift.series import DAY
from monitor.drift.verdicts import Verdict
from monitor.series.windows import SliceKey
from monitor.types import OVERALL, Drift

MOST_REASONS = 3
"""For which rows were refused that are told."""

GREW = "grew"
"""Figure of a verdict on the data that is over as it has become a graver one."""

NEW_NORMAL = "new_normal"
"""Figure of a verdict on the data that is over though nothing came back: what there is now is what is usual."""

BEGAN = "began"
"""Figure of low traffic: start of the first step that was low, seconds."""

ROWS_OF = "rows_of_"
"""Figures of refused rows: how many of each reason; the rest of the name is the reason."""

LEFT, LEFT_OVER = "left", "left_over"
"""Figures of low traffic that became what is usual: its share of what came before it fell, and the seconds that it is
taken over."""

RISEN_FOR = "risen_for"
"""Figure of low traffic: seconds for which it has not been as low, but is not back."""

MANY, MANY_USUAL = "requests", "requests_before"
"""Figures of labels that are suspect while far more requests came than usual: how many, and how many are usual."""

INSTEAD_OF = "instead_of_"
"""Figures of slices that are missing: requests of each that came in their place; the rest of the name is its value."""

RENAMED = 0.5
"""Share of the requests that missing slices usually have, from which on new ones that have these may be the same."""

FLOOD, LEAST_USUAL = 1.5, 50.0
"""Times the usual requests from which on there are far more, of which these or more must be usual."""

WORTHLESS = "worthless"
"""Figure of labels that are as many as ever, none of which is worth anything."""

_CAME = ("events", "events_before", "unmatched", "unmatched_before")
"""Figures of the events that came."""

REQUESTS, EVENTS, ITEMS = "requests", "events", "items"
"""What verdicts on what comes in judge in place of a measure."""


def of_data(seen: Evidence, name: ConditionName, verdict: Verdict, since: int) -> Finding:
    """All that there is to say of broken data at a verdict; the first step in which they were ended at `since`."""
    labels, kind = verdict.labels, name[0]
    subject, value, before = _what_broke(kind, verdict)
    span = verdict.span if labels is None else labels.span
    dimension, slices = seen.drift.mix_by or "", list[SliceFall]()
    if kind == "slice_missing":
        slices = [_missing(seen, (dimension, name), verdict.end) for name in verdict.missing]
    elif kind == LOW and verdict.requests:  # else it is all of them
        gone = [_missing(seen, key, verdict.end) for key in seen.silent(dimension, verdict.end - span, verdict.end)]
        slices = sorted(gone, key=lambda one: -(one.before or 0.0))
    elif kind in (SUSPECT, COLLAPSED) and _is_flooded(verdict):
        slices = _flooded(seen, verdict)
    elif kind in (SLICE_SUSPECT, SLICE_COLLAPSED) and verdict.lost:
        lost = sorted(verdict.lost, key=lambda one: (one.since, one.slice))
        slices = [SliceFall(dimension, s.slice, s.coverage_before or 0.0, s.coverage or 0.0, 0.0) for s in lost]
        subject, value, before = COVERAGE, lost[0].coverage or 0.0, lost[0].coverage_before
    return Finding(
        kind,
        severity_of(seen.drift, name),
        subject,
        "",
        "",
        verdict.end,
        span or step_of(seen.width),
        since,
        round(verdict.requests),
        value,
        None,
        None,
        before,
        "what is usual at these hours",
        None,
        verdict.coverage,
        verdict.coverage_expected,
        slices=tuple(slices[:MOST_SLICES]),
        verdict=kind,
        counts_unlabelled=seen.has_events,
        figures=tuple((n, v) for n, v in _figures_of_data(seen, kind, verdict, since, slices) if v is not None),
    )


def _what_broke(kind: str, verdict: Verdict) -> tuple[str, float, float | None]:
    """What a verdict on the data is on, how much of it there was, and how much is usual."""
    labels = verdict.labels
    if kind == SHORT:
        return ITEMS, verdict.shown or 0.0, verdict.shown_before
    if kind not in (SUSPECT, COLLAPSED):
        return REQUESTS, verdict.requests, verdict.requests_expected
    if labels is not None:
        return COVERAGE, labels.coverage or 0.0, labels.coverage_before
    return COVERAGE, verdict.coverage or 0.0, verdict.coverage_expected


def _missing(seen: Evidence, key: SliceKey, end: int) -> SliceFall:
    """A slice that is missing, with its requests since then and what is usual."""
    since = seen.lacking_since(key, end, MISSING_RATIO, WEEK)
    usual, came = seen.usual_requests(key, since, end), seen.requests(key, since, end)
    return SliceFall(*key, None if usual is None else float(usual), float(came or 0), 0.0, since=since)


def _is_flooded(verdict: Verdict) -> bool:
    """Whether far more requests came than usual, which robots send, and a loop in a client: they leave no labels."""
    usual = verdict.requests_expected
    return usual is not None and verdict.requests >= FLOOD * max(usual, LEAST_USUAL)


def _flooded(seen: Evidence, verdict: Verdict) -> list[SliceFall]:
    """The slices that have most of the requests beyond the usual ones, with how many these are."""
    since, found = verdict.end - verdict.span, list[SliceFall]()
    least = (verdict.requests - (verdict.requests_expected or 0.0)) / 2
    for key in (key for key in seen.traffic.slices if key[0] in seen.dimensions):
        came, usual = seen.requests(key, since, verdict.end) or 0, seen.usual_requests(key, since, verdict.end)
        if usual is not None and came - usual > least:
            found.append(SliceFall(*key, float(usual), float(came), came / verdict.requests))
    return sorted(found, key=lambda one: (one.before or 0.0) - one.value)


def calming(found: Finding, condition: Condition, step: int) -> Finding:
    """A finding of broken data, with for how long they have been sound since and must be until it is over."""
    found = replace(found, well_for=condition.streak * step, well_needed=CALM)
    risen = (condition.known or found.end) - found.end
    if found.verdict == LOW and not condition.streak and risen > 0:
        return replace(found, figures=(*found.figures, (RISEN_FOR, float(risen))))
    return found


def _instead(seen: Evidence, missing: Sequence[SliceFall], until: int) -> Iterator[tuple[str, float]]:
    """The slices that came when others went missing, and with about as many requests: these may have been renamed."""
    since = min(one.since or until for one in missing)
    usual, came = sum(one.before or 0.0 for one in missing), seen.begun(missing[0].dimension, since, until)
    if 0 < RENAMED * usual <= sum(came.values()):
        yield from ((INSTEAD_OF + name, float(requests)) for name, requests in [*came.items()][:MOST_SLICES])


def _figures_of_data(
    seen: Evidence, kind: str, verdict: Verdict, since: int, slices: Sequence[SliceFall]
) -> Iterator[tuple[str, float | None]]:
    """What else there is to say of broken data."""
    labels, came = verdict.labels, dict[str, float | None]()
    if kind in (SUSPECT, COLLAPSED) and labels is not None:
        came = {name: getattr(labels, name) for name in _CAME}
        if labels.worthless:
            yield WORTHLESS, 1.0
        if _is_flooded(verdict):
            yield from ((MANY, verdict.requests), (MANY_USUAL, verdict.requests_expected))
    elif kind in (SLICE_SUSPECT, SLICE_COLLAPSED) and verdict.lost:
        keys = [(seen.drift.mix_by or "", one.slice) for one in verdict.lost]
        came = seen.events(keys, min(one.since for one in verdict.lost), verdict.end)
    for name, value in came.items():
        if seen.counts_unmatched if name.startswith("unmatched") else seen.has_events:
            yield name, value
    if kind == LOW:
        # Of the hours just before it was told: what came a week before these was not low yet.
        yield BEGAN, float(seen.lacking_since(OVERALL, since, TRAFFIC_AGAIN_RATIO, DAY))
    if kind == "slice_missing" and slices:
        yield from _instead(seen, slices, verdict.end)
    if kind == REFUSED:
        yield from (("rows", verdict.refused), ("rows_before", verdict.refused_before))


def of_lack(drift: Drift, name: ConditionName, lack: Lack, now: int) -> Finding:
    """All that there is to say at `now`, seconds, of what does not arrive, or did not."""
    return Finding(
        name[0],
        severity_of(drift, name),
        {SOURCE_STALE: REQUESTS, LABELS_LATE: EVENTS, MISREAD: REQUESTS}[name[0]],
        "",
        "",
        now,
        max(now - lack.since, 1),
        lack.since,
        lack.requests,
        0.0,
        None,
        None,
        lack.events or None,
        "what so many requests usually bring" if lack.events else "",
        None,
        None,
        None,
        verdict=name[0],
        figures=(("newest", lack.since), ("allowed", lack.allowed)),
    )


def of_misread(drift: Drift, name: ConditionName, misread: Misread, now: int) -> Finding:
    """All that there is to say at `now`, seconds, of a bucket that two ways of reading disagree on."""
    return replace(of_lack(drift, name, Lack(misread.since, 0), now), compared_with=misread.what)


def with_reasons(found: Finding, reasons: Mapping[str, int]) -> Finding:
    """A finding of refused rows with the reasons for which most were, in the hours around it."""
    most = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))[:MOST_REASONS]
    return replace(found, figures=(*found.figures, *((ROWS_OF + name, float(rows)) for name, rows in most)))


def how_it_ended(seen: Evidence, found: Finding, by: Seen) -> Finding:
    """A finding of what is over, with figures that say why if nothing came back.

    Either it has become a graver one, or what there is now is what is usual. And what there lacks to judge the model.
    """
    if by.verdict.kind == "not_enough_data":
        found = replace(found, lacks=by.verdict.lacks)
    if found.verdict in GROWS and GROWS[found.verdict] == by.verdict.kind:
        return replace(found, figures=(*found.figures, (GREW, 1.0)))
    end = max(found.end, by.change.at - max(CALM, step_of(seen.width)))
    if found.verdict == "slice_missing" and _stay_away(seen, found, end, by.change.at):
        return replace(found, figures=(*found.figures, (NEW_NORMAL, 1.0)))
    if found.verdict == SHORT and _stay_short(seen, found, end, by.change.at):
        return replace(found, figures=(*found.figures, (NEW_NORMAL, 1.0)))
    left = _left(seen, found, end, by.change.at) if found.verdict == LOW else None
    if left is not None and left < BACK:
        return replace(
            found, figures=(*found.figures, (NEW_NORMAL, 1.0), *_what_is_left(seen, found, end, by.change.at))
        )
    return found


def _stay_away(seen: Evidence, found: Finding, since: int, until: int) -> bool:
    """Whether one of the slices that were missing has as good as no request in the hours by which that is over.

    It is back with a request, or told of no longer.
    """
    came = [seen.requests((s.dimension, s.slice), since, until) or 0 for s in found.slices]
    before = [seen.requests((s.dimension, s.slice), found.since - WEEK, found.since) or 0 for s in found.slices]
    least = MISSING_RATIO * (until - since) / WEEK
    return any(now < least * then for now, then in zip(came, before, strict=True))


def _stay_short(seen: Evidence, found: Finding, since: int, until: int) -> bool:
    """Whether lists are as good as short still in the hours by which it is over, beside the same hours before."""
    weeks = -(-(until - found.since + CALM) // WEEK) * WEEK
    now, usual = (seen.items(since - back, until - back) for back in (0, weeks))
    return now is not None and usual is not None and now < (1 + LISTS_RATIO) / 2 * usual


def _what_is_left(seen: Evidence, found: Finding, since: int, until: int) -> tuple[tuple[str, float], ...]:
    """The share that traffic stays at, of the low hours of the whole days by which the judge took it for usual.

    If it did not, of the hours [since, until) by which it is over.
    """
    today, began = until - until % DAY, round(dict(found.figures)[BEGAN])
    first = today - LEFT_OUT_DAYS * DAY
    span = max(first, began), today
    was_taken = began < first + DAY and found.end >= today
    if not was_taken or (_left(seen, found, *span) or 0.0) < NEXT_TO_NONE:
        span = since, until
    return (LEFT, _left(seen, found, *span) or 0.0), (LEFT_OVER, float(span[1] - span[0]))


def _left(seen: Evidence, found: Finding, since: int, until: int) -> float | None:
    """What [since, until) has of the requests of the same hours before it fell, where it was low until about then."""
    weeks = -(-(until - found.since + CALM) // WEEK) * WEEK
    now, usual = (seen.requests(OVERALL, since - back, until - back) or 0 for back in (0, weeks))
    return now / usual if usual else None
