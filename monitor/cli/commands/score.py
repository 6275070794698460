"""Compute ranking measures on files, exactly as the daemon does.

RANKINGS is a TREC run, or a .csv, .tsv, .jsonl, .ndjson or .parquet file with one row per item (all except Parquet may
end in .gz). Any one of the files may be -, standard input, in any of these formats. Columns are found by name: request
or request_id (else query, query_id, qid, topic); item, item_id, docno, docid or doc_id; position or rank, else score;
grade, relevance, rel, label or rating. An empty grade means no judgment, not 0; a request without any grade is left
out. A separate query column ties requests to judgments by query.

\b
  rankmon score shown.csv --grade clicked -m ndcg@10 -m mrr -m 'recall(aggregate=pooled)@20'
  rankmon score bm25.run --qrels qrels.txt -m 'ndcg(ideal=global,empty=zero)@10' --complete
  rankmon score old.csv --ideal-from judged.csv -m 'ndcg(ideal=global)@10' --per-request --format csv

trec_eval's measures under their names here. For plain ndcg@10, the ideal covers the items listed; trec_eval's covers
all judged items, and it counts queries with nothing relevant as 0.

\b
  ndcg_cut_10   ndcg(ideal=global,empty=zero)@10     map       map(ideal=global,empty=zero)
  recall_100    recall(ideal=global,empty=zero)@100  P_5       precision@5
  ndcg          ndcg(ideal=global,empty=zero)        recip_rank  mrr

`judged` is the share of items within k that have a grade. Items without one count as not relevant, so with few
judgments a value says little. Judgments are TREC qrels; query, item and grade in the other formats, as in Quepid's CSV;
or the .json of OpenSearch's Search Relevance Workbench.

Without -m, the measure is ndcg@10, or ndcg(ideal=global)@10 with judgments. Negative judgments in TREC qrels do not
count, queries without judgments are left out, and the run's rank column is ignored. rbp is binary, with default p=0.8;
trec_eval 10 uses p=0.9 and graded gains, ir_measures p=0.8 and graded gains unless `rel` is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from monitor.cli.common import command
from monitor.cli.options import format_option
from monitor.cli.render import Shown, column, record, render, rows
from monitor.measures.measure import Measure, parse
from monitor.messages.tables import percent
from monitor.messages.words import counted, plain

if TYPE_CHECKING:
    from monitor.scoring import ScoreReport

FILE = click.Path(path_type=Path)


def _measures(context: click.Context, _: click.Parameter, texts: tuple[str, ...]) -> list[Measure]:
    try:
        return list(dict.fromkeys(parse(text, context.params.get("max_grade")) for text in texts))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@command
@click.argument("rankings", type=FILE)
@click.option("--qrels", type=FILE, help="Judgments for the grades and the ideal: TREC qrels, or query, item, grade.")
@click.option(
    "-m",
    "--measure",
    "measures",
    multiple=True,
    metavar="MEASURE",
    callback=_measures,
    help="As in the configuration, e.g. mrr@10 or ndcg(gain=exp2,ideal=max,max_grade=3)@5; repeatable.",
)
@click.option("--grade", metavar="COLUMN", help="Relevance of the item, 0 or more.")
@click.option("--ideal-from", type=FILE, help="Judged items for ideal=global, the same for every ranker.")
@click.option("--request", metavar="COLUMN", help="Which list a row belongs to.")
@click.option("--query", metavar="COLUMN", help="What judgments refer to, if not the request.")
@click.option("--item", metavar="COLUMN", help="The item shown.")
@click.option("--position", metavar="COLUMN", help="Rank, starting at 1 or --base.")
@click.option("--base", type=click.IntRange(0, 1), default=1, help="First position: 0 or 1.")
@click.option("--score", metavar="COLUMN", help="Order by this, highest first, instead of by a position.")
@click.option(
    "--ties",
    type=click.Choice(["trec", "file"]),
    help="Order of equal scores: trec compares 32-bit scores, then item names, last first; file keeps its order. "
    "[default: trec for a TREC run, else file]",
)
@click.option("--complete", is_flag=True, help="Count queries of the qrels that have no ranking as 0 (trec_eval -c).")
@click.option(
    "--max-grade",
    type=click.FloatRange(0, min_open=True),
    is_eager=True,  # before the measures, whose parser uses it
    metavar="GRADE",
    help="Highest possible grade, for err and ideal=max; a grade above it is an error.",
)
@click.option("--per-request", is_flag=True, help="Add each request's values; in CSV, instead of the means.")
@format_option("table", "json", "csv")
def score(
    rankings: Path,
    qrels: Path | None,
    measures: list[Measure],
    ideal_from: Path | None,
    ties: Literal["trec", "file"] | None,
    complete: bool,
    max_grade: float | None,
    per_request: bool,
    style: str,
    base: int,
    **columns: str | None,
) -> None:
    files = (rankings, qrels, ideal_from)
    _refuse_contradictions(files, complete, columns)
    from monitor import scoring

    judged = qrels is not None or ideal_from is not None
    measures = measures or [parse("ndcg(ideal=global)@10" if judged else "ndcg@10")]
    if ideal_from is not None and all(m.ideal != "global" for m in measures):
        raise click.UsageError(
            "--ideal-from has no effect: no measure has ideal=global; remove it, or add such a measure"
        )
    names = scoring.Names(**columns, base=base)
    with ExitStack() as copies:
        path, judgments, ideal = (file and copies.enter_context(scoring.on_disk(file)) for file in files)
        lists = scoring.read(path or rankings, names, qrels=judgments, ideal_from=ideal, ties=ties, complete=complete)
        report = scoring.evaluate(lists, measures)
        scoring.refuse_above(lists, max_grade, "--max-grade")
    if style == "csv" and report.unranked:
        click.echo(f"rankmon: {_unranked(report)}", err=True)
    click.echo(render(_shown(report, rankings, per_request), style))


def _refuse_contradictions(files: tuple[Path | None, ...], complete: bool, columns: dict[str, str | None]) -> None:
    _, qrels, _ = files
    if files.count(Path("-")) > 1:
        raise click.UsageError("only one of the files can be standard input (-)")
    if complete and qrels is None:
        raise click.UsageError("--complete counts the queries of the qrels; give --qrels")
    if qrels is not None and columns["grade"] is not None:
        raise click.UsageError("--grade and --qrels both give the grades; remove one of them")
    if columns["position"] is not None and columns["score"] is not None:
        raise click.UsageError("--position and --score both order the items; remove one of them")


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:#.6g}"


@record
class MeasureRow:
    """A measure over all requests; the value is None without data."""

    measure: str = column("measure", left=True)
    value: float | None = column("value", _digits)
    requests: int = column("requests")
    empty: int = column("empty")
    judged: float | None = column("judged", lambda share: "-" if share is None else percent(share))


@record
class RequestRow:
    """A measure of one request; the value is None if it is left out of the mean."""

    request: str = column("request", lambda text: plain(text, one_line=True), left=True)
    measure: str = column("measure", left=True)
    value: float | None = column("value", _digits)
    empty: bool = column("empty", lambda is_empty: "empty" * is_empty, left=True)


def _shown(report: ScoreReport, path: Path, per_request: bool) -> Shown:
    measures = [MeasureRow(str(r.measure), r.value, r.requests, r.empty, r.judged) for r in report.results]
    requests = list(_requests(report)) if per_request else []
    data = {"rankings": str(path), "requests": len(report.requests), "unlabelled": report.unlabelled}
    data |= {"unranked": report.unranked, "measures": measures} | ({"per_request": requests} if per_request else {})
    table = (requests, RequestRow) if per_request else (measures, MeasureRow)
    return Shown(data, lambda: [*rows(requests), *[""] * per_request, *rows(measures), *_left_out(report)], table=table)


def _requests(report: ScoreReport) -> Iterator[RequestRow]:
    columns = [(str(r.measure), r.values.tolist(), r.is_empty.tolist()) for r in report.results]
    for i, request in enumerate(report.requests):
        for measure, values, is_empty in columns:
            yield RequestRow(request, measure, None if math.isnan(values[i]) else values[i], is_empty[i])


def _left_out(report: ScoreReport) -> Iterator[str]:
    if report.unlabelled:
        yield f"{report.unlabelled} more without a label, left out"
    if report.unranked:
        yield _unranked(report)


def _unranked(report: ScoreReport) -> str:
    what = counted(report.unranked, "judged query")
    return f"{what} without a ranking, left out; --complete counts them as 0 (trec_eval -c)"
