"""How often labels that one slice lost are taken for a worse model, and worse lists for lost labels.

`python -m tests.support.lost_labels` prints both tables of simulated models; a few minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from monitor.drift.verdicts import Verdict
from tests.support.drift import UNLABELLED, Ranking, on, verdicts

WARM, LAST = 31, 10
"""Days before the change, and after it."""
USUAL, LEFT = (0.9, 0.4), (0.0, 0.15)
"""Share of the requests that have a label; of these labels, what is left."""
WORSE = ((0.6, 0.71), (0.49, 0.71), (0.4, 0.71))
"""Of worse lists: share of the labels that is left, and what these are worth; less could not be simulated."""


def models(slices: tuple[int, ...], peaks: tuple[int, ...], seeds: int) -> Iterator[tuple[Ranking, float, int]]:
    """(ranking, day of the change, seed) of each, by slices, peak of requests an hour in the one, time of day, seed."""
    for many, peak, hour, seed in product(slices, peaks, (0, 8, 16), range(seeds)):
        number = seed + 100 * hour + 10_000 * peak + 10_000_000 * many
        yield Ranking.of(WARM + LAST + 1, many, float(peak * many), seed=number), WARM + hour / 24, number


def lost(usual: float, left: float) -> str:
    """What becomes of models of which one slice loses its labels for four days."""
    paged = told = number = 0
    for ranking, at, seed in models((3, 8, 20), (7, 20, 60, 200), 3):
        with_labels = ranking.since(0, coverage=usual / (1 - UNLABELLED))
        found = on(verdicts(with_labels.since(at, at + 4, coverage=left, slices=[1]).draw(seed)), at, at + 4)
        paged += is_paged(found)
        told += any("labels" in v.kind for v in found)
        number += 1
    return f"{usual:.0%} usual, {left:.0%} of them left: {paged} of {number} page, {told} are told as lost labels"


def worse(left: float, worth: float) -> str:
    """What becomes of models of which one slice's lists get worse for good."""
    first = found = stays = number = 0
    longest = 0.0
    for ranking, at, seed in models((3, 8), (60, 200), 2):
        seen = on(verdicts(ranking.since(at, coverage=left, mean=worth, slices=[1]).draw(seed)), at)
        opened = next((i for i, v in enumerate(seen) if v.kind == "degraded"), len(seen))
        masked = sum("labels" in v.kind for v in seen[:opened])
        first += masked > 0
        longest = max(longest, masked / 24)
        found += is_paged(seen)
        stays += bool(seen[-1].alarms)
        number += 1
    return (
        f"{left:.0%} of the labels left, worth {worth:.0%}: found in {found} of {number}, open to the end in {stays}, "
        f"taken for lost labels first in {first}, for {longest:.1f} days at the most"
    )


def is_paged(found: list[Verdict]) -> bool:
    """Whether an alarm opens."""
    return any(c.became == "firing" for v in found for c in v.changes)


if __name__ == "__main__":
    for case in product(USUAL, LEFT):
        print(lost(*case), flush=True)
    for case in WORSE:
        print(worse(*case), flush=True)
