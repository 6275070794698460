"""Sends the outbox to its receivers, in a thread each, so that a receiver that hangs or is away delays no other.

What was written into the outbox is sent at least once, and always under the same key.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType

from monitor.conditions.rules import Severity
from monitor.errors import LeaseLost, StoreError, Undelivered
from monitor.messages.notification import Notification
from monitor.notify import Receiver
from monitor.service.periodic import PeriodicTask
from monitor.service.telemetry import QueueStatus, Telemetry
from monitor.store import Lease, Store
from monitor.store.outbox import ENDS, TELLING, Waiting

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
"""Seconds between two looks into the outbox, for what another process put there."""

FIRST_RETRY, LONGEST_RETRY = 5.0, 300.0
LONGEST_WISH = 3600.0
"""Seconds that a receiver may ask to be left alone for; a longer wish is taken for a mistake and ignored."""

KEEP = 30 * 86_400
"""Seconds that sent notifications stay in the store."""

CLEAN_EVERY = 3600.0
ORPHANED = 600.0
"""Seconds without an attempt after which what waits for a receiver that is not configured here is nobody's: until
then another daemon may have that receiver."""

STUCK = 600.0
"""Seconds of waiting after which a receiver counts as stuck; Prometheus' rule fires later."""

NEVER_GIVEN_UP = ENDS
"""Kinds sent for as long as somebody has the receiver; without one they wait for `KEEP`."""

ENDS_AGAIN = 3600.0
"""Seconds for which an end is repeated with reminders: a process that stood still may tell of what is over."""

LEAST_ATTEMPTS = 10
"""Failed attempts before anything is given up: age alone says nothing after a clock's jump or a night switched off."""


class Sender:
    """Delivers what is in the outbox, until stopped."""

    def __init__(
        self,
        store: Store,
        telemetry: Telemetry,
        clock: Callable[[], float] = time.time,
        clean: Callable[[], object] | None = None,
    ) -> None:
        """`clock`: real seconds since 1970. `clean`: called whenever the outbox is cleaned."""
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._clean = clean
        self._lock = threading.Lock()
        self._workers: dict[str, _Worker] = {}
        self._tidying: PeriodicTask | None = None
        self._met: Sequence[Receiver] = ()
        self._cleaned_at: float | None = None
        self.receivers: Sequence[Receiver] = ()

    def use(self, receivers: Sequence[Receiver]) -> None:
        """Send to these from now on, and to no others."""
        with self._lock:
            self.receivers = tuple(receivers)
            for receiver in receivers:
                for counter in ("sent", "failures", "dropped"):
                    self._telemetry.count(_counter(counter), receiver.channel, by=0)
            if self._tidying is not None:
                self._employ()

    def start(self) -> None:
        """Begin."""
        with self._lock:
            self._tidying = PeriodicTask("notifications", self.tidy, lambda: LOOK_EVERY, logging.WARNING)
            self._tidying.start()
            self._employ()

    def stop(self) -> None:
        """End; what is under way is sent again next time unless its receiver answers within two seconds."""
        with self._lock:
            tasks = [worker.task for worker in self._workers.values()]
            tasks += [self._tidying] if self._tidying is not None else []
        for task in tasks:
            task.end()
        until = time.monotonic() + 2
        for task in tasks:
            task.join(max(0.0, until - time.monotonic()))

    def settle(self, seconds: float) -> bool:
        """Wait until nothing waits any more, so many seconds at most; whether that came."""
        until = time.monotonic() + seconds
        self.wake()
        while (waiting := self._store.outbox.queues()) and time.monotonic() < until:
            time.sleep(0.05)
        return not waiting

    def deliver(self, seconds: float, is_over: Callable[[], bool]) -> int:
        """Without `start`: send what is due or will be, for so many seconds at most, or until `is_over`.

        Who is to be reminded is, and the outbox is tidied up: a process that runs every hour is all there may be.

        Returns:
            How many wait then.

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
        """Look into the outbox now."""
        with self._lock:
            for worker in self._workers.values():
                worker.task.wake()

    def _employ(self, is_single: bool = False) -> None:
        wanted = {r.target: r for r in self.receivers}
        for target in [t for t, w in self._workers.items() if wanted.get(t) is not w.receiver]:
            self._workers.pop(target).task.end()
        for target in wanted.keys() - self._workers.keys():
            self._workers[target] = _Worker(wanted[target], self._store, self._telemetry, self._clock, is_single)

    def tidy(self) -> None:
        """Count the queues, clean the outbox, and pass on what waits for receivers that were replaced.

        Raises:
            StoreError: out of reach.
        """
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
        """Have new receivers of a channel told of what goes on, and all of what another daemon gave up for them."""
        if receivers is not self._met:
            for receiver in receivers:
                self._store.outbox.introduce(receiver.target, receiver.channel, self._clock())
            self._met = receivers
        for receiver in receivers:
            if number := self._store.outbox.take_back(receiver.target, self._clock()):
                log.info("%d notifications for %s had been dropped; sending them after all", number, receiver.target)
                self.wake()

    def _retire_strangers(self, receivers: Sequence[Receiver]) -> None:
        """What waits for a receiver that is gone goes to its channel's others; without any it is given up."""
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
    """The thread of one receiver."""

    def __init__(
        self,
        receiver: Receiver,
        store: Store,
        telemetry: Telemetry,
        clock: Callable[[], float],
        is_single: bool = False,
    ) -> None:
        """`is_single`: it works for a single run, which reminds at once of what it is time to remind of."""
        self.receiver = receiver
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._unmarked: set[int] = set()
        self._lease: Lease | None = None
        self._quiet_until = 0.0
        self._reminded: float | None = None if is_single else time.monotonic()
        name = f"notifications to {receiver.target}"
        self.task = PeriodicTask(name, self._work, lambda: LOOK_EVERY, logging.WARNING)
        self.task.start()

    def rest(self) -> float | None:
        """Seconds until there is something to do, as far as is known; None: there is nothing. Raises StoreError."""
        now = self._clock()
        next_at = self._store.outbox.next_at(now, self.receiver.target)
        if self._must_remind():
            next_at = now
        return None if next_at is None else max(next_at - now, self._quiet_until - time.monotonic(), 0.0)

    def _work(self) -> bool:
        """Send what is due; whether something was delivered, so that more may be due at once."""
        if self._is_to_be_quiet or not (self._due() or self._must_remind()):
            return False
        try:
            with self._store.hold(f"notifications to {self.receiver.target}") as self._lease:
                # What was due before may be sent by now, by the process that held the lease.
                delivered = [waiting.kind for waiting in self._due() if self._may_go_on and self._deliver(waiting)]
                # An alert of an incident's successor looks the same; the end of the former was not its own.
                if self.receiver.repeat is not None and {*delivered} & {*NEVER_GIVEN_UP}:
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
        """Whether the receiver asked to be left alone for longer."""
        return time.monotonic() < self._quiet_until

    @property
    def _may_go_on(self) -> bool:
        return not (self.task.is_stopped or self._is_to_be_quiet)

    def _due(self) -> list[Waiting]:
        return self._store.outbox.due(self._clock(), [self.receiver.target])

    def _deliver(self, waiting: Waiting) -> bool:
        """Send one, and note that it was sent. It is not sent again only because that could not be noted."""
        receiver = self.receiver
        if waiting.id not in self._unmarked:
            try:
                if not self._store.outbox.is_waiting(waiting.id):
                    return False
                self._post(waiting.notification, self._former(waiting.kind, waiting.incident))
            except Undelivered as error:
                self._quiet_until = time.monotonic() + (error.wait if error.wait <= LONGEST_WISH else 0.0)
                self._put_off(waiting, str(error))
                return False
            except (StoreError, LeaseLost):
                raise
            except Exception as error:  # what one of them is broken by holds up no other
                log.exception("%s: a fault in rankmon itself; please report it", _named(waiting))
                self._put_off(waiting, f"a fault in rankmon itself ({type(error).__name__})")
                return False
            self._unmarked.add(waiting.id)
            self._telemetry.count(_counter("sent"), receiver.channel)
            if receiver.target != "log":  # which has said more itself
                log.info("%s: delivered; %s", _named(waiting), waiting.notification.title)
        self._store.outbox.sent(waiting.id, self._clock())
        self._unmarked.discard(waiting.id)
        return True

    def _post(self, notification: Notification, former: Collection[Severity] = ()) -> None:
        """Send one while the lease is held. Whoever stood still in between takes back what is over by now.

        Raises:
            Undelivered: it was not taken.
            LeaseLost: nothing was sent, for another process sends to this receiver now.
        """
        if self._lease is not None:
            self._store.leases.check(self._lease)
        self.receiver.send(notification, self._clock(), former)
        if notification.kind in TELLING:
            for end in self._store.outbox.ended(self.receiver.target, 0.0, math.inf, notification.incident):
                self.receiver.send(end, self._clock(), self._former(end.kind, end.incident))

    def _former(self, kind: str, incident: str) -> Collection[Severity]:
        """Under what severities the receiver knows what has changed or is over."""
        if kind == "updated" or kind in NEVER_GIVEN_UP:
            return self._store.outbox.severities(self.receiver.target, incident)
        return ()

    def _put_off(self, waiting: Waiting, said: str) -> None:
        self._telemetry.count(_counter("failures"), self.receiver.channel)
        if self.task.is_stopped:
            return  # whoever comes next, perhaps with another address, tries at once
        now, attempts = self._clock(), waiting.attempts + 1
        is_old = attempts >= LEAST_ATTEMPTS and now - waiting.created_at >= self.receiver.give_up_after
        if is_old and waiting.kind not in NEVER_GIVEN_UP and self._give_up(waiting, now, said):
            return
        wait = pause(waiting.attempts, random.random())
        self._store.outbox.failed(waiting.id, now + wait, said)
        wait = max(wait, self._quiet_until - time.monotonic())
        log.warning("%s: %s; next try in %.0f s", _named(waiting), said, wait)

    def _give_up(self, waiting: Waiting, now: float, said: str) -> bool:
        """Whether nothing is left to be said by it: its incident is over, or a newer one says as much."""
        attempts = waiting.attempts + 1
        if self._store.outbox.is_outdated(waiting):
            self._store.outbox.drop(waiting.id, now, said)
            log.info("%s dropped after %d attempts, a newer one says as much: %s", _named(waiting), attempts, said)
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
        """Say again what goes on, to a receiver that would forget it. No harm is done if one is lost.

        Args:
            sent_by: what it was sent later than that, real seconds since 1970, is left out.
        """
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
                continue  # by now
            try:
                # The end of its former severity was told once, and may have had a successor since.
                self._post(replace(notification, former_severity=None))
            except Undelivered as error:
                self._telemetry.count(_counter("failures"), self.receiver.channel)
                log.warning("reminder to %s: %s", self.receiver.target, error)
                return


def pause(attempts: int, chance: float) -> float:
    """Seconds until the next attempt after `attempts` failed ones and this: twice as long each time, give or take 20 %.

    Args:
        chance: in [0, 1), so that many that failed at once do not come back at once.

    >>> [pause(n, 0.5) for n in (0, 1, 2, 10, 10_000)]
    [5.0, 10.0, 20.0, 300.0, 300.0]
    """
    return min(FIRST_RETRY * 2.0 ** min(attempts, 20), LONGEST_RETRY) * (0.8 + 0.4 * chance)


def _named(waiting: Waiting) -> str:
    return f"{waiting.kind} of incident {waiting.incident} for {waiting.target}"


def _counter(what: str) -> str:
    return "rankmon_notification_failures" if what == "failures" else f"rankmon_notifications_{what}"
