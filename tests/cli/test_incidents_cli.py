"""`rankmon incidents`, `test-alert`, and the alerts in `status` and `check-config`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor import cli
from monitor.cli.common import load_config, stored
from monitor.demo.shop import Shop, Story
from monitor.service.snapshot import take_snapshot
from monitor.web.gauges import GAUGES
from tests.support.monitors import shop_database
from tests.support.notices import notice, put
from tests.support.receiver import Receiver

STORY = Story(datetime(2026, 2, 2, tzinfo=UTC), history_days=8, degraded_days=2, rollback_after=timedelta(days=9))
CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
sources: {{shop: {{url: "sqlite:///{folder}/shop.db"}}}}
channels: {{team: {{webhook: {{url: "{url}", secret: hunter2}}}}}}
monitors:
  - name: shop
    source: shop
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
    measures: [ndcg@10]
    labels: {{team: search}}
    runbook_url: https://wiki.example.com/shop
    notify: [team]
    alerts:
      - name: drop
        measure: ndcg(empty=skip)@10
        drop: 7%
        baseline: {{trailing: 4d}}
        for: 6h
        slices: [device]
        min_requests: 50
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the shop's database and a store that was backfilled from it."""
    folder = tmp_path_factory.mktemp("incidents")
    shop_database(folder / "shop.db", Shop(story=STORY), STORY.start, STORY.history_end)
    write(folder, "http://127.0.0.1:9/")
    assert run(folder, "backfill", "--from", "2026-02-02", "--to", "2026-02-10") == 0
    return folder


def write(folder: Path, url: str) -> None:
    (folder / "rankmon.yaml").write_text(CONFIG.format(folder=folder, url=url), encoding="utf-8")


def run(folder: Path, command: str, *arguments: str) -> int:
    first, *rest = command.split()
    return cli.run([first, *rest, "-c", str(folder / "rankmon.yaml"), *arguments])


@pytest.fixture
def name(filled: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Id of the incident that the backfill found."""
    assert run(filled, "incidents list", "--format", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    return str(found["id"])


def test_a_truncated_list_says_so(filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(filled / "store.db", tmp_path)
    write(tmp_path, "http://127.0.0.1:9/")
    with sa.create_engine(f"sqlite:///{tmp_path}/store.db").begin() as connection:
        columns = [c["name"] for c in sa.inspect(connection).get_columns("incidents") if c["name"] != "id"]
        names = ", ".join(columns)
        connection.exec_driver_sql(f"INSERT INTO incidents (id, {names}) SELECT 'another', {names} FROM incidents")
    assert run(tmp_path, "incidents list", "--most", "1") == 0
    one, *more = capsys.readouterr().out.splitlines()
    assert " shop  rule drop: ndcg@10  bad since " in one
    assert more == ["the newest 1; --most shows more"]
    assert run(tmp_path, "incidents list", "--most", "2") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_backfill_reports_incidents_and_that_nobody_was_paged(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "backfill", "--from", "2026-02-05", "--to", "2026-02-10", "--again") == 0
    told = "recorded{}, see rankmon incidents list; no page was sent"
    assert f"shop: 1 incident {told.format(', none of them new')}" in capsys.readouterr().out
    write(tmp_path, "http://127.0.0.1:9/")
    shutil.copy(filled / "shop.db", tmp_path)
    assert run(tmp_path, "backfill", "--from", "2026-02-02", "--to", "2026-02-10") == 0
    assert f"shop: 1 incident {told.format('')}" in capsys.readouterr().out


def test_incidents_list_prints_one_line_per_incident(
    filled: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "incidents list") == 0
    (line,) = capsys.readouterr().out.splitlines()
    began = r"bad since 2026-02-08 \d\d:00 UTC, fired 2026-02-0[89]"
    assert re.match(rf"{name}  firing    critical shop  rule drop: ndcg@10  {began} \d\d:00 UTC, open for 1 d", line)


def test_incidents_show_prints_reason_slices_and_transitions(
    filled: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "incidents show", name) == 0
    shown = capsys.readouterr().out
    assert re.search(r"ndcg@10 over 24h until [\d :-]+ UTC fell from 0.* \(95 %: .*below the previous 4d", shown)
    assert "device=mobile" in shown
    assert "Runbook: https://wiki.example.com/shop" in shown
    assert "drop: ok -> pending" in shown
    assert "drop: pending -> firing" in shown


def test_incidents_show_as_json_holds_the_evidence(filled: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "incidents show", name, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    fired = [t for t in found["transitions"] if t["became"] == "firing" and not t["dimension"]]
    assert fired[0]["evidence"]["value"] < fired[0]["evidence"]["threshold"]
    assert found["told"] is False


def test_an_acknowledgement_shows_its_author_and_note(
    filled: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "incidents ack", name, "--by", "ada", "--note", "rolling back") == 0
    assert run(filled, "incidents list") == 0
    assert "acknowledged by ada: rolling back" in capsys.readouterr().out
    assert run(filled, "status") == 0
    assert f"open incident {name}, acknowledged by ada: rankmon incidents show {name}" in capsys.readouterr().out


def test_labels_are_shown_counted_and_survive_a_backfill(
    filled: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "incidents label", name, "wrong", "--by", "ada") == 0
    assert run(filled, "incidents label", name, "right", "--by", "bob", "--note", "v2 was bad") == 0
    assert "of this monitor's incidents 1 right" in capsys.readouterr().out
    assert run(filled, "incidents list") == 0
    assert "labelled right by bob: v2 was bad" in capsys.readouterr().out
    assert run(filled, "incidents show", name, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["label"] == "right"
    assert run(filled, "incidents label", name, "perhaps") == 2
    assert run(filled, "incidents label", "no-such-id", "right") == 2
    # Labels survive a backfill of the same days.
    assert run(filled, "backfill", "--from", "2026-02-05", "--to", "2026-02-10", "--again") == 0
    config = load_config(filled / "rankmon.yaml")
    with stored(config) as store:
        assert store.alerts.labels("shop") == {"right": 1}
        (families,) = (
            [*gauge.families([take_snapshot(config.monitor("shop"), store, 1_770_681_600)])]
            for gauge in GAUGES
            if gauge.name == "incident_precision_ratio"
        )
    assert [sample.value for family in families for sample in family.samples] == [1.0]


def test_a_new_baseline_needs_drift_verdicts(filled: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "incidents ack", name, "--new-baseline") == 2
    assert "shop has no `drift:`, so it has no baseline; add `drift: {}` to it" in capsys.readouterr().err


def test_a_silence_is_listed_until_it_is_lifted(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "incidents silence", "shop", "--for", "2h", "--note", "moving", "--by", "ada") == 0
    assert run(filled, "incidents list") == 0
    assert re.search(r"silenced: shop until .* by ada: moving", capsys.readouterr().out)
    assert run(filled, "incidents unsilence", "shop") == 0
    assert run(filled, "incidents list") == 0
    assert "silenced: shop" not in capsys.readouterr().out


def test_line_breaks_in_notes_add_no_list_lines(filled: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = "moving\nand so on\udcff"
    assert run(filled, "incidents silence", "shop", "--for", "2h", "--note", said) == 0
    assert run(filled, "incidents label", name, "known", "--by", said) == 0
    capsys.readouterr()
    assert run(filled, "incidents list") == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2
    assert all("moving and so on\\udcff" in line for line in told)
    assert run(filled, "incidents unsilence", "shop") == 0


def test_a_shorter_silence_within_a_longer_one_is_refused(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "incidents silence", "shop", "--for", "4h", "--note", "moving", "--by", "ada") == 0
    assert "Prometheus" not in capsys.readouterr().out
    assert run(filled, "incidents silence", "shop", "--for", "1h") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.search(
        r"shop is already silenced for longer, until .* by ada: moving; "
        r"to end that first: rankmon incidents unsilence shop\n",
        said.err,
    )
    assert run(filled, "incidents silence", "shop", "--for", "5h") == 0
    assert run(filled, "incidents unsilence", "shop") == 0


def test_silence_and_test_alert_name_their_limits_if_prometheus_pages(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (filled / "rankmon.yaml").read_text(encoding="utf-8")
    (tmp_path / "rankmon.yaml").write_text(text.replace("notify: [team]", "paging: prometheus"), encoding="utf-8")
    assert run(tmp_path, "incidents silence", "shop", "--for", "2h") == 0
    assert "rules that check rankmon_silenced_until_timestamp_seconds" in capsys.readouterr().out
    assert run(tmp_path, "test-alert", "--channel", "log") == 0
    assert "shop: Prometheus pages for it, which this does not test" in capsys.readouterr().err
    assert run(filled, "test-alert", "--channel", "log") == 0
    assert "Prometheus" not in capsys.readouterr().err
    assert run(filled, "incidents unsilence", "shop") == 0


def test_backfill_and_check_config_report_how_often_rules_would_have_paged(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (filled / "rankmon.yaml").read_text(encoding="utf-8")
    eager = "\n      - {name: eager, measure: ndcg@10, drop: 0.1%, baseline: {trailing: 4d}, slices: [device]}\n"
    eager += eager.replace("eager", "calm").replace("0.1%", "90%")
    eager += "\n      - {name: thin, measure: ndcg@10, floor: 0.9, min_requests: 1000000}\n"
    eager += "\n      - {name: always, measure: ndcg@10, floor: 0.999}\n"
    (tmp_path / "rankmon.yaml").write_text(text.rstrip() + eager, encoding="utf-8")
    fell = r"shop: rule drop would have paged once in the 8 d until 2026-02-10 .*, and fired for .* device=mobile once"
    assert run(filled, "backfill", "--from", "2026-02-09", "--to", "2026-02-10") == 0
    assert re.search(fell, capsys.readouterr().out)
    assert run(tmp_path, "check-config --connect") == 0
    said = capsys.readouterr()
    assert re.search(fell, said.out)
    assert re.search(r"shop: rule eager would have paged (twice|\d+ times) in the 8 d", said.out)
    noise = r"alerts\[1\]: shop: rule eager can fire by chance on (\d) of its \1 series: .* is known to ± 0\.\d+, and"
    assert re.search(noise, said.err)
    assert "shop: rule calm would never have paged in the 8 d" in said.out
    assert "rule calm can fire by chance" not in said.err
    assert "shop: rule always would have paged once in the 8 d" in said.out
    assert "rule always can fire by chance" not in said.err
    never = "too few requests: no window has min_requests: 1000000"
    assert re.search(rf"alerts\[3\]: shop: rule thin could not be judged in the 8 d .*: {never}", said.err)


def test_unknown_incidents_monitors_and_channels_are_refused(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "incidents show", "nope") == 2
    assert "there is no incident 'nope'; rankmon incidents list shows them" in capsys.readouterr().err
    assert run(filled, "incidents silence", "shpo", "--for", "2h") == 2
    assert "there is no monitor 'shpo'" in capsys.readouterr().err
    assert run(filled, "incidents unsilence", "shpo") == 2
    assert "there is no monitor 'shpo'" in capsys.readouterr().err
    assert run(filled, "test-alert", "--channel", "nope") == 2
    assert "there is no channel 'nope'; known are log, team" in capsys.readouterr().err


def test_status_names_the_firing_rule_and_its_incident(
    filled: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "status") == 0
    shown = capsys.readouterr().out
    assert "alert drop: firing, beyond its threshold since 2026-02-08" in shown
    assert f"rankmon incidents show {name}" in shown


def test_status_shows_silences_and_waiting_notifications(
    filled: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "incidents silence", "shop", "--for", "2h", "--by", "ada") == 0
    with stored(load_config(filled / "rankmon.yaml")) as store:
        put(store, "team", [notice("firing", incident=name), notice("updated", incident=name, number=1)])
        (waiting,) = store.outbox.due(0, ["team"])
        assert run(filled, "status") == 0
        assert "  2 notifications wait for team since " in (first := capsys.readouterr().out)
        assert ", not tried yet\n" in first
        store.outbox.failed(waiting.id, 1, "cannot be reached (Connection refused)")
        assert run(filled, "status") == 0
        shown = capsys.readouterr().out
        store.outbox.retire("team", (), 2)
    assert re.search(r"  silenced until 20\d\d-.* UTC: new incidents page nobody\n", shown)
    assert " UTC: cannot be reached (Connection refused)\n" in shown
    assert run(filled, "incidents unsilence", "shop") == 0
    assert run(filled, "status", "--format", "json") == 0
    (found,) = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert (found["silenced_until"], found["waiting"]) == (None, [])


def test_check_config_names_the_notified_channels(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "check-config") == 0
    told = capsys.readouterr()
    assert "  alert drop: ndcg@10 over 24h, looks back 5d, notifies team" in told.out
    missing = "web.external_url: is missing, so links in notifications point to http://127.0.0.1:9184/"
    assert missing in told.err


@pytest.mark.parametrize(
    ("change", "is_warned_of"),
    [
        (("", ""), True),
        (("notify: [team]", "notify: [log]"), False),  # nobody is sent a link
        (("monitors:\n", 'web: {listen: "10.0.0.5:9184"}\nmonitors:\n'), False),  # others can open it
        (("monitors:\n", 'web: {listen: "[::1]:9184"}\nmonitors:\n'), True),
        (("monitors:\n", 'web: {listen: "0.0.0.0:9184"}\nmonitors:\n'), True),
    ],
)
def test_check_config_warns_of_links_that_others_cannot_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], is_warned_of: bool
) -> None:
    write(tmp_path, "http://127.0.0.1:9/")
    text = (tmp_path / "rankmon.yaml").read_text(encoding="utf-8")
    assert change[0] in text
    (tmp_path / "rankmon.yaml").write_text(text.replace(*change, 1), encoding="utf-8")
    assert run(tmp_path, "check-config") == 0
    assert ("web.external_url" in capsys.readouterr().err) == is_warned_of


def test_check_config_warns_of_a_pinned_baseline_in_the_future(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (filled / "rankmon.yaml").read_text(encoding="utf-8")
    later = text.replace("{trailing: 4d}", "{pinned: {from: 2026-01-01, to: 2130-01-15}}")
    (tmp_path / "rankmon.yaml").write_text(later + 'web: {external_url: "https://mon.test/"}\n', encoding="utf-8")
    assert run(tmp_path, "check-config") == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "empty=skip" not in line]
    place = "monitors[0].alerts[0].baseline.pinned: is not over yet, so rule drop cannot fire until it is"
    assert warning == f"rankmon: warning: {tmp_path}/rankmon.yaml:31: {place}; did you mean a past period?"


def test_incidents_list_refuses_unknown_monitors_but_knows_removed_ones(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "incidents list", "-m", "shpo") == 2
    assert "there is no monitor 'shpo'; known are shop" in capsys.readouterr().err
    text = (filled / "rankmon.yaml").read_text(encoding="utf-8")
    (tmp_path / "rankmon.yaml").write_text(text.replace("- name: shop", "- name: market"), encoding="utf-8")
    assert run(tmp_path, "incidents list", "-m", "shop") == 0
    assert "critical shop" in capsys.readouterr().out


def test_a_list_of_one_monitor_names_only_its_silences(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (filled / "rankmon.yaml").read_text(encoding="utf-8")
    more = text[text.index("  - name: shop") :].replace("- name: shop", "- name: market")
    (tmp_path / "rankmon.yaml").write_text(text + more, encoding="utf-8")
    assert run(tmp_path, "incidents silence", "market", "--for", "2h") == 0
    capsys.readouterr()
    assert run(tmp_path, "incidents list", "-m", "shop") == 0
    assert "silenced: market" not in capsys.readouterr().out
    for name in ((), ("-m", "market")):
        assert run(tmp_path, "incidents list", *name) == 0
        assert "silenced: market until" in capsys.readouterr().out
    assert run(tmp_path, "incidents unsilence", "market") == 0


def test_a_silence_of_zero_length_is_refused(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "incidents silence", "shop", "--for", "0s") == 2
    assert "--for must be longer than 0s; rankmon incidents unsilence ends a silence" in capsys.readouterr().err


def test_a_silence_longer_than_3650_days_is_refused(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "incidents silence", "shop", "--for", "9999999d") == 2
    assert "--for must be 3650d at most; to never hear of it, set `notify: [log]`" in capsys.readouterr().err
    assert run(filled, "incidents list") == 0
    assert "silenced" not in capsys.readouterr().out
    assert run(filled, "incidents silence", "shop", "--for", "3650d") == 0
    assert run(filled, "incidents unsilence", "shop") == 0


def test_incidents_show_links_to_the_page(filled: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(filled, "incidents show", name) == 0
    assert f"Page: http://127.0.0.1:9184/incidents/{name}" in capsys.readouterr().out


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def test_a_test_alert_reaches_every_channel(
    filled: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    write(filled, receiver.url)
    assert run(filled, "test-alert") == 0
    assert capsys.readouterr().out.splitlines() == ["log: delivered", "team: delivered"]
    (got,) = [g.document for g in receiver.taken]
    assert (got["kind"], got["labels"]) == ("test", {"team": "search"})
    assert (got["severity"], got["url"]) == ("critical", "http://127.0.0.1:9184/monitors/shop")
    assert "nothing has fallen" in got["text"]


def test_a_test_alert_has_the_highest_severity_of_the_rules_by_default(
    filled: Path, tmp_path: Path, receiver: Receiver
) -> None:
    write(filled, receiver.url)
    text = (filled / "rankmon.yaml").read_text(encoding="utf-8")
    path = tmp_path / "rankmon.yaml"
    for more, options in (
        ("        severity: warning\n", ()),
        ("        severity: info\n    drift: {severity: warning, data_severity: info}\n", ()),
        ("", ("--severity", "info")),
    ):
        path.write_text(text + more, encoding="utf-8")
        assert run(tmp_path, "test-alert", "--channel", "team", *options) == 0
    path.write_text(text[: text.index("    alerts:")], encoding="utf-8")
    assert run(tmp_path, "test-alert", "--channel", "team") == 0
    assert [g.document["severity"] for g in receiver.taken] == ["warning", "warning", "info", "critical"]


def test_an_undelivered_test_alert_says_why(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(filled, "http://127.0.0.1:9/secret-path")
    assert run(filled, "test-alert", "--channel", "team") == 6
    said = capsys.readouterr().err
    assert "team: not delivered: http://127.0.0.1:9: cannot be reached" in said
    assert "secret-path" not in said
    assert "hunter2" not in said
