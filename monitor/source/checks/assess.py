"""Checks a mapping on a sample of its source, for `check-config --connect`: wrong mappings often read fine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from monitor.errors import SourceError, TooMany
from monitor.source.checks.labels import check_ids, check_labels, check_matches, check_types
from monitor.source.checks.rankings import check_lists, check_named_slices, check_refusals, check_slices
from monitor.source.checks.remarks import Remark
from monitor.source.checks.sample import MOST_ROWS, Sample, newest_in
from monitor.source.checks.times import check_times
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.times import CREDIBLE
from monitor.types import Monitor

CHECKS = (
    *(check_lists, check_refusals, check_labels, check_slices, check_named_slices),
    *(check_types, check_matches, check_ids, check_times),
)


@dataclass(frozen=True)
class MappingReport:
    """What the sample covered, in words, and the problems found."""

    looked_at: str
    remarks: tuple[Remark, ...] = ()


def assess(monitor: Monitor, database: Database, now: float, newest: float | None) -> MappingReport:
    """The report on a sample of requests with mature labels, and their events.

    Args:
        newest: time of the newest request, seconds; None: find it, however old.

    Raises:
        SourceError: the source did not answer, or holds other types than configured.
    """
    pull = Pull(monitor, database, MOST_ROWS)
    try:
        if newest is None and (newest := newest_in(pull, CREDIBLE[0], now)) is None:
            return MappingReport("no requests to examine")
        sample = Sample.before(pull, int(newest) + 1, now)
        remarks = (remark for check in CHECKS for remark in check(sample))
        return MappingReport(sample.words, tuple(_at_items(monitor, remark) for remark in remarks))
    except TooMany:
        return MappingReport("too many rows per minute to examine")
    except SourceError as error:
        if error.reason != "timeout":
            raise
        return MappingReport(f"no sample, because it took too long: {error}")


def _at_items(monitor: Monitor, remark: Remark) -> Remark:
    """The remark at the key that the configuration has: `items` stands for item and position."""
    is_of_items = monitor.rankings.items is not None and remark.key in (("rankings", "item"), ("rankings", "position"))
    return replace(remark, key=("rankings", "items")) if is_of_items else remark
