"""The Parquet example: checked, backfilled and shown as it is, and quoted correctly in the documentation."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

import monitor.cli as cli

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "config" / "examples" / "parquet.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The example on its own files: a request every ten minutes for three days, with an event on each first item."""
    pytest.importorskip("duckdb_engine")
    pytest.importorskip("pyarrow")
    now = datetime.now(UTC).replace(tzinfo=None)
    served = [now - timedelta(minutes=10 * i + 5) for i in range(3 * 144)]
    shown = [(f"r{i}", f"i{p}", p, at, "web" if i % 2 else "app") for i, at in enumerate(served) for p in (1, 2, 3)]
    kinds = ("click", "purchase", "click")
    happened = [(f"r{i}", "i1", kinds[i % 3], at + timedelta(minutes=1)) for i, at in enumerate(served)]
    write(tmp_path / "search_log", shown, ["request_id", "item_id", "position", "served_at", "device"])
    write(tmp_path / "search_events", happened, ["request_id", "item_id", "event_type", "occurred_at"])
    path = tmp_path / "rankmon.yaml"
    path.write_text(EXAMPLE.read_text(encoding="utf-8").replace("/data/", f"{tmp_path}/"), encoding="utf-8")
    return path


def write(folder: Path, rows: list[tuple[object, ...]], columns: list[str]) -> None:
    folder.mkdir()
    table = pd.DataFrame(rows, columns=columns)
    for number, part in enumerate((table.iloc[::2], table.iloc[1::2])):
        part.to_parquet(folder / f"{number}.parquet")


def run(config: Path, *arguments: str) -> int:
    return cli.run([*arguments, "-c", str(config)])


def test_the_parquet_example_can_be_checked_backfilled_and_shown(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, "check-config", "--connect") == 0
    checked = capsys.readouterr()
    assert "configuration is valid and all databases answer" in checked.out
    assert "warning" not in checked.err
    since = (datetime.now(UTC) - timedelta(days=3)).strftime("%Y-%m-%d")
    assert run(config, "backfill", "--from", since) == 0
    capsys.readouterr()
    assert run(config, "series", "--format", "csv") == 0
    by_day = ends(capsys.readouterr().out)
    assert {end[11:16] for end in by_day} == {"00:00"}
    assert run(config, "series", "--step", "1h", "--format", "csv") == 0
    by_hour = ends(capsys.readouterr().out)
    assert max(by_hour) >= f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%d %H:00}"
    assert set(by_day) < set(by_hour)


def ends(csv: str) -> list[str]:
    """Ends of the windows in a series."""
    header, *rows = csv.splitlines()
    place = header.split(",").index("end")
    return [row.split(",")[place].replace("T", " ") for row in rows]


def test_the_documentation_shows_the_select_of_the_example() -> None:
    page = (ROOT / "docs" / "how-to" / "map-your-log.md").read_text(encoding="utf-8")
    assert "`config/examples/parquet.yaml`" in page
    (shown,) = re.findall(r"select: (SELECT \* FROM read_parquet\(.*\))", page)
    assert f"select: {shown}" in EXAMPLE.read_text(encoding="utf-8")
