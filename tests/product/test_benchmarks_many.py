"""The benchmarks of many monitors, run on a few: they work and print what they should; speed is not tested."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import many, scrape
from tests.product.test_benchmarks import figures


def test_the_scrape_benchmark_compares_with_plain_gauges(tmp_path: Path) -> None:
    plain, packed = scrape.sections(tmp_path, monitors=3, slices=2, days=3, rounds=1)
    for section in (plain, packed):
        names = list(figures(section))
        assert [name.partition(",")[0] for name in names] == ["prometheus_client", *["rankmon"] * 3] * 2
        assert [line.aim for line in section.lines] == [None, scrape.AIM, scrape.AIM, scrape.AIM_OF_ALL] * 2
        assert all(line.ratio is not None and line.ratio > 0 for line in section.lines)
    assert "gzip" in packed.title


def test_the_scrape_peer_holds_the_same_samples(tmp_path: Path) -> None:
    with scrape._served(tmp_path, 2, 2, 3) as (app, peer):
        ours, theirs = (scrape._ask(port, "identity").decode().splitlines() for port in (app.web.port, peer.port))
    kept = [{line.rpartition(" ")[0] for line in lines if line.startswith("rankmon_")} for lines in (ours, theirs)]
    assert kept[0] == kept[1]
    assert len(kept[0]) > 100


def test_the_benchmark_of_many_monitors_runs_them_all(tmp_path: Path) -> None:
    for section in many.sections(tmp_path, monitors=3, days=30, requests=5, slices_=2, pace=100.0):
        found = figures(section)
        assert found["runs failed"] == "0"
        assert {"one bucket more of each", "nothing new", "peak memory"} <= found.keys()
        assert [line.aim for line in section.lines if line.what.startswith("runs")] == [0, 0]
