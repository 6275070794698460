"""Two daemons on one store, scraped by a real Prometheus: whichever fails, one page, no flapping alert, no gauge jump.

`RANKMON_FAILOVERS=20` runs 20 fail-overs instead of a few.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from monitor.store import Store
from tests.product.test_deploy_live import FALLEN, MONITOR, _fill_shop
from tests.support.postgres import free_port
from tests.support.prometheus import (
    Alertmanager,
    Daemon,
    Prometheus,
    Receiver,
    alertmanager_configuration,
    eventually,
    missing_programs,
)
from tests.support.proxy import Proxy
from tests.support.requirements import missing

LEASE = 5
"""Seconds."""
FAILOVERS = int(os.environ.get("RANKMON_FAILOVERS", "6"))
CONFIG = """\
store: {{url: "{store}"}}
web: {{listen: "127.0.0.1:{port}"}}
scheduler: {{lease: {lease}s}}
sources: {{shop: {{url: "sqlite:///{folder}/shop.db"}}}}
channels: {{inbox: {{webhook: {{url: "{inbox}"}}}}}}
defaults: {{lookback: 9d, refresh: 1s}}
monitors:
"""


@dataclass
class Replica:
    """One of two daemons, with its own connection to the store."""

    folder: Path
    configuration: Path
    proxy: Proxy
    port: int
    began: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Starts it at the time that its clock would show by now."""
        passed = (time.monotonic() - self.began) / 86_400
        at = FALLEN.fromtimestamp(FALLEN.timestamp() + passed * 86_400, FALLEN.tzinfo)
        self.daemon = Daemon(self.folder, self.configuration, self.port, "--replay-from", at.isoformat())
        self.daemon.start()

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        assert self.daemon._process is not None
        self.daemon._process.send_signal(number)


@dataclass
class Pair:
    """Both replicas and the servers that watch them."""

    replicas: tuple[Replica, Replica]
    store: Store
    prometheus: Prometheus
    alertmanager: Alertmanager
    receiver: Receiver
    waits: list[float] = field(default_factory=list)

    def goes_on(self) -> None:
        """Waits until the other has taken over, within two leases, and has then finished a run."""
        since = {name: self.store.leases.number(name) for name in ("search", "pushed")}
        began = time.monotonic()

        def has_begun(runs: int) -> bool:
            return all(self.store.leases.number(name) >= number + runs for name, number in since.items())

        eventually(lambda: has_begun(1), 2 * LEASE, "the other takes over")
        self.waits.append(time.monotonic() - began)
        eventually(lambda: has_begun(2), 30, "the other goes on")

    def writes(self, one: Replica) -> bool:
        """Whether it is the one that wrote last."""
        assert one.daemon._process is not None
        return f"process {one.daemon._process.pid} " in self.store.leases.describe("search")

    def writer(self) -> Replica:
        """The replica that wrote last; its failure is the one that matters."""
        return next(one for one in self.replicas if self.writes(one))

    def is_whole(self) -> None:
        """Waits until both run again; they must first notice connections that a broken network left open."""
        for one in self.replicas:
            eventually(lambda one=one: self.writes(one), 90, f"{one.folder.name} runs again")

    def pages(self) -> Counter[tuple[str, str]]:
        """(incident, kind) -> how often rankmon itself sent it."""
        return Counter((m["incident"], m["kind"]) for m in self.receiver.groups if "incident" in m)


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str) -> Iterator[Pair]:
    if lacking := missing_programs():
        missing(f"not installed: {', '.join(lacking)} (Debian: prometheus, prometheus-alertmanager)")
    _fill_shop(tmp_path)
    url, receiver = make_url(postgres_url), Receiver()
    with ExitStack() as ending:
        ending.callback(receiver.close)
        replicas = []
        for name in ("one", "other"):
            folder, proxy, port = tmp_path / name, Proxy(url.port or 5432), free_port()
            folder.mkdir()
            ending.callback(proxy.close)
            own = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
            head = CONFIG.format(store=own, port=port, lease=LEASE, folder=tmp_path, inbox=receiver.url)
            monitors = (
                MONITOR.format(name="search", source="shop", notify="log", paging="prometheus"),
                MONITOR.format(name="pushed", source="shop", notify="inbox", paging="push"),
            )
            (folder / "rankmon.yaml").write_text(head + "".join(monitors), encoding="utf-8")
            replicas.append(Replica(folder, folder / "rankmon.yaml", proxy, port))
        store = Store(url)
        ending.callback(store.close)
        alertmanager = Alertmanager(tmp_path, alertmanager_configuration(tmp_path, receiver.url))
        addresses = ",".join(f"127.0.0.1:{one.port}" for one in replicas)
        prometheus = Prometheus(tmp_path, {"rankmon": addresses}, alertmanager.address)
        for one in replicas:
            one.start()
            ending.callback(lambda one=one: one.daemon.kill())
        for server in (alertmanager, prometheus):
            ending.callback(server.kill)
            server.start()
        yield Pair((replicas[0], replicas[1]), store, prometheus, alertmanager, receiver)
        for one in replicas:
            print(f"--- {one.daemon.log}\n{one.daemon.log.read_text()[-3000:]}")


def killed(one: Replica, wait: Callable[[], None]) -> None:
    one.daemon.kill()
    wait()
    one.start()


def frozen(one: Replica, wait: Callable[[], None]) -> None:
    one.send(signal.SIGSTOP)
    wait()
    time.sleep(2 * LEASE)
    one.send(signal.SIGCONT)


def cut_off(one: Replica, wait: Callable[[], None]) -> None:
    one.proxy.fall_silent()
    wait()
    time.sleep(2 * LEASE)
    one.proxy.speak()  # open connections stay silent and no kernel notices: the proxy takes what comes


def test_a_failing_replica_causes_no_second_page_and_no_flapping_alert(pair: Pair) -> None:
    eventually(lambda: pair.receiver.told("RankmonQualityLow", "firing"), 120, "a page by Prometheus")
    eventually(lambda: pair.pages(), 60, "rankmon's own message")
    kinds = [killed, frozen, cut_off]
    for number in range(FAILOVERS):
        kinds[number % 3](pair.writer(), pair.goes_on)
        pair.is_whole()
        assert "RankmonQualityLow" in pair.alertmanager.active()
    waits = {kind.__name__: [w for n, w in enumerate(pair.waits) if kinds[n % 3] is kind] for kind in kinds}
    print(f"\n| with a lease of {LEASE} s | fail-overs | seconds until the other took over: median | longest |")
    print("|---|---|---|---|")
    for name, took in waits.items():
        print(f"| {name} | {len(took)} | {statistics.median(took):.1f} | {max(took):.1f} |")
    told = pair.pages()
    assert told
    assert max(told.values()) == 1, told
    assert {kind for _, kind in told} <= {"firing", "retrain"}
    assert pair.receiver.told("RankmonQualityLow", "resolved") == []
    paged = {tuple(sorted(alert["labels"].items())) for alert in pair.receiver.told("RankmonQualityLow", "firing")}
    assert len(paged) == 1
    values = 'rankmon_ndcg_ratio{window="24h"}'
    jumps = pair.prometheus.query(f"max(changes({values}[30m]))")
    assert float(jumps[0]["value"][1]) <= 1, "a bucket may become final meanwhile, once"
    apart = f"max(max without (instance) ({values}) - min without (instance) ({values}))"
    eventually(lambda: float(pair.prometheus.query(apart)[0]["value"][1]) == 0, 30, "both show the same")
