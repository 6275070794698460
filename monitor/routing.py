"""Who is notified of what: one decision, from severity, matter, the monitor's labels and the time.

Routes are tried from top to bottom. The first one that matches decides, unless it says `continue`; a monitor's own
channels come last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal, get_args
from zoneinfo import ZoneInfo

from monitor.conditions.evidence import MATTERS, Matter
from monitor.conditions.rules import SEVERITIES, Severity
from monitor.fields import Maybe, Name, PositiveDuration, TimeOfDay, Zone
from monitor.section import Section, key
from monitor.types import Labels, Monitor
from monitor.units import WEEK

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)

WEEKS = ((2026, 1, 4), (2026, 7, 5))
"""Sundays before a week of winter and one of summer: what routes do at some time, they do in one of the two."""


@dataclass(frozen=True, slots=True)
class WeeklyHours(Section):
    """Hours of the week, by the clocks of a time zone; minutes since midnight."""

    zone: Annotated[Zone, key("Time zone.", examples=["Europe/Berlin"])]
    days: Annotated[tuple[Day, ...], key("Days on which the hours begin. Default: all.", min_length=1)] = DAYS
    since: Annotated[TimeOfDay, key("Start, e.g. 09:00.", alias="from")] = 0
    until: Annotated[
        TimeOfDay, key("End, e.g. 18:00; on the next day unless it is later than the start.", alias="to")
    ] = 1440

    def hold(self, now: float) -> bool:
        """Whether `now`, seconds since 1970, is within them."""
        local = datetime.fromtimestamp(now, ZoneInfo(self.zone))
        minute, today, yesterday = local.hour * 60 + local.minute, DAYS[local.weekday()], DAYS[local.weekday() - 1]
        if self.since < self.until:
            return today in self.days and self.since <= minute < self.until
        return (today in self.days and minute >= self.since) or (yesterday in self.days and minute < self.until)

    def edges(self) -> Iterator[float]:
        """When they may begin or end in the weeks of `WEEKS`, seconds since 1970."""
        for week in WEEKS:
            midnight = datetime(*week, tzinfo=ZoneInfo(self.zone))
            for day in range(9):
                yield from ((midnight + timedelta(day, 60 * m)).timestamp() for m in (self.since, self.until))


@dataclass(frozen=True, slots=True)
class Escalation(Section):
    """Whom else to notify of an incident that nobody acknowledges."""

    after: Annotated[
        PositiveDuration, key("How long the incident has been open by then, at the same severity.", examples=["30m"])
    ]
    channels: Annotated[tuple[Name, ...], key("Channels to notify in addition.", min_length=1, examples=["[lead]"])]


@dataclass(frozen=True, slots=True)
class Route(Section):
    """Who is notified of which incidents."""

    channels: Annotated[tuple[Name, ...], key("Channels to notify.", min_length=1, examples=["[oncall]"])]
    severity: Annotated[tuple[Severity, ...], key("Severities that match. Default: all.", min_length=1)] = SEVERITIES
    matter: Annotated[
        tuple[Matter, ...], key("Matches incidents about quality, data, or layout. Default: all.", min_length=1)
    ] = MATTERS
    labels: Annotated[
        Labels,
        key("Labels the monitor must have. Default: any."),
    ] = ()
    hours: Annotated[Maybe[WeeklyHours], key("When it matches. Default: always.")] = None
    repeat: Annotated[
        Maybe[PositiveDuration],
        key("Notify again this often while an incident is open and not acknowledged. Default: never."),
    ] = None
    escalate: Annotated[
        tuple[Escalation, ...], key("Who else to notify while nobody acknowledges. Default: nobody.")
    ] = ()
    goes_on: Annotated[
        bool, key("Also try the routes below. Default: false, the first match decides.", alias="continue")
    ] = False

    def reach(self, age: float) -> tuple[str, ...]:
        """Its channels for an unacknowledged incident that has been open for `age` seconds."""
        return (*self.channels, *(c for step in self.escalate if step.after <= age for c in step.channels))


@dataclass(frozen=True, slots=True)
class MailedReport(Section):
    """A report on the last days, mailed at an hour of some days of the week."""

    channels: Annotated[tuple[Name, ...], key("Mail channels.", min_length=1, examples=["[mail]"])]
    at: Annotated[TimeOfDay, key("When, in local time of the zone.", examples=["08:00"])]
    zone: Annotated[Zone, key("Time zone.", examples=["Europe/Berlin"])]
    days: Annotated[tuple[Day, ...], key("Days of the week.", min_length=1)] = ("mon",)
    last: Annotated[PositiveDuration, key("How many days it covers, in whole days.")] = WEEK
    monitors: Annotated[tuple[Name, ...], key("Monitors to include. Default: all.")] = ()

    def due(self, now: float) -> int:
        """When it was to be mailed last, at `now` at the latest; seconds since 1970."""
        zone = ZoneInfo(self.zone)
        today = datetime.fromtimestamp(now, zone).replace(hour=0, minute=0, second=0, microsecond=0)
        for ago in range(9):
            day = today - timedelta(ago)
            at = int((day + timedelta(minutes=self.at)).timestamp())
            if at <= now and DAYS[day.weekday()] in self.days:
                return at
        raise AssertionError("a week has all days")


@dataclass(frozen=True)
class Routing:
    """The routes of a monitor: the common ones, then its own channels."""

    monitor: Monitor
    common: Sequence[Route] = ()

    @property
    def routes(self) -> tuple[Route, ...]:
        """All of them in their order. Where Prometheus pages, the common ones do not count."""
        monitor = self.monitor
        owners = () if monitor.drift is None else monitor.drift.data_channels
        own = [Route(owners, matter=("data",))] if owners else []
        return (*(self.common if monitor.paging == "push" else ()), *own, Route(monitor.notify))

    @property
    def cases(self) -> list[tuple[Severity, Matter]]:
        """(severity, matter) of what the monitor's rules and verdicts can open."""
        found = {(rule.severity, MATTERS[rule.is_about_data]) for rule in self.monitor.alerts}
        if (drift := self.monitor.drift) is not None:
            found |= {(drift.severity, "quality"), (drift.data_severity, "data")}
            found |= {(drift.data_severity, "layout")} if self.monitor.corrected else set()
        return sorted(found)

    def decide(self, severity: Severity, matters: Collection[Matter], now: float) -> tuple[Route, ...]:
        """The routes of a notification at `now`, seconds since 1970; of several matters, those of each."""
        found = (route for matter in matters for route in self._matching(severity, matter, now))
        return tuple(dict.fromkeys(found))

    def _matching(self, severity: Severity, matter: Matter, now: float) -> Iterator[Route]:
        labels = set(self.monitor.labels)
        for route in self.routes:
            is_meant = severity in route.severity and matter in route.matter and labels.issuperset(route.labels)
            if is_meant and (route.hours is None or route.hours.hold(now)):
                yield route
                if not route.goes_on:
                    return


def reached(routes: Sequence[Route], age: float = 0.0) -> tuple[str, ...]:
    """The channels of some routes, see `Route.reach`, each once."""
    return tuple(dict.fromkeys(channel for route in routes for channel in route.reach(age)))


def repeated(routes: Sequence[Route]) -> dict[str, int]:
    """Channel -> seconds until it is notified again, of those that are."""
    found: dict[str, int] = {}
    for route in routes:
        if route.repeat is not None:
            found |= {c: min(route.repeat, found.get(c, route.repeat)) for c in route.channels}
    return found


def instants(routes: Sequence[Route]) -> list[float]:
    """Moments that stand for all others: between two of them no route begins or ends to match."""
    return sorted({edge for route in routes if route.hours is not None for edge in route.hours.edges()} or {0.0})
