"""The one place where parts are put together: from a configuration to a running daemon, and to a new configuration."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from monitor.clock import Clock, SystemClock
from monitor.config import Config, load
from monitor.core.types import Monitor
from monitor.errors import ConfigError
from monitor.exposition import registry
from monitor.runner import Runner
from monitor.scheduler import Scheduler
from monitor.snapshot import Board
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.telemetry import Telemetry
from monitor.web import WebServer, create_site

log = logging.getLogger(__name__)


class App:
    """A daemon: sources, store, one runner a monitor, the scheduler and the web server."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        """Nothing is opened yet, but a missing folder of the store is a StoreError."""
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.board = Board()
        self.telemetry = Telemetry()
        self.stopping = threading.Event()
        self.store = Store(config.store.url, config.scheduler.lease)
        self.scheduler = Scheduler(config.scheduler.workers, self.telemetry)
        self.registry = registry(self.board, self.telemetry)
        self.runners: dict[str, Runner] = {}
        self._databases: dict[str, Database] = {}
        self._reloading = threading.Lock()
        self._store_is_ready = False
        self.web = WebServer(config.web.host, config.web.port, create_site(self))
        for result in ("applied", "refused"):
            self.telemetry.count("rankmon_config_reloads", result, by=0)

    # ---- life --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Bring the store to this version's schema and show what it holds. Raises StoreError."""
        before, now = self.store.schema.migrate()
        if before != now:
            log.info("store: schema %s -> %s", before or "none", now)
        self._store_is_ready = True
        self._adopt(self.config)
        for runner in self.runners.values():
            runner.refresh_snapshot(self.clock.now())

    def start(self) -> None:
        """Serve and schedule. Raises RankmonError if the port is taken."""
        self.web.start()
        for name in self.runners:
            self._schedule(name)
        self.scheduler.start()

    def interrupt(self) -> None:
        """End what is being read: it is left out whole, and read again next time."""
        self.stopping.set()
        for database in self._databases.values():
            database.interrupt()

    def stop(self) -> None:
        """End: what is being read is left out, what is being written is written."""
        self.interrupt()
        self.scheduler.stop()
        self.web.stop()
        self.close()

    def close(self) -> None:
        """Give all connections back."""
        for database in self._databases.values():
            database.close()
        self.store.close()

    # ---- configuration -----------------------------------------------------------------------------------------

    def reload(self, environ: Mapping[str, str] | None = None) -> list[str]:
        """Load the configuration file anew and swap it in; the problems if it is refused, and then nothing changes."""
        with self._reloading:
            problems = self._reload(os.environ if environ is None else environ)
            self.telemetry.count("rankmon_config_reloads", "refused" if problems else "applied")
            for problem in problems:
                log.error("reload refused: %s", problem)
            return problems

    def _reload(self, environ: Mapping[str, str]) -> list[str]:
        try:
            new = load(self.config.path, environ)
        except ConfigError as error:
            return error.problems
        fixed = [part for part in ("store", "web", "scheduler") if getattr(new, part) != getattr(self.config, part)]
        if fixed:
            return [f"{self.config.path}: {', '.join(fixed)} changed, which needs a restart"]
        self._adopt(new)
        for name, runner in self.runners.items():
            if name not in self.board.snapshots or self.board.snapshots[name].monitor != runner.monitor:
                runner.refresh_snapshot(self.clock.now())
                self._schedule(name)
        self.board.keep_only(self.runners)
        log.info("reload applied: %d monitors", len(self.runners))
        return []

    def _adopt(self, new: Config) -> None:
        """Keep what is unchanged, build what is new, retire what is gone."""
        old_databases, old_runners = self._databases, self.runners
        same = {s.name for s in new.sources if s in self.config.sources and s.name in old_databases}
        self._databases = {
            s.name: old_databases[s.name]
            if s.name in same
            else Database(s.name, s.url, s.statement_timeout, self.stopping.is_set)
            for s in new.sources
        }
        self.runners = {}
        for monitor in new.monitors:
            old = old_runners.get(monitor.name)
            keeps = old is not None and old.monitor == monitor and monitor.source in same
            self.runners[monitor.name] = old if keeps and old is not None else self._runner(monitor)
        for name, runner in old_runners.items():
            if self.runners.get(name) is not runner:
                runner.retired = True
            if name not in self.runners:
                self.scheduler.remove(name)
                self.telemetry.forget(name)
        self.config = new

    def _runner(self, monitor: Monitor) -> Runner:
        source = self.source_of(monitor)
        return Runner(monitor, source, self.store, self.board, self.telemetry, self.clock, self.stopping)

    def source_of(self, monitor: Monitor) -> Pull:
        """The reader of a monitor's source."""
        return Pull(monitor, self._databases[monitor.source])

    def _schedule(self, name: str) -> None:
        def run() -> None:
            # Looked up by name each time, so that a reload is taken up by the next run.
            runner = self.runners.get(name)
            if runner is not None:
                runner.run(self.scheduler.retry_in)

        self.scheduler.put(name, self.runners[name].monitor.refresh / self.clock.speed, run)

    # ---- what the web shows ------------------------------------------------------------------------------------

    def health(self) -> str:
        """Empty if the process and its scheduler live; else what is wrong."""
        return "" if self.scheduler.is_alive else "the scheduler gives no sign of life; restart rankmon"

    def readiness(self) -> str:
        """Empty if every monitor has something to show; else what is missing."""
        if not self._store_is_ready:
            return "the store is not ready"
        missing = [n for n in self.runners if n not in self.board.snapshots]
        return f"no snapshot yet of {', '.join(missing)}" if missing else ""

    def next_run_at(self, name: str) -> float | None:
        """When a monitor runs next, in real seconds since 1970."""
        return self.scheduler.next_run_at(name)


def load_config(path: Path) -> Config:
    """The configuration at `path`, with this process's environment. Raises ConfigError."""
    return load(path, os.environ)
