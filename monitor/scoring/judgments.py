"""Judgments -> files that `rankmon score`, Quepid, OpenSearch's Search Relevance Workbench and trec_eval read.

Quepid's ratings are a CSV of query, docid, rating (its "basic" export and import); the workbench takes a body of
`PUT _plugins/_search_relevance/judgments` (OpenSearch 3.1 and later) and, on its dashboard, the same CSV.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from pathlib import Path

from monitor.errors import InputError

Judgment = tuple[str, str, int]
"""Query, item, grade."""


def write_judgments(path: Path, judgments: Sequence[Judgment], name: str, description: str) -> None:
    """Write judgments sorted by query: a CSV, the workbench's JSON, or else TREC qrels, by the path's ending.

    Raises:
        InputError: a query or item has a blank, which TREC qrels cannot hold.
        OSError: the file cannot be written.
    """
    kind = path.suffix.lower()
    if kind == ".json":
        text = _as_json(judgments, name, description)
    else:
        text = _as_csv(judgments) if kind == ".csv" else _as_qrels(judgments)
    path.write_text(text, encoding="utf-8")


def _as_csv(judgments: Sequence[Judgment]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([("query", "docid", "rating"), *judgments])
    return text.getvalue()


def _as_json(judgments: Sequence[Judgment], name: str, description: str) -> str:
    by_query = groupby(judgments, lambda judgment: judgment[0])
    ratings = [{"query": q, "ratings": [{"docId": i, "rating": str(g)} for _, i, g in some]} for q, some in by_query]
    head = {"name": name, "description": description, "type": "IMPORT_JUDGMENT"}
    return json.dumps(head | {"judgmentRatings": ratings}, ensure_ascii=False, indent=1) + "\n"


def _as_qrels(judgments: Sequence[Judgment]) -> str:
    for name in (name for judgment in judgments for name in judgment[:2]):
        if len(name.split()) != 1:
            raise InputError(f"{name!r} has a space or is empty, which TREC qrels do not allow; write a .csv or .json")
    return "".join(f"{query} 0 {item} {grade}\n" for query, item, grade in judgments)
