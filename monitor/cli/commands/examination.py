"""Where people look: the table that a monitor's measure uses, or a new estimate from the log."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import click
import numpy as np

from monitor.arrays import Floats
from monitor.cli.common import (
    group,
    load_config,
    monitor_in_store,
    nothing_shown,
    rendered,
    source_of,
    warn_of_two_pages,
)
from monitor.cli.options import InstantParam, config_option, monitor_option, past_options
from monitor.cli.render import column, record, rows
from monitor.conditions.examined import RECENT, ExaminationCheck, Misfit
from monitor.config.report import nearest
from monitor.drift.constants import LEAST_REFERENCE_DAYS
from monitor.errors import InputError
from monitor.measures.examination import (
    ALL,
    SURE,
    UNSURE,
    Examination,
    ShownCounts,
    after_a_click,
    by_frequency,
    differing_slices,
    estimate,
    estimate_random,
    estimate_since,
    estimates,
    most_changed,
    requests_needed,
    smoothed,
    trusts_first,
)
from monitor.measures.measure import LEAST_EXAMINATION, Measure, Table
from monitor.messages.explanation import misfit
from monitor.messages.tables import count, number, percent
from monitor.messages.words import NO_OTHER_LISTS, assumes, brief, utc
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.swaps import counts_by_slice
from monitor.types import Monitor
from monitor.units import DAY

FEW_QUERIES = 10
"""Fewer, effectively, are warned of: errors by so few clusters are too small (Cameron and Miller, 2015)."""

UNKNOWN = 2.0
"""Upper over lower end of an interval that is warned of; test_examination: a_figure_that_rests_on_little."""

HARDLY = 0.8
"""Least relative clicks below a click of people who do not stop at one; test_examination: people_who_stop."""


@record
class RankExamination:
    """A rank's examination relative to rank 1, its 95 % interval, and the (query, item) pairs it rests on."""

    rank: int = column("rank")
    value: float = column("examination", number)
    lower: float = column("from", number)
    upper: float = column("to", number)
    swaps: int = column("items also at other ranks", count)


@record
class RandomRankExamination(RankExamination):
    """How often people look at a rank, by requests in random order: their queries, and how many requests give 10 %."""

    swaps: int = column("queries", count)
    enough: int = column("requests for 10 %", count)


@record
class FittedExamination:
    """The estimate of a monitor and the measure to configure.

    Attributes:
        slice: `device=mobile`, or empty for all requests.
        requests: those that it rests on.
        effective_queries: as many queries of equal clicks would tell as much.
        clicks_below_a_click: their rate relative to that of the same items without a click further up, and its 95 %
            interval; None if nothing tells.
        differs_by_frequency: the rank whose examination differs between frequent and rare queries; None if none does.
        trusts_first: whether people trust rank 1, and do not stop at a click, which looks alike.
        since: seconds at which the page changed: the examination is that from then on.
        clip: the most that a click counts in `measure`, relative to rank 1; None: any number.
        clipped: share of the clicks that would count more.
        random: `is_random=true`, which marks the requests in random order; None: it rests on swaps.
        differs_by_swaps: the rank whose examination differs by the same items at several ranks of these requests, as it
            does if the order is not random; None if none does, or it rests on swaps.
    """

    monitor: str
    slice: str
    days: int
    requests: int
    effective_queries: float
    ranks: Sequence[RankExamination]
    measure: str
    clicks_below_a_click: list[float | None]
    differs_by_frequency: int | None
    trusts_first: bool
    since: int | None = None
    clip: float | None = None
    clipped: float = 0.0
    random: str | None = None
    differs_by_swaps: int | None = None

    def lines(self) -> Iterator[str]:
        yield from self.told()
        yield from _configured(self.measure)

    def told(self) -> Iterator[str]:
        """Its lines without the measure."""
        where = f"{self.monitor}, {self.slice}" if self.slice else self.monitor
        other = "the first" if self.since is None else f"the first before {utc(self.since)}"
        head = f"{where}: how often people look at each rank, relative to {other}, "
        marked, lists = "", NO_OTHER_LISTS
        if self.random is not None:
            marked, lists = f" with {self.random}", ", that these lists are in random order"
        yield f"{head}from {self.requests:,} requests in {self.days} days{marked}"
        yield from rows(self.ranks, "  ")
        yield f"It {assumes(lists)}."
        yield from self._warnings()
        yield from self._checks()

    def _warnings(self) -> Iterator[str]:
        if self.effective_queries < FEW_QUERIES:
            few = f"it is based on effectively {self.effective_queries:.1f} queries"
            yield f"  Warning: {few}; examination may differ for others."
        if unknown := next((one for one in self.ranks if one.upper > UNKNOWN * one.lower), None):
            known = f"from {number(unknown.lower)} to {number(unknown.upper)}"
            yield f"  Warning: examination at rank {unknown.rank} is known only {known}. {self._shorter(unknown.rank)}"
        if self.clip is not None:
            yield f"  Clipped: {percent(self.clipped)} of the clicks would count more than {self.clip:g} at the first."
        elif rare := next((one for one in self.ranks if one.value < LEAST_EXAMINATION), None):
            counts = f"a click at rank {rare.rank} counts as much as {1 / rare.value:,.0f} at the first"
            yield f"  Warning: {counts}, so a few clicks move the measure. {self._shorter(rare.rank)}"

    def _shorter(self, rank: int) -> str:
        return "Use more days" + (f", or fewer ranks: --depth {rank - 1}." if rank > 2 else ".")

    def _checks(self) -> Iterator[str]:
        ratio, lower, upper = self.clicks_below_a_click
        if ratio is not None and lower is not None and upper is not None:
            said = f"below a click people click {ratio:.2f} times as often as without it ({lower:.2f} to {upper:.2f})"
            stops = "Warning: they stop at a click; the direction of a change is right, but its size is not"
            unlikely = (
                ", so they do not stop at one" if lower >= HARDLY else ", so it is unclear whether they stop at one"
            )
            said += f". {stops}" if upper < 1 else unlikely
            yield f"  checked: {said}."
        if self.trusts_first:
            said = "people trust rank 1 and also click there what they do not want; weak items on top count too much"
            yield f"  Warning: {said}."
        if self.differs_by_frequency is not None:
            rank = self.differs_by_frequency
            yield f"  Warning: examination at rank {rank} differs between frequent and rare queries."
        if self.differs_by_swaps is not None:
            said = (
                f"examination at rank {self.differs_by_swaps} differs from that estimated from items at several ranks"
            )
            yield f"  Warning: {said}; check whether {self.random} marks lists in random order."


def _configured(measure: str) -> Iterator[str]:
    yield "A measure that counts each click 1 / examination times:"
    yield f"  measures: [{measure!r}]"


@record
class UnknownExamination:
    monitor: str
    slice: str
    why: str

    def told(self) -> Iterator[str]:
        """It in a line."""
        yield f"{self.monitor}, {self.slice}: {self.why}"


@record
class ExaminationBySlice:
    """The estimates of all requests and of the values of a slice.

    Attributes:
        differ: the slices with significantly different examination, which `measure` has a table for.
    """

    every: FittedExamination
    slices: list[FittedExamination | UnknownExamination]
    differ: list[str]
    measure: str

    def lines(self) -> Iterator[str]:
        for one in (self.every, *self.slices):
            yield from one.told()
        rest = [one for one in self.slices if one.slice not in self.differ]
        for what, kind in (("No significant difference", FittedExamination), ("Unknown", UnknownExamination)):
            if found := [one.slice for one in rest if isinstance(one, kind)]:
                yield f"{what}, so the examination of all requests is used: {', '.join(found)}."
        yield from _configured(self.measure)


@record
class ExaminationAtRank:
    """A rank's examination relative to rank 1: in the measure, before and now, with 95 % intervals; None if unknown."""

    rank: int = column("rank")
    used: float | None = column("in the measure", number)
    before: float | None = column("before", number)
    before_lower: float | None = column("before, from", number)
    before_upper: float | None = column("before, to", number)
    value: float | None = column("now", number)
    lower: float | None = column("now, from", number)
    upper: float | None = column("now, to", number)


@record
class UsedExamination:
    """The table a monitor's measure uses, and what the last daily check found; instants in seconds.

    Attributes:
        measure: the measure that is corrected; None without one.
        examination: slice -> ranks; empty text for all requests.
        at: when the check was; None without one.
        known_since, known_until, since: spans of the requests `before`, and of those up to `at`.
        changed_since: since when people look elsewhere; None if they do not.
        misfit: where the table does not match what was found before; None if it does.
    """

    monitor: str
    measure: str | None
    examination: Mapping[str, Sequence[ExaminationAtRank]]
    at: int | None = None
    known_since: int | None = None
    known_until: int | None = None
    since: int | None = None
    changed_since: int | None = None
    misfit: Misfit | None = None
    why_unchecked: str = ""

    def lines(self) -> Iterator[str]:
        fits = f"rankmon examination fit {self.monitor}"
        if self.measure is None:
            yield f"{self.monitor}: no measure is corrected for where people look; `{fits}` prints one"
            return
        yield f"{self.monitor}: {brief(self.measure)}"
        for where, ranks in self.examination.items():
            yield f"Examination relative to rank 1, {where or 'all requests'}:"
            yield from rows(ranks, "  ")
        if self.at is None:
            yield f"Not checked: {self.why_unchecked}."
            return
        yield f"before: {utc(self.known_since)} to {utc(self.known_until)}; now: {utc(self.since)} to {utc(self.at)}"
        if self.misfit is not None:
            yield f"{misfit(self.misfit)}; run `{fits}`."
        if self.changed_since is not None:
            began = utc(self.changed_since)
            yield f"People look at other ranks since {began}. If this is permanent, run `{fits} --since` that time."


examination = group(__name__)


@examination.command()
@config_option
@monitor_option()
@rendered("table", "json")
def show(config_path: Path, monitor: str | None) -> UsedExamination:
    """Show the examination that the measure uses, and what the last daily check found."""
    with monitor_in_store(config_path, monitor) as (wanted, store):
        used = wanted.corrected or next((m for m in wanted.measures if m.is_corrected), None)
        checked = None if wanted.corrected is None else store.verdicts.newest_check(wanted.name)
    if used is None:
        return UsedExamination(wanted.name, None, {})
    tables = {ALL: used.examination, **dict(used.by_slice)}
    parts = [*tables, *(() if checked is None else checked.now.parts)]
    known = {"=".join(filter(None, part)): _ranks(tables.get(part), checked, part) for part in dict.fromkeys(parts)}
    if checked is None:
        needs = "it needs `drift:`, `rankings.query` and labels by clicks"
        days = (
            f"`rankmon run` checks once a day, given {LEAST_REFERENCE_DAYS + RECENT // DAY} whole days with clicks and "
            f"enough swaps; `rankmon examination fit {wanted.name}` says whether there are enough"
        )
        return UsedExamination(wanted.name, str(used), known, why_unchecked=needs if wanted.corrected is None else days)
    spans = (checked.at, checked.known_since, checked.known_until, checked.since, checked.changed_since)
    return UsedExamination(wanted.name, str(used), known, *spans, checked.misfit(used))


def _ranks(used: Table | None, checked: ExaminationCheck | None, part: tuple[str, str]) -> list[ExaminationAtRank]:
    columns = [[chance for _, chance in used or ()]]
    for found in () if checked is None else (checked.known, checked.now):
        one = found if part == ALL else found.parts.get(part)  # not those of all requests under the name of a slice
        columns += [[], [], []] if one is None else [c.tolist() for c in (one.value, one.lower, one.upper)]
    ranks = itertools.zip_longest(*columns, *([[]] * (7 - len(columns))))
    return [ExaminationAtRank(rank, *row) for rank, row in enumerate(ranks, 1)]


@examination.command()
@config_option
@monitor_option()
@past_options
@click.option("--by", "dimension", help="One of the monitor's slices, such as device: estimate each of its values.")
@click.option(
    "--random",
    metavar="SLICE=VALUE",
    help="Requests with lists in random order, such as is_random=true: use only these.",
)
@click.option(
    "--since",
    type=InstantParam(),
    help="When the page changed: estimate examination since then, from earlier clicks on the same items as a corrected "
    "measure of the monitor counts them.",
)
@click.option(
    "--clip",
    type=click.FloatRange(1),
    help="Most that a click may count, relative to rank 1: steadier, but items far down count too little.",
)
@rendered("table", "json")
def fit(
    config_path: Path,
    monitor: str | None,
    depth: int,
    days: int,
    dimension: str | None,
    until: int | None,
    random: str | None,
    since: int | None,
    clip: float | None,
) -> FittedExamination | ExaminationBySlice:
    """Estimate from clicks how often people look at each rank, and print the measure that corrects for it.

    Clicks come from what people look at, not only from what they like. Where the same item was shown for the same query
    at several ranks, its click rates tell how often people look there. The estimate assumes that examination depends on
    the rank alone: not on the device (`--by device` estimates each), not on what was clicked above, and that people
    trust no rank more than another; it warns where the log says otherwise. Items are compared among requests of the
    same slices: name under `slices:` all that lists are personalised by, or whoever sees an item further up is taken to
    look there more.
    """
    config = load_config(config_path)
    wanted = config.monitor(monitor)
    end = int(time.time()) - wanted.recipe.attribution if until is None else until
    if random is not None and since is not None:
        raise InputError("use --random or --since: lists in random order need no earlier clicks")
    if since is not None:
        corrected_to(depth, wanted)  # raises before the log is read
    else:
        warn_of_two_pages(config, wanted, end - days * DAY, end)
    with source_of(config, wanted) as database:
        past = RequestLog(wanted, database, end, days, depth, since, clip, random)
        return fitted(past) if dimension is None else by_slice(past, dimension)


@dataclass(frozen=True)
class RequestLog:
    """The requests of `days` days before `until`, to rank `depth`; from `since` on, if any, the page is another.

    `clip`: the most that a click is to count, relative to rank 1. `random`: `is_random=true`, the slice's value that
    marks the requests in random order, if they alone count.
    """

    monitor: Monitor
    database: Database
    until: int
    days: int
    depth: int
    since: int | None = None
    clip: float | None = None
    random: str | None = None

    def column(self, dimension: str) -> str:
        """The column of a slice. Raises InputError: there is no such slice."""
        known = {one.dimension: one.column for one in self.monitor.slices}
        if dimension not in known:
            remedy = nearest(dimension, list(known)) if known else "it has no `slices:`"
            raise InputError(f"{self.monitor.name} has no slice {dimension!r}; {remedy}")
        return known[dimension]

    def counts(self, column: str | None = None, is_before: bool = False) -> dict[str, ShownCounts]:
        """Value of a column -> counts, of the page that is now or of that before. Raises InputError, SourceError."""
        begin = self.until - self.days * DAY
        span = (begin, self.since or begin) if is_before else (self.since or begin, self.until)
        source = Pull(self.monitor, self.database)
        return counts_by_slice(source, *span, self.depth, column, not is_before, only=self._only())

    def _only(self) -> tuple[str, str] | None:
        if self.random is None:
            return None
        dimension, equals, value = self.random.partition("=")
        if not equals:
            raise InputError("--random is a slice and a value of it, such as is_random=true")
        return self.column(dimension), value

    def fit(self, dimension: str = "", column: str | None = None) -> Callable[[str, ShownCounts], Examination]:
        """Estimates the examination of a value from its counts. Raises InputError, SourceError."""
        if self.since is None:
            known = estimate if self.random is None else estimate_random
            return lambda _, counts: known(counts, self.depth)
        before = self.counts(column, is_before=True)

        def since_then(value: str, counts: ShownCounts) -> Examination:
            if value not in before:
                raise ValueError("it was not there before")
            return estimate_since(before[value], self._used(dimension, value), counts)

        return since_then

    def _used(self, dimension: str, value: str) -> Floats:
        measure = corrected_to(self.depth, self.monitor)
        table = dict(measure.by_slice).get((dimension, value), measure.examination)
        return np.array([chance for _, chance in table[: self.depth]])


def corrected_to(depth: int, monitor: Monitor) -> Measure:
    """The first measure that is corrected down to a rank. Raises InputError if there is none."""
    measure = next((m for m in monitor.measures if m.is_corrected and len(m.examination) >= depth), None)
    if measure is None:
        told = f"--since needs a measure corrected down to rank {depth}; add one, or use --depth"
        raise InputError(f"{monitor.name}: {told}")
    return measure


def fitted(past: RequestLog) -> FittedExamination:
    """The estimate by all requests. Raises InputError, SourceError."""
    return _record(past, "", *_of_all(past))


def _of_all(past: RequestLog) -> tuple[Examination, ShownCounts]:
    counts = past.counts()[""]
    if not len(counts.rank):
        raise nothing_shown(past.monitor, past.days)
    try:
        return past.fit()("", counts), counts
    except ValueError as error:
        raise InputError(f"{past.monitor.name}: {error}") from error


def by_slice(past: RequestLog, dimension: str) -> ExaminationBySlice:
    """The estimate of all requests and of each value of a slice, or why there is none.

    Raises:
        InputError: there is none of all requests, or no such slice.
        SourceError: as its name says.
    """
    column = past.column(dimension)
    every, of_all = _of_all(past)
    each = past.counts(column)
    fits, why = estimates(each, past.fit(dimension, column))
    found: list[FittedExamination | UnknownExamination] = []
    for value, counts in each.items():
        where = f"{dimension}={value}"
        if value in fits:
            found.append(_record(past, where, fits[value], counts, len(fits)))
        else:
            found.append(UnknownExamination(past.monitor.name, where, why[value]))
    differ = differing_slices(every, fits)
    tables = {(dimension, value): smoothed(fits[value]) for value in differ}
    whole, measure = _record(past, "", every, of_all), corrected(smoothed(every), tables, past.clip)
    return ExaminationBySlice(whole, found, [f"{dimension}={value}" for value in differ], measure)


def corrected(every: Examination, by_slice: Mapping[tuple[str, str], Examination], clip: float | None = None) -> str:
    """The DCG to configure, by the tables of all requests and of some slices; no click counts more than `clip`."""

    def table(one: Examination) -> Table:
        chances = (max(chance, 0.0 if clip is None else 1 / clip) for chance in one.value.tolist())
        return tuple((float(rank), float(f"{chance:.4g}")) for rank, chance in enumerate(chances, 1))

    tables = tuple(sorted((key, table(one)) for key, one in by_slice.items()))
    return str(Measure("dcg", len(every.value), empty="zero", examination=table(every), by_slice=tables))


def _record(
    past: RequestLog, where: str, estimated: Examination, counts: ShownCounts, slices: int = 1
) -> FittedExamination:
    """The estimate and what is checked of it; checks of so many slices share the chance of a wrong warning."""
    smooth = smoothed(estimated)
    columns = (smooth.value, smooth.lower, smooth.upper, smooth.swaps)
    ranks = [RankExamination(*row) for row in zip(itertools.count(1), *(c.tolist() for c in columns), strict=False)]
    if past.random is not None:
        needed = np.ceil(requests_needed(estimated, SURE)).astype(int).tolist()
        ranks = [RandomRankExamination(**vars(one), enough=n) for one, n in zip(ranks, needed, strict=True)]
    below = after_a_click(counts, slices)
    differs = _unlike(lambda: by_frequency(counts, len(ranks)), slices)
    is_clipped = smooth.value * (past.clip or np.inf) < 1
    return FittedExamination(
        past.monitor.name,
        where,
        past.days,
        int(counts.requests),
        counts.effective_queries,
        ranks,
        corrected(smooth, {}, past.clip),
        [number if isfinite(number) else None for number in below],
        differs,
        below[2] >= 1 and trusts_first(counts, len(ranks), slices),
        past.since,
        past.clip,
        float(smooth.clicks[is_clipped].sum() / smooth.clicks.sum()),
        past.random,
        None if past.random is None else _unlike(lambda: (estimate(counts, len(ranks)), estimated), slices),
    )


def _unlike(two: Callable[[], tuple[Examination, Examination]], slices: int) -> int | None:
    """The rank whose examination differs significantly in two estimates; None if none, or with too few swaps."""
    try:
        change = most_changed(*two())
    except ValueError:
        return None
    return change.rank if change.chance * slices < UNSURE else None
