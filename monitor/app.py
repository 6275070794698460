"""The one place where parts are put together: from a configuration to a running daemon, and to a new configuration."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from weakref import ref

from monitor.clock import Clock, SystemClock
from monitor.config import Config, load
from monitor.config.channels import ChannelConfig, WebhookConfig
from monitor.config.values import SourceConfig
from monitor.core.types import Monitor
from monitor.errors import ConfigError, InputError, LeaseLost
from monitor.exposition import registry
from monitor.judging import Telling, withdraw
from monitor.logs import set_up
from monitor.notify.alertmanager import Alertmanager
from monitor.notify.log import Log
from monitor.notify.receiver import Receiver
from monitor.notify.webhook import Webhook
from monitor.runner import Runner
from monitor.scheduler import Scheduler
from monitor.sender import Sender
from monitor.snapshot import Board, MonitorSnapshot
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.telemetry import Telemetry
from monitor.web import Access, WebServer, create_site

log = logging.getLogger(__name__)

INTERRUPT_EVERY = 0.2
"""Seconds between attempts to end what is being read."""

SOON = 0.5
"""Seconds until a monitor runs that had to wait for its former definition's run."""


class App:
    """A daemon: sources, store, one runner a monitor, the scheduler and the web server."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        """Nothing is opened yet, but a missing folder of the store is a StoreError.

        Raises:
            TlsFault: the certificate's files have gone wrong since the configuration was read.
        """
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.board = Board()
        self.telemetry = Telemetry()
        self.stopping = threading.Event()
        self.store = Store(config.store.url, config.scheduler.lease)
        self.scheduler = Scheduler(config.scheduler.workers, self.telemetry)
        self.runners: dict[str, Runner] = {}
        self._databases: dict[str, Database] = {}
        self._former_databases: list[ref[Database]] = []
        self._reloading = threading.Lock()
        self._store_is_ready = False
        self.sender = Sender(self.store, self.telemetry)
        self.registry = registry(self.board, self.telemetry)
        self.access = Access(config.web.access)
        self.web = WebServer(config.web.host, config.web.port, create_site(self, self.access), self.access)
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
        self._withdraw_removed()
        for runner in self.runners.values():
            runner.refresh_snapshot(self.clock.now())

    def start(self) -> None:
        """Serve and schedule. Raises RankmonError if the port is taken."""
        self.web.start()
        for name in self.runners:
            self._schedule(name)
        self.scheduler.start()
        self.sender.start()

    def interrupt(self) -> None:
        """End what is being read: it is left out whole, and read again next time."""
        self.stopping.set()
        for database in self._databases_in_use():
            database.interrupt()

    def stop(self) -> None:
        """End: what is being read is left out, what is being written is written."""
        self.interrupt()
        ending = threading.Thread(target=self.scheduler.stop, name="stop")
        ending.start()
        while ending.is_alive():
            ending.join(INTERRUPT_EVERY)
            self.interrupt()  # again, for a statement may have begun just after the last time
        self.web.stop()
        self.sender.stop()
        self.close()

    def close(self) -> None:
        """Give all connections back."""
        for database in self._databases_in_use():
            database.close()
        self.store.close()

    def _databases_in_use(self) -> list[Database]:
        """Those of the configuration, and those of an earlier one that a run under way still reads from."""
        former = (held() for held in list(self._former_databases))
        return [*self._databases.values(), *(database for database in former if database is not None)]

    # ---- configuration -----------------------------------------------------------------------------------------

    def reload(self, environ: Mapping[str, str] | None = None) -> list[str]:
        """Load the configuration file anew and swap it in; the problems if it is refused, and then nothing changes."""
        with self._reloading:
            try:
                problems = self._reload(os.environ if environ is None else environ)
            except Exception:
                log.exception("reload: a fault in rankmon itself; please report it")
                problems = ["a fault in rankmon itself; the log has it"]
            self.telemetry.count("rankmon_config_reloads", "refused" if problems else "applied")
            for problem in problems:
                log.error("reload refused: %s", problem)
            return problems

    def _reload(self, environ: Mapping[str, str]) -> list[str]:
        try:
            new = load(self.config.path, environ)
        except ConfigError as error:
            return error.problems
        fixed = [name for name, part in _parts_for_life(new).items() if part != _parts_for_life(self.config)[name]]
        if fixed:
            return [f"{self.config.path}: {', '.join(fixed)} changed, which needs a restart"]
        try:
            self.access.adopt(new.web.access)
        except InputError as error:
            return [str(error)]
        if new.log != self.config.log:
            set_up(new.log.level, new.log.format)
        added = self._adopt(new)
        self._withdraw_removed()
        for name in added:
            self.runners[name].refresh_snapshot(self.clock.now())
            self._schedule(name)
        current = {name: runner.monitor for name, runner in self.runners.items()}
        self.board.keep_only(n for n, shown in self.board.snapshots.items() if current.get(n) == shown.monitor)
        log.info("reload applied: %d monitors", len(self.runners))
        return []

    def _adopt(self, new: Config) -> list[str]:
        """Keep what is unchanged, build what is new, retire what is gone; the names of the monitors that are new."""
        old_databases, old_runners, monitors = self._databases, self.runners, {m.name: m for m in new.monitors}
        same = {s.name for s in new.sources if s in self.config.sources and s.name in old_databases}
        kept = {n for n, r in old_runners.items() if monitors.get(n) == r.monitor and r.monitor.source in same}
        databases = {s.name: old_databases[s.name] if s.name in same else self._database(s) for s in new.sources}
        runners = {
            n: old_runners[n] if n in kept else self._runner(m, databases[m.source]) for n, m in monitors.items()
        }
        if new.channels != self.config.channels or not self.sender.receivers:
            self.sender.use(receivers(new.channels))
        self._databases, self.runners, self.config = databases, runners, new
        for name in old_runners.keys() - kept:
            old_runners[name].retire()
        for name in old_runners.keys() - monitors.keys():
            self.scheduler.remove(name)
            self.telemetry.forget(name)
        for name in old_databases.keys() - same:
            old_databases[name].close()  # a run under way keeps its connection until it has ended
            self._former_databases.append(ref(old_databases[name]))
        return [name for name in monitors if name not in kept]

    def _withdraw_removed(self) -> None:
        """Close the incidents of monitors that are configured no more, and have those told who know of them."""
        for name in self.store.alerts.watched():
            if name not in self.runners:
                with suppress(LeaseLost), self.store.hold(name) as lease:
                    withdraw(name, self.store, lease, replace(self.telling(), real_now=time.time()))
        self.sender.wake()

    def telling(self) -> Telling:
        """Whom to tell of incidents, as it is configured now."""
        targets: dict[str, tuple[str, ...]] = {}
        for receiver in self.sender.receivers:
            targets[receiver.channel] = (*targets.get(receiver.channel, ()), receiver.target)
        return Telling(targets, self.page_url)

    def wake(self) -> None:
        """There is something to send."""
        self.sender.wake()

    @property
    def page_url(self) -> str:
        """Address of the page, for links, with a slash at its end."""
        return (self.config.web.external_url or self.web.url).rstrip("/") + "/"

    def _database(self, source: SourceConfig) -> Database:
        return Database(source.name, source.url, source.statement_timeout, self.stopping.is_set)

    def _runner(self, monitor: Monitor, database: Database) -> Runner:
        source = Pull(monitor, database)
        return Runner(monitor, source, self.store, self.board, self.telemetry, self.clock, self.stopping, self)

    def source_of(self, monitor: Monitor) -> Pull:
        """The reader of a monitor's source."""
        return Pull(monitor, self._databases[monitor.source])

    def _schedule(self, name: str) -> None:
        runner = self.runners[name]

        def run() -> None:
            runner.run(self.scheduler.retry_in)
            if self.runners.get(name) not in (runner, None):
                self.scheduler.retry_in(name, SOON)  # its successor's first run was skipped for this one

        self.scheduler.put(name, runner.monitor.refresh / self.clock.speed, run)

    # ---- what the web shows ------------------------------------------------------------------------------------

    def health(self) -> str:
        """Empty if the process and its scheduler live; else what is wrong."""
        return "" if self.scheduler.is_alive else "the scheduler gives no sign of life; restart rankmon"

    def readiness(self) -> str:
        """Empty if every monitor has something to show; else what is missing."""
        if not self._store_is_ready:
            return "the store is not ready"
        missing = [n for n in self.runners if not _has_something(self.board.snapshots.get(n))]
        return f"nothing to show yet of {', '.join(missing)}" if missing else ""

    def next_run_at(self, name: str) -> float | None:
        """When a monitor runs next, in real seconds since 1970."""
        return self.scheduler.next_run_at(name)


def _has_something(snapshot: MonitorSnapshot | None) -> bool:
    """Whether there are data of a monitor, or at least a first attempt to get some has ended."""
    if snapshot is None:
        return False
    return snapshot.progress.last_attempt_at is not None or any(s.final or s.provisional for s in snapshot.series)


def _parts_for_life(config: Config) -> dict[str, object]:
    """The parts of a configuration that stay for as long as the process lives."""
    return {"store": config.store, "web.listen": (config.web.host, config.web.port), "scheduler": config.scheduler}


def receivers(channels: Sequence[ChannelConfig]) -> list[Receiver]:
    """The receivers of all channels; the log is one of them always."""
    found: list[Receiver] = [Log()]
    for channel in channels:
        if isinstance(channel, WebhookConfig):
            found.append(Webhook(channel))
        else:
            found += [Alertmanager(channel, url) for url in channel.urls]
    return found
