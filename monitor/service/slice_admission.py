"""Places of slices that are given back. An owner says so: nobody else knows junk from what has its season.

Whoever takes a place was `other` before, and `other` is less from then on; were that to happen by itself, it would look
like a fall that nobody can explain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from monitor.conditions.verdict_words import named
from monitor.config.report import nearest
from monitor.errors import InputError
from monitor.messages.words import counted, utc
from monitor.series.partials import RESERVED
from monitor.store import Store
from monitor.store.store import Usage
from monitor.types import OTHER, Monitor, Slice, format_duration

DAY = 86_400
LEAST_SPAN = 28 * DAY


@dataclass(frozen=True)
class SliceUsage:
    """A value that has a place.

    Attributes:
        requests: of the last time that counts; see `span_of`.
        last_day: start of the last UTC day with one, seconds; None where there is none.
        kept_by: what of the alert rules or verdicts is open on it; empty if nothing is.
    """

    value: str
    requests: int
    last_day: int | None
    kept_by: str


@dataclass(frozen=True)
class DimensionUsage:
    """The places of a dimension: how many there are, who has them, and the requests of all and of `other`.

    Attributes:
        days: UTC days with requests in the last time that counts.
    """

    name: str
    places: int
    held: tuple[SliceUsage, ...]
    requests: int
    others: int
    days: int


@dataclass(frozen=True)
class ReleaseRequest:
    """Which values of a dimension are to give back their places; `silent`: all that had no request."""

    dimension: str
    values: tuple[str, ...] = ()
    silent: bool = False
    force: bool = False


def span_of(monitor: Monitor) -> int:
    """Seconds without a request after which a value is gone: no window of any length still holds one."""
    return max(LEAST_SPAN, *monitor.windows)


def dimensions(monitor: Monitor, store: Store) -> list[DimensionUsage]:
    """The places of each dimension, the busiest values first. Raises StoreError."""
    usage, present = store.usage(monitor.name, span_of(monitor)), store.places(monitor.name).present
    standing = ((name, kept.condition.state) for name, kept in store.alerts.state(monitor.name).conditions.items())
    stuck = {(of, value): f"is {state} by {rule}" for (rule, of, value), state in standing if state != "ok"}
    return [_dimension(one, usage, present.get(one.dimension, set()), stuck) for one in monitor.slices]


def _dimension(
    of: Slice, usage: Usage, present: Collection[str], stuck: Mapping[tuple[str, str], str]
) -> DimensionUsage:
    inside = {value: days for (dimension, value), days in usage.requests.items() if dimension == of.dimension}
    held = [
        SliceUsage(
            value,
            sum(inside.get(value, {}).values()),
            max(inside.get(value, {}), default=None),
            stuck.get((of.dimension, value), ""),
        )
        for value in sorted(set(present) - RESERVED)
    ]
    return DimensionUsage(
        of.dimension,
        of.max_values,
        tuple(sorted(held, key=lambda h: -h.requests)),
        sum(sum(days.values()) for days in inside.values()),
        sum(inside.get(OTHER, {}).values()),
        len({day for days in inside.values() for day in days}),
    )


def release_places(monitor: Monitor, store: Store, wish: ReleaseRequest, dry_run: bool) -> list[str]:
    """Have values give back their places as of the end of what is stored; what there is to say of it.

    Raises:
        InputError: there is no such dimension or value, or one of those that are named is still in use.
        LeaseLost: another process writes the monitor right now.
    """
    if not (wish.values or wish.silent):
        raise InputError("say which values: by name, or --silent for all that had no request")
    with nullcontext() if dry_run else store.hold(monitor.name) as lease:
        found = {one.name: one for one in dimensions(monitor, store)}
        if wish.dimension not in found:
            remedy = nearest(wish.dimension, found) if found else "it has no `slices`"
            raise InputError(f"monitor {monitor.name} has no slices by {wish.dimension!r}; {remedy}")
        dimension, since = found[wish.dimension], store.usage(monitor.name, 0).until
        going, said = _going(monitor, dimension, wish)
        if going and lease is not None:
            store.release(lease, [(dimension.name, held.value) for held in going], since)
    return [*said, _told(dimension, going, since, dry_run)]


def _going(monitor: Monitor, dimension: DimensionUsage, wish: ReleaseRequest) -> tuple[list[SliceUsage], list[str]]:
    """Who gives back its place, and what is to be said of those that keep theirs."""
    span, held = span_of(monitor), {h.value: h for h in dimension.held}
    lasting = format_duration(span)
    if not wish.force and dimension.days * DAY < span // 2:
        raise InputError(
            f"{monitor.name}: requests with a value of {dimension.name} are stored of {counted(dimension.days, 'day')} "
            f"of the last {lasting}, which is too little to tell who is gone; wait, or name values and add --force"
        )
    for value in wish.values:
        if value not in held:
            remedy = f"rankmon slices show {monitor.name} lists those that have one"
            raise InputError(f"{named(dimension.name, value)} has no place to give back; {remedy}")
        if held[value].requests and not wish.force:
            raise InputError(
                f"{named(dimension.name, value)} had {counted(held[value].requests, 'request')} in the last {lasting}; "
                "with --force its requests are `other` from now on, and verdicts may tell that it is missing"
            )
        if held[value].kept_by:
            raise InputError(
                f"{named(dimension.name, value)} {held[value].kept_by}; its place stays until that is over"
            )
    silent = [h for h in dimension.held if wish.silent and not h.requests]
    said = [
        f"{named(dimension.name, h.value)} {h.kept_by}; its place stays until that is over" for h in silent if h.kept_by
    ]
    going = {h.value: h for h in (*silent, *(held[v] for v in wish.values)) if not h.kept_by}
    return list(going.values()), said


def _told(dimension: DimensionUsage, going: list[SliceUsage], since: int, dry_run: bool) -> str:
    left = dimension.places - len(dimension.held) + len(going)
    if not going:
        return f"{dimension.name}: nothing gives back its place"
    names, verb = ", ".join(named(dimension.name, held.value) for held in going), "would be" if dry_run else "are"
    places = f"{counted(len(going), 'place')} {verb} given back as of {utc(since)}, by {names}"
    return f"{dimension.name}: {places}; {left if left > 0 else 'none'} of {dimension.places} {verb} free then"
