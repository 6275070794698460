"""Request summaries from a source: time served, row counts, slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from monitor.arrays import Bools, Floats, Ints, floats
from monitor.errors import SourceError
from monitor.measures.measure import Depth
from monitor.measures.relevance import Refusals
from monitor.series.readings import MICROS
from monitor.source.engine import Reader, Undecodable
from monitor.source.queries import Queries, refused_rows
from monitor.source.recurring import Recurring
from monitor.source.times import to_micros
from monitor.types import MIXED, Judgments, Monitor


@dataclass(frozen=True)
class Requests:
    """One entry per request, R of them.

    Attributes:
        served: (R,) microseconds, time of the earliest row.
        unreadable, doubtful: (R,) whether that time is; see `Instants`.
        counts: name in `Queries.request_counts` or `Queries.unshown` -> (R,).
        shown: cut-off -> (R,) rows shown down to it.
        listed: depth -> (R,) distinct items shown, or the sum of a table over the ranks shown.
        keys: values of the columns that tell requests apart, (R,) each: the query if the recipe uses it, then the
            slices.
        mixed: per key, (R,) whether a request's rows differ in it.
        strays: reason -> microseconds of refused rows without a request, or of one left out.
        left_out: ids of requests seen but excluded.
        recurring: ids whose rows may not all have been read, because they end too late.
    """

    ids: Sequence[Any]
    served: Ints
    unreadable: Bools
    doubtful: Bools
    counts: Mapping[str, Ints]
    shown: Mapping[int | None, Ints]
    keys: Sequence[Sequence[Any]]
    mixed: Sequence[Bools]
    strays: Mapping[str, Ints] = field(default_factory=dict)
    left_out: Sequence[Any] = ()
    recurring: Recurring = field(default_factory=Recurring)
    listed: Mapping[Depth, Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, reader: Reader, queries: Queries, since: int, until: int, most: int) -> Requests:
        """The requests with rows in [since, until) seconds, from results of up to `most` rows.

        Those with texts that are not UTF-8 are left out. Raises TooMany, and SourceError as `Reader.columns`.
        """
        monitor, cutoffs, lengths = queries.monitor, queries.cutoffs, queries.lengths
        ids, first, final, kinds, *rest = reader.columns(queries.requests(since, until), most)
        instants = to_micros(monitor.rankings.time, first)
        micros = instants.micros
        latest = _latest(monitor, first, final, micros)
        counts, keys = _counts(queries, kinds, rest), rest[len(queries.request_counts()) :]
        named = np.fromiter((i is not None for i in ids), bool, len(ids))
        with ids_in(monitor.rankings.request):
            groups = _Groups(ids, named, micros)
        totals = {name: groups.sums(rows) for name, rows in counts.items()}
        agreed = [groups.agreed(c) for c in keys]
        found = cls(
            groups.names,
            micros[groups.earliest],
            instants.unreadable[groups.earliest],
            instants.doubtful[groups.earliest],
            totals,
            {k: totals[f"shown_{i}"] for i, k in enumerate(cutoffs)},
            [values for values, _ in agreed],
            [mixed for _, mixed in agreed],
            {"null_request": _nameless(reader, queries, since, until, most) if not named.all() else micros[:0]},
            listed={k: totals[f"listed_{i}"] for i, k in enumerate(lengths)},
        )
        if lengths and (groups.sums((_whole_numbers(kinds) == 0).astype(np.int64)) > 1).any():
            found = found._with_lists(reader.columns(queries.lists(since, until), most), lengths)
        last = groups.highest(latest)
        if reader.has_undecodable:
            is_broken = groups.highest(_undecodable(keys)) > 0
            micros, rows = found.served[is_broken], found.counts["n_rows"][is_broken]
            found = found._where(~is_broken, {**found.strays, "bad_text": np.repeat(micros, rows)})
            last = last[~is_broken]
        span = monitor.max_request_span * MICROS
        return found._without_long((last - found.served > span) & ~found.doubtful, last)

    @cached_property
    def number(self) -> dict[Any, int]:
        """Id -> index of the request here, -1 for those left out."""
        return dict.fromkeys(self.left_out, -1) | {name: i for i, name in enumerate(self.ids)}

    def _with_lists(self, lists: list[list[Any]], lengths: Sequence[Depth]) -> Requests:
        counts = zip(lengths, lists[1:], strict=True)
        number = {name: i for i, name in enumerate(lists[0])}
        # A missing id has two spellings the database equates; looking up its rows reports that.
        at = np.array([number.get(name, -1) for name in self.ids], np.int64)
        return replace(self, listed={k: np.where(at >= 0, floats(c)[at], self.listed[k]) for k, c in counts})

    def within(self, since: int, until: int) -> Requests:
        """Requests served in [since, until) seconds, and the strays of that time."""
        inside = (self.served >= since * MICROS) & (self.served < until * MICROS)
        strays = {r: m[(m >= since * MICROS) & (m < until * MICROS)] for r, m in self.strays.items()}
        return self._where(inside, strays)

    def _without_long(self, is_long: Bools, last: Ints) -> Requests:
        if not is_long.any():
            return self
        ids = [self.ids[i] for i in np.flatnonzero(is_long).tolist()]
        recurring = Recurring(ids, self.served[is_long], last[is_long], self.counts["n_rows"][is_long])
        return replace(self._where(~is_long, self.strays), recurring=recurring)

    def _where(self, wanted: Bools, strays: Mapping[str, Ints]) -> Requests:
        kept = np.flatnonzero(wanted)
        places = kept.tolist()
        return Requests(
            [self.ids[i] for i in places],
            self.served[kept],
            self.unreadable[kept],
            self.doubtful[kept],
            {name: c[kept] for name, c in self.counts.items()},
            {k: c[kept] for k, c in self.shown.items()},
            [[values[i] for i in places] for values in self.keys],
            [mixed[kept] for mixed in self.mixed],
            strays,
            [*self.left_out, *(self.ids[i] for i in np.flatnonzero(~wanted).tolist())],
            self.recurring,
            {k: c[kept] for k, c in self.listed.items()},
        )

    @property
    def is_empty(self) -> Bools:
        """(R,) whether the request's list is empty: a row says so, and none has an item."""
        found: Bools = (self.counts["nothing_null_item"] > 0) & (self.counts["null_item"] == self.counts["n_rows"])
        return found

    @property
    def is_timed(self) -> Bools:
        """(R,) whether the time served is known."""
        return ~(self.unreadable | self.doubtful)

    def slices(self, monitor: Monitor) -> dict[str, Sequence[Any]]:
        """Dimension -> (R,) values."""
        values = self.keys[len(self.keys) - len(monitor.slices) :]
        return {s.dimension: unsigned(v) for s, v in zip(monitor.slices, values, strict=True)}

    def refusals(self, monitor: Monitor) -> Refusals:
        """Rows that the summary shows to be unusable."""
        refusals, counts = Refusals(len(self.ids)), self.counts
        for reason, rows in refused_rows(counts, lambda name: np.where(self.is_empty, counts[name], 0)).items():
            refusals.add_counts(reason, rows)
        refusals.add_counts("bad_time", np.where(self.unreadable, counts["n_rows"], 0))
        refusals.add_counts("ambiguous_time", np.where(self.doubtful, counts["n_rows"], 0))
        for i, mixed in enumerate(self.mixed):
            is_query = isinstance(monitor.recipe, Judgments) and i == 0
            refusals.add_counts("mixed_query" if is_query else "mixed_slice", mixed.astype(np.int64))
        return refusals


@contextmanager
def ids_in(column: str) -> Iterator[None]:
    """Explains failed lookups of a column's values.

    Raises:
        SourceError: they are arrays or similar.
    """
    try:
        yield
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        raise of_parts(column) from error


def of_parts(column: str) -> SourceError:
    """The error for id columns of arrays or similar."""
    told = f"column {column!r} has arrays or other compound values, not one id per row"
    remedy = "map a list of items as `items` of the rankings, or use the value as text in a `select:`"
    return SourceError(f"{told}; {remedy}", "data", lasting=True)


def is_same(one: Any, other: Any) -> bool:
    """Whether databases treat two values as equal; NaN equals itself."""
    return bool(one == other or (one != one and other != other))


def unsigned(values: Sequence[Any]) -> list[Any]:
    """The values with -0.0 replaced by 0.0: databases equate them and return either for a group."""
    return [v + 0.0 if type(v) is float else v for v in values]


def _latest(monitor: Monitor, first: list[Any], last: list[Any], micros: Ints) -> Ints:
    """Microseconds of the last rows, given those of the first; most are the same."""
    differ = [i for i, (one, other) in enumerate(zip(first, last, strict=True)) if one != other]
    latest = micros.copy()
    latest[differ] = to_micros(monitor.rankings.time, [last[i] for i in differ]).micros
    return latest


def _whole_numbers(column: list[Any]) -> Ints:
    plain = not column or type(column[0]) is int
    return np.array(column if plain else [int(v or 0) for v in column], dtype=np.int64)


def _counts(queries: Queries, kinds: list[Any], columns: Sequence[list[Any]]) -> dict[str, Any]:
    """Name -> count per row of a summary, of `Queries.request_counts`, `unshown` and shown rows by cut-off."""
    kind = _whole_numbers(kinds)
    named = zip(queries.request_counts(), columns, strict=False)
    found = {name: (floats if name.startswith("listed_") else _whole_numbers)(column) for name, column in named}
    rows = found["n_rows"]
    shown = {f"shown_{i}": found.get(f"shown_{i}", rows) for i in range(len(queries.cutoffs))}
    found |= {name: np.where(kind == 0, number, 0) for name, number in shown.items()}
    return found | {name: np.where(kind >> bit & 1, rows, 0) for bit, name in enumerate(queries.unshown())}


def _nameless(reader: Reader, queries: Queries, since: int, until: int, most: int) -> Ints:
    """Microseconds of each row without a request."""
    times, rows = reader.columns(queries.nameless(since, until), most)
    return np.repeat(to_micros(queries.monitor.rankings.time, times).micros, _whole_numbers(rows))


def _undecodable(columns: Sequence[Sequence[Any]]) -> Ints:
    """Per row of a summary, how many values are not UTF-8."""
    return np.array([sum(type(v) is Undecodable for v in line) for line in zip(*columns, strict=True)], np.int64)


class _Groups:
    """Groups rows of a summary by request."""

    def __init__(self, ids: list[Any], named: Bools, micros: Ints) -> None:
        self._rows = np.flatnonzero(named)
        found = ids if len(self._rows) == len(ids) else [ids[i] for i in self._rows.tolist()]
        self.names = list(dict.fromkeys(found))
        if len(self.names) == len(found):
            self._group, self.earliest = np.arange(len(found)), self._rows
            return
        number = dict(zip(self.names, count(), strict=False))
        self._group = np.fromiter(map(number.__getitem__, found), np.int64, len(found))
        order = np.lexsort((micros[self._rows], self._group))
        self.earliest = self._rows[order[np.searchsorted(self._group[order], np.arange(len(number)))]]

    def sums(self, counts: Any) -> Any:
        """Total per request, of the type of the counts."""
        return np.bincount(self._group, counts[self._rows], len(self.names)).astype(counts.dtype)

    def highest(self, values: Ints) -> Ints:
        """Maximum per request."""
        found = values[self.earliest]
        if len(self.names) < len(self._rows):
            np.maximum.at(found, self._group, values[self._rows])
        return found

    def agreed(self, column: list[Any]) -> tuple[list[Any], Bools]:
        """(each request's value, whether its rows differ). NULL agrees with any value."""
        mixed = np.zeros(len(self.names), bool)
        if len(self.names) == len(self._rows):
            return [column[i] for i in self._rows.tolist()], mixed
        values: list[Any] = [None] * len(self.names)
        for i, group in zip(self._rows.tolist(), self._group.tolist(), strict=True):
            value, before = column[i], values[group]
            if value is None or is_same(value, before):
                continue
            mixed[group] |= before is not None
            values[group] = value
        return [MIXED if m else v for v, m in zip(values, mixed.tolist(), strict=True)], mixed
