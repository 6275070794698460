"""Judgments from clicks: checked by hand, shrunk to the mean of their ranks, and closer to the truth than rates."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.measures.examination import ShownCounts
from monitor.measures.judgments import Attractiveness, estimate_attractiveness

LOOKS = np.array([0.0, 1.0, 0.5, 0.0])
"""Examination, indexed by rank; 0 where it is unknown, as for rank 3."""


def counts(*rows: tuple[int, int, float, float]) -> ShownCounts:
    """Counts from rows of (pair, rank, shown, clicked), all of one query."""
    pair, rank, shown, clicked = map(np.array, zip(*rows, strict=True))
    names = [("q", f"i{n}") for n in range(max(pair) + 1)]
    return ShownCounts(np.zeros(len(rows), int), pair, rank, shown.astype(float), clicked.astype(float), names)


def judged(made: ShownCounts, prior: float | None = None) -> Attractiveness:
    return estimate_attractiveness(made, LOOKS[made.rank], prior)


def test_judgments_match_a_hand_calculation() -> None:
    """A has 30 clicks in 50 + 0.5 x 100 examined impressions, B 10 in 100; C is below the depth."""
    certain = (50 + 0.25 * 100) / 100 + 1
    variance = (2 * 100 * 0.1**2 - 2 * 0.2 + 0.2**2 * certain) / (200 - certain)
    strength = (0.2 - (0.2**2 + variance) * certain / 2) / variance
    found = judged(counts((0, 1, 50, 20), (0, 2, 100, 10), (1, 1, 100, 10), (2, 3, 9, 9)))
    assert found.mean == pytest.approx(40 / 200)
    assert found.strength == pytest.approx(strength) == pytest.approx(18.71, abs=0.01)
    kept = 100 / (100 + strength)
    assert found.value[:2].tolist() == pytest.approx([0.2 + kept * 0.1, 0.2 - kept * 0.1])
    assert np.isnan(found.value[2])
    assert found.grades(100).tolist() == [100, 41, -1]
    assert found.grades(3).tolist() == [3, 1, -1]


def test_an_item_shrinks_towards_the_mean_of_its_ranks() -> None:
    """Rank 1 has 40 clicks in 100 examined impressions, rank 2 has 5 in 50; C has half of its own at each rank."""
    found = judged(counts((0, 1, 90, 38), (1, 2, 80, 4), (2, 1, 10, 2), (2, 2, 20, 1)), 20.0)
    assert found.mean == pytest.approx(45 / 150)
    kept = (90 / 110, 40 / 60, 20 / 40)
    means, rates = (0.4, 0.1, 0.25), (38 / 90, 4 / 40, 3 / 20)
    assert found.value.tolist() == pytest.approx([m + k * (r - m) for m, k, r in zip(means, kept, rates, strict=True)])


@pytest.mark.parametrize("seed", range(3))
def test_shrinking_by_rank_beats_any_fixed_prior_for_a_good_ranker(seed: int) -> None:
    """Lists of ten items in order of relevance, shown a few times each; one mean for all would be less accurate."""
    rng, (lists, size) = np.random.default_rng(seed), (300, 10)
    attractiveness, looks = -np.sort(-rng.beta(0.4, 1.6, (lists, size)), axis=1), 1 / np.arange(1, size + 1)
    times = np.repeat(rng.integers(1, 12, lists), size)
    clicked = rng.binomial(times, (attractiveness * looks).ravel()).astype(float)
    pair, rank, of_rank = np.arange(lists * size), np.tile(np.arange(size) + 1, lists), np.tile(looks, lists)
    names = [("q", n) for n in range(lists * size)]
    found = estimate_attractiveness(ShownCounts(pair // size, pair, rank, times.astype(float), clicked, names), of_rank)
    seen, share = times * of_rank, clicked.sum() / (times * of_rank).sum()
    fixed = [(clicked + s * share) / (seen + s) for s in (0.1, 1, 3, 10, 30, 100)]
    assert np.corrcoef(found.value, attractiveness.ravel())[0, 1] > max(
        np.corrcoef(v, attractiveness.ravel())[0, 1] for v in fixed
    )
    assert np.mean((found.value - attractiveness.ravel()) ** 2) < min(
        np.mean((v - attractiveness.ravel()) ** 2) for v in fixed
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_estimated_prior_matches_the_true_distribution(seed: int) -> None:
    """Beta(2, 8) has a mean of 0.2 and the weight of 10 examined impressions."""
    rng = np.random.default_rng(seed)
    attractiveness = rng.beta(2, 8, 4000)
    shown = rng.integers(1, 30, (2, 4000))
    clicked = rng.binomial(shown, LOOKS[1:3, None] * attractiveness)
    rows = [(n, r + 1, shown[r, n], clicked[r, n]) for n in range(4000) for r in (0, 1)]
    found = judged(counts(*rows))
    assert found.mean == pytest.approx(0.2, rel=0.05)
    assert found.strength == pytest.approx(10, rel=0.15)


def test_items_that_differ_only_by_chance_get_the_mean() -> None:
    found = judged(counts((0, 1, 10, 1), (1, 1, 10, 2)))
    assert found.strength == np.inf
    assert found.value.tolist() == pytest.approx([0.15, 0.15])


def test_a_single_item_gets_the_mean() -> None:
    found = judged(counts((0, 1, 10, 1)))
    assert found.value.tolist() == pytest.approx([0.1])


def test_a_log_without_clicks_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was clicked at these ranks"):
        judged(counts((0, 1, 10, 0), (1, 3, 10, 4)))


@pytest.mark.parametrize("seed", range(5))
def test_judgments_are_closer_to_the_truth_than_raw_click_rates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = 2000
    attractiveness, looks = rng.beta(2, 8, size), np.round(rng.lognormal(2, 1.5, size)) + 1
    clicked = rng.binomial(looks.astype(int), attractiveness)
    names = [("q", n) for n in range(size)]
    made = ShownCounts(np.zeros(size, int), np.arange(size), np.ones(size, int), looks, clicked.astype(float), names)
    found = judged(made)
    error, raw = np.mean((found.value - attractiveness) ** 2), np.mean((clicked / looks - attractiveness) ** 2)
    assert error < 0.5 * raw
    fixed = min(np.mean(((clicked + s * found.mean) / (looks + s) - attractiveness) ** 2) for s in (1, 3, 10, 30, 100))
    assert error < 1.1 * fixed  # about as good as the best fixed strength, which is unknown in practice


def test_without_a_prior_values_are_not_shrunk_and_stay_at_most_1() -> None:
    """One model shows items of relevance 0.4, another items of 0.1, each with five examined impressions."""
    rng, size = np.random.default_rng(1), 1000
    attractiveness = np.repeat([0.4, 0.1], size)
    looks = np.full(2 * size, 5.0)
    clicked = rng.binomial(5, attractiveness).astype(float)
    names = [("q", n) for n in range(2 * size)]
    rank = np.ones(2 * size, int)
    made = ShownCounts(np.zeros(2 * size, int), np.arange(2 * size), rank, looks, clicked, names)
    plain, drawn = judged(made, 0.0).value, judged(made).value
    assert plain[:size].mean() / plain[size:].mean() == pytest.approx(4, rel=0.1)
    assert drawn[:size].mean() / drawn[size:].mean() < 2.5
    assert judged(counts((0, 2, 1, 1), (1, 1, 10, 2)), 0.0).value.tolist() == pytest.approx([1.0, 0.2])
