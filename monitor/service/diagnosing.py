"""Diagnoses of incidents, captured when one opens because the source may be purged later.

Each firing condition gets its own, most severe first, up to a limit. Reads use bounded pull steps. A failure affects
neither evaluation nor paging: its reason is stored, and later cycles retry while the incident is open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from monitor.causes import diagnosis as d
from monitor.causes.losses import losses
from monitor.causes.sample import (
    NO_REQUESTS,
    RequestCounts,
    RequestSample,
    SampleQuery,
    pieces,
    sampled,
)
from monitor.conditions.thresholds import ConditionName
from monitor.errors import SourceError, Stopped, StoreError
from monitor.evaluation.stored_fall import FiredCondition, StoredFall, fired, first_fired
from monitor.messages.words import named, storable
from monitor.series.readings import Reading
from monitor.series.windows import History, SliceKey
from monitor.service.reading import RowReader, read_rows
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.store.verdicts import Diagnosis
from monitor.types import OVERALL, Events, Monitor, Slice
from monitor.units import Span

QUERY, VERSION = "rankmon_query", "rankmon_version"
"""Names under which the query and the model version are read as slices."""

DIAGNOSE_FOR = 60.0
"""Seconds per cycle for diagnoses; a step in progress is finished."""

MOST_OWED = 3
"""Attempts on a closed incident: its requests may be gone."""

MOST_SKIPPED = 12
"""Most cycles skipped between two attempts."""

MOST = 5
"""Conditions diagnosed per incident."""

LONGEST_ERROR = 500


OpenDetailed = Callable[[Monitor], RowReader]
"""Opens a reader of a monitor's single requests."""


def detailed(monitor: Monitor) -> Monitor:
    """The monitor with the query and model version of each request, and without events on items not shown."""
    rankings, recipe = monitor.rankings, monitor.recipe
    more = [Slice(QUERY, rankings.query)] if rankings.query is not None else []
    more += [Slice(VERSION, rankings.model_version)] if rankings.model_version is not None else []
    if isinstance(recipe, Events):
        recipe = replace(recipe, count_unmatched=False)
    return replace(monitor, recipe=recipe, slices=(*monitor.slices, *more))


# ---- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CapturedPeriod:
    """The kept requests of a period; `stored` is how many the store has, None if it has nothing."""

    span: Span
    sample: RequestSample
    stored: RequestCounts | None

    def plain(self) -> dict[str, Any]:
        stored, read = self.stored, len(self.sample)
        in_part = stored is not None and stored.to_read(d.MOST_REQUESTS) < stored.every and stored.wanted > read
        return {
            "since": self.span[0],
            "until": self.span[1],
            "requests": read,
            "stored": None if stored is None else stored.wanted,
            "is_sampled": in_part or self.sample.read > read,
        }


def read_sample(
    source: RowReader, wanted: SampleQuery, span: Span, width: int, stored: RequestCounts | None, most: int
) -> Generator[None, None, RequestSample]:
    """At most `most` requests of a period, from a generator that pauses after each step.

    `width`: bucket length, seconds; `stored`: how many the store has, None: unknown.
    """
    found = NO_REQUESTS
    every, to_read = (None, most) if stored is None else (stored.every, stored.to_read(most))
    for since, until in pieces(*span, width, every, to_read):
        for part in read_rows(source, since, until):
            found = (found + _sampled(part, wanted)).at_most(most)
        yield
    return found


def _sampled(reading: Reading, wanted: SampleQuery) -> RequestSample:
    try:
        return sampled(reading, wanted)
    except ValueError as error:
        raise SourceError(f"{wanted.measure}: {error}", "data") from error


# ---- one condition -----------------------------------------------------------------------------------------------


def capture(
    monitor: Monitor, incident: StoredIncident, one: FiredCondition, store: Store, source: RowReader, taken_at: float
) -> Generator[None, None, dict[str, Any]]:
    """The diagnosis of a condition's fall as JSON data, from a generator that pauses after each read.

    `source`: of `detailed(monitor)`; `taken_at`: real seconds since 1970.

    Raises:
        SourceError, StoreError, Stopped: try again later.
    """
    known = StoredFall(monitor, one, store)
    document, fell = known.document(incident.incident), known.subject
    wanted, traffic = wanted_of(monitor, fell, store), known.partials.traffic
    without = frozenset(value for _, value in known.partials.unlabelled)
    taken: list[CapturedPeriod] = []
    for span in (fell.window, *fell.before):
        stored = stock(traffic.between(*span), OVERALL if wanted.only is None else fell.key)
        sample = yield from read_sample(source, wanted, span, monitor.bucket, stored, d.MOST_REQUESTS)
        taken.append(CapturedPeriod(span, sample.without_places(without), stored))
    now, before = taken[0].sample, sum((t.sample for t in taken[1:]), NO_REQUESTS)
    with_text = monitor.drift is not None and monitor.drift.show_queries
    first = first_served(monitor, (*now.versions, *before.versions), store)
    served = d.when_served(first, traffic, monitor)
    # If a single slice fell, all its requests did.
    by = wanted.by if wanted.only is None else None
    fallen = None if by is None else d.fallen(document["slices_by_z"], by.dimension)
    dimension = None if wanted.by is None else wanted.by.dimension
    found = losses(now, before, monitor.bucket, with_text, served, fallen, dimension)
    notes = list(_notes(monitor, taken, without))
    document["captured"] = {"taken_at": taken_at, "periods": [t.plain() for t in taken], **found, "notes": notes}
    return document


def first_served(monitor: Monitor, versions: Iterable[str], store: Store) -> dict[str, int]:
    """Version -> start of the first stored bucket it served in, seconds, if any. Raises StoreError."""
    dimension = monitor.version_slice
    if dimension is None:
        return {}
    known = store.known_slices(monitor.name).get(dimension.dimension, set())
    starts = {v: store.first_bucket_of(monitor.traffic, dimension.dimension, v) for v in known & set(versions)}
    return {version: start for version, start in starts.items() if start is not None}


def stock(traffic: History, key: SliceKey) -> RequestCounts | None:
    """Requests in some buckets, in all and in a slice; None if there are no buckets."""
    if not len(traffic.starts):
        return None
    every, wanted = (int(traffic.slice(k)[:, 0].sum()) for k in (OVERALL, key))
    return RequestCounts(every, wanted)


def wanted_of(monitor: Monitor, fell: d.Subject, store: Store) -> SampleQuery:
    """What to read of each request: value, query, version, and the slice that fell, or the one to split by."""
    here = [s for s in monitor.slices if s.dimension == fell.key[0]] if fell.key[0] else d.dimensions(monitor)
    by = here[0] if here else None
    known = store.known_slices(monitor.name).get(by.dimension, set()) if by is not None else set()
    query = None if monitor.rankings.query is None else QUERY
    version = None if monitor.rankings.model_version is None else VERSION
    only = fell.key[1] if fell.key[0] and by is not None else None
    return SampleQuery(fell.measure, query, version, by, frozenset(known), only)


def _notes(monitor: Monitor, taken: Sequence[CapturedPeriod], without: Collection[str]) -> Iterator[str]:
    if without:
        names = ", ".join(named(monitor.drift.mix_by or "", value) for value in sorted(without) if monitor.drift)
        yield f"{names} lost its labels and is left out of requests, queries and versions"
    if any(t.plain()["is_sampled"] for t in taken):
        yield (
            f"periods with many requests are sampled, at most {d.MOST_REQUESTS:,} requests: "
            "an equal share of every hour, chosen by a hash of the ids"
        )
    gone = [t for t in taken if t.stored is not None and t.stored.wanted and not t.sample.read]
    if gone and gone[0] is taken[0]:
        yield "the source no longer has the requests of the fallen window; figures are from the store"
    elif gone:
        yield "the source no longer has all earlier weeks; missing ones are left out"
    if monitor.rankings.query is None:
        yield "queries are unknown; name their column under `rankings: query`"


# ---- one monitor -------------------------------------------------------------------------------------------------


@dataclass
class Diagnoser:
    """Takes the diagnoses of one monitor's incidents, a few steps per cycle."""

    monitor: Monitor
    store: Store
    open_detailed: OpenDetailed
    failures: int = 0
    _skip: int = 0
    _of: tuple[str, ConditionName] | None = None
    _failed: dict[tuple[str, ConditionName], int] = field(default_factory=dict, repr=False)
    _steps: Generator[None, None, dict[str, Any]] | None = field(default=None, repr=False)
    _owed: list[str] | None = field(default=None, repr=False)

    def advance(self, is_over: Callable[[], bool], longest: float = DIAGNOSE_FOR) -> str | None:
        """Continue with conditions not diagnosed yet; the incident's id if one was completed.

        Works on the open incident, else on closed, notified ones that an ended process left undiagnosed. `is_over` is
        checked after each step, of which there is at least one; `longest`: seconds.

        Raises:
            SourceError, StoreError, Stopped: a later cycle starts over, with another condition first.
        """
        incident = self._open()
        todo = [] if incident is None else self._todo(incident)
        if incident is None or not todo:
            self._of, self._steps, self._skip, self.failures, self._failed = None, None, 0, 0, {}
            return None
        if self._skip > 0:
            self._skip -= 1
            return None
        try:
            return self._go_on(incident, todo, is_over, time.monotonic() + longest)
        except BaseException as error:
            self.failures += 1
            self._skip = min(2 ** min(self.failures - 1, 10) - 1, MOST_SKIPPED)
            self._note(error)
            self._of = self._steps = None
            raise

    def _open(self) -> StoredIncident | None:
        if self._owed is None:
            self._owed = self._without_any()
        found = self.store.alerts.incidents(self.monitor.name, "firing")
        if (current := next((s for s in found if s.incident.matter == "quality"), None)) is not None:
            return current
        while self._owed:
            owed = self.store.alerts.incident(self._owed[0])
            if owed is not None and not self.store.verdicts.diagnosed(owed.incident.id) and self.failures < MOST_OWED:
                return owed
            del self._owed[0]
            self.failures = self._skip = 0
        return None

    def _without_any(self) -> list[str]:
        newest = self.store.newest_bucket(self.monitor.traffic) or 0
        told = [s.incident for s in self.store.alerts.incidents(self.monitor.name) if s.told]
        over = [i for i in told if i.matter == "quality" and i.state == "resolved"]
        return [i.id for i in over if (i.closed_at or 0) >= newest - self.monitor.lookback]

    def _todo(self, incident: StoredIncident) -> list[FiredCondition]:
        """Conditions to diagnose: the one in progress first, the most often failed last."""
        id_ = incident.incident.id
        taken = self.store.verdicts.diagnosed(id_)
        first, *others = fired(incident, self.store) or [first_fired(incident, self.store)]
        # The most severe one changes over time: it is diagnosed however many others are.
        todo = [one for one in others if one.name not in taken][: max(0, MOST - len(taken | {first.name}))]
        todo = [*([] if first.name in taken else [first]), *todo] if incident.incident.is_open else [first]
        return sorted(todo, key=lambda one: (self._of != (id_, one.name), self._failed.get((id_, one.name), 0)))

    def _go_on(
        self, incident: StoredIncident, todo: Sequence[FiredCondition], is_over: Callable[[], bool], until: float
    ) -> str | None:
        id_, found = incident.incident.id, None
        for one in todo:
            if not self._take(incident, one, is_over, until):
                break
            found, self.failures = id_, 0
            if is_over() or time.monotonic() >= until:
                break
        return found

    def _take(self, incident: StoredIncident, one: FiredCondition, is_over: Callable[[], bool], until: float) -> bool:
        id_ = incident.incident.id
        if self._steps is None or self._of != (id_, one.name):
            self._of = id_, one.name
            source = self.open_detailed(detailed(self.monitor))
            self._steps = capture(self.monitor, incident, one, self.store, source, time.time())
        while True:
            try:
                next(self._steps)
            except StopIteration as ended:
                found = Diagnosis(one.name, time.time(), ended.value)
                self.store.verdicts.put_diagnosis(id_, self.monitor.name, found)
                self._of = self._steps = None
                return True
            if is_over() or time.monotonic() >= until:
                return False

    def _note(self, error: BaseException) -> None:
        if self._of is None or isinstance(error, (Stopped, StoreError)) or not isinstance(error, Exception):
            return
        id_, name = self._of
        self._failed[self._of] = self._failed.get(self._of, 0) + 1
        known = isinstance(error, SourceError)
        said = storable(str(error))[:LONGEST_ERROR] if known else f"a bug in rankmon ({type(error).__name__})"
        with suppress(StoreError):
            self.store.verdicts.put_diagnosis(id_, self.monitor.name, Diagnosis(name, time.time(), None, said))
