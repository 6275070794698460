"""`rankmon report`: the last days as Markdown, as one HTML file, and as JSON."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.cli.commands.series import series_table
from monitor.cli.common import store_config, stored
from monitor.page.report import as_page, as_text
from monitor.page.words import utc
from monitor.series.partials import EMPTY, REQUESTS
from monitor.service.fall import ChartMark
from monitor.service.reporting import report
from monitor.store.schema import incidents
from monitor.types import OVERALL
from tests.cli.test_incidents_cli import filled, run, write
from tests.conditions.test_verdict_texts import Bench, bench, served_by
from tests.support.browser import browser
from tests.support.drift import Ranking, day
from tests.support.monitors import DAY

__all__ = ["bench", "filled"]


def told(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(folder, "report", *arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_values_equal_the_series_for_this_period_and_the_one_before(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = json.loads(told(filled, capsys, "--format", "json", "--last", "2d"))
    assert found["until"] - found["since"] == 2 * DAY
    config = store_config(filled / "rankmon.yaml")
    (monitor,) = config.monitors
    with stored(config) as store:
        span = (found["until"] - 3 * DAY, found["until"])
        table = series_table(store, monitor, monitor.measures, [2 * DAY], span, monitor.bucket)
    by_end = {int(end.timestamp()): value for end, value in zip(table["end"], table["value"], strict=True)}
    (value,) = found["values"]
    assert value["measure"] == "ndcg@10"
    assert value["value"] == pytest.approx(by_end[found["until"]])
    assert value["before"] == pytest.approx(by_end[found["since"]])
    assert value["lower"] < value["value"] < value["upper"]
    with stored(config) as store:
        daily = series_table(store, monitor, monitor.measures, [DAY], span, monitor.bucket)
    known = {int(end.timestamp()): value for end, value in zip(daily["end"], daily["value"], strict=True)}
    ends = [found["until"] - DAY, found["until"]]
    assert [(one["end"], one["value"]) for one in value["days"]] == [(end, pytest.approx(known[end])) for end in ends]


def test_only_incidents_open_in_the_period_are_reported(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    write(tmp_path, "http://127.0.0.1:9/")
    assert run(tmp_path, "incidents list", "--format", "json") == 0
    (incident,) = json.loads(capsys.readouterr().out)
    assert run(tmp_path, "incidents label", incident["id"], "right", "--by", "ada") == 0
    capsys.readouterr()
    text = told(tmp_path, capsys, "--last", "2d")
    assert re.search(rf"\| {incident['id']} \| critical: ndcg@10 .* \| 2026-02-0\d .*, open \| no \| right \|", text)
    assert "1 incident: 1 on quality (none notified); 1 open now. Labelled: 1 right." in text
    assert "What to do: " in text
    config = store_config(tmp_path / "rankmon.yaml")
    with stored(config) as store:
        assert store.alerts.incidents("shop", most=5)
        past = report(config.monitors[0], store, DAY)
        assert [one.id for one in past.incidents] == [incident["id"]]
        assert past.incidents[0].lasted == past.until - incident["began_at"]
        late = sa.update(incidents).values(opened_at=past.until + 60)
        for state, found in (("firing", 1), ("resolved", 0)):
            with store.writing() as connection:
                connection.execute(late.values(state=state, closed_at=None if state == "firing" else past.until + 90))
            assert len(report(config.monitors[0], store, DAY).incidents) == found


def test_the_html_page_is_self_contained_and_matches_the_text(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(filled, capsys, "--format", "html", "-o", str(tmp_path / "report.html")) == ""
    page, text = (tmp_path / "report.html").read_text(encoding="utf-8"), told(filled, capsys)
    open_tags = list[str]()

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not any(name in ("src", "href") and (value or "").startswith("http") for name, value in attrs)
            if tag not in ("meta", "link", "br", "path", "line", "circle", "rect"):
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if open_tags and open_tags[-1] == tag:
                open_tags.pop()

    Checker().feed(page)
    assert open_tags == []
    for cell in re.findall(r"\| (device=\w+|ndcg@10) \|", text):
        assert f"<td>{cell}</td>" in page


def test_verdicts_are_counted_and_outside_text_is_escaped(bench: Bench) -> None:
    bench.live(Ranking.of(34).since(32, mean=0.8, slices=[1]).draw(), 32, 33.5)
    found = report(bench.monitor, bench.store, 7 * DAY)
    assert found.until == day(33.5)
    hours = {one.verdict: one for one in found.verdicts}
    assert sum(one.hours for one in found.verdicts) == 7 * 24
    assert 24 < hours["degraded"].hours < hours["healthy"].hours
    fallen, level = hours["degraded"].value, hours["healthy"].value
    assert fallen is not None
    assert level is not None
    whole = next(one.value for one in found.values if one.measure == found.judged)
    assert fallen < (whole or 0.0) < level
    assert [(one.told, one.closed_at) for one in found.incidents] == [(True, None)]
    (moved, *_) = found.slices
    assert moved.key == ("device", "slice 1")
    assert found.by_matter == {"quality": (1, 1)}
    odd = replace(found, slices=(replace(moved, key=("device", "<b>|")),))
    text, page = "\n".join(as_text([odd])), as_page([odd])
    assert "1 incident: 1 on quality (1 notified); 1 open now. 1 incident waits for your verdict: was the " in text
    assert "so it is wide after one. Verdicts judge ndcg(empty=zero)@10: " in text
    assert "| device=\\<b>\\| |" in text
    assert "<td>device=&lt;b&gt;|</td>" in page
    assert "expected at the same mix" in page


def test_a_model_version_is_marked_however_old(bench: Bench) -> None:
    served_by(bench, lambda start: "v2" if start >= day(18) else "v1")
    bench.live(Ranking.of(34).draw(), 34, 34)
    found = report(bench.monitor, bench.store, 28 * DAY)
    assert found.snapshot.came == ((day(18), "v2"),)
    assert f'<span class="mark">version v2, {utc(day(18))}' in as_page([found])
    assert found.marks == ((day(18), "version v2"),)
    assert f"Changes: version v2, {utc(day(18))}.\n" in "\n".join(as_text([found]))
    odd = replace(found, marks=(ChartMark(day(20), "<b>|"), *found.marks))
    assert f"Changes: \\<b>\\|, {utc(day(20))}; version v2, {utc(day(18))}." in "\n".join(as_text([odd]))
    assert f"<li>&lt;b&gt;|, {utc(day(20))}</li>" in as_page([odd])


def test_a_version_with_all_requests_is_not_a_moved_slice(bench: Bench) -> None:
    served_by(bench, lambda start: "v2" if start >= day(18) else "v1")
    bench.live(Ranking.of(34).since(32, mean=0.8, slices=[1]).draw(), 32, 33.5)
    found = report(bench.monitor, bench.store, 7 * DAY)
    assert found.slices[0].key == ("device", "slice 1")
    assert "model_version" not in {one.key[0] for one in found.slices}


def test_an_incident_in_the_comparison_period_is_reported_and_left_out(bench: Bench) -> None:
    bench.live(Ranking.of(36).since(32, mean=0.8, slices=[1]).draw(), 32, 36)
    late, early = (report(bench.monitor, bench.store, days * DAY) for days in (2, 7))
    (began,) = {one.began_at for one in (*late.incidents, *early.incidents)}
    assert (late.in_comparison, early.in_comparison) == (late.since - max(began, late.since - 2 * DAY), 0)
    assert "In the 2 d before, an incident on quality or data was open for " in "\n".join(as_text([late]))
    assert "compare with care" not in "\n".join(as_text([early]))
    (late_one, *_), (early_one, *_) = late.slices, early.slices
    assert late_one.key == early_one.key == ("device", "slice 1")
    assert late_one.change == pytest.approx(-0.2, abs=0.06), "against the days before the fall"


def test_skipped_requests_are_not_counted_in_the_mean(filled: Path) -> None:
    config = store_config(filled / "rankmon.yaml")
    (monitor,) = config.monitors
    with stored(config) as store:
        found = report(monitor, store, 2 * DAY)
        of_both = store.history(monitor.definition(monitor.measures[0]), found.since, found.until).slice(OVERALL)
    requests, empty = (int(of_both[:, place].sum()) for place in (REQUESTS, EMPTY))
    assert 0 < empty < requests
    assert found.values[0].requests == requests - empty


def test_the_judged_measure_has_its_own_row(bench: Bench) -> None:
    bench.live(Ranking.of(34).since(32, mean=0.8, slices=[1]).draw(), 32, 33.5)
    found = report(bench.monitor, bench.store, 7 * DAY)
    assert found.judged == found.moved == "ndcg(empty=zero)@10"
    assert [one.measure for one in found.values] == ["ndcg@10", "ndcg(empty=zero)@10"]
    assert all(one.title.startswith("ndcg(empty=zero)@10 down ") for one in found.incidents)


def test_the_printed_report_starts_on_the_first_page(bench: Bench, tmp_path: Path) -> None:
    bench.live(Ranking.of(34).since(32, mean=0.8, slices=[1]).draw(), 32, 33.5)
    (tmp_path / "report.html").write_text(as_page([report(bench.monitor, bench.store, 7 * DAY)]), encoding="utf-8")
    with browser() as chromium:
        chromium.open(f"file://{tmp_path}/report.html")
        printed = b64decode(chromium.ask("Page.printToPDF")["data"])
        assert len(re.findall(rb"/Type /Page\b", printed)) <= 2
        chromium.ask("Emulation.setEmulatedMedia", media="print")
        first = "document.querySelector('table').getBoundingClientRect()"
        assert chromium.see(f"{first}.top") < 300
        assert chromium.see("document.documentElement.scrollWidth") <= 1100


def test_report_refuses_what_it_cannot_cover_or_write(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "report", "-o", "/nowhere/report.md") == 2
    assert "cannot write /nowhere/report.md: No such file or directory" in capsys.readouterr().err
    assert run(filled, "report", "--last", "90m") == 2
    assert "shop: a report covers a multiple of the bucket, 1h" in capsys.readouterr().err
    write(tmp_path, "http://127.0.0.1:9/")
    shutil.copy(filled / "shop.db", tmp_path)
    assert run(tmp_path, "migrate") == 0
    assert run(tmp_path, "report") == 2
    assert "shop: no final bucket is stored yet; run once or backfill" in capsys.readouterr().err
