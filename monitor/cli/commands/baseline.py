"""Show the baseline of a monitor's verdicts, or start a new one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from monitor.cli.commands.power import of_series
from monitor.cli.common import group, level_of, monitor_in_store, rendered
from monitor.cli.options import InstantParam, by_option, config_option, monitor_option, note_option
from monitor.cli.render import Shown, table_of
from monitor.conditions.checkpoint import BaselineReset
from monitor.conditions.verdict_hours import judged, step_of
from monitor.drift.constants import SETTLING_DAYS
from monitor.drift.settings import DriftSettings
from monitor.errors import InputError
from monitor.evaluation.hours import drift_of
from monitor.evaluation.run import BaselineStatus, baseline_status
from monitor.messages.comparison import NO_VERSION
from monitor.messages.tables import change, count, percent
from monitor.messages.words import brief, decayed, utc
from monitor.series.partials import RESERVED
from monitor.store import Store
from monitor.types import FARTHEST, OVERALL, Monitor, Slice
from monitor.units import DAY

baseline = group(__name__)


@baseline.command()
@config_option
@monitor_option()
@rendered("table", "json")
def show(config_path: Path, monitor: str | None) -> Shown:
    """Show what the baseline was fitted on, what it still needs, and the level of each series."""
    with monitor_in_store(config_path, monitor) as (wanted, store):
        return _report(baseline_status(wanted, store))


@baseline.command()
@config_option
@monitor_option()
@click.option("--from", "since", type=InstantParam(), help="Start of the new baseline (default: this hour).")
@click.option("--version", help="Start where this model version began to serve most requests.")
@note_option("Why.")
@by_option()
def begin(config_path: Path, monitor: str | None, since: int | None, version: str | None, note: str, by: str) -> None:
    """Start a new baseline after a lasting change.

    The open alarm is withdrawn. Daily and weekly patterns are kept. Judging resumes after two days, with more tolerance
    until there are 28 days. Alert rules are not affected.
    """
    if since is not None and version is not None:
        raise InputError("use --from or --version, not both")
    with monitor_in_store(config_path, monitor) as (wanted, store):
        if version is not None:
            since, note = start_of(wanted, version, store), note or f"version {version}"
        click.echo(reset_baseline(wanted, store, since, note, by))


@baseline.command()
@config_option
@click.argument("monitor")
@click.option("--at", type=InstantParam(), required=True, help="Start of the baseline to undo, as `show` lists it.")
def forget(config_path: Path, monitor: str, at: int) -> None:
    """Undo a `baseline begin`: everything is judged as if it had never happened.

    Past notifications stay on record. Verdicts, and notifications of what then fires, follow with the next final hour.
    """
    with monitor_in_store(config_path, monitor) as (wanted, store):
        click.echo(taken_back(wanted, store, at))


def taken_back(monitor: Monitor, store: Store, at: int) -> str:
    """Undo the reset of a monitor's baseline at `at`, seconds; returns what to print."""
    if not store.verdicts.forget_baseline(monitor.name, at):
        known = ", ".join(utc(said.since) for said in store.verdicts.baselines(monitor.name)) or "none"
        raise InputError(f"no baseline of {monitor.name} starts at {utc(at)}; known starts: {known}")
    return f"{monitor.name}: start at {utc(at)} removed; verdicts follow with the next final hour"


def start_of(monitor: Monitor, version: str, store: Store) -> int:
    """Start of the first stored bucket, seconds, from which a version served most requests for a day.

    A version first served to a few does not set a level by that.
    """
    dimension = monitor.version_slice
    if dimension is None:
        raise InputError(NO_VERSION.format(monitor.name))
    found = store.first_bucket_of(monitor.traffic, dimension.dimension, version)
    if found is None:
        raise InputError(_unknown_version(monitor, dimension, version, store))
    history = store.history(monitor.traffic, found, FARTHEST)
    own, every = history.slice((dimension.dimension, version))[:, 0], history.slice(OVERALL)[:, 0]
    until = np.searchsorted(history.starts, history.starts + DAY)
    sums = [np.concatenate([[0.0], np.cumsum(of)]) for of in (own, every)]
    of_day = [of[until] - of[:-1] for of in sums]
    most = np.flatnonzero((own > every / 2) & (of_day[0] > of_day[1] / 2))
    if not len(most):
        share = 100 * float((of_day[0] / np.maximum(of_day[1], 1)).max())
        raise InputError(
            f"version {version!r} of {monitor.name} has served at most {share:.0f} % of the requests in a day, "
            "too few for a level; to start a baseline anyway, use --from"
        )
    return int(history.starts[most[0]])


def _unknown_version(monitor: Monitor, dimension: Slice, version: str, store: Store) -> str:
    known = store.places(monitor.name).present.get(dimension.dimension, set())
    if len(known - RESERVED) < dimension.max_values:
        listed = ", ".join(sorted(known)) or "none yet"
        return f"{monitor.name} has no requests from version {version!r}; known are {listed}"
    more = f"{{column: {dimension.column}, as: {dimension.dimension}, max_values: …}}"
    return (
        f"{monitor.name} has no series for version {version!r}: the first {len(known - RESERVED)} have one, later ones "
        f"count as `other`; use --from, and for future versions add {more} to `slices`"
    )


def reset_baseline(monitor: Monitor, store: Store, since: int | None, note: str, by: str) -> str:
    """Reset a monitor's baseline; returns what to print.

    `since`: seconds since 1970, by default now; rounded down to its step.
    """
    drift, now, step = drift_of(monitor), time.time(), step_of(monitor.bucket)
    at = int(now) if since is None else since
    at -= at % step
    if at > now:
        raise InputError(f"{utc(at)} is in the future; use a past time for --from")
    if drift.baseline_from is not None and drift.baseline_from > at:
        raise InputError(
            f"{monitor.name}: the configuration has `baseline_from` {utc(drift.baseline_from)}, which is later than "
            f"{utc(at)} and wins; remove it, or use a later --from"
        )
    store.verdicts.begin_baseline(monitor.name, BaselineReset(at, by, note), now)
    standing = store.verdicts.newest_checkpoint(monitor.name)
    if standing is None or standing.state is None or standing.state.baseline is None:
        return (
            f"{monitor.name}: no baseline yet; learning its level from {utc(at)} on, "
            f"and verdicts follow after {DriftSettings.least_reference // DAY} days"
        )
    known_at = -(-at // DAY) * DAY + SETTLING_DAYS * DAY
    return (
        f"{monitor.name}: baseline restarts at {utc(at)}; verdicts resume at {utc(known_at)} or later, after "
        f"{SETTLING_DAYS} whole UTC days at the new level; open alarms are withdrawn with the next cycle. To undo: "
        f'rankmon baseline forget {monitor.name} --at "{utc(at)}"'
    )


def _report(found: BaselineStatus) -> Shown:
    """What the verdicts compare with; instants in seconds since 1970."""
    fitted, verdict = None if found.state is None else found.state.baseline, found.verdict
    data = {
        "monitor": found.monitor,
        "measure": str(judged(found.drift.measure)),
        "dimension": found.drift.mix_by,
        "looks_back_to": found.drift.baseline_from,
        "resets": [{"at": said.since, "by": said.author, "note": said.note} for said in found.resets],
        "judged_until": None if verdict is None else verdict.end,
        "verdict": None if verdict is None else verdict.kind,
        "fitted_since": None if fitted is None else fitted.since,
        "fitted_until": None if fitted is None else fitted.until,
        "days": 0.0 if verdict is None else verdict.reference_days,
        "requests": None if fitted is None else fitted.requests,
        "lacks": "a first final bucket" if verdict is None else verdict.lacks,
        **level_of(verdict),
        "series": found.units,
    }
    return Shown(data, lambda: _lines(found, data))


def _lines(found: BaselineStatus, data: Mapping[str, Any]) -> Iterator[str]:
    dimension = found.drift.mix_by
    yield f"{found.monitor}: {brief(data['measure'])}" + (f" by {dimension}" if dimension else "")
    yield from _fitted(found, data["days"], data["lacks"])
    if found.drift.baseline_from is not None:
        yield f"  data before {utc(found.drift.baseline_from)} does not count (baseline_from)"
    for begun in found.resets:
        yield f"  started again at {utc(begun.since)} by {begun.author}" + (f": {begun.note}" if begun.note else "")
    take, verdict = f"rankmon baseline begin {found.monitor} takes it as", found.verdict
    if verdict is not None and verdict.improved:
        yield f"  the level has been above it for a week: {take} new"
    if verdict is not None and verdict.decayed:
        yield f"  for a week or more {decayed(verdict.moved or 0.0, verdict.labels_moved)}; {take} it is"
    columns = of_series(found) | {
        "moved since fitted": lambda u: change(u.moved),
        "tolerated drop": lambda u: percent(u.tolerated),
        "": lambda u: "" if u.tolerated is not None else u.lacks,
    }
    yield from (f"  {line}" for line in table_of(columns, found.units, left=(0, 5)))


def _fitted(found: BaselineStatus, days: float, lacks: str) -> Iterator[str]:
    state = found.state
    if state is None or state.baseline is None:
        yield f"  no baseline yet: it still needs {lacks}"
        return
    span = f"{utc(state.baseline.since)} to {utc(state.baseline.until)}"
    yield f"  fitted on {span}: {days:.0f} days, {count(state.baseline.requests)} requests"
    if lacks:
        larger = "only larger drops count" if state.reference is None else "only larger drops count until then"
        is_judged = state.settled and (found.verdict is None or found.verdict.kind != "not_enough_data")
        yield f"  still needs {lacks}; {larger if is_judged else 'no drop is judged until then'}"
