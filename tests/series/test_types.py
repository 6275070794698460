"""Durations, identities of series, and values derived from a monitor's settings."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.measures.measure import parse
from monitor.types import (
    Column,
    EventRule,
    Events,
    Judgments,
    Monitor,
    Position,
    Rankings,
    Relation,
    Slice,
    TimeColumn,
    format_duration,
    parse_duration,
)

RANKINGS = Rankings(Relation(("public", "rankings")), "request", "item", Position("position"), TimeColumn("served_at"))
CLICKS = Events(
    Relation(("events",)),
    "request",
    "item",
    TimeColumn("occurred_at"),
    (EventRule(1, "click"), EventRule(3, "purchase")),
    attribution=86_400,
    type="type",
)
MONITOR = Monitor("search", "shop", RANKINGS, CLICKS, (parse("ndcg@10"), parse("mrr@5")), (Slice("device", "device"),))
NDCG = parse("ndcg@10")


DURATIONS = [
    ("90s", 90),
    ("15m", 900),
    ("24h", 86_400),
    ("7d", 604_800),
    ("2w", 1_209_600),
    ("1h30m", 5400),
    (" 5m ", 300),
]


@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_a_duration_is_numbers_with_units(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "h", "-5m", "1.5h", "5 m", "5M", "1y", "P1D", "5m!"])
def test_any_other_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write e\.g\. 90s, 15m, 24h or 7d"):
        parse_duration(text)


@given(st.integers(0, 10**9))
def test_every_duration_parses_back_from_its_text(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


SHOWN = [(0, "0s"), (59, "59s"), (60, "1m"), (90, "90s"), (3600, "1h"), (5400, "90m"), (86_400, "24h"), (90_000, "25h")]


@pytest.mark.parametrize(("seconds", "text"), [*SHOWN, (172_800, "2d"), (604_800, "7d"), (2_592_000, "30d")])
def test_a_duration_has_one_canonical_text(seconds: int, text: str) -> None:
    assert format_duration(seconds) == text


def ids(monitor: Monitor) -> tuple[str, ...]:
    return tuple(d.id for d in monitor.definitions)


SAME: list[tuple[str, dict[str, Any]]] = [
    ("another reading of the same sums", {"measures": (parse("ndcg(aggregate=pooled)@10"), parse("mrr@5"))}),
    ("another name of the source", {"source": "shop2"}),
    ("other windows", {"windows": (3600, 604_800)}),
    ("more slices, or more of their values", {"slices": (Slice("device", "device", 99), Slice("country", "c"))}),
    ("other delays", {"ingest_delay": 1, "lateness": 2, "final_timeout": 3, "refresh": 4, "deadline": 5}),
    ("other limits", {"lookback": 1, "min_completeness": 0.5, "max_request_span": 5}),
    ("labels and links for people", {"labels": (("team", "search"),), "runbook_url": "https://example.org"}),
    ("whether strays are counted", {"recipe": replace(CLICKS, count_unmatched=False)}),
    ("a query or a version that nothing goes by", {"rankings": replace(RANKINGS, query="q", model_version="v")}),
]


@pytest.mark.parametrize("changes", [c[1] for c in SAME], ids=[c[0] for c in SAME])
def test_a_series_keeps_its_identity_with(changes: dict[str, Any]) -> None:
    assert ids(replace(MONITOR, **changes)) == ids(MONITOR)


OTHER: list[tuple[str, dict[str, Any]]] = [
    ("another table", {"rankings": replace(RANKINGS, relation=Relation(("rankings2",)))}),
    ("another SELECT", {"rankings": replace(RANKINGS, relation=Relation(select="SELECT 1"))}),
    ("another mapping", {"rankings": replace(RANKINGS, position=Position("rank"))}),
    ("positions from 0", {"rankings": replace(RANKINGS, position=Position("position", 0))}),
    ("another time zone", {"rankings": replace(RANKINGS, time=TimeColumn("served_at", timezone="Europe/Vienna"))}),
    ("another grade", {"recipe": replace(CLICKS, rules=(EventRule(1, "click"),))}),
    ("another way to combine grades", {"recipe": replace(CLICKS, combine="sum")}),
    ("another attribution", {"recipe": replace(CLICKS, attribution=3600)}),
    ("another recipe", {"recipe": Column("grade")}),
    ("another bucket width", {"bucket": 900}),
]


@pytest.mark.parametrize("changes", [c[1] for c in OTHER], ids=[c[0] for c in OTHER])
def test_a_new_series_starts_with(changes: dict[str, Any]) -> None:
    changed = replace(MONITOR, **changes)
    assert not set(ids(changed)) & set(ids(MONITOR))


def test_the_kind_of_recipe_is_part_of_the_definition() -> None:
    column, judgments = Column("grade"), Judgments(Relation(("j",)), "query", "item", "grade")
    kinds = {json.loads(replace(MONITOR, recipe=r).traffic.text)["recipe"]["kind"] for r in (column, judgments, CLICKS)}
    assert kinds == {"column", "judgments", "events"}


def test_judgments_depend_on_the_query_but_not_on_the_version() -> None:
    judged = replace(MONITOR, recipe=Judgments(Relation(("j",)), "query", "item", "grade"))
    plain, other, versioned = (
        replace(judged, rankings=replace(RANKINGS, **mapping))
        for mapping in ({"query": "q"}, {"query": "p"}, {"query": "q", "model_version": "v"})
    )
    assert ids(plain) == ids(versioned)
    assert not set(ids(plain)) & set(ids(other))


def test_kernels_have_their_own_identities_and_readings_share_one() -> None:
    monitor = replace(MONITOR, measures=(NDCG, parse("ndcg(gain=exp2)@10"), parse("ndcg(empty=one)@10")))
    assert [d.kernel for d in monitor.definitions] == ["traffic", "ndcg@10", "ndcg(gain=exp2)@10"]
    assert len(set(ids(monitor))) == 3


def test_an_identity_is_computed_once_per_monitor() -> None:
    assert MONITOR.definition(NDCG) is MONITOR.definition(NDCG)
    assert MONITOR.traffic is MONITOR.traffic
    assert MONITOR.definition(parse("ndcg(empty=one)@10")) == MONITOR.definition(NDCG)
    assert not set(ids(replace(MONITOR, bucket=600))) & set(ids(MONITOR))
    assert replace(MONITOR) == MONITOR


def test_max_grade_is_part_of_an_identity_where_it_matters() -> None:
    four, five = (parse("ndcg(ideal=max)@10", max_grade=g) for g in (4, 5))
    assert MONITOR.definition(four) != MONITOR.definition(five)


def test_an_identity_is_ten_hex_digits_over_readable_json() -> None:
    definition = MONITOR.definition(NDCG)
    assert len(definition.id) == 10
    assert int(definition.id, 16) >= 0
    told = json.loads(definition.text)
    assert told["measure"] == "ndcg@10"
    assert told["bucket"] == 3600
    assert told["rankings"]["relation"] == {"table": ["public", "rankings"]}


def test_identities_do_not_change_between_releases() -> None:
    """A changed identity splits every user's series in two: raise ALGORITHM only if stored numbers change."""
    assert ids(MONITOR) == ("7eb0bd25bd", "d2197c82a9", "761beac4f2")


def test_traffic_is_counted_to_the_largest_cut_off() -> None:
    assert MONITOR.depth == 10
    assert replace(MONITOR, measures=(NDCG, parse("mrr"))).depth is None


BOUNDS = [
    ("the largest grade of the rules", CLICKS, 3),
    ("none where grades are added up", replace(CLICKS, combine="sum"), None),
    ("none where an event's own value counts", replace(CLICKS, rules=(EventRule(None, "dwell"),)), None),
    ("what was configured, if anything was", replace(CLICKS, combine="sum", max_grade=7), 7),
    ("of judgments as configured", Judgments(Relation(("j",)), "query", "item", "grade", max_grade=4), 4),
    ("of a column as configured", Column("grade"), None),
]


@pytest.mark.parametrize(("recipe", "bound"), [c[1:] for c in BOUNDS], ids=[c[0] for c in BOUNDS])
def test_the_bound_of_a_recipe_is(recipe: Any, bound: float | None) -> None:
    assert recipe.bound == bound


def test_the_label_delay_is_attribution_plus_lateness() -> None:
    assert replace(MONITOR, lateness=60).label_delay == 86_460


def test_monitors_compare_and_hash_by_value() -> None:
    assert replace(MONITOR) == MONITOR
    assert len({MONITOR, replace(MONITOR)}) == 1
    assert {f.name for f in fields(MONITOR)} >= {"name", "rankings", "recipe", "measures"}
