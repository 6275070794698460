"""`make bench`: all benchmarks, as tables.

--quick takes small data and few rounds, --large also 20 million rows, --write keeps the results.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks import cycle, incremental, kernel, many, memory, peers, postgres, scrape, verdicts, ways
from tests.benchmarks.report import Section, facts, markdown, table

RESULTS = Path(__file__).with_name("RESULTS.md")
REQUESTS, QUICK_REQUESTS = 100_000, 5_000


def sections(folder: Path, quick: bool, is_large: bool = False) -> Iterator[Section]:
    """Every table, one after the other; also those of very long logs if `is_large`."""
    requests, rounds = (QUICK_REQUESTS, 1) if quick else (REQUESTS, 5)
    # ranx compiles for most of a minute when it is used for the first time.
    contenders = [replace(p, share=1.0) for p in kernel.PEERS if p.name != "ranx"] if quick else kernel.PEERS
    yield from kernel.sections(requests, rounds, contenders)
    if not quick:
        yield kernel.linearity(requests, rounds)
    yield from cycle.sections(folder, requests, rounds)
    yield from ways.sections(folder, requests, rounds)
    with postgres.filled(folder, requests) as copied:
        if copied is not None:
            yield from postgres.sections(copied, folder, rounds)
            yield peers.section(copied, folder, rounds, is_quick=quick)
    yield memory.section(folder, requests)
    yield memory.resting(folder, rounds)
    yield from incremental.sections(folder, *((5, 3) if quick else ()))
    yield from scrape.sections(folder, *((5, 3, 5, 1) if quick else ()))
    yield from verdicts.sections(folder, *((20, 5, 1) if quick else ()))
    if quick or is_large:
        yield from many.sections(folder, *((5, 30, 5, 2, 100.0) if quick else ()))
    if is_large:
        yield from postgres.large(folder, requests)


def without_aims(section: Section) -> Section:
    """Small data only show that it runs, so they have no aims."""
    return replace(section, lines=[replace(line, aim=None) for line in section.lines])


def main() -> None:
    """Run all, print each table as soon as it is ready."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, one round, without ranx: a smoke test")
    parser.add_argument("--large", action="store_true", help="also 20 million rows: many minutes and some gigabytes")
    parser.add_argument("--write", action="store_true", help=f"keep the tables in {RESULTS.name}, as they come")
    chosen = parser.parse_args()
    if chosen.quick and chosen.write:
        parser.error("--quick measures too little to be kept; leave one of the two out")
    if chosen.quick and chosen.large:
        parser.error("--quick and --large exclude each other")
    print(facts())
    done = []
    with TemporaryDirectory(prefix="rankmon-bench-") as folder:
        for section in sections(Path(folder), chosen.quick, chosen.large):
            section = without_aims(section) if chosen.quick else section
            print(f"\n{section.title}\n\n{table(section)}", flush=True)
            done.append(section)
            if chosen.write:
                RESULTS.write_text(markdown(done), encoding="utf-8")


if __name__ == "__main__":
    main()
