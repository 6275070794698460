"""`python -m tests.benchmarks.examination_em --seeds 1 2`: does EM know where people look when swaps are too few?

Simulated logs whose examination is known: 42,000 requests of 400 queries, each with a fixed list of 5 items. A share of
the requests swaps two random neighbours. `sorted`: the ranker puts the most wanted of 30 items on top; `unsorted`: it
draws them at random, once per query. `seldom clicked`: nobody wants an item with more than 0.3. Each estimator sees the
same counts of (query, item, rank). `off by` is the largest relative error of ranks 2 to 5, a mean over seeds.

- rankmon: what `rankmon examination fit` prints, the upper reach of its widest 95 % interval, and the number of swaps
  that it asks for if it refuses.
- EM: the position-based model, with examination and attractiveness between 0 and 1, each (query, item) with its own
  attractiveness. It starts from examination of 0.9 at each rank, of 0.5, and of 0.9 / rank, and ends after 20,000
  steps or at a step that changes no rank's by 1e-7 of it. `fits differ by`: the largest difference of the log
  likelihoods of the three, over seeds. A clear difference is 2 or more.
- EM with a prior: the attractiveness of all items comes from one gamma distribution, which is fitted too (it is
  conjugate to Poisson counts). Its interval is a bootstrap over queries.
- --random: what `rankmon examination fit --random` prints if the whole log is marked as in random order. It assumes
  what the prior does: items on top are not better.

In brackets: the share of ranks whose 95 % interval contains the truth. `--write` keeps the table.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from math import inf, lgamma
from pathlib import Path
from typing import NamedTuple

import numpy as np

from monitor.arrays import Floats
from monitor.cli.commands.examination import UNKNOWN
from monitor.measures.examination import Z95, ShownCounts, estimate, estimate_random, smoothed

RESULTS = Path(__file__).with_name("EXAMINATION_EM.md")
REQUESTS, QUERIES, ITEMS, DEPTH = 42_000, 400, 30, 5
SWAPPED = {"all": 1.0, "10 %": 0.1, "1 %": 0.01, "0.1 %": 0.001, "none": 0.0}
STEPS, ENOUGH, LEAST, RESAMPLES = 20_000, 1e-7, 1e-12, 40
SHAPES = 2.0 ** np.arange(-3, 7)
"""Of the gamma distribution, from items that mostly differ to items that hardly do; the likeliest counts."""
STARTS = np.full(DEPTH, 0.9), np.full(DEPTH, 0.5), 0.9 / np.arange(1, DEPTH + 1)


class World(NamedTuple):
    """A log's ranker and people: noise of its scores, the power by which examination falls, highest attractiveness."""

    noise: float
    power: float
    most: float = 1.0

    @property
    def examination(self) -> Floats:
        """(DEPTH,) the truth, relative to rank 1."""
        return np.arange(1.0, DEPTH + 1) ** -self.power


WORLDS = {
    "sorted, examination 1/rank": World(0.15, 1.0),
    "sorted, examination 1/√rank": World(0.15, 0.5),
    "sorted, examination 1/√rank, seldom clicked": World(0.15, 0.5, 0.3),
    "unsorted, examination 1/rank": World(inf, 1.0),
}
HEAD = (
    "| log | requests that swap | items at several ranks | rankmon is off by | it says | EM from 0.9 is off by "
    "| EM from 0.5 | EM from 0.9 / rank | fits differ by | EM with a prior | --random |"
)


def counts(world: World, swapped: float, seed: int) -> ShownCounts:
    """A log in which this share of requests swaps two neighbours."""
    rng = np.random.default_rng(seed)
    wish = world.most * rng.beta(0.35, 1.6, (QUERIES, ITEMS))
    noise = rng.standard_normal(wish.shape)
    lists = np.argsort(-(noise if world.noise == inf else wish / world.most + world.noise * noise), axis=1)[:, :DEPTH]
    often = np.arange(1, QUERIES + 1) ** -0.9
    query = rng.choice(QUERIES, REQUESTS, p=often / often.sum())
    shown = lists[query]
    (those,) = np.nonzero(rng.random(REQUESTS) < swapped)
    upper = rng.integers(0, DEPTH - 1, len(those))
    shown[those, upper], shown[those, upper + 1] = shown[those, upper + 1], shown[those, upper]
    clicked = rng.random(shown.shape) < world.examination * wish[query[:, None], shown]
    cells, of = np.unique(((query[:, None] * ITEMS + shown) * DEPTH + np.arange(DEPTH)).ravel(), return_inverse=True)
    names, pair = np.unique(cells // DEPTH, return_inverse=True)
    views, clicks = np.bincount(of).astype(float), np.bincount(of, clicked.ravel())
    of_query = [(name // ITEMS, name) for name in names.tolist()]
    return ShownCounts(names[pair] // ITEMS, pair, cells % DEPTH + 1, views, clicks, of_query)


def em(of: ShownCounts, start: Floats) -> tuple[Floats, float]:
    """(examination relative to rank 1 by EM, log likelihood), each (query, item) with its own attractiveness."""
    place, looks, wish = of.rank - 1, start, np.full(of.pair.max() + 1, 0.5)
    views, seen, missed = np.bincount(place, of.shown), np.bincount(of.pair, of.shown), of.shown - of.clicked
    for _ in range(STEPS):
        look, want = looks[place], wish[of.pair]
        unseen = missed / (1 - look * want)
        looked = np.bincount(place, of.clicked + unseen * look * (1 - want)) / views
        wanted = np.bincount(of.pair, of.clicked + unseen * want * (1 - look)) / seen
        before, looks, wish = looks, np.clip(looked, LEAST, 1 - LEAST), np.clip(wanted, LEAST, 1 - LEAST)
        if np.abs(np.log(looks / before)).max() < ENOUGH:
            break
    chance = looks[place] * wish[of.pair]
    return looks / looks[0], float(of.clicked @ np.log(chance) + missed @ np.log1p(-chance))


def em_with_prior(of: ShownCounts, shape: float, weight: Floats, looks: Floats) -> tuple[Floats, float]:
    """(examination by EM from `looks`, log likelihood), with attractiveness from a gamma distribution of this shape.

    Args:
        weight: (pairs,) how often each pair counts.
    """
    place, clicks, weights = of.rank - 1, np.bincount(of.pair, of.clicked), weight[of.pair]
    by_rank, rate = np.bincount(place, weights * of.clicked), shape * of.shown.sum() / of.clicked.sum()
    for _ in range(STEPS):
        wish = (shape + clicks) / (rate + np.bincount(of.pair, of.shown * looks[place]))
        found = by_rank / np.bincount(place, weights * of.shown * wish[of.pair])
        before, looks, rate = looks, found / found[0], shape * weight.sum() / (weight @ wish) / found[0]
        if np.abs(np.log(looks / before)).max() < ENOUGH:
            break
    each = shape * np.log(rate) - (shape + clicks) * np.log(rate + np.bincount(of.pair, of.shown * looks[place]))
    gammas = sum(lgamma(shape + n) for n in clicks) - len(clicks) * lgamma(shape)
    return looks, float(each.sum() + gammas + by_rank @ np.log(looks))


def with_prior(of: ShownCounts, seed: int) -> tuple[Floats, Floats]:
    """(examination by EM with the likeliest prior, standard errors of their logarithms)."""
    once = np.ones(of.pair.max() + 1)
    fits = [(*em_with_prior(of, shape, once, np.ones(DEPTH)), shape) for shape in SHAPES]
    looks, _, shape = max(fits, key=lambda fit: fit[1])
    query, rng = np.zeros(len(once), np.int64), np.random.default_rng(seed)
    query[of.pair] = of.query
    drawn = rng.multinomial(QUERIES, np.full(QUERIES, 1 / QUERIES), RESAMPLES)
    again = [np.log(em_with_prior(of, shape, one[query].astype(float), looks)[0]) for one in drawn]
    return looks, np.std(again, axis=0)


class Scored(NamedTuple):
    """What the estimators make of one log, rankmon first; its figures are nan if it refuses, and `why` says why."""

    pairs: int
    errors: Sequence[float]
    apart: float
    covered: Sequence[float]
    reach: float
    warns: bool
    why: str


def scored(world: World, swapped: float, seed: int) -> Scored:
    """The estimators on a log."""
    of, why, reach, warns = counts(world, swapped, seed), "", np.nan, False
    ours = np.full((2, DEPTH), np.nan)
    try:
        one = smoothed(estimate(of, DEPTH))
        ours = np.stack([one.value, one.error])
        reach, warns = float((one.upper / one.value).max()) - 1, bool((one.upper > UNKNOWN * one.lower).any())
    except ValueError as error:
        why = str(error)
    fits, prior = [em(of, start) for start in STARTS], with_prior(of, seed)
    alike = smoothed(estimate_random(of, DEPTH))
    others = prior, (alike.value, alike.error)
    looks = ours[0], *(look for look, _ in fits), *(look for look, _ in others)
    errors = [float(np.abs(one / world.examination - 1).max()) for one in looks]
    covered = [float((np.abs(np.log(v / world.examination)) <= Z95 * error)[1:].mean()) for v, error in (ours, *others)]
    pairs, apart = int((np.bincount(of.pair) > 1).sum()), float(np.ptp([likely for _, likely in fits]))
    return Scored(pairs, errors, apart, covered, reach, warns, why)


def row(name: str, share: str, found: Sequence[Scored]) -> str:
    """A row of the table, of all seeds."""
    fits, off, says = [one for one in found if not one.why], "–", []
    if fits:
        off = f"{np.mean([one.errors[0] for one in fits]):.2f} ({np.mean([one.covered[0] for one in fits]):.0%})"
        warned = sum(one.warns for one in fits)
        says += [
            f"+{np.median([one.reach for one in fits]):,.0%}",
            *([f"warns {warned} of {len(fits)}"] * (warned > 0)),
        ]
    if refused := [one.why for one in found if one.why]:
        needed = [int(n.replace(",", "")) for why in refused for n in re.findall(r"([\d,]+) of these", why)]
        says.append(f"refuses {len(refused)} of {len(found)}: {np.median(needed):,.0f} swaps needed")
    *three, prior, alike = np.mean([one.errors[1:] for one in found], axis=0).tolist()
    covered, of_alike = np.mean([one.covered[1:] for one in found], axis=0).tolist()
    apart = f"{max(one.apart for one in found):.2f}"
    cells = name, share, f"{np.mean([one.pairs for one in found]):,.0f}", off, ", ".join(says)
    ems = *(f"{error:.2f}" for error in three), apart, f"{prior:.2f} ({covered:.0%})", f"{alike:.2f} ({of_alike:.0%})"
    return re.sub(r"(?<=\d)%", " %", f"| {' | '.join((*cells, *ems))} |")


def main() -> None:
    """Score the seeds and print, or keep, the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.examination_em", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", required=True, help="those below 100 were used for the design")
    parser.add_argument("--write", action="store_true", help=f"keep the table in {RESULTS.name}")
    given = parser.parse_args()
    lines = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    for name, world in WORLDS.items():
        for share, swapped in SWAPPED.items():
            lines.append(row(name, share, [scored(world, swapped, seed) for seed in given.seeds]))
            print(lines[-1], flush=True)
    if given.write:
        about = (__doc__ or "").partition("\n\n")[2].strip()
        said = "\n".join(lines)
        seeds = ", ".join(map(str, given.seeds))
        RESULTS.write_text(f"# EM where swaps are too few\n\n{about}\n\nSeeds {seeds}.\n\n{said}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
