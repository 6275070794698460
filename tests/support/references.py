"""The reference pages of the documentation, made from the code: `make docs` writes them, a test holds them to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import click

from monitor.cli import cli
from monitor.cli.common import HELP
from monitor.config.schema import reference
from monitor.measures.measure import SPECS, parse
from monitor.measures.relevance import REASONS
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


PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "configuration": reference,
        "commands": commands,
        "metrics": metrics,
        "refused-rows": refused_rows,
        "measures": measures,
    }
)


def main() -> None:
    """Write all pages."""
    for name, made in PAGES.items():
        (FOLDER / f"{name}.md").write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main()
