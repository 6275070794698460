"""The rows of the rankings: who is where in which list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from monitor.errors import InputError
from monitor.measures.kernels import Floats, Ints
from monitor.scoring.columns import Texts, as_positions, as_scores, as_text, refuse_twice
from monitor.scoring.names import Names
from monitor.scoring.sheets import Sheet

Ties = Literal["trec", "file"]


@dataclass(frozen=True)
class Rows:
    """The n rows of the rankings, checked; `rank` (n,) is from 1 on."""

    sheet: Sheet
    request: Texts
    rank: Ints
    item: Texts | None


def read_rows(sheet: Sheet, names: Names, ties: Ties | None, joined: bool) -> Rows:
    """The rows in order; items must be there where they are `joined` with judgments or break ties.

    Raises:
        InputError: a column is missing or dirty, or a request has an item or a position twice.
    """
    request = as_text(sheet, _request_column(sheet, names))
    role, order = _order_column(sheet, names)
    if ties is not None and role == "position":
        why = f"the order is that of column {order!r}, which has no ties"
        raise InputError(f"{sheet.path}: {why}; leave --ties out, or name a --score")
    by_docno = role == "score" and (ties or ("trec" if sheet.is_trec else "file")) == "trec"
    item = _items(sheet, names, needed=joined or by_docno)
    if item is not None:
        refuse_twice(sheet, request, item, "item")
    if role == "score":
        rank = _ranks(request.code, as_scores(sheet, order), item if by_docno else None)
    else:
        rank = as_positions(sheet, order, names.base)
        refuse_twice(sheet, request, Texts.of(pd.Series(rank)), order)
    return Rows(sheet, request, rank, item)


def _request_column(sheet: Sheet, names: Names) -> str:
    return sheet.find("request", names) or sheet.find("query", names) or sheet.require("request", names)


def _order_column(sheet: Sheet, names: Names) -> tuple[str, str]:
    """(role, column) of what the items of a request are ordered by."""
    if names.position is not None and names.score is not None:
        raise InputError("--position and --score cannot both order the items; give one of them")
    if names.score is None and (name := sheet.find("position", names)):
        return "position", name
    if name := sheet.find("score", names):
        return "score", name
    return "position", sheet.require("position", names, " or --score")


def _items(sheet: Sheet, names: Names, needed: bool) -> Texts | None:
    name = sheet.require("item", names) if needed else sheet.find("item", names)
    return None if name is None else as_text(sheet, name, needed)


def _ranks(request: Ints, value: Floats, tiebreak: Texts | None) -> Ints:
    """1, 2 ... in each request by falling value; equal ones by falling `tiebreak` and 32 bits, or as in the file."""
    if tiebreak is None:
        order = np.lexsort((-value, request))
    else:
        with np.errstate(over="ignore"):  # infinity, as C's conversion gives
            value = value.astype(np.float32)
        order = np.lexsort((-_standing(request, value, tiebreak), -value, request))
    rank = np.empty(len(request), np.int64)
    rank[order] = counted(np.bincount(request)) + 1
    return rank


def counted(sizes: Ints) -> Ints:
    """0, 1 ... anew in each of the groups, which follow each other: 0, 1, 0, 1, 2 for sizes of 2, 0 and 3."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _standing(request: Ints, value: Floats, text: Texts) -> Ints:
    """Alphabetical standing of the texts of tied rows; to sort the others, too, would cost seconds for nothing."""
    tied = pd.DataFrame({"request": request, "value": value}).duplicated(keep=False).to_numpy(bool)
    codes = np.unique(text.code[tied])
    standing = np.zeros(len(text.names), np.int64)
    standing[codes[text.names[codes].argsort()]] = np.arange(len(codes))
    return np.where(tied, standing[text.code], 0)
