"""Public bug reports of tools that do part of this job, tried on rankmon, and the outcome of each.

| report (on github.com) | tried here | outcome |
|---|---|---|
| scikit-learn/scikit-learn/issues/21335, evidentlyai/evidently/issues/1006 | lists of one item | held |
| cvangysel/pytrec_eval/issues/49 | a query without judgments among others | held |
| embeddings-benchmark/mteb/issues/3030 | scores that are NaN | refused, but with the remedy for grades: fixed |
| spiceai/spiceai/issues/12277 | judged queries without a ranking | silently dropped from the mean: fixed |
| deepset-ai/haystack/pull/11959, opensearch-project/search-relevance/issues/191 | an item listed twice | held |
| Lightning-AI/torchmetrics/issues/3378 | cut-offs of 0, -1 and 1.5 | held |
| NannyML/nannyml/issues/88 | windows that divide neither a day nor the history | held |
| albertodonato/query-exporter/issues/94 | a slice that has disappeared | held |
| justwatchcom/sql_exporter/issues/149 | labels that look alike | gauges held; tables showed one name twice: fixed |
| fivetran/great_expectations/issues/12179, sodadata/soda-core/issues/1022 | columns in mixed case or named like \
SQL keywords | held |
| PostHog/posthog/pull/64245 | a time printed by one command, given to another | seconds were refused: fixed |
| prometheus/alertmanager/issues/1191 | an alert that starts after its end | held: test_notify_alertmanager.py |
| ClickHouse/ClickHouse/issues/15101, 4218 | a LEFT JOIN over LowCardinality, Enum, FixedString, UUID and 128 bits | \
values held; a slice of FixedString was named `b'DE'`: fixed, test_partials.py |
| NannyML/nannyml/issues/104 | times that can be read in two ways | refused; nanoseconds and numbers in text had the \
wrong remedy: fixed, test_times.py |
| startreedata/thirdeye/pull/1353, elastic/ml-cpp/issues/2690 | clocks that change by half an hour or two hours | \
events were off by an hour: fixed, test_times.py |
| lenskit/lkpy/issues/309, karlhigley/ranking-metrics-torch/issues/1 | lists longer and shorter than k | held |

Reports about files are covered by test_score.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor import cli
from monitor.cli.common import load_config, stored
from monitor.service.snapshot import Board, take_snapshot
from monitor.service.telemetry import Telemetry
from tests.support.metrics import registry

BEGIN, DAYS, GONE = datetime(2026, 3, 2, tzinfo=UTC), 4, 36
"""`GONE`: hours after which the slice `A` has no more requests."""
SLICES = ["a", "a ", "a\x1bb", "a\\x1bb", "A", "ü"]
CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
sources: {{log: {{url: "{url}"}}}}
monitors:
  - name: search
    source: log
    engine: {engine}
    rankings:
      {{table: Order, request: select, item: Item-Id, position: Rank, time: {{column: From, format: epoch_s}}}}
    slices: [{{column: group by, as: g}}]
    relevance:
      events:
        {{table: Group, request: select, item: Item-Id, type: Type, time: {{column: When, format: epoch_s}},
        rules: [{{type: click, grade: 1}}], attribution: 1h}}
    measures: [ndcg@10]
    windows: [24h, 9h]
    alerts: [{{name: drop, measure: ndcg@10, floor: 0.1}}]
"""

Run = Callable[..., str]


@pytest.fixture
def fill(database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Run]:
    """Fills a log and backfills it with one engine; returns a function that runs a command and returns its output."""
    engine, meta = sa.create_engine(database_url), sa.MetaData()
    names = [sa.Column(n, sa.Text) for n in ("select", "Item-Id", "group by")]
    shown = sa.Table("Order", meta, *names, sa.Column("Rank", sa.Integer), sa.Column("From", sa.BigInteger))
    texts = [sa.Column(n, sa.Text) for n in ("select", "Item-Id", "Type")]
    events = sa.Table("Group", meta, *texts, sa.Column("When", sa.BigInteger))
    meta.create_all(engine)
    items, clicks = [], []
    for number in range(DAYS * 24 * len(SLICES)):
        hour, value = divmod(number, len(SLICES))
        if hour >= GONE and SLICES[value] == "A":
            continue
        request, at = f"r{number}", int((BEGIN + timedelta(hours=hour, minutes=value)).timestamp())
        # The second item is listed twice, on ranks 2 and 3; clicks are on this item.
        listed = ["first", "second", "second", f"other {number % 3}"]
        of_all = {"select": request, "From": at, "group by": SLICES[value]}
        items += [of_all | {"Item-Id": item, "Rank": rank} for rank, item in enumerate(listed, 1)]
        if number % 4:
            clicks.append({"select": request, "Item-Id": "second", "Type": "click", "When": at + 60})
    with engine.begin() as connection:
        connection.execute(shown.insert(), items)
        connection.execute(events.insert(), clicks)
    engine.dispose()

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert cli.run([*arguments, "-c", str(tmp_path / "rankmon.yaml")]) == 0
        return capsys.readouterr().out

    def filled(way: str) -> Run:
        text = CONFIG.format(folder=tmp_path, url=database_url, engine=way)
        (tmp_path / "rankmon.yaml").write_text(text, encoding="utf-8")
        run("backfill", "--from", "2026-03-02", "--to", "2026-03-06", "--again")
        return run

    return filled


def test_both_engines_read_quoted_names_and_count_a_duplicate_item_once(
    fill: Callable[[str], Run],
) -> None:
    both = [json.loads(fill(way)("series", "--slices", "--format", "json")) for way in ("pull", "pushdown")]
    assert both[0] == both[1]
    values = [row["value"] for row in both[0] if row["value"] is not None]
    assert values == pytest.approx([0.5] * len(values)), "only the worse of its places counts"


def test_similar_slice_names_stay_distinct_and_a_vanished_slice_disappears(
    fill: Callable[[str], Run], tmp_path: Path
) -> None:
    run = fill("pull")
    table = run("series", "--window", "24h", "--slices", "--from", "2026-03-05")
    shown = re.findall(r" (g=\S+(?: ')?) +[\d.]+ ", table)
    assert shown == ["g=a", "g=a\\u001bb", "g='a '", "g=a\\x1bb", "g=ü"]
    (monitor,) = load_config(tmp_path / "rankmon.yaml").monitors
    board = Board()
    with stored(load_config(tmp_path / "rankmon.yaml")) as store:
        board.publish(take_snapshot(monitor, store, BEGIN.timestamp() + DAYS * 86_400))
    samples = [s for f in registry(board, Telemetry()).collect() for s in f.samples]
    keys = [(s.name, *sorted(s.labels.items())) for s in samples]
    assert len(keys) == len(set(keys))
    seen = {s.labels["value"] for s in samples if s.name == "rankmon_slice_ndcg_ratio"}
    assert seen == {*SLICES} - {"A"}


def test_windows_need_not_divide_the_day_or_the_history(fill: Callable[[str], Run]) -> None:
    rows = json.loads(fill("pull")("series", "--window", "9h", "--step", "9h", "--format", "json"))
    whole = [row for row in rows if row["completeness"] == 1]
    assert {row["requests"] for row in whole} == {9 * 5, 9 * 6}
    assert len(whole) == DAYS * 24 // 9
    assert all(datetime.fromisoformat(row["end"]).timestamp() % (9 * 3600) == 0 for row in rows)


def test_every_printed_time_is_accepted_by_other_commands(fill: Callable[[str], Run]) -> None:
    run = fill("pull")
    one = ("series", "--window", "24h", "--format", "csv")
    (last,) = json.loads(run("series", "--window", "24h", "--from", "2026-03-05", "--format", "json"))
    ends = [last["end"], run(*one).splitlines()[-1].split(",")[6], "2026-03-06 00:00 UTC"]
    until = [run(*one, "--to", end) for end in [*ends, str(int(datetime(2026, 3, 6, tzinfo=UTC).timestamp()))]]
    assert len(set(until)) == 1
    (tried,) = json.loads(run("replay", "--format", "json"))
    assert run("replay", "--from", str(tried["since"])) == run("replay")
