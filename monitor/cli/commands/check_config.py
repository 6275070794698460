"""Check the configuration: all mistakes at once, each with file, line and fix. FILE is the same as --config.

Checks that need an unreadable value are skipped until it is fixed. --connect also warns about likely mapping mistakes
in the data; the exit code stays 0. It is 2 if tables, columns or types do not fit the mapping, and 3 if a source does
not answer.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from monitor.cli import exit_code
from monitor.cli.common import command, load_config, missing_store, opened, source_of, unwritable_store
from monitor.cli.options import config_option
from monitor.conditions.evidence import MATTERS
from monitor.conditions.verdict_hours import judged
from monitor.config.remarks import remarks
from monitor.errors import ConfigError, RankmonError, SourceError, StoreError
from monitor.messages.words import brief, counted, lasting
from monitor.routing import Routing, instants, reached
from monitor.source.checks.remarks import Key, columns_of
from monitor.types import Events, Judgments, format_duration

if TYPE_CHECKING:
    from monitor.conditions.rules import Rule
    from monitor.config import Config
    from monitor.source.engine import Database
    from monitor.source.pull import Freshness
    from monitor.types import Monitor


NOT_ALL_ANSWERS = "configuration is valid, but not every database answers"


@command
@config_option
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--connect", is_flag=True, help="Also check a sample of every source's data, and the store.")
@click.pass_context
def check_config(ctx: click.Context, config_path: Path, file: Path | None, connect: bool) -> int:
    if file is not None and ctx.get_parameter_source("config_path") is ParameterSource.COMMANDLINE:
        raise click.UsageError("the configuration is given twice: use --config or FILE")
    config = load_config(file or config_path)
    of_channels = _check_channels(config)
    for monitor in config.monitors:
        windows = ", ".join(format_duration(w) for w in monitor.windows)
        click.echo(f"{monitor.name}: {', '.join(map(brief, monitor.measures))} over {windows}")
        if monitor.drift is not None:
            each = f"and of each {monitor.drift.mix_by}" if monitor.drift.mix_by else "only: no slice can be `mix_by`"
            click.echo(f"  verdicts: {brief(judged(monitor.drift.measure))} of all traffic {each}")
        for rule in monitor.alerts:
            told = _told(Routing(monitor, config.routes), rule)
            what = f"{brief(rule.judged)} over {format_duration(rule.window)}"
            click.echo(f"  alert {rule.name}: {what}, looks back {format_duration(rule.reach)}, {told}")
    for remark in (*of_channels, *remarks(config, time.time())):
        click.echo(f"rankmon: warning: {remark}", err=True)
    if not connect:
        click.echo("configuration is valid")
        return 0
    problems, warnings = _connect(config)
    for warning in warnings:
        click.echo(f"rankmon: warning: {warning}", err=True)
    for problem in problems:
        click.echo(f"rankmon: {problem}", err=True)
    if problems:
        mistakes = sum(isinstance(problem, ConfigError) for problem in problems)
        others = ", and not every database answers" * (mistakes < len(problems))
        click.echo(f"{counted(mistakes, 'mistake')} in the mapping{others}, see above" if mistakes else NOT_ALL_ANSWERS)
        return exit_code(problems[0])
    but = ", but see the warnings" if warnings else ""
    click.echo(f"configuration is valid and all databases answer{but}")
    return 0


def _check_channels(config: Config) -> list[str]:
    """What cannot be checked of channels. Raises ConfigError."""
    mistakes, found = list[str](), list[str]()
    for channel in config.channels:
        place = config.place("channels", channel.name, channel.kind)
        try:
            if remark := channel.check():
                found.append(f"{place}: {remark}")
        except ValueError as error:
            mistakes.append(f"{place}: {error}")
    if mistakes:
        raise ConfigError(mistakes)
    return found


def _told(routing: Routing, rule: Rule) -> str:
    if routing.monitor.paging == "prometheus":
        return "paged by Prometheus"
    moments, matter = instants(routing.common), MATTERS[rule.is_about_data]
    found = [reached(routing.decide(rule.severity, (matter,), at)) for at in moments]
    by_hour = ", depending on the hour" if len(set(found)) > 1 else ""
    return f"notifies {', '.join(dict.fromkeys(c for channels in found for c in channels))}{by_hour}"


def _connect(config: Config) -> tuple[list[RankmonError], list[str]]:
    """(problems, warnings)."""
    problems, warnings = list[RankmonError](), list[str]()
    for index, monitor in enumerate(config.monitors):
        with source_of(config, monitor) as database:
            try:
                warnings += _assess(config, index, database, _ask(monitor, database))
            except SourceError as error:
                problems += _explained(config, index, database, error)
            except RankmonError as error:
                problems.append(type(error)(_located(config, index, str(error))))
    try:
        click.echo(_ask_store(config, warnings))
    except RankmonError as error:
        problems.append(type(error)(f"{config.place('store', 'url')}: {error}"))
    return problems, warnings


def _explained(config: Config, index: int, database: Database, error: SourceError) -> list[RankmonError]:
    """Every misfit of the mapping behind a source's error; else the error itself."""
    from monitor.source.checks.mapping import TOLD, check_mapping

    monitor, found = config.monitors[index], []
    with suppress(SourceError):
        found = check_mapping(monitor, database) if error.reason in TOLD else []
    if not found:
        text = _located(config, index, str(error))
        return [ConfigError([text]) if error.is_of_mapping else SourceError(text, error.reason)]
    by = f"{monitor.name}: source {database.name}"
    told = [f"{config.place('monitors', index, *r.key)}: {by}: {plainly(r.text)}" for r in found]
    # Damaged data may be whole next time, and are not a mapping mistake.
    may_be_damaged = error.reason == "data" and not error.lasting
    is_damaged = [may_be_damaged and r.key[-1] in ("table", "select") and r.text in str(error) for r in found]
    return [
        SourceError(text, error.reason) if d else ConfigError([text]) for text, d in zip(told, is_damaged, strict=True)
    ]


def _located(config: Config, index: int, text: str) -> str:
    monitor = config.monitors[index]
    key = key_of(monitor, text)
    place = config.place("monitors", index, *key) if key else config.place("sources", monitor.source)
    return f"{place}: {monitor.name}: {plainly(text)}"


def _assess(config: Config, index: int, database: Database, fresh: Freshness) -> list[str]:
    """Reports a data sample and returns what is odd about it. Raises SourceError."""
    from monitor.source.checks.assess import assess
    from monitor.source.plans import explained_now

    monitor = config.monitors[index]
    found = assess(monitor, database, time.time(), fresh.newest)
    click.echo(f"{monitor.name}: {found.looked_at}")
    told: list[tuple[Key, str]] = [(r.key, r.text) for r in found.remarks]
    told += [(("rankings",), text) for text in explained_now(monitor, database, time.time())[2]]
    return [f"{config.place('monitors', index, *key)}: {monitor.name}: {text}" for key, text in told]


def _ask(monitor: Monitor, database: Database) -> Freshness:
    from monitor.source.choice import open_source

    now, pull = time.time(), open_source(monitor, database)
    fresh = pull.freshness(now - monitor.lookback, now)
    pull.read(int(now) - 1, int(now))
    age = f"no request in {format_duration(monitor.lookback)}"
    if fresh.newest is not None:
        age = f"newest request is {lasting(int(now - fresh.newest))} old"
    ahead = f", {fresh.future_rows} rows dated in the future" if fresh.future_rows else ""
    click.echo(f"{monitor.name}: source {database.name} answers, {age}{ahead}")
    return fresh


def _ask_store(config: Config, warnings: list[str]) -> str:
    """Appends to `warnings` what alert rules need and the store lacks. Raises StoreError."""
    from monitor.cli.commands.replay import rule_lines
    from monitor.service.new_series import new_series
    from monitor.service.retention import baselines_gone

    if fault := unwritable_store(config):
        raise StoreError(f"store: {fault}")
    missing = missing_store(config)
    if missing:
        return f"store: {missing}"
    with opened(config) as store:
        store.check_writable()
        if lacking := store.schema.lacks():
            return f"store: answers; {lacking}"
        store.schema.check()
        for index, monitor in enumerate(config.monitors):
            if new := new_series(monitor, store):
                warnings.append(f"{config.place('monitors', index)}: {monitor.name}: {new}")
            place = config.place("monitors", index, "alerts")
            warnings += [f"{place}: {monitor.name}: {text}" for text in baselines_gone(monitor, store)]
            for number, line, is_warning in rule_lines(monitor, store):
                if is_warning:
                    warnings.append(f"{config.place('monitors', index, 'alerts', number)}: {monitor.name}: {line}")
                else:
                    click.echo(f"{monitor.name}: {line}")
    return "store: answers"


# ---- where in the configuration the cause of a source's error is -----------------------------------------------------

_STATEMENT = re.compile(r" LINE \d+: .*?\^+")
_ALIAS = re.compile(r"(?<![\w.])([re])\.(?=[\w\"`])(?!g\.)")  # but not of an "e.g."
_TIME = re.compile(r": time column '([^']+)' ")
_WRONG_KIND = re.compile(r": column '([^']+)' (?:is text, and positions|has arrays|has lists|holds neither)")
_UNLIKE = re.compile(r": (request|item|query) of rankings and labels cannot be compared")
_NOT_READ = re.compile(r"invalid input syntax for type [\w ]+: \"(.*?)\"")


def plainly(text: str) -> str:
    """A database's message without the statement, and without rankmon's table aliases.

    >>> plainly("no such column: r.skuu; compare the table")
    'no such column: skuu; compare the table'
    >>> plainly("it has no zone, so declare e.g. timezone: UTC")
    'it has no zone, so declare e.g. timezone: UTC'
    """
    return _ALIAS.sub("", _STATEMENT.sub("", text))


def key_of(monitor: Monitor, text: str) -> Key:
    """The key, within a monitor, of what is mistyped by a source's error; empty if there is none."""
    if "function floor(" in text or " >= integer" in text:  # sent only for positions
        return ("rankings", "position")
    if found := _UNLIKE.search(text):
        return ("relevance", "judgments" if isinstance(monitor.recipe, Judgments) else "events", found[1])
    if found := _WRONG_KIND.search(text):
        return next((key for _, key, held in columns_of(monitor) if held == found[1]), ())
    if found := _TIME.search(text):
        times = (key for _, key, held in columns_of(monitor) if key[-1] == "time" and held == found[1])
        return next(times, ())
    types = {rule.type for rule in monitor.recipe.rules} if isinstance(monitor.recipe, Events) else {}
    if (found := _NOT_READ.search(text)) and found[1] in types:
        return ("relevance", "events", "type")
    return ()
