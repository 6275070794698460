"""Compute the past. After an interruption, run it again: it continues where it stopped.

Monitors that fail, or that another process is writing, are skipped; the exit code is that of the first one skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from monitor.cli import exit_code
from monitor.cli.commands.replay import rule_lines
from monitor.cli.common import command, load_config, pick_monitors, prepared, progress, refused_in_words
from monitor.cli.options import InstantParam, config_option, monitors_option
from monitor.errors import InputError, LeaseLost, SourceError, Stopped, StoreError
from monitor.evaluation.run import judge_monitor
from monitor.messages import words
from monitor.messages.words import counted, utc
from monitor.series.partials import REQUESTS, UNMATCHED, starts, without_rank_one
from monitor.service.app import App
from monitor.service.cycle import CycleResult, run_backfill
from monitor.service.reading import BatchSize
from monitor.store.alerts import Judgement
from monitor.store.renaming import take_over
from monitor.types import OVERALL, Monitor, format_duration

T = TypeVar("T")
log = logging.getLogger(__name__)

PASSING = ("connect", "timeout", "resources", "permission")
"""Reasons after which a source may answer next time."""

PATIENCE = 300.0
"""Seconds to wait out an outage; a restart or failover takes less."""

LONGEST_PAUSE = 15.0
"""Most seconds between two attempts."""

MOST_AT_ONCE = 5_000_000
"""Buckets; those of 1h are 570 years. More means a mistyped year, and would exhaust memory before the first read."""


@command
@config_option
@monitors_option
@click.option("--from", "since", type=InstantParam(), required=True, help="Start, e.g. 2022-01-31.")
@click.option("--to", "until", type=InstantParam(), help="End (default: now).")
@click.option(
    "--again", is_flag=True, help="Read final buckets again; keep those that now have fewer rows in the source."
)
@click.option(
    "--force", is_flag=True, help="With --again: replace final buckets even if the source has fewer rows now."
)
def backfill(config_path: Path, names: tuple[str, ...], since: int, until: int | None, again: bool, force: bool) -> int:
    if force and not again:
        raise click.UsageError("--force goes with --again")
    config = load_config(config_path, log=True)
    wanted = pick_monitors(config, names)
    is_ended, until = until is not None, int(time.time()) if until is None else until
    if since >= until:
        raise click.UsageError("--from must be before --to" if is_ended else f"--from {utc(since)} is in the future")
    with prepared(config) as app:
        errors = [error for monitor in wanted if (error := _try_to_fill(app, monitor, (since, until), again, force))]
    return exit_code(errors[0]) if errors else 0


def _try_to_fill(
    app: App, monitor: Monitor, span: tuple[int, int], again: bool, force: bool
) -> InputError | SourceError | LeaseLost | None:
    """The error that stops this monitor, already reported, unless it concerns the others too."""
    try:
        fill(app, monitor, span, again, force)
        for _, line, _ in _Outages(app, has_answered=True).through(lambda: list(rule_lines(monitor, app.store))):
            click.echo(f"{monitor.name}: {line}")
    except (InputError, SourceError, LeaseLost) as error:
        click.echo(f"rankmon: {error}", err=True)
        if isinstance(error, SourceError) and error.reason in PASSING:
            click.echo(f"rankmon: {monitor.name}: stored buckets are kept; run the same command to resume", err=True)
        return error
    return None


def fill(app: App, monitor: Monitor, span: tuple[int, int], again: bool = False, force: bool = False) -> int:
    """Backfill one monitor with a progress bar on standard error; how many buckets were stored.

    Records what alert rules find but notifies nobody: the daemon does that, if the incident continues.
    """
    if (number := len(starts(*span, monitor.bucket))) > MOST_AT_ONCE:
        what = f"{counted(number, 'bucket')} of {format_duration(monitor.bucket)}"
        raise InputError(
            f"{monitor.name}: {what} since {utc(span[0])} are too many at once (limit {MOST_AT_ONCE:,}); "
            "check the year, or backfill a shorter period, newest first"
        )
    name = monitor.name
    before = {s.incident.id for s in app.store.alerts.incidents(name, most=None)}
    outages = _Outages(app)
    outcome, judgement = _read(app, monitor, span, again, force, outages)
    fewer = "kept, because the source has fewer requests or labels now (--again --force replaces them)"
    kept = f", {counted(outcome.kept, 'final one')} {fewer}" if outcome.kept else ""
    kept += f", {outcome.held} kept, with no requests or no labels left in the source" if outcome.held else ""
    click.echo(f"{name}: {counted(outcome.stored, 'bucket')} stored{kept}")
    if outcome.stored:
        for line in outages.through(lambda: list(_oddities(app, monitor, span))):
            click.echo(f"{name}: {line}")
    if judgement is not None and judgement.incidents:
        every, new = len(judgement.incidents), sum(s.incident.id not in before for s in judgement.incidents)
        of_them = "" if new == every else f", {new or 'none'} of them new"
        see = f", see {words.command(app.called, 'incidents list')}" if app.called else ""
        told = f"{counted(every, 'incident')} recorded{of_them}{see}; no page was sent"
        click.echo(f"{name}: {told}")
    return outcome.stored


def _read(
    app: App, monitor: Monitor, span: tuple[int, int], again: bool, force: bool, outages: _Outages
) -> tuple[CycleResult, Judgement | None]:
    name, total = monitor.name, CycleResult()
    now, source, batch_size = app.clock.now(), app.source_of(monitor), BatchSize()
    with progress() as bar:
        task = bar.add_task(f"{name}: buckets", total=None)
        while True:
            outcome, left = CycleResult(), starts(*span, monitor.bucket)
            try:
                with app.store.hold(name) as lease:
                    if monitor.renamed_from is not None:
                        take_over(app.store, lease, monitor.renamed_from)
                    for outcome in run_backfill(monitor, now, span, source, app.store, lease, batch_size, again, force):
                        outages.end()
                        bar.update(task, total=outcome.due, completed=outcome.due - outcome.left)
                        if outcome.left and app.stopping.is_set():
                            raise Stopped
                    recipients = replace(app.recipients(), real_now=time.time())
                    judged = judge_monitor(monitor, now, app.store, lease, recipients, is_over=app.stopping.is_set)
                return total.and_then(outcome), judged
            except Stopped as error:
                stored = total.and_then(outcome).stored
                raise Stopped(f"{name}: stopped after {stored} buckets; run the same command to resume") from error
            except (SourceError, StoreError) as error:
                outages.wait(error)
                total = total.and_then(outcome)
                if again and outcome.due:  # buckets already read again stay
                    span = (left[min(outcome.due - outcome.left, len(left) - 1)], span[1])


class _Outages:
    """Waits, with growing pauses, for a source or store that has answered before."""

    def __init__(self, app: App, has_answered: bool = False) -> None:
        self._app = app
        self._has_answered = has_answered
        self._began: float | None = None
        self._pause = 1.0

    def end(self) -> None:
        self._has_answered, self._began, self._pause = True, None, 1.0

    def through(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except (SourceError, StoreError) as error:
                self.wait(error)

    def wait(self, error: SourceError | StoreError) -> None:
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        if not (self._has_answered and error.may_pass) or now - self._began > PATIENCE:
            raise error
        log.warning("backfill: %s; trying again in %.0f s", error, self._pause)
        if self._app.stopping.wait(self._pause):
            raise Stopped("stopped; run the same command to resume")
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


def _oddities(app: App, monitor: Monitor, span: tuple[int, int]) -> Iterator[str]:
    crowd = app.store.history(monitor.traffic, *span, overall_only=True).slice(OVERALL).sum(axis=0)
    requests, unmatched = int(crowd[REQUESTS]), int(crowd[UNMATCHED])
    if refused := refused_in_words(app.store.refused(monitor.traffic, *span), unmatched, requests):
        yield f"left out of this period: {refused}"
    if missing := words.rank_one_missing(without_rank_one(crowd), requests):
        yield missing
