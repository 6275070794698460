"""A small run of the shared scorer over the product's judge; `make evaluate` does the full one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.alert_quality import FOLDER, detect, scorer

SEED = 7
REPLICAS = 6


@pytest.fixture(scope="module")
def run(shared: Path) -> Iterator[ModuleType]:
    if not (shared / FOLDER / "run.py").is_file():
        pytest.skip("no scorer")
    with scorer(shared) as module:
        yield module


def test_no_verdict_looks_into_the_future(run: ModuleType) -> None:
    assert not run.uses_the_future(detect, SEED)


def test_false_alarms_are_rare(run: ModuleType) -> None:
    found = run.false_alarms(detect, "none", REPLICAS, SEED, False)
    assert found["degraded"] <= 0.35
    assert found["data"] == 0
    assert found["mix"] == 0


@pytest.mark.parametrize(
    ("scenario", "least", "slowest"),
    [("drop10", 1.0, 6), ("drop35", 1.0, 5), ("segdrop", 0.8, 14), ("mixshift", 0.8, 14)],
)
def test_changes_are_found_in_time_and_classified(run: ModuleType, scenario: str, least: float, slowest: float) -> None:
    rate, delay = run.detection(detect, scenario, REPLICAS, SEED, False)
    assert rate >= least
    assert delay <= slowest


@pytest.mark.parametrize(
    ("scenario", "least"),
    [("outage6h", 1.0), ("partial6h", 1.0), ("volume12h", 0.8), ("blip2h", 1.0), ("levelup", 1.0)],
)
def test_changes_not_caused_by_the_model_page_nobody(run: ModuleType, scenario: str, least: float) -> None:
    assert run.detection(detect, scenario, REPLICAS, SEED, False)[0] >= least


def test_alarms_close_after_a_rollback_and_an_outage_stays_a_data_incident(run: ModuleType) -> None:
    closed, held = run.closing(detect, REPLICAS, SEED, False)
    assert closed >= 0.8
    assert held == 1
