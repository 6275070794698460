"""Builds the running daemon from a configuration, and swaps in a new configuration."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from weakref import ref

from monitor.clock import Clock, SystemClock
from monitor.config import Config, load
from monitor.config.values import SourceConfig
from monitor.errors import ConfigError, InputError, StoreError
from monitor.evaluation.notices import Recipients
from monitor.logs import set_up
from monitor.messages.notification import Notification
from monitor.messages.own import REPLACEABLE, TemplateFault
from monitor.messages.templates import OwnTemplates
from monitor.messages.words import CALLED, counted, lasting, utc
from monitor.notify import ChannelConfig, Receiver
from monitor.notify.log import Log
from monitor.page import IncidentSource
from monitor.service.acknowledgements import poll_acknowledgements
from monitor.service.audit import Readers
from monitor.service.charts import Charts
from monitor.service.due_notices import DueNotices, due_changes, due_reports
from monitor.service.escalation import escalations
from monitor.service.incident_desk import IncidentDesk
from monitor.service.orphaned import OrphanedIncidents, OrphanedMonitors
from monitor.service.periodic import PeriodicTask
from monitor.service.reading import RequestSource
from monitor.service.retention import doubt
from monitor.service.runner import Runner
from monitor.service.scheduler import JobScheduler
from monitor.service.sender import OUTBOX_EVERY, Sender
from monitor.service.snapshot import Board, MonitorSnapshot
from monitor.service.telemetry import Telemetry
from monitor.source.choice import open_both, open_reader
from monitor.source.engine import Database
from monitor.source.inspect import inspect
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.types import Monitor
from monitor.web import Access, WebServer, create_site
from monitor.web.exposition import Exposition

log = logging.getLogger(__name__)

INTERRUPT_EVERY = 0.2
"""Seconds between attempts to cancel running reads."""

STOP_WITHIN = 20.0
"""Seconds for runs to end; sending and serving get a few more. Supervisors should wait 45 before they kill."""

LONGEST_PROBLEM = 240
"""Longest configuration problem shown on the page, in characters."""

SHOW_WITHIN = 2.0
"""Seconds that a reload waits for the snapshots of new monitors."""

SOON = 0.5
"""Seconds until a redefined monitor runs, if its former definition was still running."""

POLL_EVERY, ORPHANS_EVERY, DUE_EVERY = 2.0, 5.0, 60.0
"""Seconds between polls for acknowledgements, for orphaned monitors, and for reports and changes that are due."""


@dataclass(frozen=True)
class _ReloadPlan:
    databases: dict[str, Database]
    runners: dict[str, Runner]
    receivers: Sequence[Receiver]


class App:
    """A daemon: sources, store, a runner per monitor, the scheduler and the web server."""

    def __init__(self, config: Config, clock: Clock | None = None, called: str = CALLED, notice: str = "") -> None:
        """Open nothing yet.

        Args:
            called: how to invoke rankmon, see `words.command`; empty if it cannot be invoked.
            notice: banner at the top of the page.

        Raises:
            StoreError: the store's folder is missing.
            TlsFault: the certificate's files broke after the configuration was read.
        """
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.called = called
        self.notice = notice
        self.board = Board()
        self.telemetry = Telemetry()
        self.stopping = threading.Event()
        self.store = Store(config.store.url, config.scheduler.lease)
        self.scheduler = JobScheduler(config.scheduler.workers, self.telemetry)
        self.runners: dict[str, Runner] = {}
        self._databases: dict[str, Database] = {}
        self._former_databases: list[ref[Database]] = []
        self._reloading = threading.Lock()
        self._was_piped = config.path.is_fifo() or config.path.is_char_device()
        self._doubted = False
        self._store_is_ready = False
        self._beginning: list[threading.Thread] = []
        charts = Charts(self.store, lambda: self.config.monitors)
        self.sender = Sender(self.store, self.telemetry, clean=self._clean, draw=charts.draw)
        self._orphans = OrphanedMonitors(self.store, lambda: self.runners)
        orphaned = OrphanedIncidents(self.store, lambda: self.runners, self, time.monotonic)
        self.escalator = DueNotices(self.store, "escalation of incidents", self._escalations, self.wake)
        due = DueNotices(self.store, "reports and changes", self._due, self.wake)
        self._tasks = (
            PeriodicTask("escalation", self.escalator.run, OUTBOX_EVERY, logging.WARNING),
            PeriodicTask("reports and changes", due.run, DUE_EVERY, logging.WARNING),
            PeriodicTask("acknowledgements", partial(poll_acknowledgements, self.board, self.store), POLL_EVERY),
            PeriodicTask("orphaned incidents", orphaned.withdraw, ORPHANS_EVERY),
        )
        self.desk: IncidentSource = IncidentDesk(self.store, lambda: self.config, self.recipients, self.wake)
        self.exposition = Exposition(self.board, self.telemetry, self.clock)
        self.access = Access(config.web)
        self.web = WebServer(config.web.host, config.web.port, create_site(self, self.access), self.access)
        for result in ("applied", "refused"):
            self.telemetry.count("rankmon_config_reloads", result, by=0)
        for name in REPLACEABLE:
            self.telemetry.count("rankmon_template_failures", name, by=0)

    # ---- life --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Migrate the store to this version's schema and build what is configured. Raises StoreError."""
        before, now = self.store.schema.migrate()
        if before != now:
            log.info("store: schema %s -> %s", before or "none", now)
        self.store.check_writable()
        self._store_is_ready = True
        self._swap_in(self.config, self._plan_reload(self.config))

    def show(self, runners: Mapping[str, Runner] | None = None) -> None:
        """Show what is stored of these monitors, or of all. Slow with many monitors."""
        for runner in list((self.runners if runners is None else runners).values()):
            runner.refresh_snapshot(self.clock.now())

    def start(self) -> None:
        """Serve at once, show what is stored, then schedule. Raises Unserved if the port is taken."""
        self.web.start()
        self.scheduler.start()
        self.sender.start()
        for task in self._tasks:
            task.start()
        # Show all before the first run: runs queue behind what is being shown.
        self._show_and_schedule_each([dict(self.runners)])

    def _show_and_schedule_each(self, groups: Sequence[Mapping[str, Runner]]) -> None:
        """Show and then schedule each group of monitors, in a thread because the store may hang."""

        def begin() -> None:
            for runners in groups:
                self._show_and_schedule(runners)

        thread = threading.Thread(target=begin, name="begin")
        self._beginning = [*(other for other in self._beginning if other.is_alive()), thread]
        thread.start()

    def _show_and_schedule(self, runners: Mapping[str, Runner]) -> None:
        self.show(runners)
        with self._reloading:  # monitors of these names may exist by now
            for name, runner in runners.items():
                if self.runners.get(name) is runner and not self.stopping.is_set():
                    self._schedule(name)
            shown, current = self.board.snapshots, {name: runner.monitor for name, runner in self.runners.items()}
            self.board.keep_only(n for n in shown if n not in runners or current.get(n) == shown[n].monitor)

    def interrupt(self) -> None:
        """Cancel running reads: their batch is dropped and read again next time."""
        self.stopping.set()
        for database in self._databases_in_use():
            database.interrupt()

    def stop(self) -> bool:
        """Drop reads, finish writes; False if that takes longer than STOP_WITHIN. Unwritten work is redone."""
        self.interrupt()
        until = time.monotonic() + STOP_WITHIN
        ending = threading.Thread(target=self._end_runs, name="stop", daemon=True)
        ending.start()
        while ending.is_alive() and time.monotonic() < until:
            ending.join(INTERRUPT_EVERY)
            self.interrupt()  # again: a statement may have begun since the last interrupt
        self.web.stop()
        for task in self._tasks:
            task.end()
        self.sender.stop()
        for task in self._tasks:
            task.join()
        if ending.is_alive():
            log.error("shutdown timed out after %.0f s: a run is still active; does the store answer?", STOP_WITHIN)
            return False
        self.close()
        return True

    def _end_runs(self) -> None:
        for thread in self._beginning:
            thread.join()
        self.scheduler.stop()

    def close(self) -> None:
        """Close all connections and let other processes evaluate."""
        for database in self._databases_in_use():
            database.close()
        if self._store_is_ready:
            with suppress(StoreError):  # others notice later that it stopped
                self.store.leave()
        self.store.close()

    def _databases_in_use(self) -> list[Database]:
        former = (held() for held in list(self._former_databases))
        return [*self._databases.values(), *(database for database in former if database is not None)]

    # ---- configuration -----------------------------------------------------------------------------------------

    def reload(self, environ: Mapping[str, str] | None = None) -> list[str]:
        """The problems if the configuration file is refused (nothing changes); else it is swapped in."""
        with self._reloading:
            try:
                problems = self._reload(os.environ if environ is None else environ)
            except Exception:
                log.exception("reload: a bug in rankmon; please report it")
                problems = ["a bug in rankmon; see the log"]
            self.telemetry.count("rankmon_config_reloads", "refused" if problems else "applied")
            for problem in problems:
                log.error("reload refused: %s", problem)
            self.telemetry.refused = refused_in_words(problems, time.time()) if problems else ""
        if not problems:
            self._beginning[-1].join(SHOW_WITHIN)
        return problems

    def _reload(self, environ: Mapping[str, str]) -> list[str]:
        if self._was_piped:
            return [f"{self.config.path}: is a pipe and cannot be read again; restart rankmon with --config and a file"]
        try:
            new = load(self.config.path, environ)
        except ConfigError as error:
            return error.problems
        now = self.config
        fixed = [name for name, value in _fixed_until_restart(new).items() if value != _fixed_until_restart(now)[name]]
        if fixed:
            return [f"{self.config.path}: {', '.join(fixed)} changed, which needs a restart"]
        plan = self._plan_reload(new)
        try:
            self.access.adopt(new.web)
        except InputError as error:
            return [str(error)]
        # Nothing outside can fail from here on: neither the store nor a source is asked.
        added = self._swap_in(new, plan)
        if new.log != now.log:
            set_up(new.log.level, new.log.format)
        self.board.keep_only(self.runners)
        self._show_and_schedule_each([{name: self.runners[name]} for name in added])
        log.info("reload applied: %s", counted(len(self.runners), "monitor"))
        return []

    def _plan_reload(self, new: Config) -> _ReloadPlan:
        databases, monitors = self._databases, {m.name: m for m in new.monitors}
        same = {s.name for s in new.sources if s in self.config.sources and s.name in databases}
        kept = {n for n, r in self.runners.items() if monitors.get(n) == r.monitor and r.monitor.source in same}
        found = {s.name: databases[s.name] if s.name in same else self._database(s) for s in new.sources}
        runners = {n: self.runners[n] if n in kept else self._runner(m, found[m.source]) for n, m in monitors.items()}
        is_same = new.channels == self.config.channels and self.sender.receivers
        return _ReloadPlan(found, runners, self.sender.receivers if is_same else receivers(new.channels))

    def _swap_in(self, new: Config, plan: _ReloadPlan) -> list[str]:
        databases, runners = self._databases, self.runners
        if plan.receivers is not self.sender.receivers:
            self.sender.use(plan.receivers)
        self._databases, self.runners, self.config = plan.databases, plan.runners, new
        for name, runner in runners.items():
            if plan.runners.get(name) is not runner:
                runner.retire()
        for name in runners.keys() - plan.runners.keys():
            self.scheduler.remove(name)
            self.telemetry.forget(name)
        for name, database in databases.items():
            if plan.databases.get(name) is not database:
                database.close()  # a run in progress keeps its connection until it ends
                self._former_databases.append(ref(database))
        return [name for name, runner in plan.runners.items() if runners.get(name) is not runner]

    def recipients(self) -> Recipients:
        targets: dict[str, tuple[str, ...]] = {}
        for receiver in self.sender.receivers:
            targets[receiver.channel] = (*targets.get(receiver.channel, ()), receiver.target)
        templates = OwnTemplates(self.config.templates, self._template_failed)
        return Recipients(targets, self.page_url, called=self.called, routes=self.config.routes, templates=templates)

    def _template_failed(self, fault: TemplateFault) -> None:
        log.warning("template failed: %s; the built-in one is used", fault)
        self.telemetry.count("rankmon_template_failures", fault.template.name)

    def wake(self) -> None:
        self.sender.wake()

    def _escalations(self, now: float) -> Iterator[tuple[str, Notification]]:
        return escalations(self.store, self.config.monitors, replace(self.recipients(), real_now=now))

    def _due(self, now: float) -> Iterator[tuple[str, Notification]]:
        known = self.store, self.config, self.recipients()
        yield from due_reports(*known, now)
        yield from due_changes(*known, int(self.clock.now()))

    @property
    def page_url(self) -> str:
        """URL of the page, with a trailing slash."""
        return self.config.web.page_url(self.web.port)

    def _database(self, source: SourceConfig) -> Database:
        def selects() -> list[str]:
            return self.config.selects(source.name)  # of the monitors that a reload brings, too

        stop = self.stopping.is_set
        return Database(source.name, source.url, source.statement_timeout, stop, source.max_concurrent, selects)

    def _runner(self, monitor: Monitor, database: Database) -> Runner:
        source = open_reader(monitor, database)
        shared = (self.store, self.board, self.telemetry, self.clock, self.stopping, self)
        return Runner(monitor, source, *shared, lambda detailed: Pull(detailed, database), _readers(monitor, database))

    def source_of(self, monitor: Monitor) -> RequestSource:
        """The reader of a monitor's source."""
        return open_reader(monitor, self._databases[monitor.source])

    def readers_of(self, monitor: Monitor) -> Readers:
        """Every way to read a monitor, for comparison."""
        return _readers(monitor, self._databases[monitor.source])

    def _schedule(self, name: str) -> None:
        runner = self.runners[name]

        def run() -> None:
            runner.run(self.scheduler.retry_in)
            if self.runners.get(name) not in (runner, None):
                self.scheduler.retry_in(name, SOON)  # its successor's first run was skipped while this one ran

        self.scheduler.put(name, runner.monitor.refresh / self.clock.speed, run, runner.monitor.source)

    def _clean(self) -> None:
        now = self.clock.now()
        if (said := doubt(self.store, now)) != "" and not self._doubted:
            log.warning("store: %s", said)
        self._doubted = said != ""
        before = self.store.retention.present(now) - self.config.store.retain
        if number := self.store.alerts.purge(before):
            log.info("store: %d incidents deleted, closed for longer than store.retain", number)
        self._orphans.forget(before)

    # ---- what the web shows ------------------------------------------------------------------------------------

    def health(self) -> str:
        """Empty if the scheduler lives and no run hangs; else what is wrong."""
        if not self.scheduler.is_alive:
            return "the scheduler has stopped; restart rankmon"
        # All sources: a reload may remove one meanwhile.
        allowed = max((s.statement_timeout for s in self.config.sources), default=0.0)
        for name, runner in list(self.runners.items()):
            if (seconds := runner.hangs_for(allowed)) > 0:
                return f"a run of {name} has hung for {lasting(int(seconds))}; restart rankmon"
        return ""

    def metrics(self, accept: str) -> tuple[bytes, str]:
        return self.exposition.text(accept)

    def readiness(self) -> str:
        """Empty if every monitor has something to show and none waits for a lock; else what is missing."""
        if not self._store_is_ready:
            return "the store is not ready"
        if waiting := [name for name, runner in self.runners.items() if runner.waits]:
            return f"another process has locked the store; waiting for it: {', '.join(waiting)}"
        missing = [n for n in self.runners if not _has_something(self.board.snapshots.get(n))]
        return f"nothing to show yet for {', '.join(missing)}" if missing else ""

    def pending(self) -> str:
        missing = len(self.runners.keys() - self.board.snapshots.keys())
        return f"{counted(missing, 'monitor')} of {len(self.runners)} not shown yet; just started" if missing else ""

    def refused(self) -> str:
        return self.telemetry.refused

    def next_run_at(self, name: str) -> float | None:
        return self.scheduler.next_run_at(name)


def refused_in_words(problems: Sequence[str], at: float) -> str:
    """That a reload was refused at `at`, real seconds, with the first reason; the log has all of them."""
    first, more = problems[0], len(problems) - 1
    shown = first if len(first) <= LONGEST_PROBLEM else f"{first[:LONGEST_PROBLEM]}…"
    others = f" (the log has {counted(more, 'problem')} more)" if more else ""
    return f"The reload at {utc(int(at))} was refused; the old configuration stays in use. {shown}{others}"


def _has_something(snapshot: MonitorSnapshot | None) -> bool:
    if snapshot is None:
        return False
    return snapshot.progress.last_attempt_at is not None or any(s.final or s.provisional for s in snapshot.series)


def _fixed_until_restart(config: Config) -> dict[str, object]:
    return {"store": config.store, "web.listen": (config.web.host, config.web.port), "scheduler": config.scheduler}


def receivers(channels: Sequence[ChannelConfig]) -> list[Receiver]:
    """The receivers of all channels, always including the log."""
    return [Log(), *(receiver for channel in channels for receiver in channel.receivers())]


def _readers(monitor: Monitor, database: Database) -> Readers:
    return Readers(*open_both(monitor, database), lambda request, at: inspect(monitor, database, request, at))
