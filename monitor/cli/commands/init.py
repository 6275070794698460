"""Write a configuration for the log in a database: `rankmon init postgresql+psycopg://reader@host/name`.

Examines tables and samples of their rows, read-only, and identifies columns by their values. It asks if it is not
sure; --yes takes the most likely answers, --answer KEY=VALUE gives one. Then it checks the new file like
`rankmon check-config --connect`. DuckDB reads files: `--file '/logs/*.parquet'`.
A password comes from the URL or from RANKMON_SOURCE_PASSWORD, and is never written.

The KEY of an --answer is the one in the configuration: rankings.table, rankings.item, rankings.time,
relevance.events.table, relevance.events.type, relevance.events.time, relevance.events.rules,
relevance.judgments.grade or relevance.column.grade; for a time zone, rankings.time.timezone or
relevance.events.time.timezone. VALUE is a name, or the number of an option: `--answer rankings.table=search_log`.
Rules are TYPE=GRADE, separated by spaces: `--answer 'relevance.events.rules=click=1 purchase=3'`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import yaml

from monitor.cli.commands.check_config import check_config
from monitor.cli.common import command, writing
from monitor.config.report import nearest
from monitor.config.urls import database_url
from monitor.errors import InputError
from monitor.messages.words import counted, plain
from monitor.source.discovery import tables
from monitor.source.engine import Database
from monitor.source.proposal import PAST, QUESTIONS, Proposal, Question, propose
from monitor.types import format_duration
from monitor.units import DAY

PASSWORD = "RANKMON_SOURCE_PASSWORD"
MEMORY = ":memory:"


@command
@click.argument("url")
@click.option("-o", "--output", type=click.Path(path_type=Path), default="rankmon.yaml", show_default=True)
@click.option("--name", default="search", show_default=True, help="Name of the monitor.")
@click.option("--file", "files", multiple=True, help="A file or glob pattern that DuckDB reads as a table.")
@click.option("--table", "only", multiple=True, help="A table to examine (default: all).")
@click.option("--answer", "answers", multiple=True, metavar="KEY=VALUE", help="Answer a question in advance.")
@click.option("--yes", is_flag=True, help="Take the most likely answer to each question.")
@click.pass_context
def init(
    ctx: click.Context,
    url: str,
    output: Path,
    name: str,
    files: tuple[str, ...],
    only: tuple[str, ...],
    answers: tuple[str, ...],
    yes: bool,
) -> int:
    if output.exists():
        raise InputError(f"{output} exists; give another --output, or remove it")
    try:
        parsed = database_url(url, os.environ.get(PASSWORD), Path())
    except ValueError as error:
        raise InputError(f"the URL {error}") from error
    answering = _Answering(_answers(answers), yes)
    with closing(Database(name, parsed, 60)) as database:
        found = tables(database, files, only, _warn_of)
        try:
            proposal = propose(database, found, answering)
        except InputError:
            answering.refuse()  # other answers may lead further
            raise
    answering.refuse()
    for key in answering.unused():
        click.echo(f"rankmon: warning: --answer {key}: the question did not arise, so it was not used", err=True)
    bare = parsed._replace(password=None).render_as_string()  # `set` would keep it
    bare = bare.replace(quote(MEMORY, ""), MEMORY)
    with writing(output):
        output.write_text("\n".join(_lines(proposal, name, bare, bool(parsed.password))) + "\n", encoding="utf-8")
    click.echo(f"wrote {output}\n")
    if parsed.password:
        os.environ[PASSWORD] = str(parsed.password)
    code: int = ctx.invoke(check_config, config_path=output, connect=True)
    named = f" -c {output}" * (str(output) != "rankmon.yaml")
    if parsed.password:
        click.echo(f"\nthe file does not contain the password: set {PASSWORD}")
    since = "DATE" if proposal.since is None else f"{datetime.fromtimestamp(proposal.since, UTC):%Y-%m-%d}"
    click.echo(f"\nnext: rankmon backfill{named} --from {since}")
    if proposal.since is not None and proposal.oldest is not None and proposal.oldest < proposal.since:
        begins = f"{datetime.fromtimestamp(proposal.oldest, UTC):%Y-%m-%d}"
        days = PAST // DAY
        click.echo(
            f"These are {days} days: verdicts begin after 14, with a full baseline after 28. The log begins {begins}."
        )
    return code


def _warn_of(unread: str) -> None:
    click.echo(f"rankmon: warning: left out {plain(unread, one_line=True)}", err=True)


def _answers(texts: Sequence[str]) -> dict[str, str]:
    """Key -> answer."""
    found = dict[str, str]()
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--answer {text!r}: write KEY=VALUE")
        if key not in QUESTIONS:
            raise click.UsageError(f"--answer {text!r}: there is no question {key!r}; {nearest(key, QUESTIONS)}")
        if key in found:
            raise click.UsageError(f"--answer {key} is given twice; keep one")
        found[key] = value
    return found


class _Answering:
    """Answers questions: by --answer, by --yes, or by whom it asks.

    Without a terminal, the rest is collected, so that all are known at once.
    """

    def __init__(self, given: Mapping[str, str], yes: bool) -> None:
        self.given, self.yes = given, yes
        self.used = set[str]()
        self.unfit = dict[str, InputError]()
        self.unanswered = dict[str, Question]()

    def __call__(self, question: Question) -> str:
        given = self._given(question)
        if given is None and not question.is_open:
            return question.default
        if given is None and self.yes and question.default:
            given = question.default
        if given is None and not sys.stdin.isatty():
            self.unanswered.setdefault(question.key, question)
            return question.default
        if given is not None:
            click.echo(f"{question.key}: {given}")
            return given
        return _asked(question)

    def _given(self, question: Question) -> str | None:
        """The --answer, if there is one that fits."""
        key = question.key
        if key not in self.given:
            return None
        try:
            answer = question.answered(self.given[key])
        except InputError as error:
            self.unfit[key] = InputError(f"--answer {key}={self.given[key]}: {error}")
            if question.is_open:
                raise self.unfit[key] from None
            return None  # it may be meant for another table
        self.used.add(key)
        return answer

    def unused(self) -> list[str]:
        """Keys of the answers to questions that did not arise. Raises InputError for an answer that fits nowhere."""
        left = [key for key in self.given if key not in self.used]
        for key in left:
            if key in self.unfit:
                raise self.unfit[key]
        return left

    def refuse(self) -> None:
        """Raises InputError if questions are left, with all of them and their likeliest answers."""
        if not self.unanswered:
            return
        number = counted(len(self.unanswered), "question")
        by_yes = ", or accept all suggestions with --yes" * all(one.default for one in self.unanswered.values())
        told = [f"answer {number}, as suggested below or otherwise{by_yes}:"]
        for question in self.unanswered.values():
            told.append(question.text + (f" [{', '.join(question.options)}]" if question.options else ""))
            answer = f"{question.key}={question.default or 'VALUE'}"
            told.append(f"    --answer {shlex.quote(answer)}")
        raise InputError("\n".join(told))


def _asked(question: Question) -> str:
    """Asks whoever sits there until the answer will do; options have numbers, as some are whole queries."""

    def read(text: str) -> str:
        try:
            return question.answered(text.strip())
        except InputError as error:
            raise click.UsageError(str(error)) from None

    if not question.options:
        return str(click.prompt(question.text, default=question.default or None, value_proc=read))
    click.echo(question.text)
    for number, option in enumerate(question.options, 1):
        click.echo(f"  {number}  {option}")
    likeliest = str(question.options.index(question.default) + 1)
    return str(click.prompt("Number", default=likeliest, value_proc=read))


def _lines(proposal: Proposal, name: str, url: str, has_password: bool) -> Iterator[str]:
    """The configuration's lines, with the reason of each choice behind it."""
    depth = min(10, max(1, proposal.depth))
    yield "# Written by `rankmon init`. Every key: docs/reference/configuration.md"
    yield "store:"
    yield "  url: sqlite:///rankmon.db # rankmon's own tables; a PostgreSQL URL for more than one daemon"
    yield "sources:"
    yield "  log:"
    yield f"    url: {_text(url)}"
    if has_password:
        yield f"    password: ${{{PASSWORD}}}"
    yield "monitors:"
    yield f"  - name: {_text(name)}"
    yield "    source: log"
    yield "    rankings:"
    yield from _section(proposal.rankings, "rankings", proposal.reasons)
    if proposal.slices:
        yield f"    slices: {_text(list(proposal.slices))} # verdicts judge each value of the first, see drift.mix_by"
    ((kind, recipe),) = proposal.relevance.items()
    yield "    relevance:"
    yield f"      {kind}:"
    recipe = {key: format_duration(v) if key == "attribution" else v for key, v in recipe.items()}
    yield from ("  " + line for line in _section(recipe, f"relevance.{kind}", proposal.reasons))
    empty = "(empty=zero)" if kind == "events" else ""
    yield f"    measures: [ndcg@{depth}, mrr@{depth}" + (f", ndcg{empty}@{depth}]" if empty else "]")
    yield "    windows: [24h, 7d]"
    yield "    drift: {} # verdicts: alerts without thresholds, once two weeks are stored"


def _section(values: Mapping[str, Any], key: str, reasons: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        reason = reasons.get(f"{key}.{name}", "")
        yield f"      {name}: {_text(value)}" + f" # {reason}" * bool(reason)


def _text(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).removesuffix("\n...\n").strip()
    )
