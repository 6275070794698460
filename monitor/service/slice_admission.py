"""Releases slices' places when an owner asks: only an owner can tell junk from seasonal values.

A value that takes a place leaves `other`, which shrinks; unasked, that would look like a fall.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from monitor.config.report import nearest
from monitor.errors import InputError
from monitor.messages.words import counted, named, utc
from monitor.series.partials import RESERVED
from monitor.store import Store
from monitor.store.store import Usage
from monitor.types import OTHER, Monitor, Slice, format_duration
from monitor.units import DAY

LEAST_SPAN = 28 * DAY


@dataclass(frozen=True)
class SliceUsage:
    """A value with a place.

    Attributes:
        requests: in the counted span.
        last_day: start of its last UTC day with a request, seconds.
        kept_by: "RULE is firing" or "is pending", which keeps its place; empty if nothing does.
    """

    value: str
    requests: int
    last_day: int | None
    kept_by: str


@dataclass(frozen=True)
class DimensionUsage:
    """The places of a dimension, their values, and the requests of all and of `other` over so many UTC days."""

    name: str
    places: int
    held: tuple[SliceUsage, ...]
    requests: int
    others: int
    days: int


@dataclass(frozen=True)
class ReleaseRequest:
    """Values of a dimension to release; `silent`: all without requests."""

    dimension: str
    values: tuple[str, ...] = ()
    silent: bool = False
    force: bool = False


def span_of(monitor: Monitor) -> int:
    """Seconds without a request after which no window of any length still holds the value."""
    return max(LEAST_SPAN, *monitor.windows)


def dimensions(monitor: Monitor, store: Store) -> list[DimensionUsage]:
    """The places of each dimension, busiest values first. Raises StoreError."""
    usage, present = store.usage(monitor.name, span_of(monitor)), store.places(monitor.name).present
    standing = ((name, kept.condition.state) for name, kept in store.alerts.state(monitor.name).conditions.items())
    stuck = {(of, value): f"{rule} is {state}" for (rule, of, value), state in standing if state != "ok"}
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
    """Lines on what was released, as of the end of what is stored.

    Raises:
        InputError: no such dimension or value, or a named one is in use.
        LeaseLost: another process writes the monitor.
    """
    if not (wish.values or wish.silent):
        raise InputError("name the values, or add --silent for all without requests")
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
    span, held = span_of(monitor), {h.value: h for h in dimension.held}
    lasting = format_duration(span)
    if not wish.force and dimension.days * DAY < span // 2:
        raise InputError(
            f"{monitor.name}: requests with a value of {dimension.name} are stored for "
            f"{counted(dimension.days, 'day')} of the last {lasting}, too few to tell which values are gone; wait, or "
            "name values and add --force"
        )
    for value in wish.values:
        if value not in held:
            remedy = f"rankmon slices show {monitor.name} lists the values that have one"
            raise InputError(f"{named(dimension.name, value)} has no place to release; {remedy}")
        if held[value].requests and not wish.force:
            raise InputError(
                f"{named(dimension.name, value)} had {counted(held[value].requests, 'request')} in the last {lasting}; "
                "--force counts its requests as `other`; this may raise slice_missing"
            )
        if held[value].kept_by:
            raise InputError(_kept(dimension, held[value]))
    silent = [h for h in dimension.held if wish.silent and not h.requests]
    going = {h.value: h for h in (*silent, *(held[v] for v in wish.values)) if not h.kept_by}
    return list(going.values()), [_kept(dimension, h) for h in silent if h.kept_by]


def _kept(dimension: DimensionUsage, held: SliceUsage) -> str:
    return f"{named(dimension.name, held.value)} keeps its place while {held.kept_by}"


def _told(dimension: DimensionUsage, going: list[SliceUsage], since: int, dry_run: bool) -> str:
    left = dimension.places - len(dimension.held) + len(going)
    if not going:
        return f"{dimension.name}: no place is released"
    names, verb = ", ".join(named(dimension.name, held.value) for held in going), "would be" if dry_run else "are"
    places = f"{counted(len(going), 'place')} {verb} released as of {utc(since)}, by {names}"
    return f"{dimension.name}: {places}; {left if left > 0 else 'none'} of {dimension.places} {verb} free then"
