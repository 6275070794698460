"""Grade each (query, item) by its clicks over expected clicks, and write the judgments to a file.

The grade of an item with few examined impressions is pulled towards the mean of the items at the same ranks, as far as
the counts suggest (empirical Bayes). The most attractive item has the highest grade; an item that was never shown has
no judgment. The examination comes from the monitor's corrected measure with the most ranks, by the table of each
request's own slice, and no rank below is used. Without such a measure it is estimated, as by `rankmon examination fit`.

\b
  rankmon judgments search -o judgments.csv      # for rankmon score, Quepid and a table
  rankmon judgments search -o judgments.json     # for OpenSearch's Search Relevance Workbench
  rankmon judgments search -o judgments.qrels    # for trec_eval
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import click
import numpy as np

from monitor.arrays import Floats
from monitor.cli.common import command, load_config, nothing_shown, rendered, source_of, warn_of_two_pages, writing
from monitor.cli.options import config_option, monitor_option, past_options
from monitor.cli.render import column, record
from monitor.errors import InputError
from monitor.measures.examination import ShownCounts, estimate, smoothed
from monitor.measures.judgments import estimate_attractiveness
from monitor.measures.measure import Measure
from monitor.messages.tables import count, number
from monitor.messages.words import NO_OTHER_LISTS, assumed, assumes
from monitor.scoring.judgments import write_judgments
from monitor.source.labels import fingerprint
from monitor.source.pull import Pull
from monitor.source.swaps import counts_by_table
from monitor.types import Monitor
from monitor.units import DAY


@record
class MadeJudgments:
    """What was written; `version` depends on the judgments alone; `assumed` is what the examination rests on."""

    output: str
    version: str
    judgments: int = column("judgments", count)
    queries: int = column("queries", count)
    mean_attractiveness: float = column("mean attractiveness", number)
    strength: float = column("prior, in examined impressions", number)
    assumed: str = column("assumed", lambda told: told.removeprefix("assumes "))


@command
@config_option
@monitor_option()
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="A .csv or .json, else qrels.")
@click.option(
    "--max-grade", type=click.IntRange(1), default=100, show_default=True, help="Grade of the most attractive item."
)
@click.option(
    "--prior",
    type=click.FloatRange(0),
    help="Weight of the mean at an item's ranks, in examined impressions (default: estimated from the counts). With 0 "
    "grades are noisier.",
)
@past_options
@rendered("table", "json")
def judgments(
    config_path: Path,
    monitor: str | None,
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
    warn_of_two_pages(config, wanted, end - days * DAY, end)
    with source_of(config, wanted) as database:
        measure, depth = _corrected(wanted, depth)
        parts = counts_by_table(Pull(wanted, database), end - days * DAY, end, depth, measure)
    if not any(len(part.rank) for part in parts.values()):
        raise nothing_shown(wanted, days)
    try:
        counts = ShownCounts.joined(list(parts.values()))
        of_items, examination = counts.across, _examination(measure, parts, counts, depth)
        found = estimate_attractiveness(of_items, examination, prior)
    except ValueError as error:
        raise InputError(f"{wanted.name}: {error}") from error
    graded = zip(of_items.names, found.grades(max_grade).tolist(), strict=True)
    made = sorted((str(query), str(item), grade) for (query, item), grade in graded if grade >= 0)
    version, queries = fingerprint(made), len({query for query, _, _ in made})
    past = f"{days} days to {time.strftime('%Y-%m-%dT%H:%MZ', time.gmtime(end))}"
    prior_told = f"prior worth {found.strength:.4g} examined impressions"
    about = f"clicks over expected clicks of {past}, mean {found.mean:.4g}, {prior_told}"
    with writing(output):
        write_judgments(output, made, f"rankmon {wanted.name} {version}", about)
    told = assumes(NO_OTHER_LISTS) if measure is None else assumed([measure])
    return MadeJudgments(str(output), version, len(made), queries, found.mean, found.strength, told)


def _corrected(monitor: Monitor, depth: int) -> tuple[Measure | None, int]:
    """The measure with examination of most ranks, and how many of `depth` it has; a `coec` may hold click rates."""
    known = {m: min(len(part.examination) for part in m.parts) for m in monitor.measures if m.is_corrected}
    measure = max(known, key=known.__getitem__, default=None)
    return measure, depth if measure is None else min(depth, known[measure])


def _examination(
    measure: Measure | None, parts: Mapping[tuple[str, str], ShownCounts], counts: ShownCounts, depth: int
) -> Floats:
    """(n,) the examination of each of the counts, by the measure or an estimate. Raises ValueError."""
    if measure is None:
        return smoothed(estimate(counts, depth)).value[counts.rank - 1]
    tables = dict(measure.by_slice)
    by_part = {key: np.array([chance for _, chance in tables.get(key, measure.examination)]) for key in parts}
    return np.concatenate([by_part[key][one.rank - 1] for key, one in parts.items()] or [np.zeros(0)])
