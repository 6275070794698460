"""`rankmon expect`: announcements are made, forgotten, listed, and shown in status and on the page."""

from __future__ import annotations

import json

import pytest
import yaml

from monitor import cli
from monitor.conditions.checkpoint import Announcement
from monitor.fields import parse_instant
from monitor.page import render
from monitor.service.snapshot import take_snapshot
from tests.cli.test_baseline_cli import Bench, bench
from tests.support.drift import day
from tests.support.pages import PageSource

__all__ = ["bench"]

FROM, UNTIL = "2026-11-27 00:00 UTC", "2026-12-01 00:00 UTC"
LINE = f"{FROM} to {UNTIL} by ada: Black Friday (neither judged nor learnt from)"


def expect(bench: Bench, *arguments: str) -> int:
    return cli.run(["expect", "-c", str(bench.folder / "rankmon.yaml"), *arguments])


def test_a_campaign_is_announced_listed_shown_and_forgotten(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--from", "2026-11-27", "--until", "2026-12-01", "--note", "Black Friday", "--by", "ada"]
    assert expect(bench, "search", *options) == 0
    assert capsys.readouterr().out == f"search:\n  {LINE}\n"
    begin, end = parse_instant("2026-11-27"), parse_instant("2026-12-01")
    assert bench.store.verdicts.announced("search") == [Announcement(begin, end, "ada", "Black Friday")]
    assert expect(bench) == 0
    assert capsys.readouterr().out == f"search:\n  {LINE}\n"
    bench.live(30)
    snapshot = take_snapshot(bench.monitor, bench.store, day(30))
    assert LINE in render(PageSource.of(day(30), snapshot))
    assert bench.run("status") == 0
    assert f"  announced: {LINE}\n" in capsys.readouterr().out
    assert bench.run("status", "--format", "json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["announced"] == [
        {"since": begin, "until": end, "author": "ada", "note": "Black Friday", "is_new_level": False}
    ]
    assert expect(bench, "search", "--forget", FROM) == 0
    assert capsys.readouterr().out == "search: nothing is announced\n"


def test_a_deployment_is_announced_with_a_length_and_a_new_level(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expect(bench, "--from", "2026-11-27 00:10 UTC", "--for", "2h", "--new-level", "--by", "ci") == 0
    said = f"{FROM} to 2026-11-27 03:00 UTC by ci (neither judged nor learnt from; then a new level is learnt)"
    assert capsys.readouterr().out == f"search:\n  {said}\n"
    assert expect(bench, "--forget", FROM) == 0, "the start as it is shown"
    assert bench.store.verdicts.announced("search") == []


@pytest.mark.parametrize("given", ["2026-11-27 00:10 UTC", "2026-11-27T01:10+01:00", FROM])
def test_an_announcement_is_forgotten_by_any_form_of_its_start(bench: Bench, given: str) -> None:
    assert expect(bench, "--from", "2026-11-27T01:10+01:00", "--for", "2h") == 0
    assert expect(bench, "--forget", given) == 0
    assert bench.store.verdicts.announced("search") == []


def test_forgetting_an_unknown_announcement_lists_the_known_ones(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load((bench.folder / "rankmon.yaml").read_text())
    (monitor,) = config["monitors"]
    monitor["drift"]["calendar"] = [{"from": "2026-12-24", "until": "2026-12-27"}]
    (bench.folder / "rankmon.yaml").write_text(yaml.safe_dump(config))
    assert expect(bench, "--from", "2026-11-27T00:00+01:00", "--for", "1d") == 0
    assert expect(bench, "--forget", "2026-11-27") == 2
    assert capsys.readouterr().err.endswith("; known: --forget '2026-11-26 23:00 UTC'\n")
    assert expect(bench, "--forget", "2026-12-24") == 2
    assert "; take out what a calendar announces there\n" in capsys.readouterr().err


def test_a_past_announcement_is_listed_but_not_shown(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert expect(bench, "--from", "2022-01-10", "--for", "1d", "--by", "ada") == 0
    bench.live(30)
    assert take_snapshot(bench.monitor, bench.store, day(30)).announced == ()
    capsys.readouterr()
    assert expect(bench) == 0
    assert (
        "2022-01-10 00:00 UTC to 2022-01-11 00:00 UTC by ada (neither judged nor learnt from)"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--for", "2h", "--until", "2030-01-01"], "use --until or --for, not both"),
        (
            ["--from", "2026-11-27", "--until", "2026-11-26"],
            "it would end at 2026-11-26 00:00 UTC, before",
        ),
        (["--forget", "2026-11-27"], f"no announcement for search begins at {FROM}; known: nothing"),
        (["--until", "2026-11-27", "--forget", "2026-11-27"], "use --forget alone"),
        (["nobody", "--for", "2h"], "there is no monitor 'nobody'"),
    ],
)
def test_wrong_usage_is_refused_and_announces_nothing(
    bench: Bench, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expect(bench, *arguments) == 2
    assert said in capsys.readouterr().err
    assert bench.store.verdicts.announced("search") == []


def test_a_monitor_without_drift_gets_no_announcement(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    path = bench.folder / "rankmon.yaml"
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    (monitor,) = given["monitors"]
    del monitor["drift"]
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    assert expect(bench, "--for", "2h") == 2
    assert "search has no `drift:`, so it has no baseline; add `drift: {}` to it" in capsys.readouterr().err
    other = monitor | {"name": "other", "drift": {}}
    path.write_text(yaml.safe_dump(given | {"monitors": [monitor, other]}), encoding="utf-8")
    assert expect(bench, "--for", "2h", "--by", "ci") == 0
    assert capsys.readouterr().out.startswith("other:\n")
    assert bench.store.verdicts.announced("search") == []
