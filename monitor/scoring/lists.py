"""Rankings and what is judged of them, from files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from monitor.errors import InputError
from monitor.measures.kernels import Bools, Floats, Ints, JudgedItems
from monitor.scoring.columns import as_grades
from monitor.scoring.formats import read_sheet
from monitor.scoring.judgments import judged_levels, match_judgments, read_judgments, refuse_unjudged
from monitor.scoring.names import Names
from monitor.scoring.rows import Rows, Ties, read_rows
from monitor.scoring.trec import RUN


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
        unranked: judged queries without a ranking that are not among them.
        at: where a row stands, for messages.
    """

    path: Path
    ids: list[str]
    request: Ints
    rank: Ints
    grade: Floats
    sampled: Bools
    missing: Bools
    judged: JudgedItems | None
    unranked: int
    at: Callable[[int], str]


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
        ties: order of equal scores: as `monitor.scoring` says, or the file's with 64-bit scores. By default `trec` for
            a TREC run.
        complete: count the queries of the qrels that have no ranking, too.

    Raises:
        InputError: a file is missing, unreadable or dirty; the message says where and what to do.
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


def _column_grades(rows: Rows, names: Names) -> tuple[Floats, Bools]:
    """(grades, which requests have any)."""
    if rows.sheet.is_trec:
        raise InputError(f"{rows.sheet.path}: a TREC run holds no grades; give its judgments with --qrels")
    grade = as_grades(rows.sheet, rows.sheet.require("grade", names, ", or give judgments with --qrels"))
    return grade, np.bincount(rows.request.code[~np.isnan(grade)], minlength=len(rows.request.names)) > 0
