"""The reference pages of the documentation, made from the code: `make docs` writes them, a test holds them to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from inspect import cleandoc, isfunction, signature
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import click

from monitor.cli import cli
from monitor.cli.common import HELP
from monitor.conditions.assessment import Assessment
from monitor.conditions.evidence import kinds
from monitor.conditions.incident import Incident
from monitor.config.schema import reference
from monitor.measures.measure import SPECS, parse
from monitor.measures.relevance import REASONS
from monitor.messages import explanation as x
from monitor.messages.notification import VARIABLES, Message
from monitor.messages.own import REPLACEABLE
from monitor.messages.templates import FILTERS
from monitor.service.snapshot import Board
from monitor.service.telemetry import COUNTERS, Telemetry
from monitor.web.gauges import GAUGES, of_measure
from tests.support.metrics import registry

FOLDER = Path(__file__).parents[2] / "docs" / "reference"

METRICS = """\
# Metrics

Each measure has its own family: `rankmon_ndcg_ratio`, `rankmon_mrr_ratio`, `rankmon_dcg`, … With `_lower_` and
`_upper_` they are the ends of the 95 % interval. `rankmon_provisional_…` shows windows whose labels are still arriving.
`rankmon_slice_…` has the labels `dimension` and `value` too.

A scrape runs no queries. Series of removed monitors and slices disappear. Samples carry no timestamps.
"""
REFUSED = """\
# Refused rows

rankmon refuses unusable rows, counts them by reason in `rankmon_refused_rows`, and never repairs them. It never reads
rows and events without a time.
"""
TEMPLATES = """\
# Message templates

With `templates: FOLDER` in the configuration, files of these names replace the built-in
[Jinja](https://jinja.palletsprojects.com/templates/) templates. See
[how to write messages in your own words](../how-to/channels.md#write-messages-in-your-own-words). An unknown variable
or attribute is an error, not an empty text. Empty lines are dropped.

`it` and each of `findings` have the fields of the [webhook's findings](webhook.md#a-finding), depending on `it.kind`.
The tables below list what the built-in templates use. A release may change it; `rankmon check-config` then says so.
"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Lines of a table in Markdown."""
    titles = list(head)
    yield f"\n| {' | '.join(titles)} |\n|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(' '.join(cell.split()) for cell in row)} |"


def commands() -> str:
    """Every command with its options."""
    parts = ["# Commands\n", " ".join((cli.epilog or "").split())]
    for name in cli.list_commands(click.Context(cli)):
        found = cli.get_command(click.Context(cli), name)
        assert found is not None
        parts += _command(found, f"rankmon {name}")
    return "\n".join(parts) + "\n"


def _command(command: click.Command, call: str) -> Iterator[str]:
    context = click.Context(command, info_name=call, **HELP)
    yield f"\n## {call}\n"
    yield "\n\n".join(map(_paragraph, (command.help or "").split("\n\n")))
    yield f"\n```text\n{call} {' '.join(command.collect_usage_pieces(context))}\n```"
    records = [option.get_help_record(context) for option in command.params if isinstance(option, click.Option)]
    if shown := [(f"`{first}`", text) for first, text in filter(None, records) if first != "-h, --help"]:
        yield from table(("option", "meaning"), shown)
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _command(child, f"{call} {name}")


def _paragraph(text: str) -> str:
    """A paragraph of a help text; one that click leaves as it is written, after a \\b, as a block."""
    head, mark, kept = text.partition("\b\n")
    return f"```text\n{kept.rstrip()}\n```" if mark and not head.strip() else " ".join(text.split())


def metrics() -> str:
    """Every family of `/metrics`, from the tables that it is made from; those of slices are told in a sentence."""
    gauges = [*list(of_measure(parse("ndcg@10")))[:3], *GAUGES]
    rows = [(g.name, g.labels, g.help) for g in gauges]
    for family in registry(Board(), Telemetry()).collect():
        if family.name.startswith("rankmon_"):
            name = family.name.removeprefix("rankmon_") + "_total" * (family.name in COUNTERS)
            rows.append((name, family._labelnames, family.documentation))  # type: ignore[attr-defined]
    shown = ((f"`rankmon_{name}`", ", ".join(f"`{label}`" for label in labels), text) for name, labels, text in rows)
    return "\n".join([METRICS.rstrip("\n"), *table(("metric", "labels", "meaning"), shown)]) + "\n"


def refused_rows() -> str:
    """Every reason to refuse a row."""
    rows = ((f"`{reason}`", text) for reason, text in REASONS.items())
    return "\n".join([REFUSED.rstrip("\n"), *table(("reason", "what is refused"), rows)]) + "\n"


def measures() -> str:
    """The page of measures as it is written, with the table of all there are."""
    page = (FOLDER / "measures.md").read_text(encoding="utf-8")
    before, after = page.split("\n| measure |", 1)
    return before + "\n".join(table(("measure", "what", "options"), _measures())) + "\n\n" + after.split("\n\n", 1)[1]


def _measures() -> Iterator[tuple[str, str, str]]:
    for name, spec in SPECS.items():
        text = name + ("(max_grade=4)" if spec.needs_max_grade else "") + ("" if spec.is_of_lists else "@10")
        what = (spec.what or spec.title) + ("; lower is better" if parse(text).is_better_lower else "")
        yield f"`{text}`", what, ", ".join(f"`{option}`" for option in spec.option_names.split())


def templates() -> str:
    """What a user's templates can replace, and what they are given."""
    parts = [TEMPLATES.rstrip("\n")]
    parts += table(
        ("file", "what it gives"), ((f"`{name}.txt`", _sentence(text)) for name, text in REPLACEABLE.items())
    )
    parts += [
        "\n## Variables",
        *table(("variable", "what"), ((f"`{n}`", _sentence(text)) for n, text in VARIABLES.items())),
    ]
    of_kinds = dict[str, str]()
    for name, text in (one for kind in kinds().values() for one in _attributes(kind).items()):
        if text and of_kinds.get(name, "") not in ("", text):
            raise ValueError(f"{name} has two descriptions: {text!r} and {of_kinds[name]!r}")
        of_kinds[name] = text or of_kinds.get(name, "")
    for variable, found in (
        ("n", _attributes(Message)),
        ("incident", _attributes(Incident)),
        ("it", of_kinds),
        ("a", _attributes(Assessment)),
        ("x", {f"{name}({', '.join(_arguments(function))})": _first(function) for name, function in _functions(x)}),
    ):
        rows = ((f"`{variable}.{name}`", _sentence(text)) for name, text in found.items() if text or variable != "it")
        parts += [f"\n## {variable}", *table((f"of `{variable}`", "what"), rows)]
    filters = ((f"`{name}`", _first(function)) for name, function in FILTERS.items())
    parts += ["\n## Filters", *table(("filter", "what"), filters)]
    return "\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    """The text as a sentence: attributes are described in lower case, properties are not."""
    return text and text[0].upper() + text[1:].rstrip(".") + "."


def _first(what: Any) -> str:
    return (what.__doc__ or "").strip().partition("\n\n")[0]


def _functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield name, value


def _arguments(function: Any) -> list[str]:
    return [p.name for p in signature(function).parameters.values() if p.default is p.empty]


def _attributes(kind: type) -> dict[str, str]:
    """Public fields and properties of a class with what its docstrings say of them, those of its bases first."""
    found = dict[str, str]()
    for one in reversed(kind.__mro__[:-1]):
        said = _said(one.__doc__ or "")
        for name, value in {**dict.fromkeys(getattr(one, "__annotations__", {})), **vars(one)}.items():
            is_shown = name in getattr(one, "__annotations__", {}) or isinstance(value, property | cached_property)
            if is_shown and not name.startswith("_"):
                function = getattr(value, "fget", getattr(value, "func", None))
                found[name] = said.get(name) or _first(function) or found.get(name, "")
    return found


def _said(doc: str) -> dict[str, str]:
    """Name -> what a docstring's section of attributes says of it."""
    section = cleandoc(doc).partition("Attributes:\n")[2]
    found = dict[str, str]()
    for names, text in re.findall(r"^    ([\w, ]+): ((?:.|\n     +)+)", section, re.MULTILINE):
        found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "configuration": reference,
        "commands": commands,
        "metrics": metrics,
        "refused-rows": refused_rows,
        "measures": measures,
        "templates": templates,
    }
)


def main() -> None:
    """Write all pages."""
    for name, made in PAGES.items():
        (FOLDER / f"{name}.md").write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main()
