"""The whole demo: it reports what happened in its shop, and nothing else."""

import json
import re
import shlex
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from monitor import cli
from monitor.cli.commands.demo import _acts, _story
from monitor.cli.common import called
from monitor.demo.shop import EXAMINATION
from monitor.messages.words import command
from tests.support.processes import ROOT


@pytest.mark.parametrize("name", ["rankmon.yaml", "rankmon.db", "shop.db"])
def test_the_demo_does_not_overwrite_existing_files(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("mine")
    assert cli.run(["demo", "--once", "--folder", str(tmp_path)]) == 2
    assert f"{tmp_path} already holds {name}, which the demo would write" in capsys.readouterr().err
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(name, "mine")]


def test_an_unusable_folder_or_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.run(["demo", "--once", "--folder", str(tmp_path / "file" / "demo")]) == 2
    assert "cannot be used: Not a directory; give another --folder" in capsys.readouterr().err
    assert cli.run(["demo", "--listen", "nowhere"]) == 2
    assert "--listen: 'nowhere' is not a host:port" in capsys.readouterr().err


def test_a_taken_port_is_reported_before_the_demo_prints_anything_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert cli.run(["demo", "--listen", listen]) == 7
    told = capsys.readouterr()
    assert f"cannot listen on {listen}: " in told.err
    assert 'make demo ARGS="--listen 127.0.0.1:0"' in told.err
    assert "web.listen" not in told.err
    assert told.out == ""


def test_printed_commands_use_full_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rankmon").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bin/rankmon", "demo"])
    assert command(called(Path("my demo/r.yaml")), "status") == (
        f"{tmp_path}/bin/rankmon status -c '{tmp_path}/my demo/r.yaml'"
    )


def _assert_power_of_swaps_is_as_documented(config: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The days differ, so the figures may differ a little."""
    page = (ROOT / "docs" / "explanation" / "position-bias.md").read_text(encoding="utf-8")
    capfd.readouterr()
    assert cli.run(["power", "--swapped", "200", "--depth", "5", "-c", config]) == 0
    line = re.compile(r"^ +(\d) +(\d+\.\d) % +([\d,]+|–)$", re.MULTILINE)
    ours, told = line.findall(capfd.readouterr().out), line.findall(page)
    assert [rank for rank, *_ in ours] == [rank for rank, *_ in told] == list("2345")
    assert [float(w) for _, w, _ in told] == pytest.approx([float(w) for _, w, _ in ours], rel=0.1)
    told_enough, enough = ([int(n.replace(",", "").replace("–", "0")) for *_, n in found] for found in (told, ours))
    assert told_enough == pytest.approx(enough, rel=0.2)


def _assert_examination_is_true_and_as_documented(config: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Lists depend on the slices, country and device. Compared across slices, ranks further down come out too low."""
    page = " ".join((ROOT / "docs" / "explanation" / "position-bias.md").read_text(encoding="utf-8").split())
    capfd.readouterr()
    assert cli.run(["examination", "fit", "shop-search", "--format", "json", "-c", config]) == 0
    ranks = json.loads(capfd.readouterr().out)["ranks"]
    held = [one["lower"] <= look <= one["upper"] for one, look in zip(ranks, EXAMINATION[:10], strict=True)]
    assert sum(held) >= 9
    (told,) = re.findall(r"rank 5 is 0\.276 of that at rank 1\. The estimate is (0\.\d+) ", page)
    assert float(told) == pytest.approx(ranks[4]["value"], rel=0.05)


def test_the_demo_tells_a_worse_model_lost_clicks_and_a_campaign_apart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import sys, monitor.cli; sys.exit(monitor.cli.run(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "demo", "--once", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split("The daemon takes over.")
    found = re.compile(r"^Incident \w+  (\w+) +(\w+) +shop-search  (.+?)  bad since ([\d-]+) ", re.MULTILINE)
    (worse,) = found.findall(before)
    assert worse[:2] == ("firing", "critical")
    (by,) = re.findall(r"(\d+\.\d) % below the 24h before the fall", before)
    assert float(by) > 10  # against a day of the good model, before any fall
    assert re.search(r"device=mobile over .+ fell from", before)
    titles = re.findall(r"┏━ (\w+) .*\n  ┃ shop-search: (.+)", after)
    assert [kind for kind, _ in titles if kind == "RETRAIN"] == ["RETRAIN"]
    assert not [title for _, title in titles if "slices" in title]
    ended = {what: state for state, _, what, _ in found.findall(after)}
    assert ended == {"labels suspect": "resolved", "rule quality-floor: ndcg@10": "resolved"}
    assert "No page for the campaign" in after
    calls = re.findall(r"(?:More|late|kept): (\S+) (.+) -c (\S+)$", done.stdout, re.MULTILINE)
    assert {arguments.split()[0] for _, arguments, _ in calls} == {"explain-incident", "backfill", "incidents"}
    assert {config for *_, config in calls} == {f"{tmp_path}/demo/rankmon.yaml"}
    assert not re.search(r"(?<![/\w])rankmon (?:explain-incident|backfill|incidents)", done.stdout)
    assert "Page: " not in done.stdout, "no server runs any more"
    _assert_power_of_swaps_is_as_documented(str(tmp_path / "demo" / "rankmon.yaml"), capfd)
    _assert_examination_is_true_and_as_documented(str(tmp_path / "demo" / "rankmon.yaml"), capfd)
    shown = set(re.findall(r"(?:^More|late|kept): (.+)$", before + after, re.MULTILINE))
    assert len(shown) == 3
    for each in shown:
        again = subprocess.run(shlex.split(each), cwd=tmp_path, capture_output=True, text=True, check=False)
        assert again.returncode == 0, (each, again.stderr)


@pytest.mark.parametrize("day", range(1, 8))
def test_the_demo_story_starts_on_a_monday_and_is_over(day: int) -> None:
    now = datetime(2026, 11, day, 13, 45, tzinfo=UTC)
    story = _story(now)
    assert story.start.weekday() == 0
    over = max(act.ends for act in _acts(story)) + timedelta(days=1)
    assert now - timedelta(days=8) < over < now
