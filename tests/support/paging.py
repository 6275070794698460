"""A daemon reduced to what pages: hours are stored and judged one by one, and a sender delivers beside it.

It goes on where a former one was killed: with what is stored, but not judged yet.
"""

import random
import time
from dataclasses import replace

from sqlalchemy.engine import make_url

from monitor.conditions.rules import Floor, Rule
from monitor.measures.measure import parse
from monitor.notify.webhook import Webhook, WebhookConfig
from monitor.routing import Escalation, Route
from monitor.service import periodic
from monitor.service import sender as sending
from monitor.service.due_notices import DueNotices
from monitor.service.escalation import escalations
from monitor.service.sender import Sender
from monitor.service.telemetry import Telemetry
from monitor.store import Store
from monitor.types import RetrainRequests
from tests.evaluation.test_judging import BASE, Bench
from tests.support.tallies import HOUR, watched

TARGETS = ("inbox", "pipeline", "lead")
_MEASURE = parse("ndcg@10")
_RULES = (
    Rule("floor", _MEASURE, HOUR, Floor(0.5, 0.6), 2 * HOUR, 2 * HOUR, retrain=True, slices=(("device", None),)),
    Rule("low", _MEASURE, HOUR, Floor(0.7, 0.7), HOUR, HOUR, severity="warning"),
)
MONITOR = replace(
    watched(),
    windows=(HOUR,),
    alerts=_RULES,
    notify=("inbox", "pipeline"),
    retrain=RetrainRequests(notify=("pipeline",), cooldown=12 * HOUR, after=0),
    lookback=100_000 * HOUR,
)

ROUTES = (Route(("inbox", "pipeline"), escalate=(Escalation(HOUR, ("lead",)),)),)


def values(hours: int) -> list[dict[str, float]]:
    """Of each device, falls that begin, overlap and end."""
    rng, found = random.Random(5), []
    now = {"mobile": 0.8, "tv": 0.8}
    for _ in range(hours):
        for device in now:
            if rng.random() < 0.3:
                now[device] = rng.choice((0.3, 0.45, 0.65, 0.8, 0.8))
        found.append(dict(now))
    return found


def run(arguments: list[str]) -> int:
    """Live through so many hours in a store, and tell a receiver of what happens: URL of the store, of it, hours."""
    url, receiver, hours = arguments
    sending.OUTBOX_EVERY, periodic.FIRST_RETRY, sending.LONGEST_RETRY = 0.05, 0.02, 0.1
    store = Store(make_url(url), lease_seconds=20)
    newest = store.newest_bucket(MONITOR.traffic)
    bench = Bench(store, MONITOR, {target: (target,) for target in TARGETS}, routes=ROUTES)
    # By this clock nobody has acknowledged for a day whatever is open.
    escalator = DueNotices(
        store,
        "escalation",
        lambda now: escalations(store, [MONITOR], replace(bench.recipients(), real_now=now)),
        bench.wake,
        lambda: time.time() + 24 * HOUR,
    )
    bench.hour = 0 if newest is None else (newest - BASE) // HOUR + 1
    sender = Sender(store, Telemetry())
    sender.use([Webhook(WebhookConfig(target, f"{receiver}/{target}", timeout=5)) for target in TARGETS])
    sender.start()
    bench.judge()
    escalator.run()
    for value in values(int(hours))[bench.hour :]:
        bench.put(value)
        bench.judge()
        escalator.run()
        sender.wake()
    is_done = sender.settle(60)
    sender.stop()
    store.close()
    return 0 if is_done else 1
