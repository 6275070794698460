"""Examination from swaps: right where the model holds, wide with little data, refused without data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.measures.examination import (
    Z95,
    Examination,
    ShownCounts,
    after_a_click,
    by_frequency,
    differing_slices,
    estimate,
    estimate_random,
    estimate_since,
    most_changed,
    requests_needed,
    smoothed,
    swap_errors,
    swaps_needed,
    trusts_first,
)
from tests.support import drawn_log

DEPTH = 6
LOOKS = np.arange(1, DEPTH + 1) ** -1.2


def counts(
    seed: int, queries: int = 60, views: int = 400, swaps: bool = True, looks: np.ndarray = LOOKS
) -> ShownCounts:
    """Clicks on lists of DEPTH items; their order varies a little between views unless `swaps` is False."""
    rng = np.random.default_rng(seed)
    rows = []
    for query in range(queries):
        attractiveness = rng.beta(1, 3, DEPTH)
        shown, clicked = np.zeros((2, DEPTH, DEPTH))
        for _ in range(views):
            noise = swaps * rng.normal(0, 1.5, DEPTH)
            order = np.argsort(np.arange(DEPTH) + noise)
            click = rng.random(DEPTH) < looks * attractiveness[order]
            shown[order, np.arange(DEPTH)] += 1
            clicked[order, np.arange(DEPTH)] += click
        rows += [
            (query, query * DEPTH + item, rank + 1, shown[item, rank], clicked[item, rank])
            for item in range(DEPTH)
            for rank in range(DEPTH)
            if shown[item, rank]
        ]
    query, pair, rank, shown_, clicked_ = map(np.array, zip(*rows, strict=True))
    return ShownCounts(query, pair, rank, shown_.astype(float), clicked_.astype(float))


def test_estimates_recover_examination_at_each_rank() -> None:
    found = estimate(counts(1), DEPTH)
    assert np.allclose(found.value, LOOKS, rtol=0.12)
    assert found.value[0] == found.lower[0] == found.upper[0] == 1


def test_estimated_intervals_cover_the_truth() -> None:
    held = [(f.lower[1:] <= LOOKS[1:]) & (LOOKS[1:] <= f.upper[1:]) for f in map(_few, range(40))]
    assert 0.88 <= np.mean(held) <= 1


def _few(seed: int) -> object:
    return estimate(counts(seed, queries=25, views=60), DEPTH)


def test_fewer_views_give_wider_intervals() -> None:
    wide, narrow = (estimate(counts(3, views=views), DEPTH) for views in (40, 400))
    assert (np.log(wide.upper / wide.lower)[1:] > np.log(narrow.upper / narrow.lower)[1:]).all()


def test_row_order_and_names_do_not_change_the_estimate() -> None:
    known, order = counts(5), np.random.default_rng(0).permutation(len(counts(5).rank))
    other = ShownCounts(*(getattr(known, n)[order] for n in ("query", "pair", "rank", "shown", "clicked")))
    assert np.allclose(estimate(other, DEPTH).value, estimate(known, DEPTH).value)


def test_lists_that_never_change_are_refused() -> None:
    with pytest.raises(ValueError, match="not enough swaps at rank 2: 0 items"):
        estimate(counts(2, swaps=False), DEPTH)


def test_a_rank_without_clicks_is_named() -> None:
    known = counts(2)
    without = known.clicked * (known.rank != 4)
    with pytest.raises(
        ValueError, match=r"no clicks on the [\d,]+ items shown at rank 4; check that clicks there are logged"
    ):
        estimate(ShownCounts(known.query, known.pair, known.rank, known.shown, without), DEPTH)


def test_a_log_without_rows_is_refused() -> None:
    none = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="no items were shown at rank 2; use fewer ranks"):
        estimate(ShownCounts(none, none, none, none.astype(float), none.astype(float)), DEPTH)


def test_one_query_gives_a_wide_interval() -> None:
    """The error comes from its clicks alone, and intervals keep their coverage."""
    found = [estimate(counts(seed, queries=1, views=400), 3) for seed in range(40)]
    assert min((one.upper / one.lower)[1:].min() for one in found) > 1.2
    held = [(f.lower[1:] <= LOOKS[1:3]) & (LOOKS[1:3] <= f.upper[1:]) for f in found]
    assert np.mean(held) >= 0.88


def stopping(seed: int, stops: float) -> ShownCounts:
    """Lists of three; a share `stops` of the people who click looks no further."""
    rng = np.random.default_rng(seed)
    attractiveness = rng.beta(2, 2, (20, 3))
    cells: dict[tuple[int, int, int], np.ndarray] = {}
    for query in rng.integers(0, 20, 6000).tolist():
        is_over = False
        below = 0
        for place, item in enumerate(rng.permutation(3).tolist()):
            click = not is_over and rng.random() < attractiveness[query, item] * (1, 0.7, 0.5)[place]
            cell = cells.setdefault((query, item, place + 1), np.zeros(4))
            cell += [1, click, below, below * click]
            below |= int(click)
            is_over = is_over or (click and rng.random() < stops)
    rows = np.array([(q, 3 * q + i, rank) for q, i, rank in cells])
    shown, clicked, shown_below, clicked_below = np.array(list(cells.values())).T
    return ShownCounts(*rows.T, shown, clicked, (), shown_below, clicked_below)


@pytest.mark.parametrize(("stops", "ratio"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
def test_stopping_after_a_click_is_detected(stops: float, ratio: float) -> None:
    value, lower, upper = after_a_click(stopping(1, stops))
    assert value == pytest.approx(ratio, abs=0.1)
    assert lower <= value <= upper
    assert (upper < 1) is (stops > 0)


def test_stopping_is_rarely_detected_in_slices_without_it() -> None:
    rng, families, slices = np.random.default_rng(1), 200, 20
    wrong = 0
    for _ in range(families):
        for _ in range(slices):
            shown, below = np.full(5, 200.0), np.full(5, 60.0)
            clicked, clicked_below = (rng.binomial(n.astype(int), 0.2).astype(float) for n in (shown - below, below))
            number = np.arange(5)
            made = ShownCounts(number, number, number + 1, shown, clicked + clicked_below, (), below, clicked_below)
            if after_a_click(made, slices)[2] < 1:
                wrong += 1
                break
    assert wrong <= 0.05 * families  # with 20 plain 95 % intervals, some interval would be below 1 in 40 % of families


def test_trust_in_the_first_rank_is_detected_only_where_it_exists() -> None:
    logs = {trust: [drawn_log.draw(seed, views=500, trust=trust) for seed in range(12)] for trust in (0.0, 0.25)}
    found = {
        trust: np.mean(
            [trusts_first(log.counts(0, 24 * drawn_log.DAY)[drawn_log.ALL], drawn_log.DEPTH) for log in of_it]
        )
        for trust, of_it in logs.items()
    }
    assert found[0.0] <= 1 / 12
    assert found[0.25] == 1


def test_halves_do_not_depend_on_row_order() -> None:
    made = drawn_log.draw(1, views=200).counts(0, 24 * drawn_log.DAY)[drawn_log.ALL]
    order = np.random.default_rng(1).permutation(len(made.rank))
    again = replace(made.where(order), pair=len(made.names) - 1 - made.pair[order], names=made.names[::-1])
    for half, other in zip(made.halves(), again.halves(), strict=True):
        assert other.clicked.tolist() == half.clicked[order].tolist()
        assert other.shown.tolist() == half.shown[order].tolist()
    first, second = made.halves()
    assert (first.clicked + second.clicked).tolist() == made.clicked.tolist()
    assert first.shown.sum() == pytest.approx(made.shown.sum() / 2, rel=0.02)


def test_different_examination_by_slice_is_not_mistaken_for_trust() -> None:
    """Where people look less far down, items there get fewer clicks although they are wanted just as much."""
    found = []
    for seed in range(8):
        parts = drawn_log.by_device({"pc": drawn_log.draw(seed), "tv": drawn_log.draw(seed, people=1, steep={0: 2.5})})(
            0, 24 * drawn_log.DAY
        )
        named = [replace(one, names=[(*name, device) for name in one.names]) for device, one in parts.items()]
        found.append(trusts_first(ShownCounts.joined(named), drawn_log.DEPTH))
    assert sum(found) <= 1


def test_too_few_swaps_report_no_trust() -> None:
    assert not trusts_first(counts(1, swaps=False), DEPTH)


def test_without_clicks_stopping_is_unknown() -> None:
    known = counts(1)
    none = ShownCounts(known.query, known.pair, known.rank, known.shown, 0 * known.clicked, (), 0 * known.shown)
    value, lower, upper = after_a_click(replace(none, clicked_below=0 * known.clicked))
    assert np.isnan(value)
    assert (lower, upper) == (0.0, np.inf)


def test_frequent_and_rare_queries_differ_only_if_their_examination_does() -> None:
    frequent, rare = counts(1, queries=30, views=400), counts(2, queries=60, views=200)
    odd = np.round(rare.clicked * (rare.rank == 1) + 0.3 * rare.clicked * (rare.rank > 1))
    for clicked, differs in ((rare.clicked, False), (odd, True)):
        both = ShownCounts(
            *(
                np.concatenate([getattr(frequent, n), getattr(rare, n) + more])
                for n, more in (("query", 30), ("pair", 180))
            ),
            *(np.concatenate([getattr(frequent, n), part]) for n, part in (("rank", rare.rank), ("shown", rare.shown))),
            np.concatenate([frequent.clicked, clicked]),
        )
        assert (most_changed(*by_frequency(both, DEPTH)).chance < 0.01) is differs


RATES = np.array([0.3, 0.2, 0.1, 0.05])
"""Examination of four ranks; everyone who looks clicks."""


def swapped(seed: int, queries: int, views: int, share: float) -> ShownCounts:
    """Lists of four items in one order; a share of them swaps two random neighbours."""
    rng = np.random.default_rng(seed)
    place = np.tile(np.arange(4), (queries * views, 1))
    (some,) = np.nonzero(rng.random(len(place)) < share)
    above = rng.integers(0, 3, len(some))
    place[some, above], place[some, above + 1] = above + 1, above
    click = rng.random(place.shape) < RATES[place]
    shown, clicked = np.zeros((2, queries, 4, 4))
    where = np.repeat(np.arange(queries), views)[:, None], np.arange(4)[None, :], place
    np.add.at(shown, where, 1)
    np.add.at(clicked, where, click)
    query, item, rank = np.nonzero(shown)
    cells = query, item, rank
    return ShownCounts(query, query * 4 + item, rank + 1, shown[cells], clicked[cells])


@pytest.mark.parametrize(("queries", "views"), [(30, 600), (3000, 6)])
def test_predicted_errors_match_the_errors_after_swaps(queries: int, views: int) -> None:
    """For common queries and for rare ones, few of which are seen both swapped and unswapped."""
    told = swap_errors(swapped(0, queries, views, 0), 4, 0.2 * queries * views)
    found = [np.log(estimate(swapped(seed, queries, views, 0.2), 4).value) for seed in range(60)]
    spread = np.sqrt(np.mean((np.array(found) - np.log(RATES / RATES[0])) ** 2, axis=0))
    assert told[0] == spread[0] == 0
    assert told[1:] == pytest.approx(spread[1:], rel=0.3)


def test_swaps_of_one_time_queries_give_no_information() -> None:
    assert np.isinf(swap_errors(swapped(0, 50, 1, 0), 4, 10)[1:]).all()


@pytest.mark.parametrize("swaps", [0, 121])
def test_the_number_of_swaps_cannot_exceed_the_requests(swaps: int) -> None:
    with pytest.raises(ValueError, match=f"{swaps} requests cannot swap: 120 show an item at rank 1"):
        swap_errors(swapped(0, 20, 6, 0), 4, swaps)
    with pytest.raises(ValueError, match="no item was shown at rank 5; use fewer ranks"):
        swap_errors(swapped(0, 20, 6, 0), 5, 10)


def test_the_predicted_number_of_swaps_reaches_the_target_error() -> None:
    known = swapped(0, 30, 2000, 0)
    for rank, needed in enumerate(swaps_needed(known, 4, 0.1)[1:], 2):
        assert 0 < needed < 30 * 2000
        assert np.expm1(Z95 * swap_errors(known, 4, needed)[rank - 1]) == pytest.approx(0.1)
    assert np.isinf(swaps_needed(known, 4, 0.001)[3])  # more than all requests
    assert np.isinf(swaps_needed(swapped(0, 50, 1, 0), 4, 0.1)[1:]).all()


def test_unchanging_lists_are_refused_with_a_sufficient_number_of_swaps() -> None:
    known = swapped(0, 30, 2000, 0)
    with pytest.raises(ValueError, match=r"not enough swaps at rank 2: 0 items.*; the log has no swaps") as refused:
        estimate(known, 4)
    needed = float(
        str(refused.value).partition("within 10 %, ")[2].partition(" of these 60,000 requests")[0].replace(",", "")
    )
    found = estimate(swapped(1, 30, 2000, needed / 60_000), 4)
    assert found.upper[1] / found.value[1] == pytest.approx(1.1, abs=0.03)


def test_one_time_queries_are_refused_with_random_order_as_remedy() -> None:
    with pytest.raises(ValueError, match=r"too rarely for any number .* some lists in random order \(see .* --random"):
        estimate(swapped(0, 5000, 1, 0), 4)


def test_a_rank_without_clicks_needs_infinitely_many_swaps() -> None:
    known = swapped(0, 30, 600, 0)
    never = replace(known, clicked=known.clicked * (known.rank != 3))
    assert np.isfinite(swaps_needed(never, 4, 0.1)).tolist() == [True, True, False, False]
    assert np.isfinite(swap_errors(never, 4, 100)).tolist() == [True, True, False, False]


SHAPES = {
    "a power": (RANKS := np.arange(1, 11)) ** -1.2,
    "persistence": 0.7 ** (RANKS - 1),
    "a broken image": RANKS**-1.0 * np.where(RANKS == 2, 0.4, 1),
    "a fold": RANKS**-0.6 * np.where(RANKS > 4, 0.4, 1),
    "two columns": np.where(RANKS % 2 == 1, 1, 0.7) * 0.9**RANKS,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("error", [0.03, 0.1, 0.2])
def test_smoothing_lowers_errors_and_keeps_outlying_ranks(shape: str, error: float) -> None:
    """Errors grow further down, where clicks are fewer, and rank 1's error is part of all of them."""
    rng, truth = np.random.default_rng(1), np.log(SHAPES[shape] / SHAPES[shape][0])[1:]
    mixing = error * np.c_[np.sqrt(RANKS[1:] / 4) * np.eye(9), np.full(9, 0.5)]
    none = np.zeros(10)
    off, before, held = [], [], []
    for _ in range(60):
        drawn = truth + mixing @ rng.standard_normal(10)
        one = Examination(np.exp(np.r_[0, drawn]), mixing @ mixing.T, none.astype(int), none, 1.0)
        found = smoothed(one)
        assert found.value[0] == 1
        off.append(np.log(found.value[1:]) - truth)
        before.append(drawn - truth)
        held.append(np.abs(off[-1]) <= Z95 * found.error[1:])
    ratio = np.sqrt(np.mean(np.square(off)) / np.mean(np.square(before)))
    assert ratio < (0.9 if shape in ("a power", "persistence") else 1.1)
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize("depth", [2, 3])
def test_two_or_three_ranks_are_not_smoothed(depth: int) -> None:
    known = estimate(counts(1), depth)
    assert smoothed(known) is known


def named(known: ShownCounts) -> ShownCounts:
    return replace(known, names=[(pair // DEPTH, pair) for pair in range(known.pair.max() + 1)])


def test_examination_of_a_new_page_comes_from_earlier_clicks_on_its_items() -> None:
    """Half as many people look at the new page's first rank; its lists never change, so swaps give no information."""
    truth = 0.5 * 0.8 ** np.arange(DEPTH)
    before, now = named(counts(1)), named(counts(1, swaps=False, looks=truth))  # the same relevance of items
    found = estimate_since(before, LOOKS, now)
    assert found.value == pytest.approx(truth, rel=0.12)
    assert np.mean((found.lower <= truth) & (truth <= found.upper)) >= 0.8
    assert len(found.error) == DEPTH
    assert smoothed(found) is found
    with pytest.raises(ValueError, match="too few of the items now shown"):
        estimate_since(before, LOOKS, replace(now, names=[(q, -1 - i) for q, i in now.names]))


def test_without_a_change_examination_since_equals_examination_before() -> None:
    log = named(counts(3))
    assert estimate_since(log, LOOKS, log).value == pytest.approx(LOOKS, rel=0.12)


def of_slice(seed: int, slice_: str, **how: int) -> ShownCounts:
    """`counts` of one slice; each pair is named by query, item and slice."""
    found = counts(seed, **how)
    pairs = dict(zip(found.pair.tolist(), found.query.tolist(), strict=True))
    return replace(found, names=[(f"q{pairs[pair]}", pair, slice_) for pair in range(len(pairs))])


def test_counts_of_slices_join_by_slice_and_across_slices() -> None:
    desk, phone = of_slice(1, "desk", queries=9), of_slice(2, "phone", queries=7, views=90)
    both = ShownCounts.joined([desk, phone])
    assert both.requests == desk.requests + phone.requests
    assert both.lists == len(both.names) / DEPTH == 16
    assert len(np.unique(both.query)) == 9
    one = estimate(ShownCounts.joined([phone]), DEPTH)
    assert np.array_equal(one.value, estimate(phone, DEPTH).value)
    together = both.across
    assert len(together.names) == 9 * DEPTH
    assert together.clicked.sum() == both.clicked.sum()
    rows = {(*both.names[p], r): c for p, r, c in zip(both.pair, both.rank, both.clicked, strict=True)}
    assert len(rows) == len(desk.pair) + len(phone.pair)  # slices stay separate


def test_personalised_slices_bias_only_comparisons_across_slices() -> None:
    """One slice wants an item and sees it on top; the other does not and sees it below."""
    rng = np.random.default_rng(4)
    rows, names = [], []
    for query in range(60):
        for slice_, (liked, often) in {"a": (0.6, (160, 40)), "b": (0.15, (40, 160))}.items():
            for item, likes, views in (("x", liked, often), ("y", 0.75 - liked, often[::-1])):
                names.append((query, item, slice_))
                for rank, (shown, look) in enumerate(zip(views, (1, 0.5), strict=True), 1):
                    rows.append((query, len(names) - 1, rank, shown, rng.binomial(shown, likes * look)))
    query, pair, rank, shown, clicked = np.array(rows).T
    found = ShownCounts(query, pair, rank, shown.astype(float), clicked.astype(float), names)
    within, across = estimate(found, 2), estimate(found.across, 2)
    assert within.lower[1] < 0.5 < within.upper[1]
    assert across.upper[1] < 0.4


def test_only_a_slice_with_different_examination_is_named() -> None:
    """At least one of these forty slices differs at the 5 % level by chance; it must not be named."""
    parts = {str(slice_): of_slice(slice_, str(slice_), queries=25, views=60) for slice_ in range(40)}
    every = estimate(ShownCounts.joined(list(parts.values())), DEPTH)
    fits = {name: estimate(part, DEPTH) for name, part in parts.items()}
    assert min(most_changed(every, one).chance for one in fits.values()) < 0.05
    assert differing_slices(every, fits) == []
    other = counts(7, looks=np.arange(1, DEPTH + 1) ** -0.5)
    assert differing_slices(every, {**fits, "tv": estimate(other, DEPTH)}) == ["tv"]


def in_random_order(seed: int, days: int = 28) -> tuple[drawn_log.Log, ShownCounts]:
    """The tenth of the requests with a random order, and their counts."""
    log = drawn_log.draw(seed, days, shuffled=0.1)
    part = log.where(log.is_random)
    return part, part.counts(0, days * drawn_log.DAY)[drawn_log.ALL]


def test_click_rates_in_random_order_give_examination_with_valid_intervals() -> None:
    """Coverage over 40 seeds and four ranks: 95 %, minus an allowance for chance."""
    truth, held = drawn_log.RANKS**-1.0, []
    for seed in range(40):
        log, known = in_random_order(seed)
        found = estimate_random(known, drawn_log.DEPTH)
        rates = log.clicks.mean(axis=0)
        assert found.value == pytest.approx(rates / rates[0])
        assert found.value == pytest.approx(truth, rel=0.35)
        assert found.requests == len(log.day)
        held.append((found.lower <= truth) & (truth <= found.upper))
    assert 0.9 <= np.mean(np.array(held)[:, 1:]) <= 0.99


def test_only_sorted_lists_contradict_the_estimate_from_swaps() -> None:
    log = drawn_log.draw(3, 28, shuffled=0.1)
    for part, contradicts in ((log.is_random, False), (~log.is_random, True)):
        of_it = log.where(part).counts(0, 28 * drawn_log.DAY)[drawn_log.ALL]
        two = estimate(of_it, drawn_log.DEPTH), estimate_random(of_it, drawn_log.DEPTH)
        assert (most_changed(*two).chance < 0.05) is contradicts


def test_one_time_queries_in_random_order_give_examination() -> None:
    rng, shape = np.random.default_rng(8), (20_000, DEPTH)
    clicked = rng.random(shape) < LOOKS * rng.beta(1, 3, shape)
    query, rank = (one.ravel() for one in np.indices(shape))
    names = [(f"q{q}", f"i{r}", "desk") for q, r in zip(query.tolist(), rank.tolist(), strict=True)]
    once = ShownCounts(query, np.arange(query.size), rank + 1, np.ones(query.size), clicked.ravel() + 0.0, names)
    with pytest.raises(ValueError, match="not enough swaps at rank 2: 0 items"):
        estimate(once, DEPTH)
    found = estimate_random(once, DEPTH)
    assert found.value == pytest.approx(LOOKS, rel=0.15)


def test_lists_of_different_lengths_are_compared_within_their_query() -> None:
    """Queries with short lists have far more wanted items, so click rates by rank alone would mislead."""
    rng = np.random.default_rng(9)
    rows = []
    for query in range(40):
        length, attractiveness = (2, 0.9) if query % 2 else (4, 0.1)
        rows += [
            (query, query, rank, 2000.0, rng.binomial(2000, attractiveness / rank), (query, "any"))
            for rank in range(1, length + 1)
        ]
    query, pair, rank, shown, clicked, names = zip(*rows, strict=True)
    known = ShownCounts(*map(np.array, (query, pair, rank, shown, clicked)), list(dict.fromkeys(names)))
    found = estimate_random(known, 4)
    assert found.value == pytest.approx(1 / np.arange(1, 5), rel=0.1)
    rates = [known.clicked[known.rank == r].sum() / known.shown[known.rank == r].sum() for r in (1, 3)]
    assert rates[1] / rates[0] < 0.1


def test_the_predicted_number_of_random_requests_reaches_the_target_error() -> None:
    _, few = in_random_order(5)
    needed = requests_needed(estimate_random(few, drawn_log.DEPTH), 0.1)
    assert needed[0] == 0
    assert (np.diff(needed) > 0).all()
    days = int(np.ceil(28 * needed[-1] / few.requests))
    found = estimate_random(in_random_order(5, days)[1], drawn_log.DEPTH)
    assert found.upper[-1] / found.value[-1] == pytest.approx(1.1, abs=0.03)


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (3, r"not enough clicks at rank 3 in [12],\d+ requests in random order: 0 on [12],\d+ items shown there; "),
        (3, r"to know it to within 10 %, more than 423 are needed"),
        (1, r"not enough clicks at rank 1 in"),
    ],
)
def test_a_rank_without_clicks_in_random_order_is_refused_with_the_need(rank: int, said: str) -> None:
    _, known = in_random_order(1)
    with pytest.raises(ValueError, match=said):
        estimate_random(replace(known, clicked=known.clicked * (known.rank != rank)), drawn_log.DEPTH)
