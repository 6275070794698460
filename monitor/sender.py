"""Takes notifications out of the outbox and hands them to their receivers, a thread a receiver.

A receiver that hangs, fails or is away holds up nobody but itself, and gets all of it once it is back. Whatever happens
in between, what was written into the outbox is sent at least once, and always under the same key.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from types import MappingProxyType

from monitor.errors import LeaseLost, StoreError, Undelivered
from monitor.notify.receiver import Receiver
from monitor.store import Store
from monitor.store.outbox import Waiting
from monitor.telemetry import Queue, Telemetry

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
"""Seconds between two looks into the outbox, for what another process put there."""

FIRST_RETRY, LONGEST_RETRY = 5.0, 300.0
KEEP = 30 * 86_400
"""Seconds that sent notifications stay in the store."""

CLEAN_EVERY = 3600.0
NEVER_GIVEN_UP = ("resolved", "withdrawn")


class Sender:
    """Delivers what is in the outbox for as long as it runs."""

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self._lock = threading.Lock()
        self._workers: dict[str, _Worker] = {}
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None
        self.receivers: Sequence[Receiver] = ()

    def use(self, receivers: Sequence[Receiver]) -> None:
        """Send to these from now on, and to no others."""
        with self._lock:
            self.receivers = tuple(receivers)
            for receiver in receivers:
                for counter in ("sent", "failures", "dropped"):
                    self._telemetry.count(_counter(counter), receiver.channel, by=0)
            if self._keeper is not None:
                self._employ()

    def start(self) -> None:
        """Begin."""
        with self._lock:
            self._keeper = threading.Thread(target=self._keep, name="outbox", daemon=True)
            self._keeper.start()
            self._employ()

    def stop(self) -> None:
        """End; what is under way is sent again next time unless its receiver answers within two seconds."""
        self._stopping.set()
        with self._lock:
            workers = list(self._workers.values())
            for worker in workers:
                worker.end()
        until = time.monotonic() + 2
        for worker in workers:
            worker.thread.join(max(0.0, until - time.monotonic()))

    def settle(self, seconds: float) -> bool:
        """Wait until nothing waits any more, so many seconds at most; whether that came."""
        until = time.monotonic() + seconds
        self.wake()
        while (waiting := self._store.outbox.queues()) and time.monotonic() < until:
            time.sleep(0.05)
        return not waiting

    def wake(self) -> None:
        """Look into the outbox now."""
        with self._lock:
            for worker in self._workers.values():
                worker.wake()

    def _employ(self) -> None:
        wanted = {r.target: r for r in self.receivers}
        for target in [t for t, w in self._workers.items() if wanted.get(t) is not w.receiver]:
            self._workers.pop(target).end()
        for target in wanted.keys() - self._workers.keys():
            self._workers[target] = _Worker(wanted[target], self._store, self._telemetry)

    def _keep(self) -> None:
        """Keep count of the queues, and the outbox clean."""
        cleaned = -CLEAN_EVERY
        while not self._stopping.is_set():
            try:
                if time.monotonic() - cleaned >= CLEAN_EVERY:
                    self._store.outbox.purge(time.time() - KEEP)
                    cleaned = time.monotonic()
                self._drop_unknown()
                self._count_queues()
            except StoreError as error:
                log.warning("notifications: %s", error)
            self._stopping.wait(LOOK_EVERY)

    def _drop_unknown(self) -> None:
        for target in self._store.outbox.drop_unknown([r.target for r in self.receivers], time.time()):
            self._telemetry.count(_counter("dropped"), target.split(" ")[0])
            log.error("notifications for %s are given up: no channel of the configuration has it any more", target)

    def _count_queues(self) -> None:
        channels = {r.target: r.channel for r in self.receivers}
        found = dict.fromkeys(channels.values(), Queue())
        for target, (length, oldest_at) in self._store.outbox.queues().items():
            channel = channels.get(target, target.split(" ")[0])
            so_far = found.get(channel, Queue())
            found[channel] = Queue(so_far.length + length, min(oldest_at, so_far.oldest_at or oldest_at))
        self._telemetry.queues = MappingProxyType(found)


class _Worker:
    """The thread of one receiver."""

    def __init__(self, receiver: Receiver, store: Store, telemetry: Telemetry) -> None:
        self.receiver = receiver
        self._store = store
        self._telemetry = telemetry
        self._ended = False
        self._awake = threading.Event()
        self._reminded = time.monotonic()
        self.thread = threading.Thread(target=self._run, name=f"notify {receiver.target}", daemon=True)
        self.thread.start()

    def wake(self) -> None:
        self._awake.set()

    def end(self) -> None:
        self._ended = True
        self._awake.set()

    def _run(self) -> None:
        while not self._ended:
            self._awake.clear()
            try:
                again = self._work()
            except StoreError as error:
                log.warning("notifications to %s: %s", self.receiver.target, error)
                again = False
            except Exception:
                log.exception("notifications to %s: a fault in rankmon itself; please report it", self.receiver.target)
                again = False
            if not again:
                self._awake.wait(LOOK_EVERY)

    def _work(self) -> bool:
        """Send what is due; whether something was delivered, so that more may be due at once."""
        due = self._store.outbox.due(time.time(), [self.receiver.target])
        must_remind = self._must_remind()
        if not (due or must_remind):
            return False
        try:
            with self._store.hold(f"notifications to {self.receiver.target}"):
                # What was due before may be sent by now, by the process that held the lease.
                due = self._store.outbox.due(time.time(), [self.receiver.target])
                delivered = [self._deliver(waiting) for waiting in due if not self._ended]
                if must_remind:
                    self._remind()
        except LeaseLost:
            return False
        return any(delivered)

    def _deliver(self, waiting: Waiting) -> bool:
        receiver, notification = self.receiver, waiting.notification
        try:
            receiver.send(notification, time.time())
        except Undelivered as error:
            self._telemetry.count(_counter("failures"), receiver.channel)
            self._put_off(waiting, str(error))
            return False
        self._store.outbox.sent(waiting.id, time.time())
        self._telemetry.count(_counter("sent"), receiver.channel)
        return True

    def _put_off(self, waiting: Waiting, said: str) -> None:
        now, what = time.time(), f"{waiting.notification.kind} of incident {waiting.notification.incident}"
        given_up = now - waiting.created_at >= self.receiver.give_up_after
        if given_up and waiting.notification.kind not in NEVER_GIVEN_UP:
            self._store.outbox.drop(waiting.id, now, said)
            self._telemetry.count(_counter("dropped"), self.receiver.channel)
            log.error("%s for %s is given up after %d attempts: %s", what, self.receiver.target, waiting.attempts, said)
            return
        wait = min(FIRST_RETRY * 2 ** min(waiting.attempts, 20), LONGEST_RETRY) * random.uniform(0.8, 1.2)
        self._store.outbox.failed(waiting.id, now + wait, said)
        log.warning("%s for %s: %s; next try in %.0f s", what, self.receiver.target, said, wait)

    # ---- reminders -----------------------------------------------------------------------------------------------

    def _must_remind(self) -> bool:
        every = self.receiver.repeat
        return every is not None and time.monotonic() - self._reminded >= every

    def _remind(self) -> None:
        """Say again what goes on, to a receiver that would forget it. No harm is done if one is lost."""
        self._reminded = time.monotonic()
        for notification in self._store.outbox.standing(self.receiver.target):
            if self._ended:
                return
            try:
                self.receiver.send(notification, time.time())
            except Undelivered as error:
                self._telemetry.count(_counter("failures"), self.receiver.channel)
                log.warning("reminder to %s: %s", self.receiver.target, error)
                return


def _counter(what: str) -> str:
    return "rankmon_notification_failures" if what == "failures" else f"rankmon_notifications_{what}"
