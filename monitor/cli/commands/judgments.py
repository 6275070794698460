"""Grade each (query, item) by its clicks over expected clicks, and write the judgments to a file.

The grade of an item with few looks is pulled towards the overall mean, as far as the counts suggest (empirical Bayes).
The most wanted item has the highest grade; an item that was never shown has no judgment. The examination comes from the
monitor's measures, or is estimated as by `rankmon examination fit`.

\b
  rankmon judgments search -o judgments.csv      # for rankmon score, Quepid and a table
  rankmon judgments search -o judgments.json     # for OpenSearch's Search Relevance Workbench
  rankmon judgments search -o judgments.qrels    # for trec_eval
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import numpy as np

from monitor.arrays import Floats
from monitor.cli.common import command, load_config, rendered, source_of, writing
from monitor.cli.options import config_option, past_options
from monitor.cli.render import column, record
from monitor.errors import InputError
from monitor.measures.examination import ShownCounts, estimate, smoothed
from monitor.measures.judgments import judge
from monitor.messages.tables import count, number
from monitor.scoring.judgments import write_judgments
from monitor.source.labels import fingerprint
from monitor.source.pull import Pull
from monitor.source.swaps import shown_counts
from monitor.types import Monitor

DAY = 86_400


@record
class MadeJudgments:
    """What was written; `version` depends on the judgments alone."""

    output: str
    version: str
    judgments: int = column("judgments", count)
    queries: int = column("queries", count)
    clicks_per_look: float = column("mean clicks per look", number)
    strength: float = column("looks that the mean counts for", number)


@command
@config_option
@click.argument("monitor")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="A .csv or .json, else qrels.")
@click.option(
    "--max-grade", type=click.IntRange(1), default=100, show_default=True, help="Grade of the most wanted item."
)
@click.option(
    "--prior",
    type=click.FloatRange(0),
    help="Looks that the overall mean counts for (default: estimated from the counts). With 0 grades are noisy, but "
    "differences between models have their full size.",
)
@past_options
@rendered("table", "json")
def judgments(
    config_path: Path,
    monitor: str,
    output: Path,
    max_grade: int,
    prior: float | None,
    depth: int,
    days: int,
    until: int | None,
) -> MadeJudgments:
    config = load_config(config_path)
    wanted = config.monitor(monitor)
    end = int(time.time()) - wanted.recipe.attribution if until is None else until
    with source_of(config, wanted) as database:
        counts = shown_counts(Pull(wanted, database), end - days * DAY, end, depth)
    try:
        of_items = counts.across
        wishes = judge(of_items, _looks(wanted, counts, depth), prior)
    except ValueError as error:
        raise InputError(f"{wanted.name}: {error}") from error
    graded = zip(of_items.names, wishes.grades(max_grade).tolist(), strict=True)
    made = sorted((str(query), str(item), grade) for (query, item), grade in graded if grade >= 0)
    version, queries = fingerprint(made), len({query for query, _, _ in made})
    past = f"{days} days to {time.strftime('%Y-%m-%dT%H:%MZ', time.gmtime(end))}"
    about = f"clicks over expected clicks of {past}, mean {wishes.mean:.4g} worth {wishes.strength:.4g} looks"
    with writing(output):
        write_judgments(output, made, f"rankmon {wanted.name} {version}", about)
    return MadeJudgments(str(output), version, len(made), queries, wishes.mean, wishes.strength)


def _looks(monitor: Monitor, counts: ShownCounts, depth: int) -> Floats:
    """(depth,) the examination that a measure of the monitor has, or else an estimate. Raises ValueError.

    The table of a `coec` may hold click rates by rank instead.
    """
    known = (m.examination for m in monitor.measures if m.name != "coec" and len(m.examination) >= depth)
    table = next(known, None)
    return smoothed(estimate(counts, depth)).value if table is None else np.array([looks for _, looks in table[:depth]])
