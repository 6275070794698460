"""Series as a table: which windows it has, and that each row equals what `points` gives."""

import time
from dataclasses import replace

import pandas as pd
import pytest

from monitor.cli.commands.series import series_table, stored_span
from monitor.measures.measure import parse
from monitor.series.windows import points
from monitor.store import Store
from monitor.types import OVERALL, Monitor, parse_duration
from tests.service.test_cycle import END, HOUR, SETTLED, START, driver, filled, shop_url
from tests.support.monitors import DAY, shop

__all__ = ["filled", "shop_url"]

MONITOR = shop(["ndcg@10", "ndcg(empty=zero)@10", "mrr@5"], windows=(6 * HOUR, DAY))


@pytest.fixture
def full(store: Store, shop_url: str) -> Store:
    driver(MONITOR, shop_url, store).backfill(SETTLED, (START, END))
    return store


def table(
    store: Store, span: tuple[int, int] = (START, END), step: int = 6 * HOUR, slices: bool = False
) -> pd.DataFrame:
    return series_table(store, MONITOR, MONITOR.measures, MONITOR.windows, span, step, slices)


def test_each_row_equals_the_point_of_its_window(full: Store) -> None:
    found, rows = table(full, slices=True), 0
    traffic = full.history(MONITOR.traffic, 0, SETTLED)
    for measure in MONITOR.measures:
        history = full.history(MONITOR.definition(measure), 0, SETTLED)
        for length, window in ((6 * HOUR, "6h"), (DAY, "24h")):
            for end in range(START + 6 * HOUR, END + 1, 6 * HOUR):
                chosen = found[
                    (found["measure"] == str(measure))
                    & (found["window"] == window)
                    & (found["end"] == pd.Timestamp(end, unit="s", tz="UTC"))
                ]
                expected = points(measure, history, traffic, HOUR, length, end)
                assert list(zip(chosen["dimension"], chosen["slice"], strict=True)) == [
                    (p.dimension, p.slice) for p in expected
                ]
                for column in ("value", "lower", "upper", "empty_ratio", "label_coverage", "completeness"):
                    wanted = pd.Series([getattr(p, column) for p in expected], dtype="float64")
                    pd.testing.assert_series_equal(chosen[column].reset_index(drop=True), wanted, check_names=False)
                for column in ("requests", "final", "method"):
                    assert chosen[column].tolist() == [getattr(p, column) for p in expected]
                rows += len(expected)
    assert rows == len(found)


def test_a_span_far_beyond_the_stored_data_costs_no_more(full: Store) -> None:
    began, ages = time.process_time(), (START - 60 * 365 * DAY, END + 60 * 365 * DAY)
    everything = table(full, ages, step=HOUR)
    assert time.process_time() - began < 10
    pd.testing.assert_frame_equal(everything, table(full, (START - 10 * DAY, END + 10 * DAY), step=HOUR))
    assert everything["end"].max() == pd.Timestamp(END + DAY - HOUR, unit="s", tz="UTC")


def test_a_table_without_slices_has_one_row_per_window(full: Store) -> None:
    found = table(full)
    assert set(zip(found["dimension"], found["slice"], strict=True)) == {OVERALL}
    assert len(found) == 3 * 2 * 12
    with_slices = table(full, slices=True)
    overall = with_slices[with_slices["dimension"] == ""].reset_index(drop=True)
    pd.testing.assert_frame_equal(found, overall)


def test_ends_are_the_multiples_of_the_step_within_the_span(full: Store) -> None:
    ends = {int(t.timestamp()) for t in table(full, (START + 1, START + DAY), 5 * HOUR)["end"]}
    multiples = range(0, START + DAY + 1, 5 * HOUR)
    assert ends == {end for end in multiples if end > START + 1}


def test_windows_without_data_are_left_out(full: Store) -> None:
    assert table(full, (START - 10 * DAY, START - DAY)).empty
    late = table(full, (END, END + 2 * DAY))
    assert {(w, int(t.timestamp())) for w, t in zip(late["window"], late["end"], strict=True)} == {
        ("24h", END + hours * HOUR) for hours in (6, 12, 18)
    }
    assert late["completeness"].tolist() == [0.75, 0.5, 0.25] * 3


def test_an_empty_table_keeps_its_columns_and_values_are_floats(full: Store) -> None:
    quiet = replace(MONITOR, name="elsewhere")
    empty = series_table(full, quiet, quiet.measures, quiet.windows, (START, END), HOUR)
    found = table(full)
    assert empty.empty
    assert list(empty.columns) == list(found.columns)
    assert {str(found[c].dtype) for c in ("value", "lower", "upper", "empty_ratio", "label_coverage")} == {"float64"}
    assert str(found["end"].dt.tz) == "UTC"


def test_a_window_interval_uses_data_before_the_span(full: Store) -> None:
    whole, part = table(full), table(full, (END - DAY, END))
    same = whole[whole["end"] > pd.Timestamp(END - DAY, unit="s", tz="UTC")].reset_index(drop=True)
    pd.testing.assert_frame_equal(part, same)
    assert part["lower"].notna().any(), "the last day alone would give no interval"


def test_an_unlisted_reading_is_computed_from_a_stored_kernel(full: Store) -> None:
    pooled = parse("ndcg(aggregate=pooled)@10")
    found = series_table(full, MONITOR, [pooled], [DAY], (START, END), DAY)
    assert found["measure"].unique().tolist() == ["ndcg(aggregate=pooled)@10"]
    assert found["value"].notna().all()
    assert set(found["definition"]) == {MONITOR.definition(parse("ndcg@10")).id}


def test_the_stored_span_belongs_to_the_current_definition(full: Store) -> None:
    assert stored_span(full, MONITOR) == (START, END)
    changed: Monitor = replace(MONITOR, recipe=replace(MONITOR.recipe, attribution=60))  # type: ignore[type-var]
    assert stored_span(full, changed) is None
    assert parse_duration("72h") == END - START
