"""Columns as checked values: texts, grades, positions and scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import pandas as pd

from monitor.errors import InputError
from monitor.measures.kernels import Floats, Ints
from monitor.scoring.sheets import Series, Sheet, first_true, shown

Index: TypeAlias = "pd.Index[Any]"

NULLS = ("", "NULL", "null", r"\N")


@dataclass(frozen=True)
class Texts:
    """n texts as numbers: the text of a row is names[code[row]], and its code is -1 where it is NULL."""

    code: Ints
    names: Index

    @classmethod
    def of(cls, values: Series) -> Texts:
        """The distinct values, numbered in the order in which they come."""
        code, names = pd.factorize(values)
        return cls(code.astype(np.int64, copy=False), pd.Index(names))

    @property
    def first(self) -> Ints:
        """Row in which each name comes first."""
        row = np.empty(len(self.names), np.int64)
        row[self.code[::-1]] = np.arange(len(self.code))[::-1]
        return row


def as_text(sheet: Sheet, name: str, needed: bool = True) -> Texts:
    """(n,) a column as text; a NULL is an InputError where it is `needed`."""
    column = sheet.columns[name]
    row = first_true(column.null)
    if row is not None and needed:
        raise InputError(f"{sheet.at(row)}: column {name!r} is empty; every row needs it")
    found = Texts.of(column.values.astype(str) if column.values.dtype == object else column.values)
    return Texts(np.where(column.null, -1, found.code), found.names.astype(str))


def refuse_twice(sheet: Sheet, group: Texts, value: Texts, what: str, owner: str = "request") -> None:
    """Raise an InputError about the first row that repeats a `value` of its `group`; NULL repeats nothing."""
    pair = group.code * len(value.names) + value.code
    row = first_true(pd.Series(pair).duplicated().to_numpy(bool) & (value.code >= 0))
    if row is None:
        return
    first = cast(int, first_true(pair == pair[row]))
    who = f"{owner} {shown(group.names[group.code[row]])} has {what} {shown(value.names[value.code[row]])} twice"
    raise InputError(f"{sheet.at(row)}: {who}, first at {sheet.at(first)}; keep one of them")


def as_grades(sheet: Sheet, name: str) -> Floats:
    """(n,) nan is unjudged, and so is a negative judgment of TREC qrels."""
    number = _numbers(
        sheet, name, "correct it" if sheet.is_trec else "correct it, or leave it empty where there is none"
    )
    if sheet.is_trec:
        fraction = np.isinf(number) | (np.floor(number) != number)
        sheet.refuse_where(fraction, name, "is no whole number; put fractions into a CSV file of query, item, grade")
        return np.where(number < 0, np.nan, number)
    wrong = np.isinf(number) | (number < 0)
    sheet.refuse_where(wrong, name, "is no grade; they are 0 or more, and empty where an item is unjudged")
    return number


def as_positions(sheet: Sheet, name: str, base: int = 1) -> Ints:
    """(n,) whole numbers from 1 on, made from ones from `base` on; anything else is an InputError."""
    number = _numbers(sheet, name)
    wrong = ~((number >= base) & (number < 2**53) & (np.floor(number) == number))
    other = "--base 0 if they start at 0" if base and (number == 0).any() else "for scores there is --score"
    sheet.refuse_where(wrong, name, f"is no position; they are whole numbers from {base} on ({other})")
    return number.astype(np.int64) - base + 1


def as_scores(sheet: Sheet, name: str) -> Floats:
    """(n,) numbers, perhaps infinite; a NULL is an InputError."""
    number = _numbers(sheet, name)
    sheet.refuse_where(np.isnan(number), name, "orders no item; every row needs a number")
    return number


def _numbers(sheet: Sheet, name: str, remedy: str = "correct it") -> Floats:
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
