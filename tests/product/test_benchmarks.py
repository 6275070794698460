"""The benchmarks on a few requests: they run, agree with peers and print what they should. Speed is not tested."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks import cycle, kernel, memory, peers, postgres, verdicts, ways
from tests.benchmarks.__main__ import without_aims
from tests.benchmarks.data import lists, write_log
from tests.benchmarks.report import Line, Section, markdown, table
from tests.support.postgres import find_binaries

REQUESTS = 60
SECONDS = [replace(peer, share=0.5) for peer in kernel.PEERS if peer.name != "ranx"]  # ranx compiles for a minute


def figures(section: Section) -> dict[str, str]:
    """What was measured -> its figure. Checks that the printed table is aligned and contains every cell."""
    printed = table(section)
    assert len({len(line) for line in printed.splitlines()}) == 1
    for line in section.lines:
        assert all(cell in printed for cell in line.cells)
    return {line.what: line.figure for line in section.lines}


def test_the_kernel_benchmark_times_every_variant_and_its_peers() -> None:
    sections = list(kernel.sections(REQUESTS, 1, SECONDS))
    assert len(sections) == len(kernel.VARIANTS) + 1
    for section in sections:
        found = figures(section)
        assert found["rankmon, relevant rows"].endswith(" ms")
        assert all(figure == "not installed" or " ms" in figure or " s" in figure for figure in found.values())


def test_the_linearity_benchmark_compares_a_sample_with_its_half() -> None:
    (line,) = kernel.linearity(REQUESTS, 1, [p for p in SECONDS if p.module == "pandas"]).lines
    assert line.what == "pandas groupby.apply, 15 and 30 requests"
    assert line.ratio is not None
    assert line.ratio > 0


def test_a_peer_with_a_different_mean_is_an_error() -> None:
    wrong = replace(next(p for p in SECONDS if p.module == "pandas"), mean=lambda _: 0.5)
    with pytest.raises(RuntimeError, match=r"says 0\.5, rankmon says"):
        kernel.check(wrong, lists(REQUESTS, False, "number"))


@pytest.mark.parametrize("ids", ["number", "text"])
def test_a_backfilled_mean_equals_the_pandas_mean(ids: str, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.db", REQUESTS, 3, "number" if ids == "number" else "text")
    done = cycle.backfill(log, tmp_path / "store.db")
    assert done.buckets == 3
    assert done.ndcg == pytest.approx(cycle.by_pandas(log), rel=1e-9)


def test_the_cycle_benchmark_has_a_table_for_each_id_type(tmp_path: Path) -> None:
    numbers, texts = cycle.sections(tmp_path, 10 * cycle.DENSITY, 1)
    assert "one scan" in figures(numbers)
    assert any(what.startswith("pandas") for what in figures(numbers))
    assert [line.aim for line in texts.lines if line.what.startswith("rankmon")] == [cycle.AIM]


def test_the_benchmark_compares_pull_and_push_down_on_each_database(tmp_path: Path) -> None:
    for section in ways.sections(tmp_path, 2 * cycle.DENSITY, 1):
        assert [what.partition(",")[0] for what in figures(section)][-2:] == ["pull", "pushdown"]


def test_the_bare_sums_cover_all_rows_and_their_clicks(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.db", REQUESTS, 3, "number")
    requests, rows, shown, *times = cycle.scan(log, ways.BARE_STATEMENTS[0])
    assert (requests, rows, shown) == (REQUESTS, log.rows, 10 * REQUESTS)
    assert times[1] == cycle.scan(log, "SELECT max(served_at) FROM rankings")[0]
    of_requests, clicks, gain = cycle.scan(log, ways.BARE_STATEMENTS[1])
    hits = "SELECT count(*) FROM events JOIN rankings USING (request_id, item_id)"
    assert clicks == cycle.scan(log, hits)[0] > of_requests > gain > 0


def test_all_peers_agree_on_postgresql(tmp_path: Path) -> None:
    with postgres.filled(tmp_path, 2 * cycle.DENSITY) as copied:
        if copied is None:
            pytest.skip("no PostgreSQL")
        both, pandas = postgres.sections(copied, tmp_path, 1)
        beside = peers.section(copied, tmp_path, 1, is_quick=True)
    assert [line.aim for line in both.lines] == [None, None, None, None, None, postgres.COPY_AIM]
    assert ways.BARE in figures(both)
    assert [line.aim for line in pandas.lines if line.aim] in ([postgres.PANDAS_AIM, postgres.MEMORY_AIM], [25])
    found = figures(beside)
    assert "rankmon" in found
    assert "pytrec_eval, by pandas.read_sql" in found
    aims = {line.what: line.aim for line in beside.lines if line.what.startswith("the fastest of them")}
    assert aims["the fastest of them, by pandas.read_sql"] == 7
    assert aims["the fastest of them, fed whole lists, by pandas.read_sql"] == 7


def test_a_library_with_a_different_mean_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEERS", [replace(peers.PEERS[0], job=lambda feed, most: 0.5)])
    with postgres.filled(tmp_path, cycle.DENSITY) as copied:
        if copied is None:
            pytest.skip("no PostgreSQL")
        with pytest.raises(RuntimeError, match=r"rankmon says 0\.\d+, but .*0\.5"):
            peers.section(copied, tmp_path, 1, is_quick=True)


def test_the_benchmark_compares_the_memory_of_longer_logs(tmp_path: Path) -> None:
    if find_binaries() is None:
        pytest.skip("no PostgreSQL")
    (section,) = postgres.large(tmp_path, cycle.DENSITY, times=2)
    rows = "23,800 of more weeks, push-down" if Path("/proc/self/status").exists() else "peak memory"
    assert rows in figures(section)


def test_the_memory_benchmark_has_a_line_for_each_size(tmp_path: Path) -> None:
    found = figures(memory.section(tmp_path, 5 * cycle.DENSITY, (0.4, 1.0)))
    assert list(found) in (
        ["idle", "1,190 in 2 hours", "2,975 in 5 hours", "2,975 in 1 hours"],
        ["peak memory"],
    )


def test_the_verdicts_benchmark_judges_a_bucket_and_replays_history(tmp_path: Path) -> None:
    judged, replayed = verdicts.sections(tmp_path, monitors=2, days=2, rounds=1)
    assert list(figures(judged)) == [
        "a threshold on each series, in NumPy",
        "rankmon, verdicts",
        "the same, the first hour of a day",
        "the same, alarms open on all monitors",
        "an hour of a day in which all is well",
        "rankmon, a monitor",
    ]
    assert [line.aim for line in replayed.lines] == [None, 1, None]
    assert all(line.ratio is not None and line.ratio > 0 for line in (*judged.lines, *replayed.lines))


def test_small_data_are_not_measured_against_aims() -> None:
    section = Section("Title", ("what", "time", "ratio", "aim", "met"), [Line("x", "1 ms", 3.0, 5, "at least")], "Why.")
    assert section.lines[0].met == "no"
    assert without_aims(section).lines[0].met == ""
    assert "## Title" in markdown([section])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is only measured on Linux")
def test_the_resting_benchmark_measures_frequent_calls_and_an_idle_daemon(tmp_path: Path) -> None:
    found = figures(memory.resting(tmp_path, 1))
    assert len(found) == 4
    assert found["a daemon that waits: memory"].endswith(" MB")
