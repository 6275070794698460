"""Rules on label coverage are about the data: their own incident, other receivers, another alert name."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
import yaml

from monitor.cli import run
from monitor.cli.commands.incidents import line, steps_of
from monitor.conditions.evidence import MATTERS
from monitor.conditions.incident import Firing, Incident, by_matter
from monitor.conditions.rules import Floor, Rule
from monitor.conditions.thresholds import Change, View, track_rule
from monitor.config import load
from monitor.messages.notification import Notification
from monitor.notify.alertmanager import alerts
from monitor.series.partials import TRAFFIC_FIELDS
from monitor.series.windows import History
from monitor.service.explaining import hours_of
from monitor.store import Store
from monitor.store.schema import outbox
from monitor.types import OVERALL, Monitor
from tests.support.bench import Bench
from tests.support.drift import Ranking, day
from tests.support.pages import DAY, RULE, START, fell, fill, shown, watched
from tests.support.tallies import HOUR, ROOT

CONFIG = """\
store: {url: "sqlite:///store.db"}
sources: {shop: {url: "sqlite:///shop.db"}}
channels:
  team: {webhook: {url: "http://team.example.com/"}}
  owners: {webhook: {url: "http://owners.example.com/"}}
monitors:
  - name: search
    source: shop
    rankings: {table: r, request: id, item: item, position: position, time: at}
    relevance: {column: {grade: grade, attribution: 1h}}
    measures: [ndcg@10]
    notify: [team]
    drift: {data_channels: [owners]}
    alerts:
      - {name: low, measure: ndcg@10, floor: 0.5}
      - {name: labels, measure: label_coverage, floor: 0.3}
"""
LABELS = Rule("labels", None, DAY, Floor(0.3, 0.3), severity="warning")
END = START + 20 * DAY
FALL = END - 3 * DAY


def both(**changes: object) -> Monitor:
    return watched(**({"alerts": (RULE, LABELS)} | changes))


def lost(store: Store, monitor: Monitor) -> None:
    """Quality falls three days before the end, and the labels fall a day later."""
    fill(store, monitor, range(START, FALL + DAY, HOUR), fell(FALL, END))
    fill(store, monitor, range(FALL + DAY, END, HOUR), fell(FALL, END), labelled=0.1)


def told(store: Store) -> list[tuple[str, Notification]]:
    """(target, notification) of everything put into the outbox, oldest first."""
    query = sa.select(outbox.c.target, outbox.c.document).order_by(outbox.c.id)
    with store.reading() as connection:
        return [(target, Notification.of(json.loads(d))) for target, d in connection.execute(query)]


def open_(store: Store) -> dict[str, list[str]]:
    """Matter -> names of the rules that fire in its open incident."""
    found = (s.incident for s in store.alerts.incidents(state="firing"))
    return {i.matter: sorted({name[0] for name in i.firing or {}}) for i in found}


def log(rng: np.random.Generator, days: int, outage: int | None = None) -> History:
    """Hours with quiet nights, whose labels wander by hour and day; an outage has no labels for 12 h."""
    hours = np.arange(24 * days)
    requests = rng.poisson(40 + 360 * np.clip(np.sin((hours % 24 - 6) / 12 * np.pi), 0, 1))
    wander = 0.08 * np.repeat(rng.standard_normal(days), 24) + 0.15 * rng.standard_normal(len(hours))
    share = 0.4 * np.exp(wander) * np.where(hours % 24 < 7, 0.8, 1)
    traffic = np.zeros((len(hours), 1, len(TRAFFIC_FIELDS)))
    traffic[:, 0, 0], traffic[:, 0, 1] = requests, rng.binomial(requests, share)
    if outage is not None:
        traffic[outage : outage + 12, 0, 1] = 0
    return History(hours * HOUR, np.ones(len(hours), bool), (OVERALL,), traffic)


def fired(rule: Rule, history: History, hours: range) -> list[int]:
    """Hours in which a rule on label coverage began to fire."""
    _, changes = track_rule(rule, View(history, history, HOUR, 0.9), [h * HOUR for h in hours], {})
    return [change.at // HOUR for change in changes if change.became == "firing"]


def test_the_documented_label_rule_fires_in_a_12_hour_outage_and_on_no_normal_night() -> None:
    examples = {"SHOP_PASSWORD": "x", "RETRAIN_SECRET": "x", "SLACK_URL": "x"}
    (rule,) = (
        rule
        for monitor in load(ROOT / "config/examples/search-events.yaml", examples).monitors
        for rule in monitor.alerts
        if rule.name == "labels-missing"
    )
    page = (ROOT / "docs" / "how-to" / "alert-rules.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^ +- name: labels-missing.*?severity: warning", page, re.DOTALL | re.MULTILINE)
    (read,) = yaml.safe_load(lines)
    assert (read["window"], read["drop"], read["for"]) == ("6h", "50%", "3h")
    assert (rule.window, rule.lasting, rule.min_requests) == (6 * HOUR, 3 * HOUR, 100)
    for seed in range(8):
        began = 24 * 28 + 7 * seed
        outage = log(np.random.default_rng(seed), 35, began)
        assert fired(rule, outage, range(24 * 14, began + 1)) == [], "five weeks of normal nights"
        (at, *_) = fired(rule, outage, range(began - 24, began + 13))
        assert at - began <= 8


def test_a_coverage_rule_opens_its_own_incident_apart_from_quality(store: Store) -> None:
    lost(store, both())
    assert open_(store) == {"quality": ["drop"], "data": ["labels"]}
    snapshot = shown(store, both(), END)
    assert snapshot.incident is not None
    assert "data" in snapshot.opened
    assert [f.judged for f in snapshot.opened["data"].findings] == ["label_coverage"]


def test_receivers_learn_that_a_coverage_incident_is_about_data(store: Store) -> None:
    lost(store, both())
    said = [notice for _, notice in told(store) if notice.kind == "firing"]
    assert [(n.matter, n.plain()["matter"], n.findings[0].rule) for n in said] == [
        ("quality", "quality", "drop"),
        ("data", "data", "labels"),
    ]
    names = [alerts(notice, 0.0, 60.0)[0]["labels"]["alertname"] for notice in said]
    assert names == ["RankmonQualityDegraded", "RankmonDataSuspect"]
    assert "first check where labels come from (the event pipeline, or the job that fills them in)" in said[1].full_text


def test_returning_labels_resolve_only_the_data_incident(store: Store) -> None:
    lost(store, both())
    fill(store, both(), range(END, END + 2 * DAY, HOUR), fell(FALL, END + 2 * DAY))
    assert open_(store) == {"quality": ["drop"]}
    (over,) = (n for _, n in told(store) if n.kind == "resolved")
    assert (over.matter, over.title) == ("data", "search: resolved, label coverage is back at 32.5 %")


def test_a_coverage_rule_notifies_the_data_owners_if_configured(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, alerts=(replace(LABELS, limit=Floor(1.5, 1.5)),))
    past = Ranking.of(31).draw()
    bench.put(past.rows(0, 30 * 24))
    bench.judge(day(30))
    bench.live(past.rows(0, 30 * 24 + 2), 30 * 24)
    assert {(target, n.matter) for target, n in bench.notices} == {("data", "data")}


def test_check_config_names_the_data_owners_for_a_coverage_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rankmon.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    assert run(["check-config", "-c", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.rpartition(", ")[2] for line in said if line.startswith("  alert")] == [
        "notifies team",
        "notifies owners",
    ]


def test_commands_separate_data_incidents_from_quality_incidents(store: Store) -> None:
    lost(store, both(alerts=(RULE, replace(LABELS, slices=(("device", "tv"), ("device", "mobile"))))))
    found = {s.incident.matter: s for s in store.alerts.incidents(state="firing")}
    assert "  rule labels: label_coverage  bad since" in line(found["data"])
    assert {s.rule for s in steps_of(found["data"], store)} == {"labels"}
    assert {s.rule for s in steps_of(found["quality"], store)} == {"drop"}
    assert {(h["dimension"], h["slice"]) for h in hours_of(both(), found["data"], store)} == {
        ("", ""),
        ("device", "mobile"),
    }


@pytest.mark.parametrize("removed", [LABELS, RULE])
def test_a_removed_rule_withdraws_only_its_own_incident(store: Store, removed: Rule) -> None:
    lost(store, both())
    left = watched(alerts=tuple(r for r in both().alerts if r is not removed))
    fill(store, left, [END], fell(FALL, END + HOUR), labelled=0.1)
    assert open_(store) == ({"quality": ["drop"]} if removed is LABELS else {"data": ["labels"]})


def change(at: int, was: str, became: str, name: str = "labels") -> Change:
    return Change((name, "", ""), "warning", False, was, became, at, at)  # type: ignore[arg-type]


def test_a_firing_condition_ends_in_its_incident_even_if_its_rule_changed() -> None:
    opened = Incident("search", 1, 1, firing={("labels", "", ""): Firing("warning", False, 1)})
    ends, fires, ends_again = change(2, "firing", "ok"), change(3, "pending", "firing"), change(4, "firing", "ok")
    found = by_matter([ends_again, ends, fires], [LABELS], [opened])
    assert found == {"quality": [ends], "data": [fires, ends_again], "layout": []}


def test_changes_are_assigned_to_a_matter_by_rule_or_verdict() -> None:
    by_name = {name: change(1, "ok", "pending", name) for name in ("labels", "drop", "traffic_low", "degraded")}
    found = by_matter(by_name.values(), [RULE, LABELS])
    assert {m: {c.name[0] for c in found[m]} for m in MATTERS} == {
        "quality": {"drop", "degraded"},
        "data": {"labels", "traffic_low"},
        "layout": set(),
    }
