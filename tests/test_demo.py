"""The demo to its end: it tells of what happened in its shop, and of nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from monitor import cli
from tests.support.processes import ROOT


@pytest.mark.parametrize("name", ["rankmon.yaml", "rankmon.db", "shop.db"])
def test_a_folder_that_holds_something_else_or_an_earlier_demo_is_left_as_it_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("mine")
    assert cli.run(["demo", "--once", "--folder", str(tmp_path)]) == 2
    assert f"{tmp_path} holds {name} already, which the demo would write" in capsys.readouterr().err
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(name, "mine")]


def test_where_nothing_can_be_kept_or_served_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert cli.run(["demo", "--once", "--folder", str(tmp_path / "file" / "demo")]) == 2
    assert "cannot be used: Not a directory; give another --folder" in capsys.readouterr().err
    assert cli.run(["demo", "--listen", "nowhere"]) == 2
    assert "--listen: 'nowhere' is no host:port" in capsys.readouterr().err


def test_a_worse_model_lost_clicks_and_a_campaign_are_told_apart(tmp_path: Path) -> None:
    code = "import sys, monitor.cli; sys.exit(monitor.cli.run(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "demo", "--once", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split("The daemon takes over.")
    found = re.compile(r"^Incident \w+  (\w+) +(\w+) +shop-search  (.+?)  began ([\d-]+) ", re.MULTILINE)
    (worse,) = found.findall(before)
    assert worse[:2] == ("firing", "critical")
    (by,) = re.findall(r"(\d+\.\d) % below the 24h before it fell", before)
    assert float(by) > 10  # against a day of the sound model, none of which had fallen
    assert re.search(r"device=mobile over .+ fell from", before)
    titles = re.findall(r"┏━ (\w+) .*\n  ┃ shop-search: (.+)", after)
    assert [kind for kind, _ in titles if kind == "RETRAIN"] == ["RETRAIN"]
    assert not [title for _, title in titles if "slices" in title]
    ended = {what: state for state, _, what, _ in found.findall(after)}
    assert ended == {"labels suspect": "resolved", "ndcg@10": "resolved"}
    assert "No page for the campaign" in after
    assert after.endswith(f"All of it stays: rankmon incidents list --config {tmp_path}/demo/rankmon.yaml\n")
