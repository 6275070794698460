"""Files of rankings and judgments -> `Rankings` -> values: what `rankmon score` computes. Nothing is printed here.

A TREC run and its qrels are read as trec_eval 9.0 and pytrec_eval read them. The rank column is ignored; items stand
by falling score, compared as 32-bit floats, and ties by falling docno, compared as bytes of UTF-8. (trec_eval 10
compares 64-bit scores: there, scores that differ by less than one part in 10^7 are no ties.) A negative judgment is
no judgment, an unjudged item is not relevant, a query of the run without qrels is left out, and so is one of the
qrels without a ranking, unless `complete` (trec_eval -c) counts it as zero. trec_eval's means are those of
`ideal=global,empty=zero`: its ndcg_cut_10 is `ndcg(ideal=global,empty=zero)@10`.

Dirt is an `InputError` that names file, line and remedy; no row is skipped. NULL is an empty field, and for numbers
also NULL, null or \\N, in text files; null or a missing key elsewhere. A NULL grade is no judgment, and a request
without any grade is no sample.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal, NoReturn, TypeAlias, cast

import numpy as np
import pandas as pd

from monitor.core.buckets import EMPTY, REQUESTS, read_as, sums
from monitor.core.kernels import Bools, Floats, Ints, Judged, Rankings, Scores, gains, score
from monitor.core.measures import Measure
from monitor.errors import InputError

Ties = Literal["trec", "file"]
Series: TypeAlias = "pd.Series[Any]"
Index: TypeAlias = "pd.Index[Any]"

ALIASES: dict[str, tuple[str, ...]] = {
    "request": ("request", "request_id"),
    "query": ("query", "query_id", "qid", "topic"),
    "item": ("item", "item_id", "docno", "docid", "doc_id"),
    "position": ("position", "rank"),
    "score": ("score",),
    "grade": ("grade", "relevance", "rel", "label"),
}
"""What a column is called where no option names it: the first of these that is there."""

SEPARATORS = {".csv": ",", ".tsv": "\t"}
TREC_ENDINGS = ("", ".run", ".trec", ".res", ".qrels", ".qrel", ".txt")
NULLS = ("", "NULL", "null", r"\N")
JSON_ROWS = 10_000  # held as objects at a time


@dataclass(frozen=True, slots=True)
class Names:
    """The columns' names as far as they are given; for the others `ALIASES` are tried."""

    request: str | None = None
    query: str | None = None
    item: str | None = None
    position: str | None = None
    score: str | None = None
    grade: str | None = None

    def of(self, role: str) -> str | None:
        """The name given for a key of `ALIASES`."""
        return cast("str | None", getattr(self, role))


@dataclass(frozen=True)
class Lists:
    """The rankings of a file and what is judged of them: n rows of `size` requests.

    Attributes:
        path: the file of the rankings.
        ids: (size,) names of the requests in the file's order; those that only the qrels have come last.
        request: (n,) request of each row, 0 .. size - 1.
        rank: (n,) position, from 1 on.
        grade: (n,) relevance; nan is unjudged.
        sampled: (size,) whether the request has a label.
        missing: (size,) whether only the qrels have it.
        judged: what `ideal=global` is over; None where there are no judgments.
        at: where a row stands, for messages.
    """

    path: Path
    ids: list[str]
    request: Ints
    rank: Ints
    grade: Floats
    sampled: Bools
    missing: Bools
    judged: Judged | None
    at: Callable[[int], str]


@dataclass(frozen=True)
class Result:
    """One measure of a file.

    Attributes:
        value: aggregated as the measure says; None where there is no data.
        requests: how many have a label.
        empty: how many of them have no defined value.
        values: (requests,) value of each, the empty ones' by the measure's `empty`; nan where that is `skip`.
        is_empty: (requests,) which are counted in `empty`.
    """

    measure: Measure
    value: float | None
    requests: int
    empty: int
    values: Floats
    is_empty: Bools


@dataclass(frozen=True)
class Report:
    """All measures of a file. `requests` names those with a label, in its order; `unlabelled` counts the others."""

    path: Path
    requests: list[str]
    unlabelled: int
    results: list[Result]


def evaluate(lists: Lists, measures: Sequence[Measure]) -> Report:
    """Every measure of the lists.

    Raises:
        InputError: a measure needs judgments that are not there, or does not allow a grade that is.
    """
    rankings = _rankings(lists, {m.k for m in measures if m.spec.depends_on_list_length})
    sampled = np.flatnonzero(lists.sampled)
    results = [_result(lists, rankings, m) for m in measures]
    return Report(lists.path, [lists.ids[i] for i in sampled], len(lists.ids) - len(sampled), results)


def _rankings(lists: Lists, depths: set[int | None]) -> Rankings:
    judged, size = ~np.isnan(lists.grade), len(lists.ids)
    within = {k: lists.request[lists.rank <= (k or np.inf)] for k in depths}
    shown = {k: np.bincount(request, minlength=size) for k, request in within.items()}
    request, rank, grade = lists.request[judged], lists.rank[judged], lists.grade[judged]
    return Rankings(size, request, rank, grade, lists.sampled, shown, lists.judged)


def _result(lists: Lists, rankings: Rankings, measure: Measure) -> Result:
    scores = _scores(lists, rankings, measure)
    partials = sums(scores, lists.sampled, np.zeros(rankings.size, np.int64), 1)[0]
    value = float(read_as(measure, partials))
    is_empty = scores.empty[lists.sampled]
    instead = {"skip": np.nan, "zero": 0.0, "one": 1.0}[measure.empty]
    return Result(
        measure,
        None if np.isnan(value) else value,
        int(partials[REQUESTS]),
        int(partials[EMPTY]),
        np.where(is_empty, instead, scores.value[lists.sampled]),
        is_empty,
    )


def _scores(lists: Lists, rankings: Rankings, measure: Measure) -> Scores:
    if measure.ideal == "global" and lists.judged is None:
        raise InputError(f"{measure} needs all judgments of each query; give them with --qrels or --ideal-from")
    row = None if measure.max_grade is None else _first(lists.grade > measure.max_grade)
    if row is not None:
        why = f"grade {lists.grade[row]:g} is above the max_grade of {measure}"
        raise InputError(f"{lists.at(row)}: {why}; give the highest grade there can be")
    try:
        scores = score(measure, rankings)
        return _with_missing(lists, measure, scores) if lists.missing.any() else scores
    except ValueError as error:
        raise InputError(f"{lists.path}: {error}") from None


def _with_missing(lists: Lists, measure: Measure, scores: Scores) -> Scores:
    """A query without a ranking is worth 0 by every ideal, unless nothing is relevant for it: then it is empty."""
    if lists.judged is None or "zero" not in measure.spec.empties:
        return scores
    grade = lists.judged.grade
    if "gain" in measure.spec.options:
        relevant = gains(measure, grade) > 0
    else:
        relevant = grade > 0 if measure.rel is None else grade >= measure.rel
    findable = np.bincount(lists.judged.request[relevant], minlength=len(lists.ids)) > 0
    empty = scores.empty & ~(lists.missing & findable)
    return Scores(scores.value, empty, scores.numerator, scores.denominator)


def read(
    path: Path,
    names: Names | None = None,
    *,
    qrels: Path | None = None,
    ideal_from: Path | None = None,
    ties: Ties | None = None,
    complete: bool = False,
) -> Lists:
    """The rankings of a file: a TREC run, or one row an item as CSV, TSV, JSON Lines or Parquet.

    Args:
        path: the rankings.
        names: of the columns; the judgments may have the same, or `ALIASES`.
        qrels: judgments, TREC or any of the others, that grades are taken from; and the ideal, without `ideal_from`.
        ideal_from: judgments that only `ideal=global` is taken from.
        ties: order of equal scores: as above, or the file's with 64-bit scores. By default `trec` for a TREC run.
        complete: count the queries of the qrels that have no ranking, too.

    Raises:
        InputError: a file is missing, unreadable or dirty; the message says where and what to do.
    """
    names = names or Names()
    sheet = _read_sheet(path, RUN, names)
    rows = _rows(sheet, names, ties, joined=bool(qrels or ideal_from))
    match = None if qrels is None else _match(rows, _read_judgments(qrels, names), names)
    grade, sampled = _column_grades(rows, names) if match is None else (match.grade, match.key >= 0)
    ideal = match if ideal_from is None else _match(rows, _read_judgments(ideal_from, names), names)
    if ideal is not None and ideal is not match:
        _refuse_unjudged(rows, grade, ideal)
    absent = match.absent if match is not None and complete else pd.Index([], dtype=object)
    judged = None if ideal is None else _judged(ideal, absent)
    ids, missing = [*rows.request.names, *absent], np.repeat([False, True], [len(sampled), len(absent)])
    sampled = np.r_[sampled, np.ones(len(absent), bool)]
    return Lists(path, ids, rows.request.code, rows.rank, grade, sampled, missing, judged, sheet.at)


@dataclass(frozen=True)
class _Texts:
    """n texts as numbers: the text of a row is names[code[row]], and its code is -1 where it is NULL."""

    code: Ints
    names: Index

    @property
    def first(self) -> Ints:
        """Row in which each name comes first."""
        row = np.empty(len(self.names), np.int64)
        row[self.code[::-1]] = np.arange(len(self.code))[::-1]
        return row


@dataclass(frozen=True)
class _Rows:
    """The n rows of the rankings, checked; `rank` (n,) is from 1 on."""

    sheet: _Sheet
    request: _Texts
    rank: Ints
    item: _Texts | None


def _rows(sheet: _Sheet, names: Names, ties: Ties | None, joined: bool) -> _Rows:
    """Items must be there where they are `joined` with judgments or break ties."""
    request = _text(sheet, _request_column(sheet, names))
    role, order = _order_column(sheet, names)
    if ties is not None and role == "position":
        why = f"the order is that of column {order!r}, which has no ties"
        raise InputError(f"{sheet.path}: {why}; leave --ties out, or name a --score")
    by_docno = role == "score" and (ties or ("trec" if sheet.is_trec else "file")) == "trec"
    item = _items(sheet, names, needed=joined or by_docno)
    if item is not None:
        _refuse_twice(sheet, request, item, "item")
    if role == "score":
        rank = _ranks(request.code, _order_scores(sheet, order), item if by_docno else None)
    else:
        rank = _positions(sheet, order)
        _refuse_twice(sheet, request, _Texts(*_factorize(pd.Series(rank))), order)
    return _Rows(sheet, request, rank, item)


def _request_column(sheet: _Sheet, names: Names) -> str:
    return sheet.find("request", names) or sheet.find("query", names) or sheet.require("request", names)


def _order_column(sheet: _Sheet, names: Names) -> tuple[str, str]:
    """(role, column) of what the items of a request are ordered by."""
    if names.position is not None and names.score is not None:
        raise InputError("--position and --score cannot both order the items; give one of them")
    if names.score is None and (name := sheet.find("position", names)):
        return "position", name
    if name := sheet.find("score", names):
        return "score", name
    return "position", sheet.require("position", names, " or --score")


def _items(sheet: _Sheet, names: Names, needed: bool) -> _Texts | None:
    name = sheet.require("item", names) if needed else sheet.find("item", names)
    return None if name is None else _text(sheet, name, needed)


def _ranks(request: Ints, value: Floats, tiebreak: _Texts | None) -> Ints:
    """1, 2 ... in each request by falling value; equal ones by falling `tiebreak` and 32 bits, or as in the file."""
    if tiebreak is None:
        order = np.lexsort((-value, request))
    else:
        with np.errstate(over="ignore"):  # infinity, as C's conversion gives
            value = value.astype(np.float32)
        order = np.lexsort((-_standing(request, value, tiebreak), -value, request))
    counts = np.bincount(request)
    rank = np.empty(len(request), np.int64)
    rank[order] = np.arange(len(request)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    return rank


def _standing(request: Ints, value: Floats, text: _Texts) -> Ints:
    """Alphabetical standing of the texts of tied rows; to sort the others, too, would cost seconds for nothing."""
    tied = pd.DataFrame({"request": request, "value": value}).duplicated(keep=False).to_numpy(bool)
    codes = np.unique(text.code[tied])
    standing = np.zeros(len(text.names), np.int64)
    standing[codes[text.names[codes].argsort()]] = np.arange(len(codes))
    return np.where(tied, standing[text.code], 0)


def _column_grades(rows: _Rows, names: Names) -> tuple[Floats, Bools]:
    """(grades, which requests have any)."""
    if rows.sheet.is_trec:
        raise InputError(f"{rows.sheet.path}: a TREC run holds no grades; give its judgments with --qrels")
    grade = _grades(rows.sheet, rows.sheet.require("grade", names, ", or give judgments with --qrels"))
    return grade, np.bincount(rows.request.code[~np.isnan(grade)], minlength=len(rows.request.names)) > 0


@dataclass(frozen=True)
class _Judgments:
    """m judgments: `grade` of `item` for `key`, the name of a query or a request (`role`); a grade of nan is none."""

    path: Path
    role: str
    key: _Texts
    item: _Texts
    grade: Floats


def _read_judgments(path: Path, names: Names) -> _Judgments:
    sheet = _read_sheet(path, QRELS, names)
    role = "query" if sheet.find("request", names, anyhow=True) is None else "request"
    key = _text(sheet, sheet.require(role, names, anyhow=True))
    item = _text(sheet, sheet.require("item", names, anyhow=True))
    _refuse_twice(sheet, key, item, "item", role)
    return _Judgments(path, role, key, item, _grades(sheet, sheet.require("grade", names, anyhow=True)))


@dataclass(frozen=True)
class _Match:
    """Judgments beside the n rows of `size` requests.

    Attributes:
        key: (size,) code of each request's key in the judgments; -1 where it is not judged at all.
        grade: (n,) of each row's item; nan where there is none.
    """

    judgments: _Judgments
    key: Ints
    grade: Floats

    @property
    def absent(self) -> Index:
        """Names of the keys that no request has, in the order of the judgments."""
        names = self.judgments.key.names
        return names[np.setdiff1d(np.arange(len(names)), self.key)]


def _match(rows: _Rows, judgments: _Judgments, names: Names) -> _Match:
    item, items = cast(_Texts, rows.item), judgments.item.names
    key = _keys(rows, judgments, names)
    of_row, of_item = key[rows.request.code], items.get_indexer(item.names)[item.code]
    judged = pd.Index(judgments.key.code * len(items) + judgments.item.code)
    at = np.where((of_row < 0) | (of_item < 0), -1, judged.get_indexer(pd.Index(of_row * len(items) + of_item)))
    return _Match(judgments, key, np.where(at < 0, np.nan, judgments.grade[at]))


def _keys(rows: _Rows, judgments: _Judgments, names: Names) -> Ints:
    """(size,) code in the judgments of each request's query, if both have a column for it, or else of its name."""
    column = rows.sheet.find("query", names) if judgments.role == "query" else None
    ours = rows.request if column is None else _text(rows.sheet, column)
    of_request = ours.code[rows.request.first]
    row = _first(ours.code != of_request[rows.request.code])
    if row is not None:
        why = f"request {rows.request.names[rows.request.code[row]]!r} has a second {column}"
        raise InputError(f"{rows.sheet.at(row)}: {why}, {ours.names[ours.code[row]]!r}; a request belongs to one")
    theirs = judgments.key.names.get_indexer(ours.names)
    if (theirs < 0).all():
        other = f"{judgments.path}, which has {judgments.key.names[0]!r} where this has {ours.names[0]!r}"
        why = f"no {judgments.role} of it is judged in {other}"
        raise InputError(f"{rows.sheet.path}: {why}; give the judgments that belong to it")
    return theirs[of_request]


def _judged(match: _Match, absent: Index) -> Judged:
    """Every request's judgments as counts of each grade; those of `absent` keys follow."""
    judgments, kept = match.judgments, ~np.isnan(match.judgments.grade)
    levels, level = np.unique(judgments.grade[kept], return_inverse=True)
    group, count = np.unique(judgments.key.code[kept] * len(levels) + level, return_counts=True)
    key = np.r_[match.key, judgments.key.names.get_indexer(absent)]
    low, high = (np.searchsorted(group, (key + step) * len(levels)) for step in (0, 1))
    request = np.repeat(np.arange(len(key)), high - low)
    starts = np.cumsum(high - low) - (high - low)
    at = np.arange(len(request)) - starts[request] + low[request]
    return Judged(request, levels[group[at] % max(len(levels), 1)], count[at])


def _refuse_unjudged(rows: _Rows, grade: Floats, ideal: _Match) -> None:
    """An ideal that lacks a listed item's grade would let NDCG pass 1."""
    row = _first((grade > 0) & (grade != ideal.grade))
    if row is None:
        return
    item, request = cast(_Texts, rows.item), rows.request
    theirs = "none" if np.isnan(ideal.grade[row]) else f"grade {ideal.grade[row]:g}"
    who = f"item {item.names[item.code[row]]!r} of request {request.names[request.code[row]]!r}"
    remedy = "the ideal must hold every item that is graded, with the same grade"
    why = f"{who} has grade {grade[row]:g} here and {theirs} in {ideal.judgments.path}; {remedy}"
    raise InputError(f"{rows.sheet.at(row)}: {why}")


def _refuse_twice(sheet: _Sheet, group: _Texts, value: _Texts, what: str, owner: str = "request") -> None:
    pair = group.code * len(value.names) + value.code
    row = _first(pd.Series(pair).duplicated().to_numpy(bool) & (value.code >= 0))
    if row is None:
        return
    first = cast(int, _first(pair == pair[row]))
    who = f"{owner} {_shown(group.names[group.code[row]])} has {what} {_shown(value.names[value.code[row]])} twice"
    raise InputError(f"{sheet.at(row)}: {who}, first at {sheet.at(first)}; keep one of them")


def _text(sheet: _Sheet, name: str, needed: bool = True) -> _Texts:
    """(n,) a column as text; a NULL is an InputError where it is `needed`."""
    column = sheet.columns[name]
    row = _first(column.null)
    if row is not None and needed:
        raise InputError(f"{sheet.at(row)}: column {name!r} is empty; every row needs it")
    code, names = _factorize(column.values.astype(str) if column.values.dtype == object else column.values)
    return _Texts(np.where(column.null, -1, code), names.astype(str))


def _factorize(values: Series) -> tuple[Ints, Index]:
    code, names = pd.factorize(values)
    return code.astype(np.int64, copy=False), pd.Index(names)


def _numbers(sheet: _Sheet, name: str) -> Floats:
    """(n,) a column as numbers, perhaps infinite; nan where it is NULL, an InputError where it is anything else."""
    column = sheet.columns[name]
    given = np.flatnonzero(~column.null)
    values = column.values.iloc[given]
    number = np.full(len(column.values), np.nan)
    try:
        number[given] = values.to_numpy(dtype=float)
        exact = not np.isnan(number[given]).any()
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        number[given] = [_number(sheet, name, int(row), value) for row, value in zip(given, values, strict=True)]
    return number


def _number(sheet: _Sheet, name: str, row: int, value: object) -> float:
    if isinstance(value, str) and value.strip() in NULLS:
        return np.nan
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = np.nan
    if np.isnan(number):
        sheet.refuse_value(row, name, "is not a number; correct it, or leave it empty where there is none")
    return number


def _order_scores(sheet: _Sheet, name: str) -> Floats:
    number = _numbers(sheet, name)
    row = _first(np.isnan(number))
    if row is not None:
        sheet.refuse_value(row, name, "orders no item; every row needs a number")
    return number


def _positions(sheet: _Sheet, name: str) -> Ints:
    number = _numbers(sheet, name)
    row = _first(~((number >= 1) & (number < 2**53) & (np.floor(number) == number)))
    if row is not None:
        sheet.refuse_value(row, name, "is no position; they are whole numbers from 1 on (for scores there is --score)")
    return number.astype(np.int64)


def _grades(sheet: _Sheet, name: str) -> Floats:
    """(n,) nan is unjudged, and so is a negative judgment of TREC qrels."""
    number = _numbers(sheet, name)
    if sheet.is_trec:
        row = _first(np.isinf(number) | (np.floor(number) != number))
        if row is not None:
            sheet.refuse_value(row, name, "is no whole number; put fractions into a CSV file of query, item, grade")
        return np.where(number < 0, np.nan, number)
    row = _first(np.isinf(number) | (number < 0))
    if row is not None:
        sheet.refuse_value(row, name, "is no grade; they are 0 or more, and empty where an item is unjudged")
    return number


def _first(mask: Bools) -> int | None:
    """Row of the first true value."""
    return int(np.argmax(mask)) if mask.any() else None


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else str(value)


# From here on: files to columns.


@dataclass(frozen=True)
class _Column:
    """(n,) values as the file has them, and which of them are NULL."""

    values: Series
    null: Bools


@dataclass(frozen=True)
class _Sheet:
    """A file of `size` rows: `names` of all its columns, and those that may be of use.

    `lines` gives the number of each row's line anew; None where there are no lines.
    """

    path: Path
    names: list[str]
    size: int
    columns: dict[str, _Column]
    lines: Callable[[], Iterator[int]] | None
    is_trec: bool = False

    def at(self, row: int) -> str:
        """Where a row (from 0) stands: `file:line`, or `file: row`."""
        if self.lines is None:
            return f"{self.path}: row {row + 1}"
        return f"{self.path}:{next(islice(self.lines(), row, None))}"

    def find(self, role: str, names: Names, anyhow: bool = False) -> str | None:
        """The column of a key of `ALIASES`; None where there is none.

        Raises:
            InputError: a name is given and not there; but `anyhow` tries the aliases then.
        """
        given = names.of(role)
        if given is not None and given not in self.columns and not anyhow:
            self.refuse(f"no column {given!r} (--{role})")
        choices = ALIASES[role] if given is None else (given, *ALIASES[role])
        return next((name for name in choices if name in self.columns), None)

    def require(self, role: str, names: Names, remedy: str = "", anyhow: bool = False) -> str:
        """As `find`; but to find nothing is an InputError."""
        name = self.find(role, names, anyhow)
        if name is None:
            self.refuse(f"no column for the {role}", f"; name one with --{role}{remedy}")
        return name

    def refuse(self, why: str, remedy: str = "") -> NoReturn:
        """Raise an InputError that lists the columns there are."""
        raise InputError(f"{self.path}: {why}; it has {', '.join(self.names)}{remedy}")

    def refuse_value(self, row: int, name: str, why: str) -> NoReturn:
        """Raise an InputError about the value of a column in a row."""
        column = self.columns[name]
        value = "(empty)" if column.null[row] else _shown(column.values.iloc[row])
        raise InputError(f"{self.at(row)}: {name} {value} {why}")


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of TREC file: its columns, those that are used, and whether more may follow."""

    title: str
    columns: tuple[str, ...]
    used: tuple[str, ...]
    open_ended: bool


RUN = Layout("a TREC run", ("qid", "Q0", "docno", "rank", "score", "tag"), ("qid", "docno", "score"), True)
QRELS = Layout("TREC qrels", ("qid", "iter", "docno", "rel"), ("qid", "docno", "rel"), False)


def _read_sheet(path: Path, layout: Layout, names: Names) -> _Sheet:
    """The file, by its ending; one with an unknown ending that looks like a TREC file is one."""
    wanted = {name for role in ALIASES for name in (names.of(role), *ALIASES[role]) if name is not None}
    try:
        sheet = _reader(path, layout)(path, wanted)
    except (OSError, EOFError, zlib.error) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise InputError(f"{path}: cannot be read: {why}; check the file and its name") from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path}:{_undecodable(path)}: this line is not UTF-8; convert the file, say with iconv"
        ) from None
    if sheet.size == 0:
        raise InputError(f"{path}: holds no rows; give a file with a row for each item")
    return sheet


def _reader(path: Path, layout: Layout) -> Callable[[Path, set[str]], _Sheet]:
    ending = _ending(path)
    if ending in SEPARATORS:
        return _read_csv
    if ending in (".jsonl", ".ndjson"):
        return _read_json
    if path.suffix.lower() == ".parquet":
        return _read_parquet
    if ending not in TREC_ENDINGS and not _looks_like(layout, path):
        known = ".csv, .tsv, .jsonl or .ndjson (also with .gz), .parquet"
        raise InputError(f"{path}: unknown ending, and not {layout.title}; known are {known}; convert or rename it")
    return lambda path, _: _read_trec(path, layout)


def _ending(path: Path) -> str:
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def _looks_like(layout: Layout, path: Path) -> bool:
    with _open(path) as file:
        lines = (line.split() for line in islice(file, 1000))
        fields = next((f for f in lines if f and not f[0].startswith(b"#")), [])
    return len(fields) == len(layout.columns)


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def _undecodable(path: Path) -> int:
    """Number of the first line that is not UTF-8."""
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1


def _read_trec(path: Path, layout: Layout) -> _Sheet:
    frame = _trec_at_once(path, layout)
    if frame is None:
        frame = pd.DataFrame(_trec_by_line(path, layout), dtype=object)
    present = np.zeros(len(frame), bool)
    columns = {name: _Column(frame[name], present) for name in layout.used}
    lines = lambda: (number for number, _ in _trec_lines(path, layout))  # noqa: E731
    return _Sheet(path, list(layout.used), len(frame), columns, lines, is_trec=True)


def _trec_at_once(path: Path, layout: Layout) -> pd.DataFrame | None:
    """The columns, read in C; None where comments or a wrong number of columns need a closer look."""
    dtypes = dict.fromkeys(layout.columns, "category") | dict.fromkeys(layout.used, "str")
    options: dict[str, Any] = {"header": None, "index_col": False, "na_filter": False, "quoting": csv.QUOTE_NONE}
    # pandas refuses lines that are too long unless columns are picked; a first one that is too long, it warns of.
    picked = [*layout.used, layout.columns[-1]] if layout.open_ended else list(layout.columns)
    options["usecols"] = picked if layout.open_ended else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, sep=r"\s+", names=list(layout.columns), dtype=dtypes, **options)
    except (ValueError, pd.errors.ParserWarning):  # a ValueError is also what is not UTF-8
        return None
    odd = (frame[layout.columns[-1]] == "").any() or frame["qid"].str.startswith("#").any()
    return None if odd else frame


def _trec_by_line(path: Path, layout: Layout) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in layout.used}
    places = [(column, layout.columns.index(name)) for name, column in found.items()]
    for _, fields in _trec_lines(path, layout):
        for column, place in places:
            column.append(fields[place].decode())
    return found


def _trec_lines(path: Path, layout: Layout) -> Iterator[tuple[int, list[bytes]]]:
    """(line number, fields) of every line that is neither blank nor a comment.

    Raises:
        InputError: a line has too few columns, or too many.
    """
    width = len(layout.columns)
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            fields = line.removeprefix(b"\xef\xbb\xbf").split()
            if not fields or fields[0].startswith(b"#"):
                continue
            if len(fields) < width or (len(fields) > width and not layout.open_ended):
                what = f"{layout.title} has {width} ({' '.join(layout.columns)})"
                raise InputError(f"{path}:{number}: {len(fields)} columns where {what}; correct the line")
            yield number, fields


def _read_csv(path: Path, wanted: set[str]) -> _Sheet:
    header = next(_csv_records(path), (1, []))[1]
    used = [name for name in header if name in wanted]
    if len(set(used)) < len(used):
        raise InputError(f"{path}:1: a column is there twice; rename one of them: {', '.join(header)}")
    size = _csv_size(path, len(header)) if header else 0
    lines = lambda: (number for number, _ in islice(_csv_records(path), 1, None))  # noqa: E731
    if not size:
        return _Sheet(path, header, 0, {}, lines)
    options: dict[str, Any] = {"usecols": used, "dtype": "str", "index_col": False, "na_filter": False}
    frame = pd.read_csv(path, sep=SEPARATORS[_ending(path)], encoding="utf-8-sig", **options)
    columns = {name: _Column(frame[name], (frame[name] == "").to_numpy(bool)) for name in used}
    return _Sheet(path, header, size, columns, lines)


def _csv_size(path: Path, width: int) -> int:
    """Number of records below the header; as `_csv_records` counts them, but in C if there is nothing odd."""
    with _open_csv(path) as file:
        try:
            widths = Counter(map(len, csv.reader(file, **_dialect(path))))
        except csv.Error:
            widths = Counter()
    if list(widths) == [width]:
        return widths[width] - 1
    return sum(1 for _ in _csv_records(path)) - 1


def _open_csv(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(_open(path), encoding="utf-8-sig", newline="")


def _dialect(path: Path) -> dict[str, Any]:
    return {"delimiter": SEPARATORS[_ending(path)], "strict": True}


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, fields) of every record that is not blank, from the header on.

    pandas fills records that are too short and cuts some that are too long, so they are counted here.

    Raises:
        InputError: a record is not as long as the header, or its quotes do not match.
    """
    width, number = 0, 1
    with _open_csv(path) as file:
        reader = csv.reader(file, **_dialect(path))
        try:
            for fields in reader:
                start, number = number, reader.line_num + 1
                if not fields or (len(fields) == 1 and not fields[0].strip()):
                    continue
                width = width or len(fields)
                if len(fields) != width:
                    why = f"{len(fields)} fields where the header has {width}"
                    raise InputError(f"{path}:{start}: {why}; correct the line")
                yield start, fields
        except csv.Error as error:
            raise InputError(f"{path}:{reader.line_num}: {error}; correct the line") from None


def _read_json(path: Path, wanted: set[str]) -> _Sheet:
    names: dict[str, None] = {}
    found: dict[str, list[object]] = {}
    size = 0
    for rows in _json_rows(path):
        names.update(dict.fromkeys(chain.from_iterable(rows)))
        for name in names.keys() & wanted:
            found.setdefault(name, [None] * size).extend([row.get(name) for row in rows])
        size += len(rows)
    columns = {
        name: _Column(pd.Series(values, dtype=object), np.array([value is None for value in values]))
        for name, values in found.items()
    }
    return _Sheet(path, list(names), size, columns, lambda: (number for number, _ in _json_lines(path)))


def _json_rows(path: Path) -> Iterator[list[dict[str, object]]]:
    """The objects, some at a time: parsed together, which takes half the time, or line by line from an odd one on."""
    done = 0
    with _open(path) as file:
        while lines := list(islice(file, JSON_ROWS)):
            rows = _json_at_once(lines)
            if rows is None:
                break
            yield rows
            done += len(rows)
        else:
            return
    rest = (row for _, row in islice(_json_lines(path), done, None))
    while some := list(islice(rest, JSON_ROWS)):
        yield some


def _json_at_once(lines: list[bytes]) -> list[dict[str, object]] | None:
    """One object a line; None where that is not so."""
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return None
    return rows if len(rows) == len(lines) and set(map(type, rows)) == {dict} else None


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """(line number, object) of every line that is not blank.

    Raises:
        InputError: a line is no JSON object.
    """
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf").decode().strip()
            if not text:
                continue
            try:
                row = json.loads(text)
            except ValueError as error:
                raise InputError(f"{path}:{number}: no JSON: {error}; each line is one object") from None
            if not isinstance(row, dict):
                raise InputError(f"{path}:{number}: {text[:40]} is no JSON object; each line is one object")
            yield number, row


def _read_parquet(path: Path, wanted: set[str]) -> _Sheet:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow; pip install rankmon[parquet]") from None
    try:
        file = parquet.ParquetFile(path)
        names = list(file.schema_arrow.names)
        table = file.read(columns=[name for name in names if name in wanted])
    except pa.ArrowException as error:
        raise InputError(f"{path}: cannot be read: {error}; check the file and its name") from None
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = pd.Series(column.to_pandas())
        columns[name] = _Column(values, column.is_null().to_numpy())
    return _Sheet(path, names, file.metadata.num_rows, columns, None)
