"""`rankmon examination fit` on a log with known examination, and the series of the measure that it prints."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
import yaml

import monitor.cli as cli
from monitor.cli.commands.examination import corrected
from monitor.conditions.examined import ExaminationCheck
from monitor.config import load
from monitor.measures.examination import Examination
from monitor.measures.measure import parse
from monitor.page import render
from monitor.service.snapshot import take_snapshot
from monitor.store import Store
from monitor.units import DAY
from tests.support.pages import PageSource

START = 1_767_225_600  # 2026-01-01
CONFIG = """
store: {{url: "sqlite:///{folder}/store.db"}}
sources: {{shop: {{url: "{url}"}}}}
monitors:
  - name: search
    source: shop
    rankings:
      {{table: shown, request: request, item: item, position: {{column: place, base: 0}}, query: query,
       time: {{column: at, format: epoch_s}}}}
    relevance:
      {relevance}
    measures: [{measure}]
    windows: [24h]
"""
EVENTS = """events:
        table: clicks
        request: request
        item: item
        type: type
        time: {column: at, format: epoch_s}
        rules: [{type: click, grade: 1}]
        attribution: 1h"""
LOOKS = (1.0, 0.6, 0.3)
ON_PHONES = (1.0, 0.3, 0.08)


def fill(
    url: str, requests: int = 4000, stops: bool = False, phones: float = 0.0, swaps: bool = True, drawn: float = 0.0
) -> None:
    """Write a log of lists of three items, in random order (`swaps`) or in a fixed one.

    Clicks follow LOOKS and each item's attractiveness and are logged twice; every item has a view too. A share
    `phones` of the requests comes from phones, with ON_PHONES. With a fixed order, a share `drawn` of the
    lists is in random order after all, and their device is called "drawn".
    """
    chance = random.Random(5)
    attractiveness = {(q, i): chance.uniform(0.1, 0.9) for q in range(20) for i in range(3)}
    shown, clicks = [], []
    for number in range(requests):
        query, at = chance.randrange(20), START + 20 * number
        is_over = False
        device = "phone" if phones and chance.random() < phones else "desk"
        looks = ON_PHONES if device == "phone" else LOOKS
        is_drawn = swaps
        if drawn and chance.random() < drawn:
            device, is_drawn = "drawn", True
        for place, item in enumerate(chance.sample(range(3), 3) if is_drawn else range(3)):
            is_clicked = not is_over and chance.random() < looks[place] * attractiveness[query, item]
            is_over = stops and (is_over or is_clicked)
            shown.append((f"r{number}", f"i{item}", place, f"q{query}", at, int(is_clicked), device))
            clicks += [(f"r{number}", f"i{item}", "click", at + late) for late in (5, 9)] * is_clicked
            clicks.append((f"r{number}", f"i{item}", "view", at))
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE shown "
            "(request TEXT, item TEXT, place BIGINT, query TEXT, at BIGINT, clicked BIGINT, device TEXT)"
        )
        connection.exec_driver_sql("CREATE TABLE clicks (request TEXT, item TEXT, type TEXT, at BIGINT)")
        names = sa.table("shown", *map(sa.column, ("request", "item", "place", "query", "at", "clicked", "device")))
        connection.execute(names.insert(), [dict(zip(names.c.keys(), row, strict=True)) for row in shown])
        acts = sa.table("clicks", *map(sa.column, ("request", "item", "type", "at")))
        connection.execute(acts.insert(), [dict(zip(acts.c.keys(), row, strict=True)) for row in clicks])
    engine.dispose()


def configured(folder: Path, url: str, relevance: str = EVENTS, measure: str = "ndcg@3") -> list[str]:
    path = folder / "rankmon.yaml"
    path.write_text(CONFIG.format(folder=folder, url=url, relevance=relevance, measure=measure), encoding="utf-8")
    return ["-c", str(path)]


def with_slices(given: list[str], slices: str) -> list[str]:
    path = Path(given[1])
    path.write_text(path.read_text(encoding="utf-8") + f"    slices: [{slices}]\n", encoding="utf-8")
    return given


TO = ["--days", "2", "--to", "2026-01-03", "--depth", "3"]


def estimated(*looks: float, **parts: Examination) -> Examination:
    held = {("device", name): one for name, one in parts.items()}
    size = len(looks)
    return Examination(np.array(looks), np.eye(size - 1) * 0.01, np.ones(size, dtype=int), np.ones(size), 100.0, held)


def test_show_compares_the_examination_in_use_with_the_newest_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = "'dcg(examination={1:1,2:0.62},examination[device=phone]={1:1,2:0.4})@2', ndcg@3"
    given = configured(tmp_path, f"sqlite:///{tmp_path}/none.db", measure=measure)
    path = Path(given[1])
    path.write_text(path.read_text(encoding="utf-8") + "    slices: [device]\n    drift: {}\n", encoding="utf-8")
    assert cli.run(["migrate", *given]) == 0
    assert cli.run(["examination", "show", "search", *given]) == 0
    assert "Not checked: `rankmon run` checks once a day, given 17 whole days" in capsys.readouterr().out
    now = estimated(1.0, 0.5, desk=estimated(1.0, 0.7))
    found = ExaminationCheck(30 * DAY, 27 * DAY, DAY, 20 * DAY, estimated(1.0, 0.61), now, changed_since=27 * DAY)
    with closing(Store(load(path, {}).store.url, 5.0)) as store:
        store.verdicts.put_check("search", found)
    assert cli.run(["examination", "show", "search", *given]) == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if line.strip().startswith("2 ")] == [
        ["2", "0.6200", "0.6100", "0.5014", "0.7421", "0.5000", "0.4110", "0.6083"],
        ["2", "0.4000", *["–"] * 6],  # too few swaps, and the figures of all requests do not stand in
        ["2", *["–"] * 4, "0.7000", "0.5754", "0.8516"],
    ]
    assert "before: 1970-01-02 00:00 UTC to 1970-01-21 00:00 UTC; now: 1970-01-28 00:00 UTC to 1970-01-31" in out
    assert "People look at other ranks since 1970-01-28 00:00 UTC. If this is permanent, run `rankmon" in out
    assert cli.run(["examination", "show", "search", "--format", "json", *given]) == 0
    shown = json.loads(capsys.readouterr().out)["examination"]
    assert list(shown) == ["", "device=phone", "device=desk"]
    assert shown["device=desk"][1]["used"] is None
    assert shown["device=phone"][1]["value"] is None


def test_show_says_how_to_get_a_corrected_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = configured(tmp_path, f"sqlite:///{tmp_path}/none.db")
    assert cli.run(["migrate", *given]) == 0
    assert cli.run(["examination", "show", "search", *given]) == 0
    assert "no measure is corrected for where people look; `rankmon examination fit search`" in capsys.readouterr().out


@pytest.mark.parametrize("relevance", [EVENTS, "column: {grade: clicked, max_grade: 1}"])
def test_fit_estimates_examination_and_prints_a_usable_measure(
    database_url: str, relevance: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(database_url)
    given = configured(tmp_path, database_url, relevance)
    assert cli.run(["examination", "fit", "search", *TO, "--format", "json", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [rank["value"] for rank in found["ranks"]] == [pytest.approx(look, rel=0.1) for look in LOOKS]
    assert all(rank["lower"] <= look <= rank["upper"] for rank, look in zip(found["ranks"], LOOKS, strict=True))
    assert found["measure"].startswith("dcg(examination={1:1,2:0.")
    assert cli.run(["examination", "fit", "search", *TO, *given]) == 0
    told = capsys.readouterr().out
    (line,) = (line for line in told.splitlines() if "measures:" in line)
    ratio, lower, upper = found["clicks_below_a_click"]
    assert lower < ratio < upper
    assert upper > 1
    assert f"below a click people click {ratio:.2f} times as often as without it" in told
    assert "Warning" not in told
    assert yaml.safe_load(line)["measures"] == [found["measure"]]
    given = configured(tmp_path, database_url, relevance, json.dumps(found["measure"]))
    assert cli.run(["backfill", "--from", "2026-01-01", "--to", "2026-01-02", *given]) == 0
    capsys.readouterr()
    assert cli.run(["series", "--from", "2026-01-01", "--format", "json", *given]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["measure"] == found["measure"] and row["value"]]
    assert rows
    weights = np.array([1, 1 / np.log2(3), 1 / 2]) / [rank["value"] for rank in found["ranks"]]
    for row in rows:
        most = row["value"] * row["requests"] / weights.min()  # if all clicks were at that rank
        assert row["value"] * row["requests"] / weights.max() < row["effective"] < most
    assert cli.run(["series", "--from", "2026-01-01", *given]) == 0
    assert "effective sample" in capsys.readouterr().out


def test_fit_warns_if_people_stop_at_a_click(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(database_url, stops=True)
    assert cli.run(["examination", "fit", "search", *TO, *configured(tmp_path, database_url)]) == 0
    assert "Warning: they stop at a click; the direction of a change is right" in capsys.readouterr().out


def test_intervals_widen_with_the_number_of_slices_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bonferroni: the interval of desks spans 2.24 standard errors, not 1.96, if phones are checked too."""
    fill(f"sqlite:///{tmp_path}/shop.db", 1500, phones=0.5)
    given = with_slices(configured(tmp_path, f"sqlite:///{tmp_path}/shop.db"), "device")
    wide = []
    for change in ("", "DELETE FROM shown WHERE device = 'phone'"):
        with sqlite3.connect(tmp_path / "shop.db") as db:
            db.execute(change)
        capsys.readouterr()
        assert cli.run(["examination", "fit", "search", *TO, "--by", "device", "--format", "json", *given]) == 0
        found = {one["slice"]: one for one in json.loads(capsys.readouterr().out)["slices"]}
        ratio, _, upper = found["device=desk"]["clicks_below_a_click"]
        wide.append(np.log(upper / ratio))
    assert wide[0] / wide[1] == pytest.approx(2.2414 / 1.96, rel=1e-3)


def test_fit_warns_if_people_trust_rank_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(f"sqlite:///{tmp_path}/shop.db")
    given = configured(tmp_path, f"sqlite:///{tmp_path}/shop.db")
    with sqlite3.connect(tmp_path / "shop.db") as db:  # four requests in ten click the first item, wanted or not
        some = "place = 0 AND substr(request, -1) IN ('0', '3', '6', '9')"
        db.execute(f"INSERT INTO clicks SELECT request, item, 'click', at + 7 FROM shown WHERE {some}")
    for is_trusted in (True, False):
        assert cli.run(["examination", "fit", "search", *TO, *given]) == 0
        assert ("Warning: people trust rank 1 " in capsys.readouterr().out) == is_trusted
        with sqlite3.connect(tmp_path / "shop.db") as db:
            db.execute("DELETE FROM clicks WHERE at IN (SELECT at + 7 FROM shown)")


def test_slices_with_few_clicks_get_wide_intervals_or_no_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    fill(url, 200)
    given = with_slices(configured(tmp_path, url), "query")
    assert cli.run(["examination", "fit", "search", *TO, "--by", "query", "--format", "json", *given]) == 0
    by_slice = json.loads(capsys.readouterr().out)
    found = by_slice["slices"]
    assert by_slice["differ"] == []
    assert by_slice["measure"] == by_slice["every"]["measure"]
    assert [one["slice"] for one in found] == sorted(f"query=q{number}" for number in range(20))
    known = [one["ranks"][-1] for one in found if "ranks" in one]
    assert 0 < len(known) < 20  # ten requests each
    assert all(rank["upper"] > 3 * rank["lower"] for rank in known)
    assert all(re.match("not enough swaps at rank|no clicks on the", one["why"]) for one in found if "ranks" not in one)
    assert cli.run(["examination", "fit", "search", *TO, "--by", "query", *given]) == 0
    said = capsys.readouterr().out
    assert "search, query=q1: " in said
    fitted = [one["slice"] for one in found if "ranks" in one]
    unknown = [one["slice"] for one in found if "ranks" not in one]
    for what, slices in (("No significant difference", fitted), ("Unknown", unknown)):
        assert f"{what}, so the examination of all requests is used: {', '.join(slices)}.\n" in said
    assert cli.run(["examination", "fit", "search", *TO, "--by", "device", *given]) == 2
    assert "search has no slice 'device'" in capsys.readouterr().err


def by_slice(measures: list[str], given: list[str], capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], float]:
    """(measure, slice or empty) -> value of the first day, with these measures instead of the configured one."""
    path = Path(given[1])
    path.write_text(path.read_text(encoding="utf-8").replace("[ndcg@3]", json.dumps(measures)), encoding="utf-8")
    assert cli.run(["backfill", "--from", "2026-01-01", "--to", "2026-01-02", *given]) == 0
    capsys.readouterr()
    assert cli.run(["series", "--slices", "--from", "2026-01-01", "--format", "json", *given]) == 0
    points = [p for p in json.loads(capsys.readouterr().out) if p["end"].startswith("2026-01-02T00")]
    return {(p["measure"], p["slice"] or ""): p["value"] for p in points}


def test_fit_names_slices_as_in_the_series_and_their_tables_apply(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Phones are logged as an empty string, desks as null."""
    url = f"sqlite:///{tmp_path}/shop.db"
    fill(url, phones=0.4)
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("UPDATE shown SET device = CASE device WHEN 'phone' THEN '' END")
    given = with_slices(configured(tmp_path, url), "device")
    assert cli.run(["examination", "fit", "search", *TO, "--by", "device", "--format", "json", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differ"] == ["device=(empty)", "device=(none)"]
    values = by_slice([found["measure"], found["every"]["measure"]], given, capsys)
    for device in ("(empty)", "(none)"):
        assert abs(values[found["measure"], device] / values[found["every"]["measure"], device] - 1) > 0.05


def test_fit_refuses_a_log_without_the_data_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    fill(url, 50)
    given = configured(tmp_path, url)
    for arguments, said in (
        (["--days", "1", "--to", "2025-01-01"], "no request with a query in these 1 days; change --to or --days"),
        (
            ["--days", "2", "--to", "2026-01-03", "--depth", "5"],
            "no items were shown at rank 4; use fewer ranks or more days",
        ),
    ):
        assert cli.run(["examination", "fit", "search", *arguments, *given]) == 2
        assert said in capsys.readouterr().err
    path = Path(given[1])
    path.write_text(path.read_text(encoding="utf-8").replace(" query: query,", ""), encoding="utf-8")
    assert cli.run(["examination", "fit", "search", *TO, *given]) == 2
    assert "name the query column as rankings.query" in capsys.readouterr().err


def test_power_says_how_many_swaps_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4000 requests in a day: more swaps narrow the intervals, but the number that is enough stays the same."""
    fill(f"sqlite:///{tmp_path}/shop.db")
    given = configured(tmp_path, f"sqlite:///{tmp_path}/shop.db")
    found = {}
    for swapped in (20, 80):
        assert cli.run(["power", "--swapped", str(swapped), "--depth", "3", "--format", "json", *given]) == 0
        (said,) = json.loads(capsys.readouterr().out)
        found[swapped] = said["ranks"]
        assert [rank["rank"] for rank in said["ranks"]] == [2, 3]
    for few, many in zip(found[20], found[80], strict=True):
        assert 1.8 < few["off_by"] / many["off_by"] < 2.6
        assert many["enough"] == few["enough"]
    assert cli.run(["power", "--swapped", "80", "--depth", "3", *given]) == 0
    assert "were 80 requests a day to swap two neighbours for 28 days" in capsys.readouterr().out
    assert cli.run(["power", "--swapped", "1000", "--depth", "3", *given]) == 2
    told = "--swapped 1000, in 28 days: 28,000 requests cannot swap: 4,000 show an item at rank 1"
    assert told in capsys.readouterr().err


def test_fit_without_swaps_asks_for_as_many_as_power(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(f"sqlite:///{tmp_path}/shop.db", swaps=False)
    given = configured(tmp_path, f"sqlite:///{tmp_path}/shop.db")
    assert cli.run(["examination", "fit", "search", *TO, *given]) == 2
    told = capsys.readouterr().err
    assert "not enough swaps at rank 2: 0 items" in told
    number = int(told.partition("to within 10 %, ")[2].partition(" of these 4,000 requests")[0].replace(",", ""))
    for swapped, is_enough in ((number // 28, False), (number // 28 + 1, True)):
        assert cli.run(["power", "--swapped", str(swapped), "--depth", "3", "--format", "json", *given]) == 0
        (rank, _) = json.loads(capsys.readouterr().out)[0]["ranks"]
        assert (rank["off_by"] <= 0.1) is is_enough
        assert rank["enough"] == number // 28 + 1


def test_a_measure_with_an_unknown_slice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure = "dcg(examination={1:1},examination[devise=tv]={1:1})@1"
    given = configured(tmp_path, "sqlite://", measure=json.dumps(measure))
    assert cli.run(["check-config", *given]) == 2
    assert "no dimension 'devise'; this monitor has no `slices:` for it; add them" in capsys.readouterr().err


def test_extreme_weights_give_a_wide_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With one look in a thousand at rank 3, one click there outweighs all others, so the figure is uncertain."""
    fill(f"sqlite:///{tmp_path}/shop.db", 1000)
    rare, usual = "dcg(examination={1:1,2:0.6,3:0.001})@3", "dcg(examination={1:1,2:0.6,3:0.3})@3"
    given = configured(tmp_path, f"sqlite:///{tmp_path}/shop.db", measure=f"{json.dumps(rare)}, {json.dumps(usual)}")
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:  # keep one request in a hundred with its clicks at rank 3
        connection.exec_driver_sql(
            "DELETE FROM clicks WHERE substr(request, -2) <> '00' AND EXISTS (SELECT 1 FROM shown AS s "
            "WHERE s.request = clicks.request AND s.item = clicks.item AND s.place = 2)"
        )
    engine.dispose()
    assert cli.run(["backfill", "--from", "2026-01-01", "--to", "2026-01-02", *given]) == 0
    capsys.readouterr()
    assert cli.run(["series", "--from", "2026-01-01", "--format", "json", *given]) == 0
    points = [p for p in json.loads(capsys.readouterr().out) if p["lower"] is not None]
    width = {p["measure"]: (p["upper"] - p["lower"]) / p["value"] for p in points}
    assert width[rare] > 5 * width[usual]
    assert cli.run(["series", "--from", "2026-01-01", *given]) == 0
    assert (
        "assumes that examination depends on the rank alone and matches its table, and that people trust no rank"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("name", ["dcg", "snips", "coec"])
def test_every_view_of_a_corrected_figure_states_its_assumptions(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(f"sqlite:///{tmp_path}/shop.db", 300, phones=0.5)
    looks = "examination={1:1,2:0.6,3:0.3},examination[device=phone]={1:1,2:0.4,3:0.1}"
    given = configured(tmp_path, f"sqlite:///{tmp_path}/shop.db", measure=f"ndcg@3, '{name}({looks})@3'")
    with_slices(given, "device")
    assert cli.run(["backfill", "--from", "2026-01-01", "--to", "2026-01-02", *given]) == 0
    told = "assumes that examination depends on the rank and device alone and matches its table, and that people trust"
    for command in (["status"], ["series"], ["report"]):
        capsys.readouterr()
        assert cli.run([*command, *given]) == 0
        said = capsys.readouterr().out
        assert said.count(told) == 1, command
        assert (f"{name}(examination=#" in said) == ("1:1" not in said) == (command != ["series"])
    config = load(Path(given[1]), {})
    with closing(Store(config.store.url, 5.0)) as store:
        end = START + DAY
        shown = render(PageSource.of(end, take_snapshot(config.monitors[0], store, end)))
    assert shown.count(told) == 1
    assert ("of equal weight" in shown) == (name != "coec")
    assert ("requests with clicks of equal weight" in shown) == (name == "snips")


def test_coec_is_clicks_over_expected_clicks_overall_and_by_slice_with_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each place gets each item equally often, so the value is the mean attractiveness; slices are queries."""
    fill(f"sqlite:///{tmp_path}/shop.db")
    chance = random.Random(5)
    attractiveness = {
        (f"q{q}", i): chance.uniform(0.1, 0.9) for q in range(20) for i in range(3)
    }  # as `fill` drew them
    truth = {"": sum(attractiveness.values()) / 60} | {
        f"q{q}": sum(attractiveness[f"q{q}", i] for i in range(3)) / 3 for q in range(20)
    }
    given = configured(tmp_path, f"sqlite:///{tmp_path}/shop.db", measure='"coec(examination={1:1,2:0.6,3:0.3})@3"')
    path = Path(given[1])
    path.write_text(path.read_text(encoding="utf-8") + "    slices: [query]\n    bucket: 1h\n", encoding="utf-8")
    assert cli.run(["backfill", "--from", "2026-01-01", "--to", "2026-01-02", *given]) == 0
    capsys.readouterr()
    assert cli.run(["series", "--slices", "--from", "2026-01-01", "--format", "json", *given]) == 0
    points = [p for p in json.loads(capsys.readouterr().out) if p["end"].startswith("2026-01-02")]
    assert len(points) == 21
    held = 0
    for point in points:
        mean = truth[point["slice"] or ""]
        assert point["value"] == pytest.approx(mean, rel=0.2)
        assert point["upper"] - point["lower"] < 0.5 * mean
        held += point["lower"] <= mean <= point["upper"]
    assert held >= 18


def test_each_device_is_corrected_by_its_own_table_within_one_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Items come to each place equally often, so the truth on every device is the mean attractiveness
    times all discounts.
    """
    url = f"sqlite:///{tmp_path}/shop.db"
    fill(url, phones=0.4)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE shown SET device = 'tv' WHERE request IN ('r7', 'r8', 'r9')")
    engine.dispose()
    given = with_slices(configured(tmp_path, url), "device")
    assert cli.run(["examination", "fit", "search", *TO, "--by", "device", "--format", "json", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differ"] == ["device=desk", "device=phone"]
    for one, looks in zip(found["slices"], (LOOKS, ON_PHONES), strict=False):
        assert [rank["value"] for rank in one["ranks"]] == [pytest.approx(look, rel=0.15) for look in looks]
    assert "examination[device=phone]={1:1,2:0." in found["measure"]
    assert "tv" not in found["measure"]
    assert cli.run(["examination", "fit", "search", *TO, "--by", "device", *given]) == 0
    said = capsys.readouterr().out
    what = "No significant difference" if "ranks" in found["slices"][2] else "Unknown"
    assert f"{what}, so the examination of all requests is used: device=tv.\n" in said
    values = by_slice([found["measure"], found["every"]["measure"]], given, capsys)
    chance = random.Random(5)
    truth = np.mean([chance.uniform(0.1, 0.9) for _ in range(60)]) * (1 + 1 / np.log2(3) + 1 / 2)
    off = {key: value / truth - 1 for key, value in values.items()}
    assert max(abs(off[found["measure"], device]) for device in ("", "desk", "phone")) < 0.06
    assert off[found["every"]["measure"], "desk"] - off[found["every"]["measure"], "phone"] > 0.15


def test_a_changed_page_is_fitted_against_the_same_items_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the last fifth of the requests only one in ten looks below rank 1."""
    url = f"sqlite:///{tmp_path}/shop.db"
    fill(url)
    since = START + 20 * 3200
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"DELETE FROM clicks WHERE at >= {since} AND substr(request, -1) <> '0' AND EXISTS "
            "(SELECT 1 FROM shown AS s WHERE s.request = clicks.request AND s.item = clicks.item AND s.place > 0)"
        )
    engine.dispose()
    asked = ["examination", "fit", "search", *TO, "--since", str(since)]
    nothing_to_read = configured(tmp_path, f"sqlite:///{tmp_path}/empty.db")
    assert cli.run([*asked, *nothing_to_read]) == 2
    assert "--since needs a measure corrected down to rank 3" in capsys.readouterr().err
    assert cli.run([*asked, *configured(tmp_path, url)]) == 2
    assert "--since needs a measure corrected down to rank 3" in capsys.readouterr().err
    given = configured(tmp_path, url, measure='"dcg(examination={1:1,2:0.6,3:0.3})@3"')
    assert cli.run([*asked, "--format", "json", *given]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    for rank, look in zip(ranks, (1, 0.06, 0.03), strict=True):
        assert rank["lower"] < look < rank["upper"]
    assert ranks[0]["upper"] < 1.25
    assert ranks[1]["upper"] < 0.2
    assert cli.run([*asked, *given]) == 0
    assert "relative to the first before 2026-01-01 17:46 UTC, from 800 requests in 2 days" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("of_the_log", "said"),
    [
        ("query = 'q3'", "Warning: it is based on effectively 1.0 queries; examination may differ for others."),
        ("CAST(substr(request, 2) AS INTEGER) < 60", "Warning: examination at rank 2 is known only from 0."),
        ("CAST(substr(request, 2) AS INTEGER) < 60", "so it is unclear whether they stop at one."),
    ],
)
def test_fit_warns_if_it_rests_on_little_data(
    of_the_log: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    fill(url)
    given = configured(tmp_path, url)
    assert cli.run(["examination", "fit", "search", *TO, *given]) == 0
    assert "Warning" not in capsys.readouterr().out
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DELETE FROM shown WHERE NOT ({of_the_log})")
    engine.dispose()
    assert cli.run(["examination", "fit", "search", *TO, *given]) == 0
    assert said in capsys.readouterr().out


def test_fit_warns_of_a_dominant_click_and_clip_limits_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    fill(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "DELETE FROM clicks WHERE substr(request, -2) <> '00' AND EXISTS (SELECT 1 FROM shown AS s "
            "WHERE s.request = clicks.request AND s.item = clicks.item AND s.place = 2)"
        )
    engine.dispose()
    given = configured(tmp_path, url)
    assert cli.run(["examination", "fit", "search", *TO, *given]) == 0
    told = capsys.readouterr().out
    assert "Warning: a click at rank 3 counts as much as " in told
    assert "at the first, so a few clicks move the measure. Use more days, or fewer ranks: --depth 2." in told
    (line,) = (line for line in told.splitlines() if "measures:" in line)
    assert cli.run(["examination", "fit", "search", *TO, "--clip", "5", "--format", "json", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measure"].endswith(",3:0.2})@3")
    assert found["ranks"][2]["value"] < 0.01
    assert 0 < found["clipped"] < 0.01
    assert cli.run(["examination", "fit", "search", *TO, "--clip", "5", *given]) == 0
    told = capsys.readouterr().out
    assert re.search(r"Clipped: 0\.\d % of the clicks would count more than 5 at the first\.", told)
    assert "counts as much as" not in told
    for measure, is_warned in ((yaml.safe_load(line)["measures"][0], True), ("ndcg@3", False)):
        assert cli.run(["check-config", *configured(tmp_path, url, measure=json.dumps(measure))]) == 0
        assert ("so a few clicks move it; cut it off where more people look, e.g. @2" in capsys.readouterr().err) is (
            is_warned
        )


def test_fit_uses_swaps_between_model_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of the two versions always shows one order, and the two orders differ."""
    chance, url = random.Random(7), f"sqlite:///{tmp_path}/shop.db"
    fill(url, 1)
    shown, clicks = [], []
    for number in range(8000):
        version, query, at = chance.choice("ab"), f"q{chance.randrange(20)}", START + 10 * number
        for place, item in enumerate((0, 1, 2) if version == "a" else (2, 0, 1)):
            shown.append((f"p{number}", f"i{item}", place, query, at, 0, version))
            clicks += [(f"p{number}", f"i{item}", "click", at + 5)] * (chance.random() < LOOKS[place] * 0.5)
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.executemany("INSERT INTO shown VALUES (?,?,?,?,?,?,?)", shown)
        db.executemany("INSERT INTO clicks VALUES (?,?,?,?)", clicks)
    given = configured(tmp_path, url)
    path = Path(given[1])
    text = path.read_text(encoding="utf-8").replace(" query: query,", " query: query, model_version: device,")
    path.write_text(text, encoding="utf-8")
    assert cli.run(["examination", "fit", "search", *TO, "--format", "json", *given]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert all(one["lower"] <= look <= one["upper"] for one, look in zip(ranks, LOOKS, strict=True))
    assert cli.run(["examination", "fit", "search", *TO, "--by", "model_version", *given]) == 0
    assert "search, model_version=a: not enough swaps at rank 2" in capsys.readouterr().out


def test_lists_personalised_by_slice_are_compared_within_the_slice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Phones want most what desks want least. Both see their favourites on top, except in 30 % of the lists."""
    chance, url = random.Random(6), f"sqlite:///{tmp_path}/shop.db"
    fill(url, 1)
    shown, clicks = [], []
    for number in range(8000):
        device = chance.choice(("desk", "phone"))
        attractiveness = dict(zip(range(3), (0.8, 0.5, 0.2) if device == "desk" else (0.2, 0.5, 0.8), strict=True))
        items = sorted(attractiveness, key=attractiveness.__getitem__, reverse=True)
        items = chance.sample(items, 3) if chance.random() < 0.3 else items
        query, at = f"q{chance.randrange(20)}", START + 10 * number
        for place, item in enumerate(items):
            shown.append((f"p{number}", f"i{item}", place, query, at, 0, device))
            clicks += [(f"p{number}", f"i{item}", "click", at + 5)] * (
                chance.random() < LOOKS[place] * attractiveness[item]
            )
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.executemany("INSERT INTO shown VALUES (?,?,?,?,?,?,?)", shown)
        db.executemany("INSERT INTO clicks VALUES (?,?,?,?)", clicks)
    given, looks = configured(tmp_path, url), {}
    path = Path(given[1])
    for slices in ("", "    slices: [device]\n"):
        path.write_text(path.read_text(encoding="utf-8") + slices, encoding="utf-8")
        assert cli.run(["examination", "fit", "search", *TO, "--format", "json", *given]) == 0
        looks[bool(slices)] = json.loads(capsys.readouterr().out)["ranks"]
    assert all(one["lower"] <= look <= one["upper"] for one, look in zip(looks[True], LOOKS, strict=True))
    assert looks[False][2]["upper"] < LOOKS[2] < 1.2 * looks[True][2]["value"]


def test_the_measure_of_rarely_examined_ranks_can_be_parsed() -> None:
    value = np.array([1.0, 0.123456, 3.2e-6])
    none = np.zeros(3)
    measure = corrected(Examination(value, np.zeros((2, 2)), none.astype(int), none, 0.0), {})
    assert measure == "dcg(examination={1:1,2:0.1235,3:3.2e-06})@3"
    assert str(parse(measure)) == measure


@pytest.mark.parametrize("relevance", [EVENTS, "column: {grade: clicked, max_grade: 1}"])
def test_requests_in_random_order_suffice_to_estimate_examination(
    database_url: str, relevance: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(database_url, swaps=False, drawn=0.25)
    to = ["examination", "fit", "search", *TO]
    given = with_slices(configured(tmp_path, database_url, relevance), "device")
    assert cli.run([*to, "--random", "device=drawn", "--format", "json", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(one["lower"] <= look <= one["upper"] for one, look in zip(found["ranks"], LOOKS, strict=True))
    assert 900 < found["requests"] < 1100
    assert [one["swaps"] for one in found["ranks"]] == [20, 20, 20]
    assert 0 == found["ranks"][0]["enough"] < found["ranks"][1]["enough"] < found["ranks"][2]["enough"]
    assert found["measure"].startswith("dcg(examination={1:1,2:0.")
    assert cli.run([*to, "--random", "device=drawn", *given]) == 0
    told = capsys.readouterr().out
    assert f"from {found['requests']:,} requests in 2 days with device=drawn" in told
    assert "that these lists are in random order, and that people trust no rank" in told
    assert re.search(r"rank +examination +from +to +queries +requests for 10 %", told)
    assert "Warning" not in told


def test_requests_in_random_order_give_examination_per_slice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    fill(url, drawn=0.5, swaps=False)
    given = with_slices(configured(tmp_path, url), "device, query")
    asked = ["examination", "fit", "search", *TO, "--by", "query", "--random", "device=drawn", "--format", "json"]
    assert cli.run([*asked, *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["slices"]) == 20
    assert sum(one["requests"] for one in found["slices"]) == found["every"]["requests"]
    assert all(one["random"] == "device=drawn" for one in (found["every"], *found["slices"]))


def test_an_unusable_random_option_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    fill(url, 500, swaps=False, drawn=0.5)
    given = configured(tmp_path, url)
    asked = ["examination", "fit", "search", *TO]
    assert cli.run([*asked, "--random", "device=drawn", *given]) == 2
    assert "search has no slice 'device'; it has no `slices:`" in capsys.readouterr().err
    with_slices(given, "device")
    for random_, said in (
        ("devise=drawn", "search has no slice 'devise'; did you mean 'device'?"),
        ("device=true", "no request has 'true' in the column 'device'; it has desk, drawn"),
        ("device", "--random is a slice and a value of it, such as is_random=true"),
        ("", "--random is a slice and a value of it, such as is_random=true"),
    ):
        assert cli.run([*asked, "--random", random_, *given]) == 2
        assert said in capsys.readouterr().err
    assert cli.run([*asked, "--random", "device=drawn", "--since", str(START + 9), *given]) == 2
    assert "use --random or --since" in capsys.readouterr().err
    assert cli.run(["examination", "fit", "search", "--to", "2025-01-01", "--random", "device=drawn", *given]) == 2
    assert "no request with a query in these 28 days" in capsys.readouterr().err
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute(
            "DELETE FROM clicks WHERE EXISTS "
            "(SELECT 1 FROM shown AS s WHERE s.request = clicks.request AND s.item = clicks.item AND s.place = 2)"
        )
    assert cli.run([*asked, "--random", "device=drawn", *given]) == 2
    assert "search: not enough clicks at rank 3 in 2" in capsys.readouterr().err


def test_fit_warns_of_sorted_lists_marked_as_random(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All lists are marked, but only a tenth is in random order, and the last item is rarely clicked."""
    url = f"sqlite:///{tmp_path}/shop.db"
    fill(url, 8000, swaps=False, drawn=0.1)
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("UPDATE shown SET device = 'drawn'")
        db.execute("DELETE FROM clicks WHERE item = 'i2' AND substr(request, -1) <> '0'")
    given = with_slices(configured(tmp_path, url), "device")
    assert cli.run(["examination", "fit", "search", *TO, "--random", "device=drawn", *given]) == 0
    told = capsys.readouterr().out
    assert (
        "Warning: examination at rank 3 differs from that estimated from items at several ranks; check whether device="
        in told
    )


@pytest.mark.parametrize("value", ["True", "1"])
def test_a_boolean_marks_random_requests_by_its_name_in_the_series(
    value: str, database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A boolean reads `True` from PostgreSQL and 1 from SQLite."""
    fill(database_url, 1000, swaps=False, drawn=0.5)
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE shown ADD COLUMN is_random BOOLEAN")
        connection.exec_driver_sql("UPDATE shown SET is_random = (device = 'drawn')")
    is_own = (value == "True") is (engine.dialect.name == "postgresql")
    engine.dispose()
    given = with_slices(configured(tmp_path, database_url), "is_random")
    assert cli.run(["examination", "fit", "search", *TO, "--random", f"is_random={value}", *given]) == (
        0 if is_own else 2
    )
    told = capsys.readouterr()
    assert ("with is_random=" in told.out) is is_own
    assert ("it has " in told.err) is not is_own
