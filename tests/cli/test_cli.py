"""The command line: the output and the exit code of each command."""

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
import sqlalchemy as sa

import monitor.cli as cli
from monitor.cli.commands.backfill import fill
from monitor.cli.commands.run import WAKE_EVERY
from monitor.cli.common import first_sentence, refused_in_words
from monitor.clock import ReplayClock
from monitor.config import load
from monitor.errors import Stopped
from monitor.messages.words import utc
from monitor.series.windows import points
from monitor.service.app import App
from monitor.service.snapshot import take_snapshot
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.types import OVERALL
from tests.service.test_app import Setting, of_search, of_shop, slow_sqlite
from tests.service.test_cycle import BEGIN, DAYS, END, HOUR, SETTLED, START, at, filled, shop_url
from tests.support.dump import differences, dump
from tests.support.monitors import DAY, new_store
from tests.support.postgres import PostgresServer
from tests.support.processes import ROOT, Zygote
from tests.support.tallies import bear_out, watched

__all__ = ["filled", "shop_url"]

COMMANDS = cli.cli.list_commands(click.Context(cli.cli))
SPAN = ("--from", BEGIN.isoformat(), "--to", at(END).isoformat())


@pytest.fixture
def setting(tmp_path: Path, shop_url: str) -> Setting:
    return Setting(tmp_path, {"shop": shop_url})


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


def left_out(name: str) -> str:
    """The last line of a backfill of all days: one event names an item that was never shown."""
    return f"{name}: left out of this period: 1 event for which no impression was found\n"


class Result:
    """The exit code and the output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Rankmon = Callable[..., Result]


@pytest.fixture
def rankmon(capsys: pytest.CaptureFixture[str], setting: Setting, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rankmon]:
    """Runs a command in this process and restores logging afterwards."""
    monkeypatch.setenv("RANKMON_CONFIG", str(setting.path))
    monkeypatch.setenv("COLUMNS", "200")
    root, own = logging.getLogger(), logging.getLogger("monitor")
    before = root.handlers[:], root.level, own.level

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        code = cli.run(list(arguments))
        return Result(code, *capsys.readouterr())

    yield run
    root.handlers[:], level, own_level = before
    root.setLevel(level)
    own.setLevel(own_level)


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the commands' clock just after the shop's history, when every attribution window has closed."""
    monkeypatch.setattr("monitor.clock.SystemClock.now", lambda _: float(SETTLED))
    monkeypatch.setattr("monitor.service.app.SystemClock", lambda: ReplayClock(SETTLED, 1e-9))


# ---- help and usage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, rankmon: Rankmon) -> None:
    shown = rankmon(command, "--help")
    assert shown.code == 0
    assert shown.out.startswith(f"Usage: rankmon {command}")
    assert "-h, --help" in shown.out


def test_the_help_lists_the_commands_and_the_exit_codes(rankmon: Rankmon) -> None:
    shown = rankmon("-h")
    assert shown.code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in shown.out
    for text in ("0 success", "1 a bug", "2 wrong usage", "3 a source", "4 the store", "5 another", "130 interrupted"):
        assert text in " ".join(shown.out.split())


@pytest.mark.parametrize(("command", "sentence"), cli.cli.sentences(click.Context(cli.cli)))
def test_the_command_list_shows_the_first_sentence_of_each_help(command: str, sentence: str) -> None:
    found = cli.cli.get_command(click.Context(cli.cli), command)
    assert found is not None
    assert sentence == first_sentence(found.help or "")
    assert not sentence.endswith("e.g."), "an abbreviation would end the sentence"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("cli.run(['--help'])", {"yaml", "pydantic", "numpy", "sqlalchemy"}),
        ("cli.run(['version'])", {"yaml", "pydantic", "numpy", "sqlalchemy"}),
        (
            "cli.run(['status'])",
            {"pandas", "alembic", "rich", "sqlalchemy.dialects.postgresql", "monitor.evaluation.run"}
            | {"monitor.causes.diagnosis", "monitor.drift.state", "monitor.notify.http", "numpy.ma"},
        ),
        ("cli.run(['healthcheck'])", {"pydantic", "numpy", "sqlalchemy"}),
        ("import monitor.types", {"numpy", "sqlalchemy"}),
        ("import monitor.cli.commands.run; cli.run(['once'])", {"alembic", "pandas"}),
    ],
    ids=["help", "version", "status", "healthcheck", "configuration", "daemon"],
)
def test_frequent_and_long_running_commands_skip_heavy_imports(
    code: str, heavy: set[str], rankmon: Rankmon, setting: Setting
) -> None:
    setting.write(of_shop("shop"))
    rankmon("migrate")
    told = f"import sys, monitor.cli as cli; {code}; print('imported', {heavy} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("imported set()\n")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in Linux's /proc")
def test_importing_the_snapshot_starts_no_blas_threads() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    told = "import os, monitor.service.snapshot; print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run([sys.executable, "-c", told], env=environ, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "1\n"


def test_the_version_command_and_option_print_the_version(rankmon: Rankmon) -> None:
    from monitor import __version__

    assert rankmon("version").out.startswith(f"rankmon {__version__} (Python 3.")
    assert rankmon("--version").out == f"rankmon, version {__version__}\n"


def test_a_checkout_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "monitor.cli", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("rankmon, version ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "No such command 'nothing'; rankmon --help lists them"),
        (["backfil"], "No such command 'backfil'; did you mean 'backfill'?"),
        (["incidents", "lst"], "No such command 'lst'; did you mean 'list'?"),
        (["run", "--speed", "5"], "--speed goes with --replay-from"),
        (["backfill"], "Missing option '--from'"),
        (["backfill", "--from", "yesterday"], "'yesterday' is not a time; write e.g. 2022-02-24"),
        (["inspect", "x", "--at", "0001-01-01"], "'0001-01-01' is not in the years 1970 to 2999; check"),
        (["versions", "search", "--to", "9999-12-31T23:59"], "'9999-12-31T23:59' is not in the years 1970 to 2999"),
        (["backfill", *SPAN, "--force"], "--force goes with --again"),
        (["backfill", "--from", "2026-02-03", "--to", "2026-02-03"], "--from must be before --to"),
        (["backfill", "--from", "2026-02-03", "--to", "2926-02-03"], "are too many at once (limit 5,000,000)"),
        (["backfill", *SPAN, "-m", "none"], "there is no monitor 'none'; known are shop"),
        (["once", "-m", "none"], "there is no monitor 'none'; known are shop"),
        (["series", "--window", "soon"], "'soon' is not a duration"),
        (["series", "--format", "parquet"], "--format parquet needs --output"),
        (["series", "--from", "2026-02-04", "--to", "2026-02-03"], "--from must be before --to"),
        (["status", "-c", "elsewhere.yaml"], "elsewhere.yaml"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(
    arguments: list[str], said: str, rankmon: Rankmon, setting: Setting
) -> None:
    setting.write(of_shop("shop"))
    result = rankmon(*arguments)
    assert result.code == 2
    assert said in result.err
    assert result.out == ""


def test_a_monitor_or_file_can_be_given_without_its_option(rankmon: Rankmon, setting: Setting, tmp_path: Path) -> None:
    setting.write(of_shop("shop"), of_shop("other"))
    assert rankmon("check-config", str(setting.path)).out.endswith("configuration is valid\n")
    assert "nowhere.yaml" in rankmon("check-config", str(tmp_path / "nowhere.yaml")).err
    assert rankmon("backfill", "-m", "shop", *SPAN).code == 0
    assert rankmon("series", "shop").out == rankmon("series", "-m", "shop").out != ""
    for command in ("series", "status", "power", "explain", "replay", "once"):
        assert "there is no monitor 'nope'" in rankmon(command, "nope").err, command
    assert [m["monitor"] for m in json.loads(rankmon("status", "other", "--format", "json").out)] == ["other"]
    assert rankmon("test-alert", "other").out == "log: delivered\n"
    assert "no monitor 'nope'" in rankmon("test-alert", "nope").err


def test_a_monitor_or_file_given_twice_is_refused(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    assert "given twice" in rankmon("check-config", "-c", str(setting.path), str(setting.path)).err
    assert "given twice" in rankmon("test-alert", "-m", "shop", "shop").err


def test_series_reports_since_when_a_redefined_measure_is_stored(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop", "ndcg@10, mrr@5"))
    rankmon("backfill", *SPAN)
    assert rankmon("series").err == ""
    setting.write(of_shop("shop", "ndcg@10, mrr@7"))
    told = rankmon("series")
    assert told.err == ("shop: nothing is stored for mrr@7 as defined now; run once, or backfill the past\n")
    assert "mrr@7" not in told.out
    rankmon("backfill", "--from", "2026-02-03", "--to", SPAN[-1])
    said = (
        "shop: mrr@7, as defined now, is stored from 2026-02-03 00:00 UTC on; backfill older data, as far "
        "as the source has it"
    )
    assert said in rankmon("series").err
    assert rankmon("series", "--from", "2026-02-03").err == ""
    assert said in rankmon("series", "--to", "2026-02-02T12:00").err


def test_backfill_reports_a_from_in_the_future(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    assert "--from 2096-01-01 00:00 UTC is in the future" in rankmon("backfill", "--from", "2096-01-01").err


@pytest.mark.parametrize("command", ["run", "once", "status", "series", "check-config", "migrate", "backfill"])
def test_a_wrong_configuration_exits_with_2_and_names_all_its_mistakes(
    command: str, rankmon: Rankmon, setting: Setting
) -> None:
    setting.write(of_shop("shop").replace("refresh: 1s", "refresh: soon").replace("lookback: 4d", "histroy: 4d"))
    result = rankmon(command, *(SPAN if command == "backfill" else ()))
    assert result.code == 2
    assert result.out == ""
    assert result.err.count(f"{setting.path}:") == 2
    assert "histroy" in result.err
    assert "'soon' is not a duration" in result.err


def test_series_refuses_a_format_as_the_output_file(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    result = rankmon("series", "--output", "json")
    assert result.code == 2
    assert "--output is a file name; for the format, use --format json" in result.err
    assert not Path("json").exists()


def test_every_error_has_an_exit_code_and_bugs_exit_with_1() -> None:
    known = (error for error, _ in cli.EXIT_CODES if error not in (cli.ConfigError, cli.SourceError))
    codes = {error.__name__: cli.exit_code(error("x")) for error in known}
    expected = {
        "InputError": 2,
        "StoreError": 4,
        "LeaseLost": 5,
        "Undelivered": 6,
        "Unserved": 7,
        "ClockError": 8,
        "Stopped": 130,
    }
    assert codes == expected
    assert cli.exit_code(cli.ConfigError(["x"])) == cli.exit_code(cli.SourceError("no such table", "query")) == 2
    assert cli.exit_code(cli.SourceError("is it up?", "connect")) == 3
    assert cli.exit_code(ZeroDivisionError()) == 1
    assert cli.exit_code(cli.RankmonError("x")) == 1


# ---- once and status -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stopped_clock")
def test_once_runs_each_monitor_and_a_second_run_finds_nothing_due(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"), of_shop("other"))
    first = rankmon("once")
    assert first.code == 0
    assert [line.split(":")[0] for line in first.out.splitlines()] == ["shop", "other"]
    assert "shop: 95 of 95 due buckets stored" in first.out
    assert rankmon("once", "-m", "other").out == "other: 0 of 0 due buckets stored, 0 rows read\n"


@pytest.mark.usefixtures("stopped_clock")
def test_once_continues_after_a_failure_and_exits_with_its_code(
    rankmon: Rankmon, setting: Setting, tmp_path: Path
) -> None:
    setting.sources["search"] = f"sqlite:///{tmp_path}/none.db"
    setting.write(of_search("ill"), of_shop("well"))
    result = rankmon("once")
    assert result.code == 3
    assert f"rankmon: source search: there is no file {tmp_path}/none.db" in result.err
    assert "next try" not in result.err
    assert result.out.startswith("well: ")


@pytest.mark.usefixtures("stopped_clock")
def test_once_yields_to_another_process_that_holds_the_lease(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    assert rankmon("migrate").code == 0
    other = Store(load(setting.path, {}).store.url, 5)
    with other.hold("shop"):
        result = rankmon("once")
    other.close()
    assert result.code == 5
    assert f"process {os.getpid()} on {socket.gethostname()} is writing it; this one yields" in result.err


@pytest.mark.usefixtures("stopped_clock")
def test_a_bug_exits_with_1_and_a_traceback(
    rankmon: Rankmon, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.write(of_shop("shop"))
    monkeypatch.setattr("monitor.service.reading.to_partials", lambda *_: 1 / 0)
    result = rankmon("once")
    assert result.code == 1
    assert "a bug in rankmon; please report it" in result.err
    assert "Traceback" in result.err


def test_a_store_that_does_not_answer_exits_with_4(
    rankmon: Rankmon, setting: Setting, postgres: PostgresServer, postgres_url: str
) -> None:
    setting.store = postgres_url.replace("postgres@", "postgres:hidden@")
    setting.write(of_shop("shop"))
    postgres.stop()
    try:
        for command in ("run", "once", "status", "series", "migrate"):
            result = rankmon(command)
            assert result.code == 4, command
            assert "rankmon: store postgresql+psycopg://postgres:***@" in result.err
            assert "hidden" not in result.err
    finally:
        postgres.start()


@pytest.mark.usefixtures("stopped_clock")
def test_status_shows_the_stored_windows_and_freshness(
    rankmon: Rankmon, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.cli.commands.status.time.time", lambda: SETTLED + 7200.0)
    setting.write(of_shop("shop", "ndcg@10, mrr@5"))
    rankmon("once")
    told = rankmon("status")
    assert told.code == 0
    first, *windows = told.out.splitlines()
    assert first == "shop: last success 2 h ago, newest request 5 h ago"
    assert len(windows) == 3
    assert windows[2].startswith("  stored: ")
    assert windows[0].startswith("  ndcg@10 24h: 0.")
    assert windows[0].endswith("requests, until 2026-02-05 00:00 UTC")
    entry = json.loads(rankmon("status", "--format", "json").out)[0]
    assert entry["monitor"] == "shop"
    assert entry["last_success_at"] == pytest.approx(SETTLED)
    assert entry["last_error"] == ""
    assert [(w["measure"], w["window"], w["end"]) for w in entry["windows"]] == [
        ("ndcg@10", "24h", END),
        ("mrr@5", "24h", END),
    ]
    assert f"{entry['windows'][0]['value']:.4f}" in windows[0]


@pytest.mark.usefixtures("stopped_clock")
def test_status_reports_store_times_ahead_of_the_machine_clock(
    rankmon: Rankmon, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.write(of_shop("shop", "ndcg@10, mrr@5"))
    rankmon("once")
    monkeypatch.setattr("monitor.cli.commands.status.time.time", lambda: SETTLED - 10 * 86400.0)
    first, second, *_ = rankmon("status").out.splitlines()
    last, own = utc(SETTLED), utc(SETTLED - 10 * 86400)
    assert first == f"shop: last success at {last}, newest request at 2026-02-05 00:46 UTC"
    assert second == (
        f"  the store's times are ahead of this machine's clock by 10 d: its last run was at {last}, but this clock "
        f"says {own}; one of the two clocks is or was wrong"
    )


def test_status_reports_a_clock_far_ahead_of_the_newest_request(
    rankmon: Rankmon, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.write(of_shop("shop"))
    store = new_store(setting.store, 30)
    bear_out(store, END, watched("shop"))
    store.close()
    monkeypatch.setattr("monitor.cli.commands.status.time.time", lambda: END + 3 * 365 * 86400.0)
    assert rankmon("status").out.splitlines()[-1] == (
        f"clock: this clock says {utc(END + 3 * 365 * 86400)}, but requests are stored only up to {utc(END)}: nothing "
        f"has been read since, or the clock is wrong. Until they agree, retention counts from {utc(END)}"
    )
    monkeypatch.setattr("monitor.cli.commands.status.time.time", lambda: END + 86400.0)
    assert "clock: " not in rankmon("status").out


@pytest.mark.usefixtures("stopped_clock")
def test_status_shows_the_last_error_and_monitors_not_run_yet(
    rankmon: Rankmon, setting: Setting, tmp_path: Path
) -> None:
    setting.sources["search"] = f"sqlite:///{tmp_path}/none.db"
    setting.write(of_search("ill"), of_shop("new"))
    rankmon("once", "-m", "ill")
    told = rankmon("status")
    assert told.code == 0
    assert "ill: no run has succeeded yet" in told.out
    assert f"last error: source search: there is no file {tmp_path}/none.db" in told.out
    assert "new: not run yet; start rankmon run\n" in told.out
    assert [e["windows"] for e in json.loads(rankmon("status", "--format", "json").out)] == [[], []]


@pytest.mark.parametrize("command", ["status", "series"])
def test_reading_commands_do_not_create_a_missing_store(
    command: str, rankmon: Rankmon, setting: Setting, tmp_path: Path
) -> None:
    setting.write(of_shop("shop"))
    result = rankmon(command)
    assert result.code == 4
    assert f"there is no store {tmp_path}/store.db yet; run rankmon backfill or rankmon run to create it" in result.err
    assert not (tmp_path / "store.db").exists()


@pytest.mark.parametrize("command", ["status", "series"])
def test_a_store_from_a_newer_version_is_not_read(command: str, rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    rankmon("migrate")
    engine = sa.create_engine(setting.store)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    result = rankmon(command)
    assert result.code == 4
    assert "written by a newer rankmon" in result.err


def test_migrate_reports_both_schema_versions_and_can_be_repeated(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    assert rankmon("migrate").out.startswith("schema none -> 0")
    again = rankmon("migrate")
    assert again.code == 0
    assert again.out.endswith("nothing to do\n")


def test_the_command_list_shows_whole_sentences(rankmon: Rankmon) -> None:
    for command in ((), ("incidents",)):
        listed = rankmon(*command, "--help").out.partition("Commands:")[2]
        assert "..." not in listed
    assert "every transition." in " ".join(listed.split())


def test_status_names_alerts_and_slices_with_too_few_requests(rankmon: Rankmon, setting: Setting) -> None:
    alert = '    alerts: [{name: low, measure: "ndcg@10", floor: 0.1, min_requests: 1000000}]\n'
    setting.write(of_shop("shop") + alert)
    assert rankmon("backfill", *SPAN).code == 0
    told = rankmon("status").out
    assert re.match(r"shop: stored until \d{4}-\d\d-\d\d 00:00 UTC, but not run yet; start rankmon run\n", told)
    assert "  alert low: not judged: too few requests\n" in told
    setting.write(of_shop("shop") + alert.replace("floor: 0.1,", "floor: 0.1, slices: [device],"))
    told = rankmon("status").out
    expected = r"  alert low: \d slices not judged: too few requests, fewer than min_requests: 1000000 \(device=\w+, "
    assert re.search(expected, told), told
    assert "alert low: ok" not in told


def test_series_marks_incomplete_windows(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    rankmon("backfill", *SPAN)
    begin = at(START).isoformat()
    lines = rankmon("series", "--window", "24h", "--step", "6h", "--from", begin).out.splitlines()[1:]
    assert lines[0].endswith("incomplete")
    assert not any("incomplete" in line for line in lines[4:])


# ---- check-config --------------------------------------------------------------------------------------------------


def test_check_config_accepts_a_valid_configuration(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop", "ndcg@10, mrr@5"))
    result = rankmon("check-config")
    assert (result.code, result.err) == (0, "")
    assert result.out == "shop: ndcg@10, mrr@5 over 24h\nconfiguration is valid\n"


def test_check_config_connect_reports_each_source_and_the_store(
    rankmon: Rankmon, setting: Setting, tmp_path: Path
) -> None:
    setting.write(of_shop("shop"))
    result = rankmon("check-config", "--connect")
    assert (result.code, result.err) == (0, "")
    assert "shop: source shop answers, no request in 4d\n" in result.out
    assert (
        f"store: there is no store {tmp_path}/store.db yet; run rankmon backfill or rankmon run to create it\n"
        in result.out
    )
    assert result.out.endswith("configuration is valid and all databases answer\n")
    assert not (tmp_path / "store.db").exists()
    (tmp_path / "store.db").touch()
    nothing = "store: answers; no rankmon tables yet; rankmon run creates them\n"
    assert nothing in rankmon("check-config", "--connect").out
    rankmon("migrate")
    assert "store: answers\n" in rankmon("check-config", "--connect").out


def test_check_config_connect_warns_when_a_change_restarts_all_series(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    assert rankmon("backfill", *SPAN).code == 0
    assert "from nothing" not in rankmon("check-config", "--connect").err
    setting.write(of_shop("shop").replace("attribution: 3h", "attribution: 2h"))
    told = rankmon("check-config", "--connect").err
    assert "monitors[0]: shop: all its series start from nothing with this configuration, because relevance.ev" in told


def test_check_config_connect_reports_a_store_with_foreign_tables(rankmon: Rankmon, setting: Setting) -> None:
    setting.store = setting.sources["shop"]
    setting.write(of_shop("shop"))
    result = rankmon("check-config", "--connect")
    assert "store: answers; has tables of another program (events, " in result.out
    assert "and none of rankmon; check store.url\n" in result.out


@pytest.mark.parametrize("step", ["0s", "90m"])
def test_the_series_step_must_be_a_multiple_of_the_bucket(rankmon: Rankmon, setting: Setting, step: str) -> None:
    setting.write(of_shop("shop"))
    rankmon("once")
    result = rankmon("series", "--step", step)
    assert (result.code, result.err) == (2, "rankmon: --step must be a multiple of the bucket, 1h\n")


def test_check_config_connect_reports_all_problems_together(
    rankmon: Rankmon, setting: Setting, postgres: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    setting.sources["search"] = postgres_url
    setting.store = f"sqlite:///{tmp_path}/missing/store.db"
    setting.write(of_search("down"), of_shop("lost", table="nowhere"), of_shop("well"))
    postgres.stop()
    try:
        result = rankmon("check-config", "--connect")
    finally:
        postgres.start()
    assert result.code == 3
    down, lost, store = result.err.splitlines()
    assert f"{setting.path}:" in down
    assert ": sources.search: down: source search: " in down
    assert down.endswith("is the database up, and is the URL right?")
    assert ": monitors[1].rankings.table: lost: source shop: there is no table 'nowhere'; there are 'events'" in lost
    assert f"store.url: store: there is no folder {tmp_path}/missing" in store
    assert "well: source shop answers" in result.out
    assert result.out.endswith("1 mistake in the mapping, and not every database answers, see above\n")


def test_a_missing_store_folder_exits_with_4(rankmon: Rankmon, setting: Setting, tmp_path: Path) -> None:
    setting.store = f"sqlite:///{tmp_path}/missing/store.db"
    setting.write(of_shop("shop"))
    for command in ("check-config --connect", "run", "once", "status", "series", "migrate"):
        result = rankmon(*command.split())
        assert result.code == 4, command
        assert f"there is no folder {tmp_path}/missing" in result.err, command


# ---- series --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first test that needs the filled store leaves a copy here for the others."""
    return tmp_path_factory.mktemp("stored") / "store.db"


@pytest.fixture
def stored(setting: Setting, rankmon: Rankmon, stopped_clock: None, kept: Path) -> Store:
    """A filled store of two measures over two windows. Each test gets its own copy."""
    monitor = of_shop("shop", 'ndcg@10, "mrr(empty=zero)@5"').rstrip() + "\n    windows: [6h, 24h]\n"
    setting.write(monitor)
    path = Path(setting.store.removeprefix("sqlite:///"))
    if kept.exists():
        shutil.copy(kept, path)
    else:
        assert rankmon("once").code == 0
        assert not path.with_name("store.db-wal").exists()
        shutil.copy(path, kept)
    return Store(load(setting.path, {}).store.url, 5)


@pytest.mark.parametrize("style", ["csv", "json", "parquet"])
def test_series_exports_match_the_window_values(
    style: str, rankmon: Rankmon, setting: Setting, stored: Store, tmp_path: Path
) -> None:
    file = tmp_path / f"series.{style}"
    result = rankmon("series", "--slices", "--from", at(START).isoformat(), "--format", style, "-o", str(file))
    assert (result.code, result.out, result.err) == (0, "", "")
    table = {"csv": pd.read_csv, "json": pd.read_json, "parquet": pd.read_parquet}[style](file)  # type: ignore[operator]
    table["end"] = pd.to_datetime(table["end"], utc=True)
    table[["dimension", "slice"]] = table[["dimension", "slice"]].fillna("")
    monitor, seen = load(setting.path, {}).monitors[0], 0
    for measure in monitor.measures:
        history = stored.history(monitor.definition(measure), 0, SETTLED)
        traffic = stored.history(monitor.traffic, 0, SETTLED)
        for length, window in ((6 * HOUR, "6h"), (DAY, "24h")):
            chosen = table[(table["measure"] == str(measure)) & (table["window"] == window)]
            for end, rows in chosen.groupby("end"):
                second = int(end.timestamp())
                expected = points(measure, history, traffic, monitor.bucket, length, second)
                found = {(row.dimension, row.slice): row for row in rows.itertuples()}
                assert set(found) == {(p.dimension, p.slice) for p in expected}
                for point in expected:
                    row: Any = found[point.dimension, point.slice]
                    for name in ("value", "lower", "upper", "empty_ratio", "label_coverage", "completeness"):
                        wanted = getattr(point, name)
                        assert pd.isna(getattr(row, name)) == (wanted is None)
                        assert wanted is None or getattr(row, name) == pytest.approx(wanted, abs=1e-12)
                    assert (row.requests, bool(row.final)) == (point.requests, point.final)
                    seen += 1
    assert seen == len(table) > 50
    assert {OVERALL, ("device", "mobile")} <= set(zip(table["dimension"], table["slice"], strict=True))


def test_series_prints_a_readable_table(rankmon: Rankmon, stored: Store) -> None:
    result = rankmon("series", "--window", "24h", "--measure", "ndcg@10", "--from", at(START).isoformat())
    assert result.code == 0
    head, *rows = result.out.splitlines()
    heads = "monitor measure window window end (UTC) value 95 % interval interval from requests nothing relevant"
    heads += " labelled data read state"
    assert " ".join(head.split()) == heads
    assert [" ".join(row.split()[3:5]) for row in rows] == [f"2026-02-0{3 + i} 00:00" for i in range(DAYS)]
    assert all(row.endswith(" final") for row in rows)
    sliced = rankmon("series", "--window", "24h", "--measure", "ndcg@10", "--slices").out
    assert "device=mobile" in sliced


def test_the_series_table_shows_recent_windows_and_the_basis_of_each_interval(rankmon: Rankmon, stored: Store) -> None:
    one = ("series", "--measure", "ndcg@10", "--window", "6h", "--step", "1h")
    short, whole = rankmon(*one), rankmon(*one, "--from", "2026-02-01")
    assert len(short.out.splitlines()) == 1 + 24 < len(whole.out.splitlines())
    assert short.out.splitlines()[-1].split() == whole.out.splitlines()[-1].split()
    assert re.fullmatch(r"shop: windows since 2026-02-\d\d \d\d:00 UTC; add --from 2026-02-01 for all\n", short.err)
    assert whole.err == ""
    assert (len(rankmon(*one, "--format", "csv").out.splitlines()), "") == (len(whole.out.splitlines()), whole.err)
    rests = [re.search(r" – [\d.]+ +(\d+ (?:requests alone|windows before)) ", row) for row in whole.out.splitlines()]
    known = [found[1].split(" ", 1) for found in rests if found]
    assert {by for _, by in known} == {"requests alone", "windows before"}
    assert known[-1] == ["4", "windows before"]


def test_series_keeps_to_the_bounds_and_the_step(rankmon: Rankmon, stored: Store, tmp_path: Path) -> None:
    def ends(*arguments: str) -> list[str]:
        result = rankmon("series", "--measure", "ndcg@10", "--window", "6h", "--format", "csv", *arguments)
        assert result.code == 0, result.err
        return [line.split(",")[6][:16] for line in result.out.splitlines()[1:]]

    day = ("--from", "2026-02-03", "--to", "2026-02-04")
    assert ends(*day) == [f"2026-02-03 {h:02}:00" for h in (6, 12, 18)] + ["2026-02-04 00:00"]
    assert ends(*day, "--step", "12h") == ["2026-02-03 12:00", "2026-02-04 00:00"]
    assert ends("--from", "2026-02-03T05:30", "--to", "2026-02-03T08:59", "--step", "1h") == [
        f"2026-02-03 0{h}:00" for h in (6, 7, 8)
    ]
    assert ends("--from", "2026-02-03T06:00+02:00", "--to", "2026-02-03T06:00Z", "--step", "1h") == [
        f"2026-02-03 0{h}:00" for h in (5, 6)
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--measure", "ndcg@5"], "shop computes mrr@5, ndcg@10, not ndcg@5"),
        (["--measure", "ndgc@5"], "ndgc"),
        (["--window", "90m"], "--window 90m is not a multiple of the bucket of shop"),
        (["--step", "30m"], "--step must be a multiple of the bucket, 1h"),
        (["--format", "svg"], "an SVG shows one series"),
        (["--format", "csv", "-o", "/nowhere/series.csv"], "cannot write /nowhere/series.csv"),
        (["--format", "parquet", "-o", "/nowhere/series.parquet"], "cannot write /nowhere/series.parquet"),
    ],
)
def test_series_refuses_unusable_options_with_exit_code_2(
    arguments: list[str], said: str, rankmon: Rankmon, stored: Store
) -> None:
    result = rankmon("series", *arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_series_computes_another_reading_of_a_stored_kernel(rankmon: Rankmon, stored: Store) -> None:
    wanted = "ndcg(empty=zero)@10"
    result = rankmon("series", "--measure", wanted, "--window", "24h", "--format", "json")
    assert {row["measure"] for row in json.loads(result.out)} == {wanted}


def test_series_draws_one_series_as_svg(rankmon: Rankmon, stored: Store, tmp_path: Path) -> None:
    file = tmp_path / "series.svg"
    one = ("--measure", "ndcg@10", "--window", "6h", "--from", at(START).isoformat())
    assert rankmon("series", *one, "--slices", "--format", "svg", "-o", str(file)).code == 0
    picture = file.read_text(encoding="utf-8")
    assert picture.startswith("<svg ")
    assert picture.count("<polyline") >= 4
    assert "device mobile" in picture


def test_series_reports_a_period_or_definition_without_data(
    rankmon: Rankmon, stored: Store, setting: Setting, tmp_path: Path
) -> None:
    early = rankmon("series", "--to", "2020-01-01", "--from", "2019-01-01", "--format", "csv")
    assert (early.code, early.out) == (0, "")
    there_is = "shop: nothing is stored for that time; there is 2026-02-01 04:00 to 2026-02-05 03:00 UTC\n"
    within = rankmon("series", "--step", "24h", "--from", "2026-02-04 01:00 UTC", "--to", "2026-02-04 23:00 UTC")
    assert within.err == "shop: no window of --step 24h ends in that time; give a shorter step\n"
    assert early.err == there_is, "no measure is reported as missing"
    assert rankmon("series", "--to", "2026-02-01").err == there_is
    setting.write(of_shop("shop", "ndcg@7"))
    other = rankmon("series", "--format", "parquet", "-o", str(tmp_path / "none.parquet"))
    assert (other.code, other.out) == (0, "")
    assert "shop: nothing is stored for its current definition; run once or backfill" in other.err
    assert not (tmp_path / "none.parquet").exists()


# ---- pipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["csv", "table"])
def test_a_closed_pipe_is_not_a_failure(style: str, setting: Setting, stored: Store) -> None:
    arguments = [sys.executable, "-c", "from monitor.cli import main; main()", "series", "--from", "2026-01-31"]
    arguments += ["-c", str(setting.path)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*arguments, "--slices", "--step", "1h", "--format", style],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_closed_midway_is_not_a_failure(setting: Setting) -> None:
    setting.write(*(of_shop(f"shop-{i}") for i in range(400)))
    command = f"{sys.executable} -c 'from monitor.cli import main; main()' check-config -c {setting.path}"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.stdout == "shop-0: ndcg@10 over 24h\n0\n"
    assert done.stderr == ""


def test_backfill_from_parquet_exits_without_leak_reports(tmp_path: Path) -> None:
    """DuckDB's module prints pages about leaks unless it is torn down as it expects or left alone."""
    pytest.importorskip("duckdb_engine")
    pytest.importorskip("pyarrow")
    served = pd.Timestamp("2026-02-02T03:00", tz="UTC")
    log = pd.DataFrame({"request": ["a", "a"], "item": ["x", "y"], "rank": [1, 2], "at": served, "grade": [1.0, 0.0]})
    log.to_parquet(tmp_path / "log.parquet")
    (tmp_path / "rankmon.yaml").write_text(
        f"""
store: {{url: "sqlite:///{tmp_path}/store.db"}}
sources: {{lake: {{url: "duckdb:///:memory:"}}}}
monitors:
  - name: search
    source: lake
    rankings:
      select: "SELECT * FROM read_parquet('{tmp_path}/log.parquet')"
      request: request
      item: item
      position: rank
      time: at
    relevance: {{column: {{grade: grade}}}}
    measures: [ndcg@2]
""",
        encoding="utf-8",
    )
    for there in ("", "import threading; threading.Thread(target=time.sleep, args=(1,)).start(); "):
        code = f"import time; {there}from monitor.cli import main; main()"
        command = [sys.executable, "-c", code, "backfill", *SPAN, "-c", str(tmp_path / "rankmon.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert done.returncode == 0
        assert "nanobind" not in done.stderr
        assert [line for line in done.stderr.splitlines() if not re.search("store: schema|buckets", line)] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("buffering", ["", "1"])
def test_an_unwritable_output_exits_with_2_and_a_message(buffering: str, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    command = [sys.executable, "-c", "from monitor.cli import main; main()", "check-config", "-c", str(setting.path)]
    environ = {**os.environ, "PYTHONUNBUFFERED": buffering}
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environ, timeout=60)
    assert (done.returncode, done.stderr) == (2, "rankmon: the output cannot be written: No space left on device\n")


def test_characters_missing_from_the_encoding_are_escaped(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    assert rankmon("backfill", *SPAN).code == 0
    command = [sys.executable, "-c", "from monitor.cli import main; main()", "series", *SPAN, "-c", setting.path]
    shown = {}
    for encoding in ("utf-8", "ascii"):
        environ = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, capture_output=True, env=environ, timeout=60)
        assert done.returncode == 0, done.stderr
        shown[encoding] = done.stdout.decode(encoding)
    assert shown["ascii"] == shown["utf-8"].encode("ascii", "backslashreplace").decode()
    assert "\\u2013" in shown["ascii"]


# ---- backfill ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "is_told"), [(10, False), (11, True)])
def test_refused_rows_above_a_tenth_of_the_requests_point_to_check_config(rows: int, is_told: bool) -> None:
    assert ("check-config --connect" in refused_in_words({"bad_position": rows}, 0, 100)) == is_told


def test_backfill_reports_stored_buckets_and_can_be_repeated(rankmon: Rankmon, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    first = rankmon("backfill", *SPAN)
    assert (first.code, first.out) == (0, f"shop: {DAYS * 24} buckets stored\n{left_out('shop')}")
    assert f"shop: buckets {'━' * 40} {DAYS * 24}/{DAYS * 24}" in first.err
    again = rankmon("backfill", *SPAN)
    assert (again.code, again.out) == (0, "shop: 0 buckets stored\n")
    assert "0/0" in again.err
    more = rankmon("backfill", "--from", BEGIN.isoformat(), "--to", at(END + HOUR).isoformat())
    assert more.out == f"shop: 1 bucket stored\n{left_out('shop')}"


def test_result_pages_logged_as_separate_requests_are_reported(
    rankmon: Rankmon, setting: Setting, shop_url: str
) -> None:
    setting.write(of_shop("shop"))
    assert "rank 1" not in rankmon("backfill", *SPAN).out + rankmon("status").out
    engine = sa.create_engine(shop_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE rankings SET request_id = request_id || '-2' WHERE position > 5")
    engine.dispose()
    said = rankmon("backfill", *SPAN, "--again", "--force").out
    found = re.search(r"shop: (\d+) of (\d+) requests have no item at rank 1: rankmon check-config --connect", said)
    assert found, said
    assert 2 * int(found[1]) == int(found[2]), "every list had more than five items"
    assert " requests have no item at rank 1: rankmon check-config --connect" in rankmon("status").out


def test_backfill_reports_final_buckets_kept_after_a_source_purge(
    rankmon: Rankmon, setting: Setting, shop_url: str
) -> None:
    setting.write(of_shop("shop"))
    rankmon("backfill", *SPAN)
    engine = sa.create_engine(shop_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM rankings WHERE served_at < '2026-02-03T'")
    engine.dispose()
    result = rankmon("backfill", *SPAN, "--again")
    kept = "24 final ones kept, because the source has fewer requests or labels now (--again --force replaces them)"
    assert (result.code, result.out) == (0, f"shop: 48 buckets stored, {kept}\n{left_out('shop')}")
    assert f"{DAYS * 24}/{DAYS * 24}" in result.err
    forced = rankmon("backfill", *SPAN, "--again", "--force").out
    left = "148 events for which no impression was found\n"
    assert forced == f"shop: {DAYS * 24} buckets stored\nshop: left out of this period: {left}"


def test_backfill_skips_failing_and_busy_monitors(rankmon: Rankmon, setting: Setting, tmp_path: Path) -> None:
    setting.sources["search"] = f"sqlite:///{tmp_path}/none.db"
    setting.write(of_shop("busy"), of_search("ill"), of_shop("well"))
    rankmon("migrate")
    other = Store(load(setting.path, {}).store.url, 5)
    with other.hold("busy"):
        result = rankmon("backfill", *SPAN)
    other.close()
    assert result.code == 5
    assert "rankmon: monitor busy: process" in result.err
    assert "rankmon: source search: there is no file" in result.err
    assert "stored buckets are kept; run the same command to resume" in result.err
    assert result.out == f"well: {DAYS * 24} buckets stored\n{left_out('well')}"


@pytest.fixture
def app(setting: Setting) -> Iterator[App]:
    setting.write(of_shop("shop"))
    made = App(load(setting.path, {}), ReplayClock(SETTLED))
    made.prepare()
    yield made
    made.stop()


def fill_all(app: App) -> int:
    return fill(app, app.config.monitors[0], (START, END))


def stored_buckets(app: App) -> int:
    return len(app.store.states(app.config.monitors[0].traffic, 0))


def test_backfill_interrupted_before_the_first_chunk_reads_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pull, "read", lambda *_: pytest.fail("it was told to stop"))
    app.interrupt()
    with pytest.raises(Stopped, match="shop: stopped after 0 buckets; run the same command to resume"):
        fill_all(app)
    assert stored_buckets(app) == 0


def test_backfill_interrupted_while_reading_drops_that_chunk(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = [], Pull.read

    def interrupted(pull: Pull, since: int, until: int) -> Any:
        reads.append(since)
        if len(reads) == 2:
            app.interrupt()
        return read(pull, since, until)

    monkeypatch.setattr(Pull, "read", interrupted)
    with pytest.raises(Stopped, match="shop: stopped after 12 buckets; run the same command to resume"):
        fill_all(app)
    assert stored_buckets(app) == 12


def test_backfill_interrupted_while_writing_keeps_that_chunk(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Store.write

    def interrupted(*arguments: Any) -> Any:
        app.interrupt()
        return write(*arguments)

    monkeypatch.setattr(Store, "write", interrupted)
    with pytest.raises(Stopped, match="stopped after 12 buckets"):
        fill_all(app)
    assert stored_buckets(app) == 12


def test_backfill_interrupted_after_the_last_chunk_completes(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    write, writes = Store.write, []

    def interrupted(*arguments: Any) -> Any:
        writes.append(None)
        if len(writes) == 3:
            app.interrupt()
        return write(*arguments)

    monkeypatch.setattr(Store, "write", interrupted)
    assert fill_all(app) == DAYS * 24


def test_backfill_draws_a_progress_bar_on_a_terminal(setting: Setting) -> None:
    setting.write(of_shop("shop"))
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", "from monitor.cli import main; main()", "backfill", *SPAN, "-c", setting.path]
    environ = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")} | {"TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65536):
                shown += part
        os.close(ours)
    assert process.returncode == 0
    assert "\x1b[2Kshop: buckets" in (text := shown.decode())
    assert "\\u001b" not in text
    assert f"\r\n\x1b[?25hshop: {DAYS * 24} buckets stored\r\n" in text, (
        "the result has its own line and the cursor is visible again"
    )


def test_a_signal_stops_backfill_and_the_same_command_resumes_it(
    rankmon: Rankmon, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.write(of_shop("shop"), of_shop("later"))
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    read, reads = Pull.read, []

    def signalled(pull: Pull, since: int, until: int) -> Any:
        reads.append(since)
        if len(reads) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert threading.Event().wait(0.5) is False
        return read(pull, since, until)

    with monkeypatch.context() as patched:
        patched.setattr(Pull, "read", signalled)
        result = rankmon("backfill", *SPAN)
    assert result.code == 130
    assert "rankmon: shop: stopped after 12 buckets; run the same command to resume" in result.err
    assert "later" not in result.out, "no further monitor starts"
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    shop, later = (
        f"shop: 60 buckets stored\n{left_out('shop')}",
        f"later: {DAYS * 24} buckets stored\n{left_out('later')}",
    )
    assert rankmon("backfill", *SPAN).out == shop + later
    store = Store(load(setting.path, {}).store.url, 5)
    found = dump(store)
    store.close()
    assert {k[5] for k in found["partials"]} == set(range(START, END, HOUR))


def test_a_signal_cancels_an_endless_statement(zygote: Zygote, setting: Setting, shop_url: str) -> None:
    slow_sqlite(shop_url)
    setting.write(of_shop("slow", table="slow"))
    child = zygote.start("backfill", "-c", setting.path, *SPAN)
    child.wait_for("schema none")
    threading.Event().wait(0.5)
    child.send(signal.SIGINT)
    assert child.wait(5) == 130, child.output
    assert "slow: stopped after 0 buckets" in child.output


# ---- run -----------------------------------------------------------------------------------------------------------


def replayed(zygote: Zygote, setting: Setting) -> Any:
    return zygote.start("run", "-c", setting.path, "--replay-from", at(SETTLED).isoformat())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_daemon_stops_cleanly_on_a_repeated_signal(
    number: signal.Signals, zygote: Zygote, setting: Setting
) -> None:
    setting.write(of_shop("shop"))
    child = replayed(zygote, setting)
    child.wait_for("due buckets in")
    child.send(number)
    child.send(number)
    assert child.wait(10) == 0, child.output
    assert child.output.rstrip().endswith("stopped")


def test_a_daemon_stopped_while_waiting_for_the_store_never_serves(zygote: Zygote, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    assert zygote.start("migrate", "-c", setting.path).wait() == 0
    engine = sa.create_engine(setting.store)
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN EXCLUSIVE")
        child = replayed(zygote, setting)
        threading.Event().wait(1)
        assert child.is_running()
        child.send(signal.SIGTERM)
        connection.rollback()
        assert child.wait(10) == 0, child.output
    engine.dispose()
    assert "serving on" not in child.output


def test_a_daemon_stopped_while_preparing_exits_cleanly(
    rankmon: Rankmon, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    taken: list[None] = []

    def signalled(*arguments: Any) -> Any:
        taken.append(None)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(1)
        return take_snapshot(*arguments)

    monkeypatch.setattr("monitor.service.publisher.take_snapshot", signalled)
    setting.write(of_shop("shop"), of_shop("more"))
    try:
        result = rankmon("run")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert result.code == 0
    assert len(taken) == 1, "it did not go on with the next monitor"
    assert "fault" not in result.err
    assert result.err.rstrip().endswith("stopped")


def test_an_early_reload_signal_is_applied_and_not_fatal(zygote: Zygote, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    child = replayed(zygote, setting)
    child.wait_for("serving on")
    for _ in range(3):
        child.send(signal.SIGHUP)
    child.wait_for("reload applied: 1 monitor")
    setting.write(of_shop("shop"), of_shop("more"))
    child.send(signal.SIGHUP)
    child.wait_for("reload applied: 2 monitors")
    child.wait_for("monitor more:")
    child.send(signal.SIGTERM)
    assert child.wait(10) == 0, child.output


def test_a_signal_delivered_to_another_thread_is_handled(
    rankmon: Rankmon, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    ended, was_needed = threading.Event(), list[bool]()

    def signal_itself() -> None:
        time.sleep(0.5)  # by then the main thread is waiting
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.pthread_kill(threading.get_ident(), number)
            time.sleep(WAKE_EVERY + 0.5)
        was_needed.append(not ended.wait(20))
        if was_needed[0]:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    other = threading.Thread(target=signal_itself)
    start = App.start

    def started(app: App) -> None:
        start(app)
        other.start()

    monkeypatch.setattr(App, "start", started)
    setting.write(of_shop("shop"))
    try:
        result = rankmon("run")
    finally:
        ended.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    other.join()
    assert (result.code, was_needed) == (0, [False])
    assert result.err.count("reload applied: 1 monitor") == 1


def fed(path: Path, text: str) -> None:
    """Writes to a pipe once, in the background, as soon as somebody reads it."""
    threading.Thread(target=path.write_text, args=[text], daemon=True).start()


def test_a_reload_refuses_a_configuration_read_from_a_pipe(zygote: Zygote, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    text = setting.path.read_text()
    setting.path.unlink()
    os.mkfifo(setting.path)
    fed(setting.path, text)
    child = replayed(zygote, setting)
    child.wait_for("serving on")
    child.send(signal.SIGHUP)
    child.wait_for(f"reload refused: {setting.path}: is a pipe and cannot be read again; restart rankmon")
    child.send(signal.SIGTERM)
    assert child.wait(10) == 0, child.output


def test_a_signal_stops_the_daemon_while_a_reload_waits_for_a_file(zygote: Zygote, setting: Setting) -> None:
    token = setting.path.with_name("token")
    os.mkfifo(token)
    setting.head += '\nchannels: {oncall: {alertmanager: {urls: ["http://127.0.0.1:9"], bearer_token_file: token}}}'
    setting.write(of_shop("shop"))
    fed(token, "secret")
    child = replayed(zygote, setting)
    child.wait_for("due buckets in")
    child.send(signal.SIGHUP)
    with token.open("w"):  # the reload has opened it
        child.send(signal.SIGTERM)
        assert child.wait(10) == 0, child.output
    assert "reload" not in child.output


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("command", "code"), [("migrate", 0), ("check-config", 0), ("status", 0), ("nonsense", 2)])
def test_commands_run_with_closed_streams(command: str, code: int, closed: str, setting: Setting) -> None:
    setting.write(of_shop("shop"))
    assert cli.run(["migrate", "-c", str(setting.path)]) == 0
    called = [sys.executable, "-c", "from monitor.cli import main; main()", command, "-c", setting.path]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *called], capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("command", "code"), [("run", 0), ("status", 130)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_command_that_is_still_starting(
    number: signal.Signals, command: str, code: int, tmp_path: Path
) -> None:
    """As the first process of a container, a command without a handler would ignore the signal."""
    path = tmp_path / "rankmon.yaml"
    os.mkfifo(path)
    called = [sys.executable, "-c", "from monitor.cli import main; main()", command, "-c", path]
    with subprocess.Popen(called, stderr=subprocess.PIPE, text=True) as process:
        with path.open("w"):  # it has opened its configuration
            process.send_signal(number)
            assert process.wait(10) == code
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""


@pytest.mark.parametrize(("command", "handled"), [("run", signal.SIG_IGN), ("status", signal.SIG_DFL)])
def test_sighup_does_not_stop_a_starting_daemon(
    command: str, handled: signal.Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sys, "argv", ["rankmon", command])
    monkeypatch.setattr(cli, "run", lambda _: seen.append(signal.getsignal(signal.SIGHUP)) or 0)
    monkeypatch.setattr(cli, "_leave", seen.append)
    before = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGHUP, signal.SIGTERM)}
    try:
        cli.main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert seen == [handled, 0]


def test_a_taken_port_exits_with_7_before_the_store_is_touched(rankmon: Rankmon, setting: Setting) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        setting.head = f'web: {{listen: "127.0.0.1:{port}"}}'
        setting.write(of_shop("shop"))
        handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            result = rankmon("run")
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    assert result.code == 7
    assert not (setting.path.parent / "store.db").exists()
    assert f"cannot listen on 127.0.0.1:{port}" in result.err
    assert "stopping" not in result.err, "shutdown messages would bury the cause"


def test_the_daemon_stores_the_same_final_buckets_as_backfill(
    zygote: Zygote, rankmon: Rankmon, setting: Setting, tmp_path: Path
) -> None:
    setting.write(of_shop("shop"))
    child = replayed(zygote, setting)
    child.wait_for("due buckets in")
    child.send(signal.SIGTERM)
    assert child.wait(10) == 0
    daemon = Store(load(setting.path, {}).store.url, 5)
    expected = dump(daemon)
    daemon.close()
    setting.store = f"sqlite:///{tmp_path}/other.db"
    setting.write(of_shop("shop"))
    first = min(k[5] for k in expected["traffic"])
    last = max(k[5] for k in expected["traffic"])
    assert rankmon("backfill", "--from", at(first).isoformat(), "--to", at(last + HOUR).isoformat()).code == 0
    other = Store(load(setting.path, {}).store.url, 5)
    finals = {t: {k: v for k, v in rows.items() if t == "slices" or k[5] < END} for t, rows in dump(other).items()}
    wanted = {t: {k: v for k, v in rows.items() if t == "slices" or k[5] < END} for t, rows in expected.items()}
    assert differences(wanted, finals) == []
    other.close()
