"""Rankings and their judgments, from files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import pandas as pd

from monitor.arrays import Bools, Floats, Ints
from monitor.errors import InputError
from monitor.measures.kernels import JudgedItems
from monitor.scoring.readers import QRELS, RUN, read_sheet
from monitor.scoring.sheets import Names, Series, Sheet, first_true, shown

Index: TypeAlias = "pd.Index[Any]"

NULLS = ("", "NULL", "null", r"\N")


@dataclass(frozen=True)
class Texts:
    """n texts as numbers: the text of a row is names[code[row]]; code -1 is NULL."""

    code: Ints
    names: Index

    @classmethod
    def of(cls, values: Series) -> Texts:
        """The distinct values, numbered in order of appearance."""
        code, names = pd.factorize(values)
        return cls(code.astype(np.int64, copy=False), pd.Index(names))

    @property
    def first(self) -> Ints:
        """First row of each name."""
        row = np.empty(len(self.names), np.int64)
        row[self.code[::-1]] = np.arange(len(self.code))[::-1]
        return row


def as_text(sheet: Sheet, name: str, needed: bool = True) -> Texts:
    """(n,) a column as text; a NULL is an InputError if `needed`."""
    column = sheet.columns[name]
    row = first_true(column.null)
    if row is not None and needed:
        raise InputError(f"{sheet.at(row)}: column {name!r} is empty; every row needs it")
    found = Texts.of(column.values.astype(str) if column.values.dtype == object else column.values)
    return Texts(np.where(column.null, -1, found.code), found.names.astype(str))


def refuse_twice(sheet: Sheet, group: Texts, value: Texts, what: str, owner: str = "request") -> None:
    """Raises InputError for the first row that repeats a `value` of its `group`; NULL repeats nothing."""
    pair = group.code * len(value.names) + value.code
    row = first_true(pd.Series(pair).duplicated().to_numpy(bool) & (value.code >= 0))
    if row is None:
        return
    first = cast(int, first_true(pair == pair[row]))
    who = f"{owner} {shown(group.names[group.code[row]])} has {what} {shown(value.names[value.code[row]])} twice"
    raise InputError(f"{sheet.at(row)}: {who}, first at {sheet.at(first)}; keep one of them")


def as_grades(sheet: Sheet, name: str) -> Floats:
    """(n,) grades; nan is unjudged, as is a negative judgment in TREC qrels."""
    number = _numbers(sheet, name, "correct it" if sheet.is_trec else "correct it, or leave it empty if there is none")
    if sheet.is_trec:
        fraction = np.isinf(number) | (np.floor(number) != number)
        sheet.refuse_where(fraction, name, "is not a whole number; put fractions into a CSV file of query, item, grade")
        return np.where(number < 0, np.nan, number)
    wrong = np.isinf(number) | (number < 0)
    sheet.refuse_where(wrong, name, "is not a grade; they are 0 or more, and empty if an item is unjudged")
    return number


def as_positions(sheet: Sheet, name: str, base: int = 1) -> Ints:
    """(n,) whole numbers from 1 on, converted from ones from `base` on; anything else is an InputError."""
    number = _numbers(sheet, name)
    wrong = ~((number >= base) & (number < 2**53) & (np.floor(number) == number))
    other = "--base 0 if they start at 0" if base and (number == 0).any() else "for scores there is --score"
    sheet.refuse_where(wrong, name, f"is not a position; they are whole numbers from {base} on ({other})")
    return number.astype(np.int64) - base + 1


def as_scores(sheet: Sheet, name: str) -> Floats:
    """(n,) numbers, possibly infinite; a NULL is an InputError."""
    number = _numbers(sheet, name)
    sheet.refuse_where(np.isnan(number), name, "cannot order items; every row needs a number")
    return number


def _numbers(sheet: Sheet, name: str, remedy: str = "correct it") -> Floats:
    """(n,) a column as numbers, possibly infinite; nan is NULL, anything else is an InputError."""
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
        number[given] = [
            _number(sheet, name, int(row), value, remedy) for row, value in zip(given, values, strict=True)
        ]
    return number


def _number(sheet: Sheet, name: str, row: int, value: object, remedy: str) -> float:
    if isinstance(value, str) and value.strip() in NULLS:
        return np.nan
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = np.nan
    if np.isnan(number):
        sheet.refuse_value(row, name, f"is not a number; {remedy}")
    return number


Ties = Literal["trec", "file"]


@dataclass(frozen=True)
class RankedRows:
    """The n checked rows of the rankings; `rank` (n,) is from 1 on."""

    sheet: Sheet
    request: Texts
    rank: Ints
    item: Texts | None


def read_rows(sheet: Sheet, names: Names, ties: Ties | None, joined: bool) -> RankedRows:
    """The rows in order; items are required if they are `joined` with judgments or break ties."""
    column = sheet.find("request", names) or sheet.find("query", names) or sheet.require("request", names)
    request = as_text(sheet, column)
    role, order = _order_column(sheet, names)
    if ties is not None and role == "position":
        why = f"the order comes from column {order!r}, which has no ties"
        raise InputError(f"{sheet.path}: {why}; remove --ties, or use --score")
    by_docno = role == "score" and (ties or ("trec" if sheet.is_trec else "file")) == "trec"
    item = _items(sheet, names, needed=joined or by_docno)
    if item is not None:
        refuse_twice(sheet, request, item, "item")
    if role == "score":
        rank = _ranks(request.code, as_scores(sheet, order), item if by_docno else None)
    else:
        rank = as_positions(sheet, order, names.base)
        refuse_twice(sheet, request, Texts.of(pd.Series(rank)), order)
    return RankedRows(sheet, request, rank, item)


def _order_column(sheet: Sheet, names: Names) -> tuple[str, str]:
    """(role, column) that orders the items of a request."""
    if names.position is not None and names.score is not None:
        raise InputError("--position and --score cannot both order the items; use one of them")
    if names.score is None and (name := sheet.find("position", names)):
        return "position", name
    if name := sheet.find("score", names):
        return "score", name
    return "position", sheet.require("position", names, " or --score")


def _items(sheet: Sheet, names: Names, needed: bool) -> Texts | None:
    name = sheet.require("item", names) if needed else sheet.find("item", names)
    return None if name is None else as_text(sheet, name, needed)


def _ranks(request: Ints, value: Floats, tiebreak: Texts | None) -> Ints:
    """1, 2 ... in each request by falling value; ties by falling `tiebreak` and 32 bits, or as in the file."""
    if tiebreak is None:
        order = np.lexsort((-value, request))
    else:
        with np.errstate(over="ignore"):  # infinity, as in C's conversion
            value = value.astype(np.float32)
        order = np.lexsort((-_standing(request, value, tiebreak), -value, request))
    rank = np.empty(len(request), np.int64)
    rank[order] = counted(np.bincount(request)) + 1
    return rank


def counted(sizes: Ints) -> Ints:
    """0, 1 ... in each of the consecutive groups: 0, 1, 0, 1, 2 for sizes of 2, 0 and 3."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _standing(request: Ints, value: Floats, text: Texts) -> Ints:
    """Alphabetical rank of the texts of tied rows; sorting the others too would cost seconds."""
    tied = pd.DataFrame({"request": request, "value": value}).duplicated(keep=False).to_numpy(bool)
    codes = np.unique(text.code[tied])
    standing = np.zeros(len(text.names), np.int64)
    standing[codes[text.names[codes].argsort()]] = np.arange(len(codes))
    return np.where(tied, standing[text.code], 0)


@dataclass(frozen=True)
class QueryJudgments:
    """m judgments: `grade` of `item` for `key`, the name of a query or a request (`role`); nan is not a grade."""

    path: Path
    role: str
    key: Texts
    item: Texts
    grade: Floats


def read_judgments(path: Path, names: Names) -> QueryJudgments:
    """The judgments of a file, TREC qrels or another format; its columns have the given names or `ALIASES`."""
    sheet = read_sheet(path, QRELS, names)
    role = "query" if sheet.find("request", names, anyhow=True) is None else "request"
    key = as_text(sheet, sheet.require(role, names, anyhow=True))
    item = as_text(sheet, sheet.require("item", names, anyhow=True))
    refuse_twice(sheet, key, item, "item", role)
    return QueryJudgments(path, role, key, item, as_grades(sheet, sheet.require("grade", names, anyhow=True)))


@dataclass(frozen=True)
class Match:
    """Judgments matched to n rows of `size` requests: (size,) code of each one's key, -1 if unjudged; (n,) grades."""

    judgments: QueryJudgments
    key: Ints
    grade: Floats

    @property
    def absent(self) -> Index:
        """Names of the keys without a request, in the order of the judgments."""
        names = self.judgments.key.names
        return names[np.setdiff1d(np.arange(len(names)), self.key)]


def match_judgments(rows: RankedRows, judgments: QueryJudgments, names: Names) -> Match:
    """The judgments of each row's item, by its query or request."""
    item, items = cast(Texts, rows.item), judgments.item.names
    key = _keys(rows, judgments, names)
    of_row, of_item = key[rows.request.code], items.get_indexer(item.names)[item.code]
    judged = pd.Index(judgments.key.code * len(items) + judgments.item.code)
    at = np.where((of_row < 0) | (of_item < 0), -1, judged.get_indexer(pd.Index(of_row * len(items) + of_item)))
    return Match(judgments, key, np.where(at < 0, np.nan, judgments.grade[at]))


def _keys(rows: RankedRows, judgments: QueryJudgments, names: Names) -> Ints:
    """(size,) code in the judgments of each request's query, if both have that column, else of its name."""
    column = rows.sheet.find("query", names) if judgments.role == "query" else None
    ours = rows.request if column is None else as_text(rows.sheet, column)
    of_request = ours.code[rows.request.first]
    row = first_true(ours.code != of_request[rows.request.code])
    if row is not None:
        why = f"request {rows.request.names[rows.request.code[row]]!r} has a second {column}"
        raise InputError(f"{rows.sheet.at(row)}: {why}, {ours.names[ours.code[row]]!r}; a request belongs to one")
    theirs = judgments.key.names.get_indexer(ours.names)
    if (theirs < 0).all():
        other = f"{judgments.path}, which has {judgments.key.names[0]!r} where this has {ours.names[0]!r}"
        why = f"no {judgments.role} of it is judged in {other}"
        raise InputError(f"{rows.sheet.path}: {why}; give the judgments that belong to it")
    return theirs[of_request]


def judged_levels(match: Match, absent: Index) -> JudgedItems:
    """Every request's judgments as counts per grade, then those of `absent` keys."""
    judgments, kept = match.judgments, ~np.isnan(match.judgments.grade)
    levels, level = np.unique(judgments.grade[kept], return_inverse=True)
    group, count = np.unique(judgments.key.code[kept] * len(levels) + level, return_counts=True)
    key = np.r_[match.key, judgments.key.names.get_indexer(absent)]
    low, high = (np.searchsorted(group, (key + step) * len(levels)) for step in (0, 1))
    request = np.repeat(np.arange(len(key)), high - low)
    at = counted(high - low) + low[request]
    return JudgedItems(request, levels[group[at] % max(len(levels), 1)], count[at])


def refuse_unjudged(rows: RankedRows, grade: Floats, ideal: Match) -> None:
    """Raises InputError if an ideal lacks a listed item's grade: NDCG could pass 1."""
    row = first_true((grade > 0) & (grade != ideal.grade))
    if row is None:
        return
    item, request = cast(Texts, rows.item), rows.request
    theirs = "none" if np.isnan(ideal.grade[row]) else f"grade {ideal.grade[row]:g}"
    who = f"item {item.names[item.code[row]]!r} of request {request.names[request.code[row]]!r}"
    remedy = "the ideal must include every graded item, with the same grade"
    why = f"{who} has grade {grade[row]:g} here and {theirs} in {ideal.judgments.path}; {remedy}"
    raise InputError(f"{rows.sheet.at(row)}: {why}")


@dataclass(frozen=True)
class Lists:
    """The rankings of a file and their judgments: n rows of `size` requests."""

    path: Path
    ids: list[str]  # (size,) names in the file's order; those only in the qrels come last
    request: Ints  # (n,) request of each row, from 0 on
    rank: Ints  # (n,) from 1 on
    grade: Floats  # (n,) nan is unjudged
    sampled: Bools  # (size,) whether the request has a label
    missing: Bools  # (size,) whether it is only in the qrels
    judged: JudgedItems | None  # items of `ideal=global`
    unranked: int  # judged queries without a ranking, left out
    at: Callable[[int], str]  # location of a row, for messages


def read(
    path: Path,
    names: Names | None = None,
    *,
    qrels: Path | None = None,
    ideal_from: Path | None = None,
    ties: Ties | None = None,
    complete: bool = False,
) -> Lists:
    """The rankings of a file: a TREC run, or one row per item as CSV, TSV, JSON Lines or Parquet.

    `ties` orders equal scores as `monitor.scoring` says, or as the file does. `complete` also counts queries of the
    qrels without a ranking.
    """
    names = names or Names()
    sheet = read_sheet(path, RUN, names)
    rows = read_rows(sheet, names, ties, joined=bool(qrels or ideal_from))
    match = None if qrels is None else match_judgments(rows, read_judgments(qrels, names), names)
    grade, sampled = _column_grades(rows, names) if match is None else (match.grade, match.key >= 0)
    ideal = match if ideal_from is None else match_judgments(rows, read_judgments(ideal_from, names), names)
    if ideal is not None and ideal is not match:
        refuse_unjudged(rows, grade, ideal)
    unranked = pd.Index([], dtype=object) if match is None else match.absent
    absent = unranked if complete else unranked[:0]
    judged = None if ideal is None else judged_levels(ideal, absent)
    ids, missing = [*rows.request.names, *absent], np.repeat([False, True], [len(sampled), len(absent)])
    sampled = np.r_[sampled, np.ones(len(absent), bool)]
    left_out = len(unranked) - len(absent)
    return Lists(path, ids, rows.request.code, rows.rank, grade, sampled, missing, judged, left_out, sheet.at)


def _column_grades(rows: RankedRows, names: Names) -> tuple[Floats, Bools]:
    if rows.sheet.is_trec:
        raise InputError(f"{rows.sheet.path}: a TREC run has no grades; give its judgments with --qrels")
    grade = as_grades(rows.sheet, rows.sheet.require("grade", names, ", or give judgments with --qrels"))
    return grade, np.bincount(rows.request.code[~np.isnan(grade)], minlength=len(rows.request.names)) > 0
