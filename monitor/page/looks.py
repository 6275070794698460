"""The measure corrected for where people look and the plain one, in a few words each."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.messages.words import utc
from monitor.page.state import overall_point
from monitor.page.words import number
from monitor.service.snapshot import MonitorSnapshot


def looks(snapshot: MonitorSnapshot) -> Iterator[tuple[str, str]]:
    """(title, words); nothing without a corrected measure."""
    least = snapshot.monitor.min_completeness
    newest = [(one.measure, overall_point(one, least)) for one in snapshot.series]
    plain = next(((m, point) for m, point in newest if not m.examination and point is not None), None)
    for measure, point in newest:
        if not measure.is_corrected or point is None:
            continue
        other = "" if plain is None else f"; {plain[0]}, not corrected: {number(plain[1].value)}"
        yield (
            f"{measure.name}@{measure.k}, corrected for where people look",
            f"{number(point.value)} (95 %: {number(point.lower)} to {number(point.upper)}), by as much as "
            f"{point.effective or 0:,.0f} clicks of equal weight{other}. A click counts more where people look less, "
            "so a good item further down counts in full. It assumes that looks depend on the rank alone.",
        )
    if (found := snapshot.examined) is not None:
        told = ", ".join(f"{look:.2f}" for look in found.now.value)
        changed = "" if found.changed_since is None else "; people look elsewhere than before"
        yield "Looks by rank, relative to the first", f"{told}, fitted {utc(found.since)} to {utc(found.at)}{changed}"
