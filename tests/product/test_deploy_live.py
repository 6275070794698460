"""What `deploy/` promises, with the real parts: daemon, Prometheus, Alertmanager and a receiver of alerts."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor import cli
from monitor.demo.shop import Shop, Story, create_schema
from tests.support.postgres import free_port
from tests.support.processes import ROOT
from tests.support.prometheus import (
    DEPLOY,
    RESOLVE_TIMEOUT,
    Alertmanager,
    Daemon,
    Prometheus,
    Receiver,
    alertmanager_configuration,
    eventually,
    missing_programs,
)
from tests.support.requirements import missing

STORY = Story(datetime(2026, 1, 24, tzinfo=UTC), history_days=17, degraded_days=2, rollback_after=timedelta(hours=12))
FALLEN = STORY.history_end
WELL_AGAIN = STORY.rolled_back + timedelta(hours=48)
HELD = 15
"""Seconds for which the sped-up rules hold a state without checking that its target is up."""

CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
web: {{listen: "127.0.0.1:{port}"}}
sources:
  shop: {{url: "sqlite:///{folder}/shop.db"}}
  gone: {{url: "sqlite:///{folder}/gone.db"}}
channels:
  inbox: {{webhook: {{url: "{inbox}"}}}}
  nowhere: {{webhook: {{url: "http://127.0.0.1:{closed}/"}}}}
defaults: {{lookback: 9d, refresh: 2s}}
monitors:
"""
MONITOR = """\
  - name: {name}
    source: {source}
    rankings:
      table: rankings
      request: request_id
      item: item_id
      position: position
      time: {{column: served_at, format: "%Y-%m-%dT%H:%M:%SZ"}}
    slices: [device]
    relevance:
      events:
        table: events
        request: request_id
        item: item_id
        type: type
        time: {{column: occurred_at, format: "%Y-%m-%dT%H:%M:%SZ"}}
        rules: [{{type: click, grade: 1}}, {{type: purchase, grade: 3}}]
        attribution: 3h
    measures: [ndcg@10, mrr@10]
    windows: [24h]
    notify: [{notify}]
    paging: {paging}
    alerts:
      - name: quality-drop
        measure: ndcg@10
        drop: 5%
        baseline: {{pinned: {{from: 2026-02-02, to: 2026-02-07}}}}
        severity: critical
        retrain: true
        slices: [device]
"""
VERDICTS = """\
    drift: {mix_by: device}
    lookback: 18d
"""


@dataclass
class Stack:
    """Everything that runs."""

    folder: Path
    configuration: Path
    daemon: Daemon
    prometheus: Prometheus
    alertmanager: Alertmanager
    receiver: Receiver

    def restart(self, at: datetime) -> None:
        """Start the daemon again with its clock set to another time."""
        self.daemon = Daemon(self.folder, self.configuration, self.daemon.port, "--replay-from", at.isoformat())
        self.daemon.start()

    def logs(self) -> str:
        """The tail of each part's log."""
        parts = (self.daemon, self.prometheus, self.alertmanager)
        return "\n".join(f"--- {p.log}\n{p.log.read_text()[-2000:]}" for p in parts if p.log.exists())


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A shop whose ranking has fallen, a daemon that monitors it, and everything downstream."""
    if lacking := missing_programs():
        missing(f"not installed: {', '.join(lacking)} (Debian: prometheus, prometheus-alertmanager)")
    folder = tmp_path_factory.mktemp("stack")
    _fill_shop(folder)
    with ExitStack() as ending:
        receiver = Receiver()
        ending.callback(receiver.close)
        port = free_port()
        configuration = folder / "rankmon.yaml"
        head = CONFIG.format(folder=folder, port=port, inbox=receiver.url, closed=free_port())
        monitors = (
            MONITOR.format(name="search", source="shop", notify="log", paging="prometheus"),
            MONITOR.format(name="pushed", source="shop", notify="inbox, nowhere", paging="push"),
            MONITOR.format(name="broken", source="gone", notify="log", paging="prometheus") + "    deadline: 5s\n",
            MONITOR.format(name="judged", source="shop", notify="log", paging="push") + VERDICTS,
            MONITOR.format(name="quiet", source="shop", notify="log", paging="prometheus"),
        )
        configuration.write_text(head + "".join(monitors), encoding="utf-8")
        for arguments in (["migrate"], ["incidents", "silence", "quiet", "--for", "2h"]):
            assert cli.run([*arguments, "-c", str(configuration)]) == 0
        daemon = Daemon(folder, configuration, port, "--replay-from", FALLEN.isoformat())
        alertmanager = Alertmanager(folder, alertmanager_configuration(folder, receiver.url))
        prometheus = Prometheus(folder, {"rankmon": daemon.address}, alertmanager.address)
        made = Stack(folder, configuration, daemon, prometheus, alertmanager, receiver)
        ending.callback(lambda: made.daemon.kill())
        for server in (daemon, alertmanager, prometheus):
            ending.callback(server.kill)
            server.start()
        for metric in ("rankmon_slice_window_requests", "rankmon_alert_firing"):
            eventually(lambda metric=metric: made.prometheus.query(metric), 60, f"a scrape with {metric}")  # type: ignore[misc]
        yield made


def _fill_shop(folder: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{folder}/shop.db")
    create_schema(engine)
    Shop(story=STORY, peak=30).fill(engine, STORY.start, WELL_AGAIN)
    with engine.begin() as connection:  # clicks before anything was shown; these are refused
        connection.execute(
            sa.text(
                "INSERT INTO events SELECT 'early' || request_id, request_id, item_id, 'click', "
                "strftime('%Y-%m-%dT%H:%M:%SZ', served_at, '-5 minutes') FROM rankings WHERE position = 1"
            )
        )
    engine.dispose()


@pytest.fixture(autouse=True)
def _show_logs(stack: Stack) -> Iterator[None]:
    """Prints all logs, so that pytest shows them with a failure."""
    yield
    print(stack.logs())


# ---- metrics, rules and panels ------------------------------------------------------------------------------------


def test_promtool_accepts_the_running_daemons_metrics(stack: Stack) -> None:
    with urllib.request.urlopen(stack.daemon.url + "/metrics", timeout=10) as answer:
        exposed = answer.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=exposed, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_images_health_check_passes_only_with_a_running_daemon(stack: Stack) -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    found = re.search(r"HEALTHCHECK.*?CMD (\[.*?\])\n", text, re.DOTALL)
    assert found is not None
    program, *arguments = json.loads(found[1])
    assert program == "rankmon"
    other = stack.folder / "other.yaml"
    text = stack.configuration.read_text(encoding="utf-8")
    other.write_text(text.replace(f":{stack.daemon.port}", f":{free_port()}"), encoding="utf-8")

    def check(configuration: Path) -> int:
        command = [sys.executable, "-c", "from monitor.cli import main; main()", *arguments]
        environment = {**os.environ, "RANKMON_CONFIG": str(configuration), "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, env=environment, capture_output=True, timeout=30).returncode

    assert check(stack.configuration) == 0
    assert check(other) != 0


DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "rankmon.json").read_text(encoding="utf-8"))
QUERIES = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
}
VARIABLES = {v["name"]: v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"}


def substituted(expression: str) -> str:
    """The query as Grafana sends it, with every value of each variable, and without the filter on zeros."""
    values = {
        "__rate_interval": "5s",
        "monitor": "(broken|judged|pushed|search)",
        "measure": r"(mrr@10|ndcg(\\(empty=zero\\))?@10)",
    }
    values |= {"window": "24h", "dimension": "(device)"}
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expression).removesuffix(" > 0")


@pytest.mark.parametrize("name", QUERIES)
def test_every_panel_has_data_in_prometheus(stack: Stack, name: str) -> None:
    expression = substituted(QUERIES[name])
    eventually(lambda: stack.prometheus.query(expression), 30, f"data for {expression}")


@pytest.mark.parametrize("name", VARIABLES)
def test_every_dashboard_variable_has_values(stack: Stack, name: str) -> None:
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", VARIABLES[name])
    assert found is not None
    selector, label = found.groups()
    answer = stack.prometheus.get(f"/api/v1/label/{label}/values", **{"match[]": substituted(selector)})
    assert answer["data"], VARIABLES[name]


def test_every_metric_in_the_rules_is_exposed_by_the_daemon(stack: Stack) -> None:
    text = (DEPLOY / "prometheus" / "rules" / "rankmon.yml").read_text(encoding="utf-8")
    selected = re.search(r'last_over_time\(\{__name__=~"([^"]+)"\}', text)
    assert selected is not None
    known = set(stack.prometheus.get("/api/v1/label/__name__/values")["data"])
    for pattern in _alternatives(selected[1]):
        assert any(re.fullmatch(pattern, name) for name in known), pattern
    named = set(re.findall(r"\b(rankmon_\w+)[{\[]", text))
    assert named <= known, named - known


def _alternatives(pattern: str) -> list[str]:
    """The top-level alternatives of a regular expression."""
    return re.findall(r"(?:\([^)]*\)\??|[^|(])+", pattern)


# ---- an alert's whole life ----------------------------------------------------------------------------------------


def test_a_fall_pages_with_figures_and_only_once(stack: Stack) -> None:
    eventually(lambda: stack.receiver.told("RankmonQualityLow", "firing"), 120, "a page")
    paged = stack.receiver.told("RankmonQualityLow", "firing")[0]
    assert paged["labels"] == {
        "alertname": "RankmonQualityLow",
        "job": "rankmon",
        "monitor": "search",
        "rule": "quality-drop",
        "severity": "critical",
    }
    told = paged["annotations"]
    figures = r"ndcg\(empty=zero\)@10 over 24h: value 0\.\d{4}, baseline 0\.\d{4} \(-\d+\.\d %\), threshold 0\.\d{4}\."
    assert re.match(figures, told["description"])
    assert re.search(f" device=mobile, {figures}", told["description"])
    assert told["page"] == f"{stack.daemon.url}/monitors/search"
    eventually(
        lambda: {"RankmonRetrainRecommended", "RankmonWatchdog"} <= stack.alertmanager.active(), 20, "the others"
    )
    eventually(lambda: any("alerts" not in message for message in stack.receiver.groups), 20, "rankmon's own message")
    pages = stack.receiver.told("RankmonQualityLow", "firing")
    assert {a["labels"]["monitor"] for a in pages} == {"search"}, (
        "no page for what rankmon pushes itself or for what is silenced"
    )


def test_the_end_of_a_silence_sends_the_held_back_page(stack: Stack) -> None:
    fires = 'rankmon_alert_firing{monitor="quiet",rule="quality-drop"} == 1'
    eventually(lambda: stack.prometheus.query(fires), 120, "a fall of the silenced monitor")
    time.sleep(2 * HELD / 5)
    assert {a["labels"]["monitor"] for a in stack.receiver.told("RankmonQualityLow", "firing")} == {"search"}
    assert cli.run(["incidents", "unsilence", "quiet", "-c", str(stack.configuration)]) == 0
    eventually(
        lambda: "quiet" in {a["labels"]["monitor"] for a in stack.receiver.told("RankmonQualityLow", "firing")},
        40,
        "the page",
    )


def test_a_monitor_with_a_missing_source_raises_an_alert(stack: Stack) -> None:
    eventually(lambda: stack.receiver.told("RankmonEvaluationsFailing", "firing"), 100, "failing evaluations")
    failing = stack.receiver.told("RankmonEvaluationsFailing", "firing")[0]
    assert failing["labels"]["monitor"] == "broken"
    assert "connect" in failing["annotations"]["description"]


def test_a_killed_daemon_raises_an_alert_and_resolves_none(stack: Stack) -> None:
    eventually(lambda: "RankmonQualityLow" in stack.alertmanager.active(), 120, "a page")
    stack.daemon.kill()
    killed_at = time.monotonic()
    eventually(lambda: stack.receiver.told("RankmonAbsent", "firing"), 120, "the absence alert")
    dead_for = HELD + 3 * RESOLVE_TIMEOUT
    time.sleep(max(0.0, killed_at + dead_for - time.monotonic()))
    assert stack.prometheus.query('rankmon_alert_firing{monitor="search"}') == [], "the gauge itself is gone"
    assert {"RankmonQualityLow", "RankmonRetrainRecommended", "RankmonAbsent"} <= stack.alertmanager.active()
    for name in ("RankmonQualityLow", "RankmonRetrainRecommended", "RankmonEvaluationsFailing"):
        assert stack.receiver.told(name, "resolved") == [], name
    both = 'ALERTS{alertname=~"RankmonQualityLow|RankmonWatchdog", monitor!="quiet", alertstate="firing"}'
    counted = [c["value"][1] for c in stack.prometheus.query(f"count_over_time({both}[{dead_for}s])")]
    assert len(counted) == 2
    assert len(set(counted)) == 1, "it fired at every evaluation, as the watchdog did"


def test_pages_resolve_once_the_ranking_recovers(stack: Stack) -> None:
    stack.daemon.kill()
    eventually(lambda: "RankmonAbsent" in stack.alertmanager.active(), 120, "the absence alert")
    eventually(lambda: stack.receiver.told("RankmonAbsent", "firing"), 120, "a page for the absence")
    stack.restart(WELL_AGAIN)
    eventually(lambda: stack.receiver.told("RankmonAbsent", "resolved"), 120, "the end of the absence")
    eventually(lambda: stack.receiver.told("RankmonQualityLow", "resolved"), 120, "the end of the page")
    eventually(lambda: stack.receiver.told("RankmonRetrainRecommended", "resolved"), 120, "the end of the advice")
    eventually(lambda: stack.prometheus.query('rankmon_alert_firing{monitor="search"} == 0'), 120, "the gauge at 0")
    eventually(lambda: "RankmonQualityLow" not in stack.alertmanager.active(), 120, "the end of all pages")
    assert "RankmonWatchdog" in stack.alertmanager.active()


def test_all_rules_evaluate_and_fill_their_annotations(stack: Stack) -> None:
    rules = [r for g in stack.prometheus.get("/api/v1/rules")["data"]["groups"] for r in g["rules"]]
    assert {(r["name"], r["health"], r.get("lastError", "")) for r in rules if r["health"] != "ok"} == set()
    told = [t for m in stack.receiver.groups for a in m.get("alerts", ()) for t in a["annotations"].values()]
    assert told
    assert [t for t in told if "error" in t or "<no value>" in t or "{{" in t] == []
