"""Judgments, and how they belong to the rows of the rankings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from monitor.errors import InputError
from monitor.measures.kernels import Floats, Ints, JudgedItems
from monitor.scoring.columns import Index, Texts, as_grades, as_text, refuse_twice
from monitor.scoring.formats import read_sheet
from monitor.scoring.names import Names
from monitor.scoring.rows import Rows, counted
from monitor.scoring.sheets import first_true
from monitor.scoring.trec import QRELS


@dataclass(frozen=True)
class Judgments:
    """m judgments: `grade` of `item` for `key`, the name of a query or a request (`role`); a grade of nan is none."""

    path: Path
    role: str
    key: Texts
    item: Texts
    grade: Floats


def read_judgments(path: Path, names: Names) -> Judgments:
    """The judgments of a file, TREC qrels or any of the others; its columns have the names or `ALIASES`.

    Raises:
        InputError: the file is unreadable or dirty, or judges an item twice.
    """
    sheet = read_sheet(path, QRELS, names)
    role = "query" if sheet.find("request", names, anyhow=True) is None else "request"
    key = as_text(sheet, sheet.require(role, names, anyhow=True))
    item = as_text(sheet, sheet.require("item", names, anyhow=True))
    refuse_twice(sheet, key, item, "item", role)
    return Judgments(path, role, key, item, as_grades(sheet, sheet.require("grade", names, anyhow=True)))


@dataclass(frozen=True)
class Match:
    """Judgments beside the n rows of `size` requests.

    Attributes:
        key: (size,) code of each request's key in the judgments; -1 where it is not judged at all.
        grade: (n,) of each row's item; nan where there is none.
    """

    judgments: Judgments
    key: Ints
    grade: Floats

    @property
    def absent(self) -> Index:
        """Names of the keys that no request has, in the order of the judgments."""
        names = self.judgments.key.names
        return names[np.setdiff1d(np.arange(len(names)), self.key)]


def match_judgments(rows: Rows, judgments: Judgments, names: Names) -> Match:
    """The judgments of each row's item, by its query or request.

    Raises:
        InputError: a request has two queries, or none is judged.
    """
    item, items = cast(Texts, rows.item), judgments.item.names
    key = _keys(rows, judgments, names)
    of_row, of_item = key[rows.request.code], items.get_indexer(item.names)[item.code]
    judged = pd.Index(judgments.key.code * len(items) + judgments.item.code)
    at = np.where((of_row < 0) | (of_item < 0), -1, judged.get_indexer(pd.Index(of_row * len(items) + of_item)))
    return Match(judgments, key, np.where(at < 0, np.nan, judgments.grade[at]))


def _keys(rows: Rows, judgments: Judgments, names: Names) -> Ints:
    """(size,) code in the judgments of each request's query, if both have a column for it, or else of its name."""
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
    """Every request's judgments as counts of each grade; those of `absent` keys follow."""
    judgments, kept = match.judgments, ~np.isnan(match.judgments.grade)
    levels, level = np.unique(judgments.grade[kept], return_inverse=True)
    group, count = np.unique(judgments.key.code[kept] * len(levels) + level, return_counts=True)
    key = np.r_[match.key, judgments.key.names.get_indexer(absent)]
    low, high = (np.searchsorted(group, (key + step) * len(levels)) for step in (0, 1))
    request = np.repeat(np.arange(len(key)), high - low)
    at = counted(high - low) + low[request]
    return JudgedItems(request, levels[group[at] % max(len(levels), 1)], count[at])


def refuse_unjudged(rows: Rows, grade: Floats, ideal: Match) -> None:
    """An ideal that lacks a listed item's grade would let NDCG pass 1."""
    row = first_true((grade > 0) & (grade != ideal.grade))
    if row is None:
        return
    item, request = cast(Texts, rows.item), rows.request
    theirs = "none" if np.isnan(ideal.grade[row]) else f"grade {ideal.grade[row]:g}"
    who = f"item {item.names[item.code[row]]!r} of request {request.names[request.code[row]]!r}"
    remedy = "the ideal must hold every item that is graded, with the same grade"
    why = f"{who} has grade {grade[row]:g} here and {theirs} in {ideal.judgments.path}; {remedy}"
    raise InputError(f"{rows.sheet.at(row)}: {why}")
