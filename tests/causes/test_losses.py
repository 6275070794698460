"""Who lost most in a fall, checked by a plain count; query texts stay out unless requested."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from monitor.causes.losses import MOST, by_version, losses, lost_by_slice, lost_queries, lost_requests, query_id
from monitor.causes.sample import NO_REQUESTS, RequestSample
from monitor.messages.diagnosis import _requests
from tests.causes.test_sample import requests

HOUR, DAY = 3600, 86_400


def test_a_request_is_compared_with_its_query_then_slice_then_all() -> None:
    before = requests([0.9, 0.7, 0.2, 0.4], ["a", "a", "b", None], places=["x", "x", "x", "y"])
    now = requests([0.1, 0.1, 0.1, 0.1], ["a", "new", "new", None], first=10, places=["x", "y", "z", "z"])
    found = {r["request"]: (r["expected"], r["by_query"]) for r in lost_requests(now, before)}
    assert found == {
        "r10": (pytest.approx(0.8), True),
        "r11": (pytest.approx(0.4), False),
        "r12": (pytest.approx(0.55), False),
        "r13": (pytest.approx(0.55), False),
    }


def test_the_largest_losses_come_first_and_gains_are_left_out() -> None:
    before = requests([0.5] * 40)
    now = requests([i / 40 for i in range(40)], first=100)
    found = lost_requests(now, before)
    assert [r["request"] for r in found] == [f"r{100 + i}" for i in range(MOST)]
    assert found[0] == {
        "request": "r100", "served_at": 100 * HOUR, "value": 0.0, "expected": 0.5, "by_query": False, "slice": "",
        "version": "v1", "bare": False,
    }  # fmt: skip


def test_requests_with_nothing_relevant_are_marked_apart_from_worse_lists() -> None:
    now = requests([0.0, 0.0, 0.3, 0.5], ["a"] * 4, first=10)
    now = replace(now, bare=np.array([True, True, False, False]))
    found = losses(now, requests([0.5] * 4, ["a"] * 4), HOUR, with_text=False)
    assert [r["bare"] for r in found["requests"]] == [True, True, False]
    assert found["bare"] == [0.5, 0.0]
    document = {"captured": found, "by_judgments": False, "window": [0, HOUR], "compared": [[-DAY, HOUR - DAY]]}
    (*_, said) = _requests(document)
    one = [{**r, "bare": i == 0} for i, r in enumerate(found["requests"])]
    (*_, single) = _requests(document | {"captured": found | {"requests": one}, "by_judgments": True})
    assert str(single).startswith("  1 of these 3 has no item judged relevant, so it counts as 0, like ")
    assert said == (
        "  2 of these 3 got no label at all (no click, say), so they count as 0, like 50.0 % of all requests (0.0 % "
        "before)."
    )


def test_without_earlier_requests_no_loss_is_listed() -> None:
    assert lost_requests(requests([0.1]), NO_REQUESTS) == []
    assert lost_requests(NO_REQUESTS, requests([0.1])) == []


def test_queries_are_ranked_by_their_contribution_to_the_change() -> None:
    before = requests([0.9] * 8 + [0.9] * 2, ["often"] * 8 + ["rare"] * 2)
    now = requests([0.6] * 8 + [0.1] * 2 + [0.5] * 2, ["often"] * 8 + ["rare"] * 2 + ["new"] * 2, first=50)
    found = lost_queries(now, before, with_text=True)
    assert found is not None
    assert [q["text"] for q in found["worst"]] == ["often", "rare"]
    assert found["worst"][0]["within"] == pytest.approx(-0.3 * (8 / 12 + 8 / 10) / 2)
    assert (found["seen"], found["common"], found["common_share"]) == (3, 2, pytest.approx(10 / 12))


def test_a_querys_error_is_pooled_over_all_queries() -> None:
    rng = np.random.default_rng(5)
    queries = [f"q{i % 20}" for i in range(2_000)]
    before = requests(rng.normal(0.5, 0.1, 2_000).tolist(), queries)  # type: ignore[arg-type]
    now = requests([*rng.normal(0.5, 0.1, 1_999).tolist(), 0.2], [*queries[:1999], "q19"], first=5_000)  # type: ignore[list-item]
    found = lost_queries(now, before, with_text=False)
    assert found is not None
    assert all(-4 < q["z"] < 0 for q in found["worst"])
    lone = lost_queries(requests([0.2], ["q19"], first=9_000), before, with_text=False)
    assert lone is not None
    assert lone["worst"][0]["z"] == pytest.approx(-3, abs=0.7), "one request has no spread of its own"


def test_query_texts_are_included_only_on_request() -> None:
    before, now = requests([0.9, 0.8], ["my secret", "my secret"]), requests([0.1], ["my secret"], first=9)
    found = losses(now, before, HOUR, with_text=False)
    assert "secret" not in json.dumps(found)
    assert found["queries"]["worst"][0]["query"] == query_id("my secret")
    assert "secret" in json.dumps(losses(now, before, HOUR, with_text=True))


def test_without_queries_the_result_has_no_queries() -> None:
    assert losses(requests([0.1]), requests([0.9]), HOUR, with_text=False)["queries"] is None


def test_versions_of_the_window_are_compared_older_first() -> None:
    now = requests([0.9, 0.1] * 4, None, ["v1", "v2"] * 4)
    found = losses(now, NO_REQUESTS, HOUR, with_text=False)["comparison"]
    assert (found["first"]["version"], found["second"]["version"]) == ("v1", "v2")
    assert (found["difference"], found["at_one_time"]) == (pytest.approx(-0.8), True)
    found = losses(now, NO_REQUESTS, HOUR, with_text=False, served={"v1": (HOUR, 9 * HOUR), "v2": (0, 9 * HOUR)})[
        "comparison"
    ]
    assert (found["first"]["version"], found["difference"]) == ("v2", pytest.approx(0.8)), "the stored times decide"
    assert losses(requests([0.5]), NO_REQUESTS, HOUR, with_text=False)["comparison"] is None


def test_consecutive_versions_of_the_window_are_marked_as_such() -> None:
    now = requests([0.9] * 30 + [0.1] * 30, None, ["v1"] * 30 + ["v2"] * 30)
    served = {"v1": (0, 28 * HOUR), "v2": (28 * HOUR, 80 * HOUR)}
    found = losses(now, NO_REQUESTS, HOUR, with_text=False, served=served)["comparison"]
    assert not found["at_one_time"]
    assert (found["first"]["until"], found["second"]["since"], found["resolution"]) == (28 * HOUR, 28 * HOUR, HOUR)


def test_the_edges_of_the_window_are_not_taken_as_serving_times() -> None:
    now = requests([0.9] * 30 + [0.1] * 30, None, ["v1"] * 30 + ["v2"] * 30)
    found = losses(now, NO_REQUESTS, HOUR, with_text=False)["comparison"]
    assert {found[which][edge] for which in ("first", "second") for edge in ("since", "until")} == {None}


def test_a_single_version_is_compared_with_the_one_before_it() -> None:
    before = requests([0.9] * 4, None, ["v1"] * 4)
    found = losses(requests([0.5], None, ["v2"], first=9), before, HOUR, with_text=False)["comparison"]
    assert (found["first"]["version"], found["second"]["version"]) == ("v1", "v2")
    assert (found["difference"], found["at_one_time"]) == (pytest.approx(-0.4), False)


# ---- without queries -------------------------------------------------------------------------------------------------


def bare(sample: RequestSample) -> RequestSample:
    """The sample with requests of value 0 marked as having nothing relevant."""
    return replace(sample, bare=sample.values == 0)


def test_without_queries_only_requests_of_fallen_slices_are_listed() -> None:
    """web is below average, as always; ios fell."""
    places = ["ios", "web"] * 20
    before = requests([0.9, 0.2] * 20, places=places)
    now = requests([0.6, 0.19] * 20, places=places, first=100)
    found = losses(now, before, HOUR, with_text=False, fallen={"ios"})
    assert {r["slice"] for r in found["requests"]} == {"ios"}
    assert found["why"] == ""


def test_without_queries_requests_with_nothing_relevant_are_only_counted() -> None:
    before = bare(requests([0.0, 0.8, 0.7, 0.9], places=["ios"] * 4))
    now = bare(requests([0.0, 0.5, 0.0, 0.4], places=["ios"] * 4, first=10))
    found = lost_by_slice(now, before, {"ios"})
    assert [(r["request"], r["expected"]) for r in found["requests"]] == [
        ("r13", pytest.approx(0.8)),
        ("r11", pytest.approx(0.8)),
    ]
    assert found["left_out"] == [0.5, 0.25]


def test_an_empty_list_of_losses_says_why() -> None:
    before = bare(requests([0.0, 0.8, 0.8, 0.8], places=["ios"] * 4))
    now = bare(requests([0.0, 0.0, 0.0, 0.8], places=["ios"] * 4, first=10))
    found = lost_by_slice(now, before, {"ios"})
    assert found["requests"] == []
    assert "more of them have nothing relevant" in found["why"]
    found = lost_by_slice(now, before, frozenset())
    assert found["requests"] == []
    assert "no slice fell significantly" in found["why"]


def test_with_queries_every_request_is_compared_with_its_query() -> None:
    before, now = requests([0.9, 0.8], ["a", "b"]), requests([0.1, 0.1], ["a", "b"], first=5)
    assert len(losses(now, before, HOUR, with_text=False, fallen=frozenset())["requests"]) == 2


def test_versions_are_tabulated_from_the_requests_read() -> None:
    before = requests([0.9, 0.7], None, ["v1", "v1"])
    now = requests([0.2, 0.4, 0.8], None, ["v2", "v2", "v1"], first=9)
    found = by_version(now, before, HOUR)
    assert [(v["version"], v["requests"], v["value"], v["requests_before"], v["before"]) for v in found] == [
        ("v1", 1, pytest.approx(0.8), 2, pytest.approx(0.8)),
        ("v2", 2, pytest.approx(0.3), 0, None),
    ]
