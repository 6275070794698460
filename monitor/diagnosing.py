"""Diagnoses of incidents: taken when one opens, for the source may have been purged by the time somebody asks.

What is read goes through the plain pull in bounded steps, after each of which whoever drives it may leave off. Nothing
that fails here touches judging or paging: it is tried again with the cycles to come for as long as the incident is
open, and what was found is stored once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from monitor.core import diagnosis as d
from monitor.core.drift.diagnosis import Split
from monitor.core.intervals import REACH
from monitor.core.losses import losses
from monitor.core.sample import NO_REQUESTS, Sample, Wanted, pieces, sampled
from monitor.core.tally import Reading
from monitor.core.types import Events, Monitor, Slice
from monitor.errors import SourceError, TooMany
from monitor.store import Store
from monitor.store.alerts import StoredIncident

QUERY, VERSION = "rankmon_query", "rankmon_version"
"""Names under which the query and the model's version are read beside the slices."""

LONGEST = 60.0
"""Seconds that a cycle may spend on diagnoses, but for the step that is under way."""

MOST_SKIPPED = 12
"""Cycles that are let pass at most between two attempts."""


class Detailed(Protocol):
    """Reads single requests."""

    def read(self, since: int, until: int) -> Reading:
        """The requests served in [since, until) seconds, with their labels."""


OpenDetailed = Callable[[Monitor], Detailed]
"""Opens a reader of a monitor's single requests."""


def detailed(monitor: Monitor) -> Monitor:
    """The monitor, reading the query and the model's version of each request too, and no events on nothing shown."""
    rankings, recipe = monitor.rankings, monitor.recipe
    more = [Slice(QUERY, rankings.query)] if rankings.query is not None else []
    more += [Slice(VERSION, rankings.model_version)] if rankings.model_version is not None else []
    if isinstance(recipe, Events):
        recipe = replace(recipe, count_unmatched=False)
    return replace(monitor, recipe=recipe, slices=(*monitor.slices, *more))


# ---- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """The requests of a period that were kept; `stored` is how many the store knows of, None if it knows nothing."""

    span: d.Span
    sample: Sample
    stored: int | None

    def plain(self) -> dict[str, Any]:
        """What was read, as JSON data."""
        known = self.stored is not None and self.stored > len(self.sample)
        is_part = self.sample.read > len(self.sample) or (known and (self.stored or 0) > d.MOST_REQUESTS)
        return {
            "since": self.span[0],
            "until": self.span[1],
            "requests": len(self.sample),
            "stored": self.stored,
            "is_sampled": is_part,
        }


def read_sample(
    source: Detailed, wanted: Wanted, span: d.Span, width: int, requests: int | None, most: int
) -> Generator[None, None, Sample]:
    """The requests of a period, at most `most` of them; it pauses after each step.

    Args:
        width: of a bucket, seconds.
        requests: how many there are by what is stored; None: nobody knows.

    Raises:
        SourceError, Stopped: as the source.
    """
    found = NO_REQUESTS
    for since, until in pieces(*span, width, requests, most):
        for part in _halves(source, since, until):
            found = (found + _sampled(part, wanted)).at_most(most)
        yield
    return found


def _sampled(reading: Reading, wanted: Wanted) -> Sample:
    try:
        return sampled(reading, wanted)
    except ValueError as error:
        raise SourceError(f"{wanted.measure}: {error}", "data") from error


def _halves(source: Detailed, since: int, until: int) -> Iterator[Reading]:
    """The readings of [since, until), in halves where it is more than fits into memory at once."""
    try:
        yield source.read(since, until)
    except TooMany as error:
        if until - since <= 1:
            raise SourceError(f"{error} within a second", "data") from error
        middle = (since + until) // 2
        yield from _halves(source, since, middle)
        yield from _halves(source, middle, until)


# ---- one incident ------------------------------------------------------------------------------------------------


def subject(monitor: Monitor, incident: StoredIncident, store: Store) -> d.Subject:
    """What of an incident is to be looked at: what it opened with. Raises StoreError."""
    about = incident.incident
    opening = [
        t.evidence
        for t in store.alerts.transitions(about.monitor, about.opened_at, about.opened_at)
        if t.incident == about.id and t.became == "firing" and t.evidence is not None
    ]
    first = store.oldest_bucket(monitor.traffic)
    return d.subject(monitor, opening or incident.findings, about.opened_at, first or 0)


def stored_part(monitor: Monitor, incident: StoredIncident, store: Store) -> dict[str, Any]:
    """What the store knows of an incident's fall, as JSON data. Raises StoreError."""
    fell = subject(monitor, incident, store)
    stored, about = _stored(monitor, fell, store), incident.incident
    found = {"incident": about.id, "monitor": monitor.name, "began_at": about.began_at, "opened_at": about.opened_at}
    return found | d.from_stored(monitor, stored, _of_verdict(monitor, fell, store))


def _stored(monitor: Monitor, fell: d.Subject, store: Store) -> d.Stored:
    begin = min([fell.window[0], *(since for since, _ in fell.before)]) - REACH
    definition, end = monitor.definition(fell.measure), fell.window[1]
    history, traffic = store.history(definition, begin, end), store.history(monitor.traffic, begin, end)
    return d.Stored(fell, history, traffic, monitor.bucket)


def _of_verdict(monitor: Monitor, fell: d.Subject, store: Store) -> Split | None:
    """The split of the verdict that opened an incident, if one did."""
    if fell.finding is None or not fell.finding.verdict:
        return None
    end = fell.finding.end
    return next((v.split for v in store.verdicts.between(monitor.name, end - 1, end) if v.split is not None), None)


def capture(
    monitor: Monitor, incident: StoredIncident, store: Store, source: Detailed, taken_at: float
) -> Generator[None, None, dict[str, Any]]:
    """All there is to find out of an incident, as JSON data; it pauses after each step of reading.

    Args:
        source: of the monitor as `detailed` has it.
        taken_at: real seconds since 1970.

    Raises:
        SourceError, StoreError, Stopped: try again later.
    """
    document = stored_part(monitor, incident, store)
    fell = subject(monitor, incident, store)
    wanted, traffic = wanted_of(monitor, fell, store), _stored(monitor, fell, store).traffic
    taken: list[Taken] = []
    for span in (fell.window, *fell.before):
        part = traffic.between(*span)
        requests = int(part.slice(("", ""))[:, 0].sum()) if len(part.starts) else None
        sample = yield from read_sample(source, wanted, span, monitor.bucket, requests, d.MOST_REQUESTS)
        taken.append(Taken(span, sample, requests))
    now, before = taken[0].sample, sum((t.sample for t in taken[1:]), NO_REQUESTS)
    if fell.key[0] and wanted.by is not None:
        now, before = now.of_place(fell.key[1]), before.of_place(fell.key[1])
    with_text = monitor.drift is not None and monitor.drift.show_queries
    found = losses(now, before, monitor.bucket, with_text)
    notes = list(_notes(monitor, taken))
    document["captured"] = {"taken_at": taken_at, "periods": [t.plain() for t in taken], **found, "notes": notes}
    return document


def wanted_of(monitor: Monitor, fell: d.Subject, store: Store) -> Wanted:
    """What is taken of each request: its value, query, version, and the slice that fell, or by which it is split."""
    here = [s for s in monitor.slices if s.dimension == fell.key[0]] if fell.key[0] else d.dimensions(monitor)
    by = here[0] if here else None
    known = store.known_slices(monitor.name).get(by.dimension, set()) if by is not None else set()
    query = None if monitor.rankings.query is None else QUERY
    version = None if monitor.rankings.model_version is None else VERSION
    return Wanted(fell.measure, query, version, by, frozenset(known))


def _notes(monitor: Monitor, taken: Sequence[Taken]) -> Iterator[str]:
    """What to know of the figures, in sentences."""
    if any(t.plain()["is_sampled"] for t in taken):
        yield (
            f"of periods with more than {d.MOST_REQUESTS:,} requests a fixed sample was looked at, not all: "
            "a like share of every hour, and of that those whose ids come first by a hash"
        )
    gone = [t for t in taken if t.stored and not t.sample.read]
    if gone and gone[0] is taken[0]:
        yield "the source does not hold the requests of the fallen window any more; what is shown is from the store"
    elif gone:
        yield "the source does not hold the requests of all weeks before any more; they are left out"
    if monitor.rankings.query is None:
        yield "queries are not told apart; name their column under `rankings: query`"


# ---- one monitor -------------------------------------------------------------------------------------------------


@dataclass
class Diagnoser:
    """Takes the diagnoses of one monitor's incidents, a few steps a cycle."""

    monitor: Monitor
    store: Store
    open_detailed: OpenDetailed
    failures: int = 0
    _skip: int = 0
    _of: str = ""
    _steps: Generator[None, None, dict[str, Any]] | None = field(default=None, repr=False)

    def advance(self, is_over: Callable[[], bool], longest: float = LONGEST) -> str | None:
        """Go on with the incident that is open, if it has no diagnosis yet; its id if it has one now.

        Args:
            is_over: whether to leave off; it is asked after each step, of which one is taken in any case.
            longest: seconds after which to leave off.

        Raises:
            SourceError, StoreError, Stopped: it begins anew in one of the next cycles.
        """
        incident = self._open()
        if incident is None:
            self._begin_again("")
            return None
        if self._skip > 0:
            self._skip -= 1
            return None
        try:
            return self._go_on(incident, is_over, time.monotonic() + longest)
        except BaseException:
            self.failures += 1
            self._skip = min(2 ** min(self.failures - 1, 10) - 1, MOST_SKIPPED)
            self._steps = None
            raise

    def _open(self) -> StoredIncident | None:
        """The open incident that has no diagnosis yet."""
        found = self.store.alerts.incidents(self.monitor.name, "firing")
        quality = next((s for s in found if s.incident.matter == "quality"), None)
        if quality is None or self.store.verdicts.diagnosis(quality.incident.id) is not None:
            return None
        return quality

    def _go_on(self, incident: StoredIncident, is_over: Callable[[], bool], until: float) -> str | None:
        id_ = incident.incident.id
        if self._steps is None or self._of != id_:
            self._begin_again(id_)
            source = self.open_detailed(detailed(self.monitor))
            self._steps = capture(self.monitor, incident, self.store, source, time.time())
        while True:
            try:
                next(self._steps)
            except StopIteration as ended:
                self.store.verdicts.put_diagnosis(id_, self.monitor.name, ended.value, time.time())
                self._begin_again("")
                return id_
            if is_over() or time.monotonic() >= until:
                return None

    def _begin_again(self, id_: str) -> None:
        self._of, self._steps, self._skip = id_, None, 0
        if not id_:
            self.failures = 0
