"""Compare two model versions over one period, and show all versions with their intervals.

Requests are read from the source, in bounded steps. With common queries, the versions are compared query by query,
otherwise request by request; always within the same slices. If they served at different times or share no slice, it
says so, because that may cause the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from monitor.causes import diagnosis as d
from monitor.causes.diagnosis import dimensions
from monitor.causes.sample import RequestSample, SampleQuery
from monitor.causes.versions import by_place, compare, in_order, names
from monitor.cli.common import command, finished, load_config, measures_of, rendered, source_of, stored
from monitor.cli.options import InstantParam, config_option, monitor_option
from monitor.cli.render import Shown, table_of
from monitor.conditions.verdict_hours import judged, step_of
from monitor.conditions.verdicts import MASKED
from monitor.config import Config
from monitor.errors import InputError
from monitor.evaluation.stored_fall import unsound
from monitor.measures.measure import Measure
from monitor.messages.comparison import NO_VERSION, OF_VERSIONS, compared
from monitor.messages.explanation import title_of
from monitor.messages.tables import Columns, count, number, percent, signed
from monitor.messages.words import assumed, lasting, shown, utc
from monitor.series.intervals import REACH
from monitor.service.diagnosing import QUERY, VERSION, detailed, first_served, read_sample, stock
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.types import OVERALL, Monitor, Slice
from monitor.units import WEEK

MOST = 200_000
"""Most requests compared."""


@command
@config_option
@monitor_option()
@click.option("--from", "since", type=InstantParam(), help="Start (default: a week before the end).")
@click.option("--to", "until", type=InstantParam(), help="End (default: the newest final bucket).")
@click.option(
    "--versions",
    "pair",
    nargs=2,
    metavar="A B",
    help="Compare B with A (default: the two busiest; newer with older).",
)
@click.option("--measure", "text", help="Measure to compare (default: the one that verdicts judge, or the first).")
@click.option("--by", "dimension", help="Dimension within whose slices they are compared (default: the first).")
@rendered("text", "json")
def versions(
    config_path: Path,
    monitor: str | None,
    since: int | None,
    until: int | None,
    pair: tuple[str, str] | None,
    text: str | None,
    dimension: str | None,
) -> Shown:
    config = load_config(config_path)
    wanted = config.monitor(monitor)
    if wanted.rankings.model_version is None:
        raise InputError(NO_VERSION.format(wanted.name))
    measure, by = _measure(wanted, text), _by(wanted, dimension)
    with stored(config) as store:
        span = _span(wanted, since, until, store)
        bad = _bad(wanted, span, store)
        table_ = _stored(wanted, measure, span, bad, store)
        sample, of = _read(config, wanted, measure, by, span, bad, store)
        two = pair or _newer_against_older(wanted, sample, store)
    found = _compare(wanted, sample, two, by, of)
    document = {
        "monitor": wanted.name,
        "measure": str(measure),
        "assumed": assumed([measure]) or None,
        "since": span[0],
        "until": span[1],
        "versions": table_,
        "requests": len(sample),
        "stored_requests": of,
        "left_out": {"seconds": len(bad) * step_of(wanted.bucket), "kinds": sorted(set(bad.values()))},
        "comparison": found,
        "by": None if by is None else by.dimension,
        "slices": [] if found is None or by is None else _slices(wanted, sample, two),
    }
    return Shown(document, lambda: _lines(document))


def _measure(monitor: Monitor, text: str | None) -> Measure:
    if text is None:
        return judged(monitor.measures[0] if monitor.drift is None else monitor.drift.measure)
    return measures_of(monitor, (text,))[0]


def _by(monitor: Monitor, dimension: str | None) -> Slice | None:
    known = {one.dimension: one for one in dimensions(monitor)}
    if dimension is None:
        return next(iter(known.values()), None)
    if dimension not in known:
        raise InputError(f"{monitor.name} has no slices by {dimension!r}; known are {', '.join(known)}")
    return known[dimension]


def _span(monitor: Monitor, since: int | None, until: int | None, store: Store) -> tuple[int, int]:
    settled = store.settled_end(monitor.traffic, monitor.bucket)
    end = settled if until is None else until - until % monitor.bucket
    if end is None:
        raise InputError(
            f"{monitor.name}: no final bucket is stored yet; use rankmon run, once or backfill, or set --to"
        )
    begin = end - max(WEEK, monitor.bucket) if since is None else since - since % monitor.bucket
    if begin >= end:
        raise InputError(f"{utc(begin)} to {utc(end)} is not a period of whole buckets; move --from or --to")
    return begin, end


def _bad(monitor: Monitor, span: tuple[int, int], store: Store) -> dict[int, str]:
    """Step end -> verdict, for steps with bad data; empty if the data always were bad."""
    if monitor.drift is None:
        return {}
    step = step_of(monitor.bucket)
    found = {one.end: str(one.kind) for one in store.verdicts.drawn(monitor.name, *span) if one.kind in MASKED}
    is_all = len(found) * step >= span[1] - span[0]
    return {} if is_all else found


def _stored(
    monitor: Monitor, measure: Measure, span: tuple[int, int], bad: Mapping[int, str], store: Store
) -> list[dict[str, Any]]:
    dimension = monitor.version_slice
    if dimension is None:
        return []
    begin = span[0] - REACH
    fell = d.Subject(measure, None, OVERALL, span, ())
    spoilt = [*unsound(monitor, begin, span[0], store), *bad]
    history, traffic = (
        store.history(series, begin, span[1]).without(spoilt, step_of(monitor.bucket))
        for series in (monitor.definition(measure), monitor.traffic)
    )
    found = d.versions(d.StoredPartials(fell, history, traffic, monitor.bucket), dimension.dimension)
    return [{n: v for n, v in one.items() if n not in ("before", "requests_before")} for one in found]


def _read(
    config: Config,
    monitor: Monitor,
    measure: Measure,
    by: Slice | None,
    span: tuple[int, int],
    bad: Mapping[int, str],
    store: Store,
) -> tuple[RequestSample, int | None]:
    """(requests of the period, how many are stored). Raises SourceError, or InputError if there are none."""
    traffic = store.history(monitor.traffic, *span, overall_only=True)
    known = stock(traffic, OVERALL)
    requests = None if known is None else known.every
    query = None if monitor.rankings.query is None else QUERY
    slices = set() if by is None else store.known_slices(monitor.name).get(by.dimension, set())
    step = step_of(monitor.bucket)
    without = frozenset(end - step for end in bad)
    wanted = SampleQuery(measure, query, VERSION, by, frozenset(slices), left_out=without, step=step)
    with source_of(config, monitor) as database:
        pull = Pull(detailed(monitor), database)
        sample = finished(read_sample(pull, wanted, span, monitor.bucket, known, MOST))
    if not len(sample):
        raise InputError(_nothing(monitor, span, requests))
    return sample, requests


def _nothing(monitor: Monitor, span: tuple[int, int], requests: int | None) -> str:
    where = f"source {monitor.source} has no request with a value from {utc(span[0])} to {utc(span[1])}"
    if requests:
        return f"{where}, but {requests:,} are stored: the source was purged; use a later --from"
    return f"{where}; use another --from and --to"


def _newer_against_older(monitor: Monitor, sample: RequestSample, store: Store) -> Sequence[str]:
    """The two busiest versions, first stored first; only one if only one served."""
    busiest = names(sample)[:2]
    return in_order(sample, busiest, monitor.bucket, first_served(monitor, busiest, store))


def _compare(
    monitor: Monitor, sample: RequestSample, two: Sequence[str], by: Slice | None, of: int | None
) -> dict[str, Any] | None:
    known = names(sample)
    for version in two:
        if version not in known:
            raise InputError(f"no request from version {version!r} in this period; known are {', '.join(known[:20])}")
    if len(two) == 1:
        return None
    if two[0] == two[1]:
        raise InputError(f"{two[0]!r} is only one version; name two")
    found = compare(sample, two[0], two[1], monitor.bucket, None if by is None else by.dimension)
    # In a sample, the first and last request are not those of a version.
    is_whole = len(sample) < MOST and (of is None or of <= MOST)
    return (found if is_whole else found.served({}, monitor.bucket)).plain()


def _slices(monitor: Monitor, sample: RequestSample, two: Sequence[str]) -> list[dict[str, Any]]:
    found = by_place(sample, two[0], two[1], monitor.bucket)
    for one in found:  # serving times are stored for all traffic only
        for which in ("first", "second"):
            one[which] = {n: v for n, v in one[which].items() if n not in ("since", "until", "read", "empty")}
    return found


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{document['monitor']}, {document['measure']}, {utc(document['since'])} to {utc(document['until'])}: "
        f"{document['requests']:,} requests compared"
    )
    of = document["stored_requests"]
    if of is not None and document["requests"] >= MOST:
        yield f"of {of:,}: an equal share of every hour, sampled by a hash of the id"
    if kinds := document["left_out"]["kinds"]:
        told = ", ".join(title_of(kind) for kind in kinds)
        yield f"without {lasting(document['left_out']['seconds'])} of bad data ({told})"
    if document["versions"]:
        yield "\nAs stored:"
        yield from table_of(_STORED, document["versions"], left=(0, 4))
    if document["comparison"] is None:
        yield "\nOne version served in this period; there is nothing to compare."
    yield from compared(document["comparison"])
    if document["assumed"]:
        yield f"It {document['assumed']}."
    if document["slices"]:
        yield from _slice_lines(document)


def _slice_lines(document: Mapping[str, Any]) -> Iterator[str]:
    one, other = (shown(document["comparison"][which]["version"]) for which in ("first", "second"))
    yield f"\n{other} against {one} by {shown(document['by'])}, largest fall first:"
    columns: Columns = {
        "slice": lambda s: shown(s["slice"]),
        f"requests of {one}": lambda s: count(s["first"]["requests"]),
        f"value of {one}": lambda s: number(s["first"]["value"]),
        f"requests of {other}": lambda s: count(s["second"]["requests"]),
        f"value of {other}": lambda s: number(s["second"]["value"]),
        "difference": lambda s: signed(s["difference"]),
        "95 % interval": lambda s: "–" if s["lower"] is None else f"{signed(s['lower'])} to {signed(s['upper'])}",
        "by": lambda s: "queries" if s["by"] == "query" else "requests",
    }
    yield from table_of(columns, document["slices"], left=(0, 7))


_BASIS = {"long_run": "days of it", "history": "windows before", "sampling": "requests alone"}

_STORED: Columns = {
    **OF_VERSIONS,
    "interval from": lambda v: _BASIS.get(v["interval"], "–"),
    "labelled": lambda v: percent(v["coverage"]),
    "nothing relevant": lambda v: percent(v["empty"]),
}
