"""Sends the outbox, one thread per receiver, so that a hanging receiver delays no other.

Delivery is at least once, always under the same key.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import MappingProxyType

from monitor.errors import LeaseLost, StoreError, Undelivered
from monitor.messages.notification import ENDS, Notification
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.notify import ChartAfter, ChartInside, Receiver
from monitor.service.periodic import LONGEST_RETRY, PeriodicTask, doubling
from monitor.service.telemetry import QueueStatus, Telemetry
from monitor.store import Lease, Store
from monitor.store.outbox import TELLING, Waiting
from monitor.units import DAY

log = logging.getLogger(__name__)

OUTBOX_EVERY = 5.0
"""Seconds between checks of the outbox for what other processes put there."""

LONGEST_WISH = 3600.0
"""Longest Retry-After honoured, seconds; a longer one is taken for a mistake and ignored."""

KEEP = 30 * DAY
"""Seconds that sent notifications stay in the store."""

CLEAN_EVERY = 3600.0
ORPHANED = 600.0
"""Seconds without an attempt until an unknown receiver's queue is orphaned: another daemon may have that receiver."""

STUCK = 600.0
"""Seconds of waiting after which a receiver counts as stuck; Prometheus' rule fires later."""

ENDS_AGAIN = 3600.0
"""Seconds for which reminders repeat an end: a process that was paused may still send an alert that is over."""

LEAST_ATTEMPTS = 10
"""Failed attempts before giving up: age alone says nothing after a clock jump or a night switched off."""


Drawing = Callable[[Notification], bytes]
"""Draws the chart of a notification, empty if there is none; raises whatever hinders it."""


def no_chart(notification: Notification) -> bytes:
    return b""


class Sender:
    """Delivers the outbox until stopped."""

    def __init__(
        self,
        store: Store,
        telemetry: Telemetry,
        clock: Callable[[], float] = time.time,
        clean: Callable[[], object] | None = None,
        draw: Drawing = no_chart,
    ) -> None:
        """`clock`: real seconds since 1970. `clean`: called with each cleaning of the outbox. `draw`: draws charts."""
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._clean = clean
        self._draw = draw
        self._lock = threading.Lock()
        self._workers: dict[str, _Worker] = {}
        self._tidying: PeriodicTask | None = None
        self._met: Sequence[Receiver] = ()
        self._cleaned_at: float | None = None
        self.receivers: Sequence[Receiver] = ()

    def use(self, receivers: Sequence[Receiver]) -> None:
        """Send to these receivers only, from now on."""
        with self._lock:
            self.receivers = tuple(receivers)
            for receiver in receivers:
                for counter in ("sent", "failures", "dropped"):
                    self._telemetry.count(_counter(counter), receiver.channel, by=0)
            if self._tidying is not None:
                self._employ()

    def start(self) -> None:
        with self._lock:
            self._tidying = PeriodicTask("notifications", self.tidy, OUTBOX_EVERY, logging.WARNING)
            self._tidying.start()
            self._employ()

    def stop(self) -> None:
        """Stop; a delivery in progress is repeated next time unless its receiver answers within two seconds."""
        with self._lock:
            tasks = [worker.task for worker in self._workers.values()]
            tasks += [self._tidying] if self._tidying is not None else []
        for task in tasks:
            task.end()
        until = time.monotonic() + 2
        for task in tasks:
            task.join(max(0.0, until - time.monotonic()))

    def settle(self, seconds: float) -> bool:
        """Whether the outbox empties within `seconds`; waits for it."""
        until = time.monotonic() + seconds
        self.wake()
        while (waiting := self._store.outbox.queues()) and time.monotonic() < until:
            time.sleep(0.05)
        return not waiting

    def deliver(self, seconds: float, is_over: Callable[[], bool]) -> int:
        """How many still wait after sending for `seconds` at most or until `is_over`; replaces `start`.

        Also sends reminders and tidies the outbox: an hourly process may be all there is.

        Raises:
            StoreError: out of reach.
        """
        until = time.monotonic() + seconds
        self.tidy()
        with self._lock:
            self._employ(is_single=True)
            workers = list(self._workers.values())
        while not is_over():
            rests = [rest for worker in workers if (rest := worker.rest()) is not None]
            if not rests or time.monotonic() + min(rests) >= until:
                break
            time.sleep(0.05)
        targets = [r.target for r in self.receivers]
        return sum(number for target, (number, _) in self._store.outbox.queues().items() if target in targets)

    def wake(self) -> None:
        with self._lock:
            for worker in self._workers.values():
                worker.task.wake()

    def _employ(self, is_single: bool = False) -> None:
        wanted = {r.target: r for r in self.receivers}
        for target in [t for t, w in self._workers.items() if wanted.get(t) is not w.receiver]:
            self._workers.pop(target).task.end()
        for target in wanted.keys() - self._workers.keys():
            parts = (self._store, self._telemetry, self._clock, self._draw)
            self._workers[target] = _Worker(wanted[target], *parts, is_single)

    def tidy(self) -> None:
        """Count the queues, clean the outbox, pass on what waits for replaced receivers. Raises StoreError."""
        receivers = self.receivers
        self._introduce(receivers)
        self._retire_strangers(receivers)
        self._count_queues()
        if self._cleaned_at is None or time.monotonic() - self._cleaned_at >= CLEAN_EVERY:
            self._store.outbox.purge(self._store.retention.present(self._clock()) - KEEP)
            if self._clean is not None:
                self._clean()
            self._cleaned_at = time.monotonic()

    def _introduce(self, receivers: Sequence[Receiver]) -> None:
        """Tells a channel's new receivers what is open, and queues what another daemon gave up for them."""
        if receivers is not self._met:
            for receiver in receivers:
                self._store.outbox.introduce(receiver.target, receiver.channel, self._clock())
            self._met = receivers
        for receiver in receivers:
            if self._store.outbox.finish(receiver.target, self._clock()):
                self.wake()
            if number := self._store.outbox.take_back(receiver.target, self._clock()):
                log.info("%d notifications for %s had been dropped; sending them anyway", number, receiver.target)
                self.wake()

    def _retire_strangers(self, receivers: Sequence[Receiver]) -> None:
        """Moves a removed receiver's queue to its channel's others; without any it is given up."""
        now = self._clock()
        for target, newest_at in self._store.outbox.strangers([r.target for r in receivers]).items():
            channel = target.split(" ")[0]
            heirs = [r.target for r in receivers if r.channel == channel]
            if not heirs and now - newest_at < ORPHANED:
                continue
            number = self._store.outbox.retire(target, heirs, now)
            if heirs:
                log.info("receiver %s is gone; the channel's others get its %d notifications", target, number)
                self.wake()
            else:
                self._telemetry.count(_counter("dropped"), channel, by=number)
                log.error("receiver %s is gone, with its channel; dropping its %d notifications", target, number)

    def _count_queues(self) -> None:
        channels, now = {r.target: r.channel for r in self.receivers}, self._clock()
        found = {channel: QueueStatus(receivers=number) for channel, number in Counter(channels.values()).items()}
        for target, (length, oldest_at) in self._store.outbox.queues().items():
            channel = channels.get(target, target.split(" ")[0])
            so_far = found.get(channel, QueueStatus())
            oldest, stuck = min(oldest_at, so_far.oldest_at or oldest_at), so_far.stuck + (now - oldest_at > STUCK)
            found[channel] = QueueStatus(so_far.length + length, oldest, so_far.receivers, stuck)
        self._telemetry.queues = MappingProxyType(found)


class _Worker:
    def __init__(
        self,
        receiver: Receiver,
        store: Store,
        telemetry: Telemetry,
        clock: Callable[[], float],
        draw: Drawing,
        is_single: bool = False,
    ) -> None:
        """`is_single`: a single run, which sends due reminders at once."""
        self.receiver = receiver
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._draw = draw
        self._opened: dict[int, tuple[Waiting, str]] = {}
        self._unmarked: dict[int, str | None] = {}
        self._lease: Lease | None = None
        self._quiet_until = 0.0
        self._reminded: float | None = None if is_single else time.monotonic()
        self.task = PeriodicTask(self._turn, self._work, OUTBOX_EVERY, logging.WARNING)
        self.task.start()

    def rest(self) -> float | None:
        """Seconds until the next known work; None if there is none. Raises StoreError."""
        now = self._clock()
        next_at = self._store.outbox.next_at(now, self.receiver.target)
        if self._must_remind() or self._opened:
            next_at = now
        return None if next_at is None else max(next_at - now, self._quiet_until - time.monotonic(), 0.0)

    def _work(self) -> bool:
        """Sends what is due, or else a chart; True if it did something, as more may then be due."""
        if self._is_to_be_quiet or not (self._due() or self._must_remind()):
            return self._add_chart()
        try:
            with self._store.hold(self._turn) as self._lease:
                # The process that held the lease before may have sent what was due.
                delivered = [waiting.kind for waiting in self._due() if self._may_go_on and self._deliver(waiting)]
                # A successor's alert looks the same; the former's end does not end it.
                if self.receiver.repeat is not None and {*delivered} & {*ENDS}:
                    self._remind()
                elif self._must_remind():
                    self._remind(self._clock() - (self.receiver.repeat or 0.0) if self._reminded is None else None)
        except LeaseLost:
            return False
        finally:
            self._lease = None
        return bool(delivered)

    @property
    def _is_to_be_quiet(self) -> bool:
        return time.monotonic() < self._quiet_until

    @property
    def _may_go_on(self) -> bool:
        return not (self.task.is_stopped or self._is_to_be_quiet)

    def _due(self) -> list[Waiting]:
        return self._store.outbox.due(self._clock(), [self.receiver.target])

    def _deliver(self, waiting: Waiting) -> bool:
        """Sends one and records it. If only the recording fails, it is not sent again."""
        receiver = self.receiver
        if waiting.id not in self._unmarked:
            try:
                if not self._store.outbox.is_waiting(waiting.id):
                    return False
                with suppress(StoreError):  # a full disk keeps nobody from being told
                    self._store.outbox.begin(waiting.id, self._clock())
                receipt = self._post(waiting.notification, waiting.begun_at)
                if isinstance(receiver, ChartAfter) and waiting.kind == "firing" and receipt is not None:
                    self._opened[waiting.id] = waiting, receipt
            except Undelivered as error:
                self._quiet_until = time.monotonic() + (error.wait if error.wait <= LONGEST_WISH else 0.0)
                self._put_off(waiting, str(error))
                return False
            except (StoreError, LeaseLost):
                raise
            except Exception as error:  # one broken notification holds up no other
                log.exception("%s: a bug in rankmon; please report it", _named(waiting))
                self._put_off(waiting, f"a bug in rankmon ({type(error).__name__})")
                return False
            self._unmarked[waiting.id] = receipt
            self._telemetry.count(_counter("sent"), receiver.channel)
            if receiver.target != "log":  # the log has said more itself
                log.info("%s: delivered; %s", _named(waiting), waiting.notification.title)
        self._store.outbox.sent(waiting.id, self._clock(), self._unmarked[waiting.id])
        del self._unmarked[waiting.id]
        return True

    def _post(self, notification: Notification, begun_at: float | None = None) -> str | None:
        """Sends one while holding the lease, and returns its receipt; takes back what was over after a pause.

        Raises:
            Undelivered: it was not accepted.
            LeaseLost: nothing was sent; another process serves this receiver.
        """
        receiver, chart = self.receiver, b""
        if isinstance(receiver, ChartInside) and notification.kind in TELLING:
            with self._doing_without(notification):
                chart = self._draw(notification)
        if self._lease is not None:
            self._store.leases.check(self._lease)
        now, told = self._clock(), replace(self._told(notification), begun_at=begun_at)
        if chart and isinstance(receiver, ChartInside):
            receipt = receiver.send_with(notification, now, told, chart)
        else:
            receipt = receiver.send(notification, now, told)
        if notification.kind in TELLING:
            for end in self._store.outbox.ended(self.receiver.target, 0.0, math.inf, notification.incident):
                self.receiver.send(end, self._clock(), self._told(end))
        return receipt

    def _add_chart(self) -> bool:
        """Whether a recorded message was without its chart; tries once to add it. Messages go first.

        Holds the lease: another process may have edited the message since.
        """
        id_ = min(self._opened.keys() - self._unmarked.keys(), default=None)
        if id_ is None:
            return False
        waiting, receipt = self._opened[id_]
        told, outbox = waiting.notification, self._store.outbox
        with suppress(LeaseLost), self._store.hold(self._turn) as lease, self._doing_without(told):
            del self._opened[id_]
            if self._may_go_on and isinstance(self.receiver, ChartAfter) and (chart := self._draw(told)):
                outbox.received(id_, receipt := self.receiver.add_chart(told, receipt, chart))
                self._store.leases.check(lease)
                if outbox.is_newest(waiting):
                    self.receiver.show_chart(told, receipt)
        return id_ not in self._opened

    @property
    def _turn(self) -> str:
        """Name of the lease under which one process at a time serves the receiver."""
        return f"notifications to {self.receiver.target}"

    @contextmanager
    def _doing_without(self, notification: Notification) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            said = f"{notification.kind} of incident {notification.incident} for {self.receiver.target}"
            log.warning("%s: no chart: %s", said, str(error) or type(error).__name__)

    def _told(self, notification: Notification) -> PriorDelivery:
        if notification.kind == "updated" or notification.is_over:
            return self._store.outbox.told(self.receiver.target, notification.incident)
        return NO_PRIOR

    def _put_off(self, waiting: Waiting, said: str) -> None:
        self._telemetry.count(_counter("failures"), self.receiver.channel)
        if self.task.is_stopped:
            return  # the next process, perhaps with another address, tries at once
        now, attempts = self._clock(), waiting.attempts + 1
        is_old = attempts >= LEAST_ATTEMPTS and now - waiting.created_at >= self.receiver.give_up_after
        if is_old and waiting.kind not in ENDS and self._give_up(waiting, now, said):
            return
        wait = pause(waiting.attempts, random.random())
        self._store.outbox.failed(waiting.id, now + wait, said)
        wait = max(wait, self._quiet_until - time.monotonic())
        log.warning("%s: %s; next try in %.0f s", _named(waiting), said, wait)

    def _give_up(self, waiting: Waiting, now: float, said: str) -> bool:
        """Whether it is moot: its incident is over, or a newer notification says as much."""
        attempts = waiting.attempts + 1
        if self._store.outbox.is_outdated(waiting):
            self._store.outbox.drop(waiting.id, now, said)
            log.info("%s dropped after %d attempts, a newer one replaces it: %s", _named(waiting), attempts, said)
            return True
        if self._store.outbox.is_open(waiting.incident):
            return False
        self._store.outbox.drop(waiting.id, now, said)
        self._telemetry.count(_counter("dropped"), self.receiver.channel)
        log.error("%s dropped after %d attempts: %s", _named(waiting), attempts, said)
        return True

    # ---- reminders -----------------------------------------------------------------------------------------------

    def _must_remind(self) -> bool:
        every = self.receiver.repeat
        if every is None:
            return False
        return self._reminded is None or time.monotonic() - self._reminded >= every

    def _remind(self, sent_by: float | None = None) -> None:
        """Repeats what is open, unless sent after `sent_by` (real seconds). A lost reminder does no harm."""
        try:
            until = self._clock() - (self.receiver.repeat or 0.0)
            ended = self._store.outbox.ended(self.receiver.target, until - ENDS_AGAIN, until)
            self._say_again([*ended, *self._store.outbox.standing(self.receiver.target, sent_by)])
        finally:
            self._reminded = time.monotonic()

    def _say_again(self, notifications: Iterable[Notification]) -> None:
        for notification in notifications:
            if self.task.is_stopped:
                return
            if notification.kind in TELLING and not self._store.outbox.is_open(notification.incident):
                continue  # over by now
            try:
                # The end of the former severity was sent once, and may have had a successor since.
                self._post(replace(notification, former_severity=None))
            except Undelivered as error:
                self._telemetry.count(_counter("failures"), self.receiver.channel)
                log.warning("reminder to %s: %s", self.receiver.target, error)
                return


def pause(attempts: int, chance: float) -> float:
    """Seconds until the next attempt after `attempts` failed ones: doubles each time, give or take 20 %.

    `chance` in [0, 1) keeps those that failed together from coming back together.

    >>> [pause(n, 0.5) for n in (0, 1, 2, 10, 10_000)]
    [5.0, 10.0, 20.0, 300.0, 300.0]
    """
    return doubling(attempts, LONGEST_RETRY) * (0.8 + 0.4 * chance)


def _named(waiting: Waiting) -> str:
    return f"{waiting.kind} of incident {waiting.incident} for {waiting.target}"


def _counter(what: str) -> str:
    return "rankmon_notification_failures" if what == "failures" else f"rankmon_notifications_{what}"
