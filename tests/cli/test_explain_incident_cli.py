"""`rankmon explain-incident` and `versions`: the explanation of a fall, and the answers if there is nothing to show."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from monitor import cli
from monitor.demo.shop import Shop, Story, create_schema
from monitor.messages.comparison import compared
from tests.cli.test_incidents_cli import CONFIG
from tests.support.monitors import shop_database

STORY = Story(datetime(2026, 2, 2, tzinfo=UTC), history_days=17, degraded_days=2, rollback_after=timedelta(days=9))
COLUMNS = "position: position\n      query: query\n      model_version: model_version\n"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the shop's database and a store that was backfilled from it."""
    folder = tmp_path_factory.mktemp("explaining")
    shop_database(folder / "shop.db", Shop(story=STORY), STORY.start, STORY.history_end)
    write(folder)
    assert run(folder, "backfill", "--from", "2026-02-02", "--to", "2026-02-19") == 0
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    """A folder with its own copy of the store."""
    (tmp_path / "store.db").write_bytes((filled / "store.db").read_bytes())
    write(tmp_path, filled)
    return tmp_path


def write(folder: Path, source: Path | None = None, old: str = "", new: str = "") -> None:
    text = CONFIG.format(folder=folder, url="http://127.0.0.1:9/").replace("position: position\n", COLUMNS)
    text = text.replace("        slices: [device]\n        min_requests", "        min_requests")
    text = text.replace(f"{folder}/shop.db", f"{source or folder}/shop.db")
    assert old in text
    (folder / "rankmon.yaml").write_text(text.replace(old, new) if old else text, encoding="utf-8")


def run(folder: Path, command: str, *arguments: str) -> int:
    return cli.run([command, "-c", str(folder / "rankmon.yaml"), *arguments])


def execute(folder: Path, statement: str) -> None:
    engine = sa.create_engine(f"sqlite:///{folder}/store.db")
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


@pytest.fixture
def name(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Id of the open incident."""
    assert cli.run(["incidents", "list", "--open", "--format", "json", "-c", str(folder / "rankmon.yaml")]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    return str(found["id"])


def explained(folder: Path, name: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(folder, "explain-incident", name, "--full", *arguments) == 0
    return capsys.readouterr().out


# ---- explain-incident ----------------------------------------------------------------------------------------------


def test_explain_incident_prints_the_whole_diagnosis_of_a_fall(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = explained(folder, name, capsys, "--capture")
    assert re.search(
        r"When it opened, by rule drop: ndcg@10.* fell from 0\.\d{3} to 0\.\d{3} \(95 %: .*; \d+ requests\)", said
    )
    assert re.search(
        r"Split by device, against the same hours of the 2 weeks before: 0\.\d{4} -> 0\.\d{4}, change -", said
    )
    within, mix = (float(x) for x in re.findall(r"within slices ([-+.\d]+), from a different mix ([-+.\d]+)", said)[0])
    change = float(re.findall(r"change ([-+.\d]+)", said)[0])
    assert within + mix == pytest.approx(change, abs=0.0002)
    after = said.split("By contribution to the change, against the same hours of the 2 weeks before:")[1].splitlines()
    assert said.count("against the same hours of the 2 weeks before:") == 6, "every table says what it is against"
    assert after[2].startswith("device=mobile")
    assert "By z, most significant fall first" not in said, "that would be the same table"
    assert re.search(r"requests with a label +\d\d\.\d % +\d\d\.\d %", said)
    rollout = "2026-02-17 00:00 UTC"
    assert f"At different times: v1 until {rollout}, v2 from {rollout} (by stored buckets of 1h); the diff" in said
    assert re.search(r"requests with nothing relevant +\d\d\.\d % +\d\d\.\d %", said)
    assert re.search(r"\nv2 against v1, on \d+ queries that both served within one device: -0\.\d+ \(95 %", said)
    assert re.search(r"\nv1 +0 +– +– +[\d,]+ +0\.", said)
    assert re.search(r"\nr\d{10}-\d{5} .* mobile +v2 ", said)
    assert re.search(r"\n[0-9a-f]{12} +\d", said)
    assert "drop: pending -> firing" in said
    assert "Not captured" not in said


def test_the_json_diagnosis_adds_up_and_outlives_the_source(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = json.loads(explained(folder, name, capsys, "--capture", "--format", "json"))
    split = first["diagnosis"]["split"]
    assert split["within"] + split["mix"] == pytest.approx(split["value"] - split["before"], abs=1e-12)
    (folder / "rankmon.yaml").write_text(
        (folder / "rankmon.yaml").read_text(encoding="utf-8").replace("/shop.db", "/gone.db"), encoding="utf-8"
    )
    again = json.loads(explained(folder, name, capsys, "--format", "json"))
    assert again == first, "a capture outlives the source"
    assert first["missing"] == ""
    assert {t["became"] for t in first["transitions"]} >= {"pending", "firing"}


def test_an_uncaptured_incident_shows_stored_data_and_the_reason(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = explained(folder, name, capsys)
    assert (
        "Not captured: the source has not been read yet; rankmon run reads it with its next cycles, --capture reads it"
        in said
    )
    assert "device=mobile" in said
    assert "Requests that lost most" not in said
    execute(folder, "UPDATE incidents SET state = 'resolved', closed_at = opened_at + 7200")
    said = explained(folder, name, capsys)
    assert "Not captured: the incident closed before the source was read; --capture reads what the source still" in said
    assert "resolved at 2026-02-" in said


def test_a_data_incident_shows_hours_instead_of_requests(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = """replace(summary, '"verdict": ""', '"verdict": "labels_suspect"')"""
    execute(folder, f"UPDATE incidents SET matter = 'data', summary = {verdict}")
    said = explained(folder, name, capsys, "--capture")
    assert "Not captured: it is about the data, not the model." in said
    table = said.split("unmatched: share without an impression):\n")[1].split("\n\n")[0].splitlines()
    assert table[0].split() == [
        "from",
        "(UTC)",
        "requests",
        "labelled",
        "events",
        "unmatched",
        "refused",
        "verdict",
    ]
    found = json.loads(explained(folder, name, capsys, "--format", "json"))
    assert found["diagnosis"] is None
    assert len(found["hours"]) >= len(table) - 1
    assert table[1].split()[:2] == str(datetime.fromtimestamp(found["hours"][0]["start"], UTC))[:16].split()
    assert found["hours"][0]["start"] == found["began_at"] // 3600 * 3600 - 4 * 3600


def test_an_incident_of_a_removed_monitor_is_still_explained(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "rankmon.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("- name: shop", "- name: other"), encoding="utf-8")
    said = explained(folder, name, capsys)
    assert "Not captured: monitor 'shop' is not in " in said
    assert "fell from" in said


def test_an_unknown_id_or_an_unreachable_source_is_an_error(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "explain-incident", "nope") == 2
    assert "there is no incident 'nope'; rankmon incidents list shows them" in capsys.readouterr().err
    write(folder, folder / "nowhere")
    assert run(folder, "explain-incident", name, "--capture") == 3
    assert "nowhere/shop.db" in capsys.readouterr().err
    assert "Not captured" in explained(folder, name, capsys)


def test_query_texts_are_shown_only_while_enabled(
    folder: Path, filled: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    on = ("measures: [ndcg@10]\n", "measures: [ndcg@10]\n    drift: {show_queries: true}\n")
    write(folder, filled, *on)
    document = json.loads(explained(folder, name, capsys, "--capture", "--format", "json"))
    texts = [q["text"] for q in document["diagnosis"]["captured"]["queries"]["worst"]]
    assert any(" " in text for text in texts)
    assert texts[0] in explained(folder, name, capsys)
    write(folder, filled)
    assert not any(f'"{text}"' in explained(folder, name, capsys, "--format", "json") for text in texts)


def test_escape_codes_from_the_database_are_neutralised(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    explained(folder, name, capsys, "--capture")
    execute(folder, "UPDATE diagnoses SET document = replace(document, '\"mobile\"', '\"mo\\u001b[2Jbile\"')")
    said = explained(folder, name, capsys)
    assert "mo\\u001b[2Jbile" in said
    assert "\x1b" not in said


def test_the_explanation_starts_with_summary_lines_then_the_timeline(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "explain-incident", name, "--capture") == 0
    said = capsys.readouterr().out
    what, since, where, first, more, nothing, steps = said.splitlines()[:7]
    assert cli.run(["incidents", "show", name, "-c", str(folder / "rankmon.yaml")]) == 0
    now = capsys.readouterr().out.splitlines()[1]
    assert now.startswith(what.removeprefix("What:   shop: ")), "an open incident shows its present figures"
    (fired,) = re.findall(r"fired at (\d.* UTC);", since)
    assert f"\nWhen it fired, over 1 d until {fired}:\n" in said
    assert where.endswith(", when it fired")
    assert re.match(r"What:   shop: ndcg@10.* fell from 0\.\d{3} to 0\.\d{3} \(95 %: .*; \d+ requests\)", what)
    assert re.match(r"Since:  .*2026-02-1\d .*; fired at 2026-02-\d\d \d\d:00 UTC; still open$", since)
    assert re.match(r"Where:  device=mobile 0\.\d{4} -> 0\.\d{4} \(\d\d\.\d % of requests\)", where)
    assert first.startswith("To do:  ")
    assert more.startswith("More:   ")
    assert (nothing, steps) == ("", "Timeline:")
    assert "\nBy contribution to the change" in said
    assert "Requests that lost most" not in said
    assert "Also, at" not in said
    assert "\n--full adds requests, queries, and each condition on its own.\n" in said
    execute(folder, "UPDATE incidents SET state = 'resolved', closed_at = opened_at + 7200")
    assert run(folder, "explain-incident", name) == 0
    assert "\nTo do:  nothing; it is over\n" in capsys.readouterr().out


# ---- several conditions, failures, restated data ---------------------------------------------------------------------


def join(folder: Path, value: str = "mobile", later: int = 3600) -> None:
    """Makes the rule fire on a slice too, `later` seconds after the incident opened."""
    execute(
        folder,
        f"""INSERT INTO transitions
        (monitor, incident, rule, dimension, value, was, became, at, recorded_at, reason, evidence)
        SELECT monitor, incident, rule, 'device', '{value}', was, became, at + {later}, recorded_at, reason,
        json_set(evidence, '$.dimension', 'device', '$.slice', '{value}', '$.end', at + {later})
        FROM transitions WHERE became = 'firing' AND dimension = ''""",
    )


def test_each_condition_lists_the_requests_that_lost(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    join(folder)
    said = explained(folder, name, capsys, "--capture")
    assert re.search(r"UTC  drop for device=mobile: \w+ -> firing, ", said)
    first, also = said.split("\nAlso, at 2026-02-")
    assert re.match(r"\d\d \d\d:00 UTC, by rule drop, which is over by now: ndcg@10 for device=mobile over 24h", also)
    assert "Model versions in the window, of device=mobile, from the requests read, against" in also
    assert "Labels and traffic of device=mobile, against" in also
    assert "All traffic, split by device, against" in also
    assert also.count("Requests that lost most") == first.count("Requests that lost most") == 1
    lost = re.findall(r"\nr\d{10}-\d{5} +\S+ \S+ +(\w+) ", also)
    assert lost
    assert set(lost) == {"mobile"}
    found = json.loads(explained(folder, name, capsys, "--format", "json"))
    assert found["condition"] == ["drop", "", ""]
    assert [(o["condition"], o["diagnosis"]["slice"], o["missing"]) for o in found["others"]] == [
        (["drop", "device", "mobile"], "mobile", "")
    ]
    assert found["others"][0]["fired_at"] == found["fired_at"] + 3600


def test_a_firing_condition_leads_and_the_others_follow_by_time(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    join(folder)
    join(folder, "tablet", 7200)
    fire = "json_set(summary, '$.firing[0].dimension', 'device', '$.firing[0].value', 'tablet')"
    execute(folder, f"UPDATE incidents SET summary = {fire}")
    found = json.loads(explained(folder, name, capsys, "--format", "json"))
    assert (found["condition"], found["is_over"]) == (["drop", "device", "tablet"], False)
    told = [(one["condition"][2], one["is_over"]) for one in found["others"]]
    assert told == [("", True), ("mobile", True)]
    said = explained(folder, name, capsys)
    assert re.search(r"\nAt 2026-02-\d\d \d\d:00 UTC, by rule drop: ndcg@10 for device=tablet over 24h until ", said)
    execute(folder, "UPDATE incidents SET state = 'resolved', closed_at = opened_at + 7200")
    assert "over by now" not in explained(folder, name, capsys), "all conditions are over"


def test_a_table_shared_by_two_conditions_is_shown_once(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    join(folder, "mobile", 0)
    join(folder, "tablet", 0)
    said = explained(folder, name, capsys)
    assert said.count("\nAlso, at ") == 2
    assert said.count("\nBy contribution to the change") == 1
    assert said.count("\nLabels and traffic") == 3


def test_slices_are_also_shown_by_z_if_the_order_differs(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    explained(folder, name, capsys, "--capture")
    execute(
        folder,
        """UPDATE diagnoses SET document = json_set(document, '$.slices_by_z[0]', json_extract(document, '$.slices[1]'),
        '$.slices_by_z[1]', json_extract(document, '$.slices[0]'))""",
    )
    by_part, by_z = explained(folder, name, capsys).split("\nBy z, most significant fall first")
    assert by_part.split("\nBy contribution")[1].splitlines()[2].startswith("device=mobile")
    assert by_z.splitlines()[2].startswith("device=desktop")


def test_version_bounds_of_an_old_capture_are_not_shown(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Old diagnoses took the bounds from the capture, not from the store, and have no `resolution`."""
    explained(folder, name, capsys, "--capture")
    execute(folder, "UPDATE diagnoses SET document = json_remove(document, '$.captured.comparison.resolution')")
    assert "At different times: the difference may be due to time." in explained(folder, name, capsys)


def test_a_version_change_in_the_hour_of_the_fall_is_reported() -> None:
    one, other = ({"version": f"rk-{n}", "requests": 1, "value": 0.5} for n in (7, 8))
    found = {
        "first": one | {"since": 0, "until": 18 * 3600}, "second": other | {"since": 18 * 3600, "until": 24 * 3600},
        "by": "request", "difference": -0.1, "lower": None, "upper": None, "at_one_time": False, "resolution": 3600,
        "better": 1412, "worse": 1306, "unchanged": 0, "queries": None, "shared": None,
    }  # fmt: skip
    said = "\n".join(compared(found, 19 * 3600))
    until = "rk-7 until 1970-01-01 18:00 UTC, rk-8 from 1970-01-01 18:00 UTC"
    assert f"{until}, in the hour when this began (by stored buckets of 1h); the difference" in said
    assert "in the hour" not in "\n".join(compared(found, 20 * 3600))
    assert "better" not in said, "half of its own requests are below the median one too"


def test_a_failed_capture_shows_its_reason(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    fail = "INSERT INTO diagnoses VALUES ('{}', 'drop', '', '', 'shop', 1771459200, '', 'source shop: it is \x1b away')"
    execute(folder, fail.format(name))
    said = explained(folder, name, capsys)
    assert (
        "Could not be captured: source shop: it is \\u001b away (last tried at 2026-02-19 00:00 UTC; it will retry "
        "with the next cycles; --capture does it now)."
    ) in said
    assert "device=mobile" in said, "stored data is shown"
    execute(folder, "UPDATE incidents SET state = 'resolved', closed_at = opened_at + 7200")
    assert "the incident has closed; --capture does it now" in explained(folder, name, capsys)
    assert json.loads(explained(folder, name, capsys, "--format", "json"))["missing"].startswith(
        "could not be captured"
    )
    assert "ould not be captured" not in explained(folder, name, capsys, "--capture")


def test_restated_data_show_the_value_at_capture_and_now(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = json.loads(explained(folder, name, capsys, "--capture", "--format", "json"))
    assert before["restated"] is None
    then = before["diagnosis"]["fell"]["value"]
    set_ = "UPDATE transitions SET evidence = json_set(evidence, '$.value', 0.6543) WHERE became = 'firing'"
    execute(folder, set_)
    said = explained(folder, name, capsys)
    assert f"of the figures as they were: value then {then:.4f}, now 0.6543; compared with then" in said
    after = json.loads(explained(folder, name, capsys, "--format", "json"))
    assert (after["restated"]["value"], after["restated"]["value_now"]) == (then, 0.6543)
    assert after["diagnosis"] == before["diagnosis"], "it stays as it was captured"
    execute(folder, "UPDATE transitions SET rule = 'other' WHERE became = 'firing'")
    assert "data or measure have changed, and it no longer fires." in explained(folder, name, capsys)


# ---- versions ------------------------------------------------------------------------------------------------------


def test_versions_compares_two_model_versions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "versions", "shop", "--to", "2026-02-19") == 0
    said = capsys.readouterr().out
    assert re.search(
        r"v1 +[\d,]+ +0\.\d{4} +0\.\d{4} – 0\.\d{4} +(days|windows|requests) \w+( it)? +\d\d\.\d % +\d\d\.\d %",
        said,
    )
    until, since = re.findall(
        r"At different times: v1 until (2026-02-\d\d \d\d:\d\d) UTC, v2 from (2026-02-\d\d \d\d:\d\d) UTC; the", said
    )[0]
    assert until <= since <= "2026-02-17 02:00", "the version was rolled out then"
    counted = re.search(r"requests with nothing relevant: v1 ([\d,]+) of ([\d,]+), v2 ([\d,]+) of ([\d,]+)", said)
    assert counted is not None
    empty, every, empty2, every2 = (int(n.replace(",", "")) for n in counted.groups())
    assert (empty + empty2, every + every2) == counts(folder), "the partials count every request"
    assert min(empty, empty2) > 0
    assert re.search(
        r"v2 against v1, on \d+ queries that both served within one device: -0\.\d{4} \(95 %: -0\.\d+ to -0\.\d+\)",
        said,
    )
    assert re.search(r"queries: \d+ better, \d+ worse, \d+ unchanged", said)
    lines = said.split("\nv2 against v1 by device, largest fall first:\n")[1].splitlines()
    assert lines[1].startswith("mobile ")
    apart = [re.findall(r"[-+]0\.\d{4}", line) for line in lines[1:]]
    assert len(apart) == 3
    assert float(apart[0][2]) < -0.1, "surely worse there"
    assert all(float(upper) > 0 for _, _, upper in apart[1:]), "and nowhere else"


def test_versions_compares_by_the_measure_that_verdicts_judge(
    folder: Path, filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the first measure nor the reading that leaves out requests which lost all their labels."""
    asked = "    measures: [mrr@10, ndcg@10]\n    drift: {measure: ndcg@10}\n"
    write(folder, filled, "    measures: [ndcg@10]\n", asked)
    assert run(folder, "versions", "shop", "--to", "2026-02-19") == 0
    assert capsys.readouterr().out.startswith("shop, ndcg(empty=zero)@10, 2026-02-12 00:00 UTC to ")


def test_versions_leaves_out_hours_of_bad_data(folder: Path, filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, filled, "    measures: [ndcg@10]\n", "    measures: [ndcg@10]\n    drift: {}\n")
    asked, end = ("versions", "shop", "--to", "2026-02-19"), int(datetime(2026, 2, 18, tzinfo=UTC).timestamp())
    execute(folder, "DELETE FROM verdicts")

    def told() -> tuple[str, dict[str, Any]]:
        said = []
        for style in ("text", "json"):
            assert run(folder, *asked, "--format", style) == 0
            said.append(capsys.readouterr().out)
        return said[0], json.loads(said[1])

    whole, before = told()
    assert "the data were bad" not in whole
    assert before["left_out"] == {"seconds": 0, "kinds": []}
    for hour, kind in enumerate(["labels_suspect", "labels_collapsed", "slice_missing"]):
        execute(folder, f"INSERT INTO verdicts VALUES ('shop', {end + hour * 3600}, '{kind}', 1, 0.1, 0.1, '', NULL)")
    said, after = told()
    assert "without 2 h of bad data (labels or relevance collapsed, labels suspect)\n" in said
    assert after["left_out"] == {"seconds": 7200, "kinds": ["labels_collapsed", "labels_suspect"]}
    second = [one["comparison"]["second"] for one in (before, after)]
    assert 0 < second[0]["read"] - second[1]["read"] < 0.1 * second[0]["read"]
    stored = [{v["version"]: v["requests"] for v in one["versions"]} for one in (before, after)]
    assert stored[0]["v1"] == stored[1]["v1"]
    assert stored[0]["v2"] - stored[1]["v2"] == second[0]["read"] - second[1]["read"]
    execute(folder, "DELETE FROM verdicts")
    hours = "(SELECT DISTINCT bucket_start FROM buckets)"
    every = f"SELECT 'shop', bucket_start + 3600, 'labels_suspect', 1, 0.1, 0.1, '', NULL FROM {hours}"
    execute(folder, f"INSERT INTO verdicts {every}")
    assert told()[0] == whole, "if every hour is bad, none is left out"


def test_versions_without_a_query_column_are_compared_unpaired(
    folder: Path, filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, filled, "      query: query\n", "")
    assert run(folder, "versions", "shop", "--to", "2026-02-19") == 0
    said = capsys.readouterr().out
    assert "v2 against v1, all requests within one device, not paired: -0." in said
    assert "median" not in said
    assert "better" not in said


def test_versions_read_from_a_sample_show_no_bounds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("monitor.cli.commands.versions.MOST", 500)
    monkeypatch.setattr("monitor.causes.sample.PIECE", 50)
    assert run(folder, "versions", "shop", "--to", "2026-02-19") == 0
    assert "At different times: the difference may be due to time." in capsys.readouterr().out


def test_the_newer_version_is_compared_against_the_first_one_stored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for was, becomes in (("v1", "v0"), ("v2", "v1"), ("v0", "v2")):  # swap the versions in the store
        execute(folder, f"UPDATE slices SET value = '{becomes}' WHERE value = '{was}'")
    for since in ("2026-02-12", "2026-02-15"):
        assert run(folder, "versions", "shop", "--from", since, "--to", "2026-02-19") == 0
        assert re.search(
            r"^v1 against v2, on \d+ queries that both served within one device: \+0\.",
            capsys.readouterr().out,
            re.MULTILINE,
        )


def counts(folder: Path) -> tuple[int, int]:
    """(requests with nothing relevant, requests) stored for the last week."""
    end = int(datetime(2026, 2, 19, tzinfo=UTC).timestamp())
    query = f"""SELECT SUM(empty), SUM(requests) FROM rankmon_buckets
        WHERE dimension = '' AND measure = 'ndcg@10' AND bucket_start >= {end - 7 * 86_400} AND bucket_start < {end}"""
    engine = sa.create_engine(f"sqlite:///{folder}/store.db")
    with engine.connect() as connection:
        empty, every = connection.execute(sa.text(query)).one()
    engine.dispose()
    return int(empty), int(every)


def test_swapping_the_versions_negates_the_difference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for pair in (("v1", "v2"), ("v2", "v1")):
        command = ("versions", "shop", "--from", "2026-02-12", "--to", "2026-02-19", "--versions", *pair)
        assert run(folder, *command, "--format", "json") == 0
        found.append(json.loads(capsys.readouterr().out)["comparison"])
    one, other = found
    assert one["difference"] == pytest.approx(-other["difference"], abs=1e-12)
    assert (one["better"], one["worse"]) == (other["worse"], other["better"])
    assert one["by"] == "query"


def test_a_period_with_one_version_has_nothing_to_compare(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "versions", "shop", "--from", "2026-02-03", "--to", "2026-02-10") == 0
    assert "One version served in this period; there is nothing to compare." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nope"], 2, "there is no monitor 'nope'"),
        (["shop", "--versions", "v1", "v9"], 2, "no request from version 'v9' in this period; known are v1, v2"),
        (["shop", "--versions", "v1", "v1"], 2, "'v1' is only one version; name two"),
        (["shop", "--measure", "mrr"], 2, "shop computes ndcg@10, not mrr"),
        (["shop", "--measure", "nonsense"], 2, "nonsense"),
        (["shop", "--by", "country"], 2, "shop has no slices by 'country'; known are device"),
        (["shop", "--from", "2026-02-20", "--to", "2026-02-19"], 2, "is not a period of whole buckets"),
        (
            ["shop", "--from", "2020-01-01", "--to", "2020-01-02"],
            2,
            "source shop has no request with a value from 2020",
        ),
    ],
)
def test_versions_refuses_what_it_cannot_compare(
    arguments: list[str], code: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "versions", *arguments) == code
    assert message in capsys.readouterr().err


def test_versions_reports_a_purged_source(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    create_schema(engine)
    engine.dispose()
    write(folder, tmp_path)
    assert run(folder, "versions", "shop") == 2
    assert re.search(r"but [\d,]+ are stored: the source was purged; use a later --from", capsys.readouterr().err)


def test_versions_asks_for_the_model_version_column(
    folder: Path, filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, filled, "      model_version: model_version\n", "")
    assert run(folder, "versions", "shop") == 2
    expected = "monitor shop has no model version column; name it under `rankings: model_version`"
    assert expected in capsys.readouterr().err
