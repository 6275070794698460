"""What the page says about a monitor in each state, and that outside text never becomes markup."""

import gzip
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import pytest

from monitor.cli.commands.incidents import line
from monitor.conditions.rules import COVERAGE, Floor, Rule
from monitor.conditions.versions import NewVersion
from monitor.measures.measure import parse
from monitor.messages.notification import About, notification
from monitor.page import render, render_monitor
from monitor.page.chart import Line, Plot, ShadedPeriod, plot, spark, ticks_of
from monitor.page.figures import overview_spark, stretches, thinned
from monitor.page.state import KINDS, history_now, states_of
from monitor.service.snapshot import MonitorSnapshot, StoredIncident
from monitor.store import Store
from monitor.types import Drift, Judgments, Relation
from tests.support.notices import DROP, SLICE, of_kind
from tests.support.pages import DAY, RULE, START, PageSource, fell, fill, shown, watched
from tests.support.tallies import HOUR

END = START + 20 * DAY
FALL, RISE = END - 3 * DAY, END - DAY
V2 = NewVersion("v2", "v1", FALL, FALL, HOUR, None, 1.0, 0.0)
HOSTILE = "<script>alert('x')</script>\"&{{ 7*7 }}"


def snapshot_at(store: Store, end: int, rise: int = RISE) -> MonitorSnapshot:
    """Everything up to `end` is read and judged; mobile falls on 18 January."""
    monitor = watched(runbook_url="https://wiki.example.com/search")
    fill(store, monitor, range(START, end, HOUR), fell(FALL, rise))
    store.record(monitor.name, last_success_at=end - 60.0, newest_source_at=end - 120.0)
    return shown(store, monitor, end)


def page(snapshot: MonitorSnapshot, now: float) -> str:
    return render(PageSource.of(now, snapshot))


def words(snapshot: MonitorSnapshot, now: float) -> list[tuple[str, str]]:
    return [(s.kind, s.words) for s in states_of(snapshot, now)]


# ---- states --------------------------------------------------------------------------------------------------------


def test_a_healthy_monitor_shows_ok_and_no_past_incidents(store: Store) -> None:
    snapshot = snapshot_at(store, FALL)
    assert words(snapshot, FALL) == [("ok", "OK")]
    assert "No past incidents." in page(snapshot, FALL)


def test_a_monitor_without_rules_says_it_has_none(store: Store) -> None:
    monitor = watched(alerts=())
    fill(store, monitor, range(START, END, HOUR), fell(0, 0))
    assert words(shown(store, monitor, END), END) == [("unwatched", "Running; no alert rules")]


def test_a_monitor_is_not_ok_while_its_baseline_is_too_short(store: Store) -> None:
    snapshot = snapshot_at(store, START + 3 * DAY)
    assert words(snapshot, START + 3 * DAY) == [("unwatched", "Not judged yet: baseline too short")]


def test_a_drift_monitor_turns_green_only_after_a_first_verdict(store: Store) -> None:
    by_verdicts = watched(alerts=(), drift=Drift(parse("ndcg@10"), mix_by="device"))
    at = START + 3 * DAY
    fill(store, by_verdicts, range(START, at, HOUR), fell(0, 0))
    snapshot = shown(store, by_verdicts, at)
    ((kind, said),) = words(snapshot, at)
    assert kind == "unwatched"
    assert re.match(r"Not judged yet: not enough data, still needs a first reference: \d of 14 days", said)
    assert "✓" not in page(snapshot, at).partition("</style>")[2]
    assert words(replace(snapshot, verdict=None), at) == [("unwatched", "Not judged yet: not enough data")]
    fill(store, by_verdicts, range(at, START + 20 * DAY, HOUR), fell(0, 0))
    assert words(shown(store, by_verdicts, START + 20 * DAY), START + 20 * DAY) == [("ok", "OK")]


def test_a_pending_rule_shows_since_when(store: Store) -> None:
    at = FALL + 17 * HOUR
    ((kind, text),) = words(snapshot_at(store, at), at)
    assert kind == "pending"
    assert text.startswith("Pending since 2022-01-18")


def test_a_firing_monitor_shows_everything_on_call_needs(store: Store) -> None:
    at = FALL + 30 * HOUR
    snapshot = snapshot_at(store, at)
    assert snapshot.incident is not None
    incident = snapshot.incident.incident
    assert words(snapshot, at)[0] == ("critical", "Firing since 2022-01-18 19:00 UTC")
    said = page(snapshot, at)
    assert re.search(r"<h3>ndcg@10 down 1\d\.\d %, from 0\.\d+ to 0\.700</h3>", said)
    for text in (
        f'id="incident-{incident.id}"',
        "not acknowledged",
        "fired 2022-01-18 19:00 UTC",
        "device=mobile from 0.7",
        "roll it back; if nothing did, retrain",
        'href="https://wiki.example.com/search"',
    ):
        assert text in said


def test_the_overview_shows_the_measure_that_fires(store: Store) -> None:
    """Regression: the overview showed the rule's healthy measure while a verdict fired on another one."""
    snapshot = snapshot_at(store, FALL + 30 * HOUR)
    assert snapshot.incident is not None
    (known, *_) = snapshot.histories
    of_verdict = replace(known, measure=parse("dcg@10"), rules=())
    fires = replace(snapshot.incident, findings=(replace(snapshot.incident.findings[0], judged="dcg@10"),))
    both = replace(snapshot, histories=(known, of_verdict))
    assert history_now(both) is known
    assert history_now(replace(both, opened={"quality": fires})) is of_verdict


def test_an_incident_shows_five_lines_above_its_details(store: Store) -> None:
    at = FALL + 30 * HOUR
    said = page(snapshot_at(store, at), at)
    block = said.partition("<section ")[2].partition("</section>")[0]
    heads = re.findall(r"<h3>|<b>([A-Z][\w ]+):</b>", block)
    assert heads == ["", "Since", "Where", "What to do", "State"]
    assert block.index("<b>State:</b>") < block.index("<details")


def test_a_rule_lists_the_slices_it_cannot_judge(store: Store) -> None:
    demanding = replace(RULE, min_requests=60 * 24, slices=(("device", None),))
    monitor = watched(alerts=(demanding,))
    fill(store, monitor, range(START, END, HOUR), fell(0, 0))
    said = page(shown(store, monitor, END), END)
    assert "<dt>Rule drop cannot be judged: too few requests</dt>" in said
    assert "device=desktop, device=mobile</dd>" in said


def test_the_page_shows_who_acknowledged_and_the_end_of_the_silence(store: Store) -> None:
    at = FALL + 30 * HOUR
    first = snapshot_at(store, at)
    assert first.incident is not None
    store.alerts.acknowledge(first.incident.incident.id, "ada", HOSTILE, float(at))
    store.alerts.silence("search", time.time() - 5, time.time() + 3600, "ada", "")
    said = page(shown(store, first.monitor, at), at)
    assert "acknowledged by <b>ada</b> at 2022-01-19 06:00 UTC" in said
    assert "<b>Silenced</b> until" in said
    assert "<script>" not in said


def test_the_page_says_why_retraining_is_not_recommended(store: Store) -> None:
    at = FALL + 30 * HOUR
    snapshot = replace(snapshot_at(store, at), no_retraining_as="it has lasted 3 h of 1 d")
    assert "Retraining is not recommended now: it has lasted 3 h of 1 d." in page(snapshot, at)


def test_a_retrain_recommendation_is_shown(store: Store) -> None:
    at = FALL + 30 * HOUR
    snapshot = replace(snapshot_at(store, at), recommends_retraining=True)
    said = page(snapshot, at)
    assert "<b>Retraining:</b> Recommended, unless something that changed when it fell can be rolled back." in said


def test_a_rollback_takes_precedence_over_retraining(store: Store) -> None:
    at = FALL + 30 * HOUR
    snapshot = replace(snapshot_at(store, at), recommends_retraining=True)
    assert snapshot.incident is not None
    blamed = replace(snapshot.incident, findings=(of_kind("degraded", DROP, since=0, new_version=V2),))
    said = page(replace(snapshot, opened=MappingProxyType({"quality": blamed})), at)
    assert "first consider rolling model version v2 back to v1" in said
    assert "<b>Retraining:</b> Not yet: first roll back v2; retrain only if" in said
    assert "ecommended" not in said


def test_a_possible_recovery_is_shown_after_figures_and_advice(store: Store) -> None:
    at = FALL + 30 * HOUR
    snapshot = snapshot_at(store, at)
    assert snapshot.incident is not None
    rising = of_kind("degraded", DROP, well_for=5 * HOUR)
    slice_ = of_kind("degraded", SLICE)
    rises = replace(snapshot.incident, findings=(rising, slice_))
    said = page(replace(snapshot, opened=MappingProxyType({"quality": rises})), at)
    told = "not sure yet); ndcg@10 for device=mobile still fires, 21.4 % down.</p>"
    assert said.index("<b>What to do:</b>") < said.index("</ul>") < said.index(told)


def test_the_page_repeats_where_and_what_to_do_from_the_message(store: Store) -> None:
    at = FALL + 30 * HOUR
    snapshot = snapshot_at(store, at)
    assert snapshot.incident is not None
    told = notification("updated", About("search"), snapshot.incident.incident, snapshot.incident.findings, 1)
    assert "device=mobile" in told.line("Where")
    for name in ("Where", "What to do"):
        assert f"<b>{name}:</b> {told.line(name)}" in page(snapshot, at)


@pytest.mark.parametrize("hours", [6, 7, 20, 72, 168, 200, 324, 900, 2000])
def test_a_chart_has_three_to_seven_date_ticks(hours: int) -> None:
    since = FALL + 16 * HOUR
    assert 3 <= len(ticks_of(since, since + hours * HOUR)) <= 7


def test_an_incident_has_the_same_length_wherever_it_is_shown(store: Store) -> None:
    at = FALL + 30 * HOUR
    snapshot = snapshot_at(store, at)
    assert snapshot.incident is not None
    ends = {"search": snapshot.judged_until}
    assert line(snapshot.incident, ends["search"]).endswith(
        "bad since 2022-01-18 14:00 UTC, fired 2022-01-18 19:00 UTC, open for 16 h (judged until 2022-01-19 06:00 UTC)"
    )
    later = page(snapshot, at + 3 * HOUR)
    until = "for 16 h (judged until 2022-01-19 06:00 UTC)"
    assert f"<b>Since:</b> 2022-01-18 14:00 UTC, {until}; fired 2022-01-18 19:00 UTC" in later
    assert ">incident since 18 Jan 14:00</text>" in later
    just_begun = replace(snapshot.incident, incident=replace(snapshot.incident.incident, began_at=at), findings=())
    assert "open for" not in line(just_begun, at)


def test_a_chart_captions_only_incidents_visible_in_it(store: Store) -> None:
    snapshot = snapshot_at(store, END)
    (past,) = snapshot.incidents
    until = snapshot.histories[0].drawn[-1].end
    new = replace(
        past, incident=replace(past.incident, began_at=until, opened_at=until, state="firing", closed_at=None)
    )
    shaded = stretches(snapshot.histories[0], (new, past))
    assert [s.words for s in shaded] == ["incident on 18 Jan 14:00, lasted 2 d 3 h"]


def test_captions_of_neighbouring_incidents_do_not_overlap(store: Store) -> None:
    snapshot = snapshot_at(store, END)
    (past,) = snapshot.incidents
    first, last = snapshot.histories[0].drawn[0].end, snapshot.histories[0].drawn[-1].end

    def between(begin: float, end: float) -> StoredIncident:
        began, closed = (int(first + share * (last - first)) for share in (begin, end))
        about = replace(past.incident, began_at=began, opened_at=began, closed_at=None if end == 1 else closed)
        return replace(past, incident=about)

    for older, is_told in (((0.5, 0.7), False), ((0.3, 0.6), True)):
        shaded = stretches(snapshot.histories[0], (between(0.9, 1), between(*older)))
        assert [bool(s.words) for s in shaded] == [is_told, True]


def test_a_slice_new_since_the_fall_is_compared_with_the_others_and_shows_no_change(store: Store) -> None:
    monitor = watched()
    at = FALL + 30 * HOUR
    fill(store, monitor, range(START, at, HOUR), lambda start, name: _version(start, name), ("v1", "v2"))
    snapshot = shown(store, monitor, at)
    assert snapshot.incident is not None
    new, old = snapshot.series[0].comparison.slices
    assert (new.key[1], new.since, new.before, new.change) == ("v2", FALL, None, None)
    assert (new.value, new.others, new.against_others) == pytest.approx((0.6, 0.8, -0.25))
    assert (old.since, old.before) == (None, pytest.approx(0.8))
    said = page(snapshot, at)
    assert "new since 2022-01-18 00:00 UTC; the others 0.800 in the same hours (-25.0 %)" in said
    row = said.partition('<th scope="row">device = v2</th>')[2].partition("</tr>")[0]
    assert row.startswith("<td>–</td>")
    assert "0.0000" not in row


def _version(start: int, name: str) -> float | None:
    """Two versions: the second starts serving when the fall starts and is worse from its first hour."""
    if name == "v1":
        return 0.8
    return None if start < FALL else 0.6


def test_the_page_escapes_its_notice_and_shows_it_in_title_and_heading(store: Store) -> None:
    at = FALL + 30 * HOUR
    pictured = PageSource.of(at, snapshot_at(store, at))
    pictured.notice = "All <made> up"
    said = render(pictured)
    assert "<title>rankmon (All &lt;made&gt; up)</title>" in said
    assert "<strong>All &lt;made&gt; up</strong>" in said


def test_a_past_incident_lists_its_start_state_and_depth(store: Store) -> None:
    snapshot = snapshot_at(store, END)
    assert words(snapshot, END) == [("ok", "OK")]
    (past,) = snapshot.incidents
    row = page(snapshot, END).partition(f'<tr id="incident-{past.incident.id}">')[2].partition("</tr>")[0]
    for text in (
        "2022-01-18 14:00 UTC",
        "critical",
        "0.700 (",
        "ndcg@10, rule drop",
        "resolved",
        f'href="incidents/{past.incident.id}"',
    ):
        assert text in row


def test_missing_labels_are_shown_with_their_usual_share(store: Store) -> None:
    monitor = watched(alerts=(Rule("labels", None, DAY, Floor(0.3, 0.3), severity="warning"),))
    fill(store, monitor, range(START, FALL, HOUR), fell(0, 0))
    fill(store, monitor, range(FALL, END, HOUR), fell(0, 0), labelled=0.1)
    found = words(shown(store, monitor, END), END)
    assert found[0][0] == "warning"
    assert found[0][1].startswith("Labels missing, since")
    assert found[1] == ("labels", "Labels missing: 10.0 % have one, 100.0 % usually")
    assert COVERAGE in page(shown(store, monitor, END), END)


def test_missing_judgments_are_shown_as_a_share_of_items(store: Store) -> None:
    labels = Rule("labels", None, DAY, Floor(0.3, 0.3), severity="warning")
    monitor = replace(watched(alerts=(labels,)), recipe=Judgments(Relation(("judged",)), "query", "item", "grade"))
    fill(store, monitor, range(START, FALL, HOUR), fell(0, 0))
    fill(store, monitor, range(FALL, END, HOUR), fell(0, 0), labelled=0.1)
    snapshot = shown(store, monitor, END)
    told = [text for kind, text in words(snapshot, END) if kind == "labels"]
    assert told == ["Judgments missing: 10.0 % of items have one, 100.0 % usually"]
    shown_ = page(snapshot, END)
    assert "<dt>Items with a judgment</dt>" in shown_
    assert re.search(r"label coverage \(items with a judgment\) over 24h until [\d :-]+ UTC fell from", shown_)


def test_a_monitor_without_windows_says_no_data(store: Store) -> None:
    snapshot = shown(store, watched(), END)
    assert words(snapshot, END) == [("empty", "No data: no final window with enough data")]
    assert "no final window with enough data yet" in page(snapshot, END)
    unread = replace(snapshot, histories=())
    several = render(PageSource.of(END, unread, replace(unread, monitor=replace(watched(), name="other"))))
    assert several.count('soft">newest request never</span>') == 2


def test_an_incident_not_judged_since_dates_its_figures(store: Store) -> None:
    snapshot = snapshot_at(store, END, rise=END)
    assert snapshot.incident is not None
    assert "It has not been judged since" not in page(snapshot, END)
    later = [replace(r, evaluation=replace(r.evaluation, unknown="no value", end=END + DAY)) for r in snapshot.readings]
    held = page(replace(snapshot, readings=tuple(later)), END + DAY)
    assert "over 24h until 2022-01-21 00:00 UTC fell" in held
    assert "It has not been judged since." in held


def test_the_page_shows_a_stale_source_and_a_failing_run(store: Store) -> None:
    snapshot = snapshot_at(store, FALL)
    later = FALL + 4 * HOUR
    assert [kind for kind, _ in words(snapshot, later)] == ["failing", "stale"]
    store.record("search", last_error=f"the source refuses {HOSTILE}")
    broken = shown(store, snapshot.monitor, FALL)
    assert words(broken, FALL)[0] == ("failing", "Failing; last success 2022-01-17 23:59 UTC")
    assert "the source refuses &lt;script&gt;" in page(broken, FALL)


def test_a_source_turns_stale_only_after_stale_after(store: Store) -> None:
    snapshot = snapshot_at(store, FALL)
    quiet_at_night = replace(snapshot, monitor=replace(snapshot.monitor, stale_after=10 * HOUR, deadline=DAY))
    assert words(quiet_at_night, FALL + 10 * HOUR) == [("ok", "OK")]
    assert words(quiet_at_night, FALL + 11 * HOUR) == [("stale", "Source stale: no request since 2022-01-17 23:58 UTC")]
    never_quiet = replace(snapshot, monitor=replace(snapshot.monitor, stale_after=HOUR // 2, deadline=DAY))
    assert [kind for kind, _ in words(never_quiet, FALL + HOUR)] == ["stale"]


def test_a_fast_replay_turns_stale_only_after_a_real_minute(store: Store) -> None:
    snapshot = snapshot_at(store, FALL)
    assert [s.kind for s in states_of(snapshot, FALL + 4 * HOUR, speed=600)] == ["ok"]
    assert [s.kind for s in states_of(snapshot, FALL + 11 * HOUR, speed=600)] == ["failing", "stale"]


def test_every_kind_of_state_has_its_own_style() -> None:
    style = (Path(__file__).parents[2] / "monitor" / "page" / "templates" / "style.css").read_text(encoding="utf-8")
    plain = {"info", "unwatched"}  # these two have the default look
    assert [k for k in KINDS if f".state.{k}" not in style] == [k for k in KINDS if k in plain]


# ---- markup --------------------------------------------------------------------------------------------------------


class Outline(HTMLParser):
    """Elements and ids of a page; fails if elements are not closed in order."""

    VOID = frozenset({"meta", "link", "path", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.names: set[str] = set()
        self.targets: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.targets += [value or "" for name, value in attrs if name in ("href", "src", "aria-labelledby")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_outside_text_never_becomes_markup(store: Store) -> None:
    monitor = watched(labels=((HOSTILE, HOSTILE),))
    fill(store, monitor, range(START, END, HOUR), fell(FALL, RISE), devices=("mobile", HOSTILE))
    snapshot = replace(shown(store, monitor, END), refused=MappingProxyType({HOSTILE: 3}))
    outline = Outline(page(snapshot, END))
    assert not outline.names & {"script", "img", "iframe", "object"}
    assert "&lt;script&gt;" in page(snapshot, END)
    assert "{{ 7*7 }}" in page(snapshot, END)


def test_ids_are_unique_and_internal_links_have_targets(store: Store) -> None:
    first = snapshot_at(store, END)
    others = [replace(first, monitor=replace(first.monitor, name=n), incidents=()) for n in ("a.b-c", "main")]
    outline = Outline(render(PageSource.of(END, first, *others)))
    assert len(outline.ids) == len(set(outline.ids))
    for target in outline.targets:
        if target.startswith("#"):
            assert target[1:] in outline.ids


def test_a_chart_escapes_its_text() -> None:
    shown = Plot(
        HOSTILE, HOSTILE, HOSTILE, Line(HOSTILE, [0, DAY], [0.1, 0.2]), DAY, (), [ShadedPeriod(0, DAY, HOSTILE)]
    )
    assert "script" not in Outline(plot(shown)).names
    assert "script" not in Outline(spark([0.1], 0, 1, HOSTILE)).names


# ---- charts --------------------------------------------------------------------------------------------------------


def points_of(svg: str, name: str) -> list[list[tuple[float, float]]]:
    """The points of each path with this class."""
    paths = re.findall(f'<path class="{name}" d="M([^"]+)"', svg)
    return [[(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)] for path in paths]


def test_a_line_is_drawn_where_its_values_are() -> None:
    svg = plot(Plot("p", "t", "s", Line("v", [0, DAY, 2 * DAY], [0.0, 0.5, 1.0]), DAY))
    assert points_of(svg, "value") == [[(0, 300), (500, 150), (1000, 0)]]
    assert points_of(svg, "last") == [[(1000, 0)]]


def test_missing_points_leave_a_gap() -> None:
    svg = plot(Plot("p", "t", "s", Line("v", [0, 1, 2, 3, 9], [0.1, 0.2, None, 0.3, 0.4]), 1))
    assert [len(run) for run in points_of(svg, "value")] == [2, 1, 1]


def test_a_plot_by_rank_starts_its_scale_at_zero() -> None:
    line = Line("v", [1, 2], [1.0, 0.9], [1.0, 0.8], [1.0, 0.95])
    assert [Plot("p", "t", "s", line, 1, is_by_rank=by_rank).scale[0] for by_rank in (True, False)] == [0.0, 0.8]


def test_the_interval_is_a_band_and_limits_are_lines() -> None:
    line = Line("v", [0, 1], [0.5, 0.5], [0.4, 0.45], [0.6, 0.55])
    svg = plot(Plot("p", "t", "s", line, 1, [("baseline", [0.6, 0.6]), ("threshold", [None, 0.4])]))
    assert len(points_of(svg, "band")[0]) == 4
    assert [len(run) for run in points_of(svg, "baseline")] == [2]
    assert [len(run) for run in points_of(svg, "threshold")] == [1]


def test_an_incidents_shading_is_clipped_to_the_plot() -> None:
    line = Line("v", [0, 10], [0.1, 0.2])
    svg = plot(
        Plot("p", "t", "s", line, 10, (), [ShadedPeriod(5, 7, "a"), ShadedPeriod(-5, 1, "b"), ShadedPeriod(9, 99, "c")])
    )
    spans = re.findall(r'<rect class="incident" x="([\d.]+)" width="([\d.]+)"', svg)
    assert [(float(x), float(w)) for x, w in spans] == [(500, 200), (0, 100), (900, 100)]


def test_an_almost_constant_line_is_drawn_flat() -> None:
    low, high, _ = Plot("p", "t", "s", Line("v", [0, 1], [0.5, 0.500001]), 1).scale
    assert high - low >= 0.01


def test_the_overview_draws_small_variations_flat(store: Store) -> None:
    monitor = watched()
    fill(store, monitor, range(START, END, HOUR), lambda start, _: 0.8 + start // DAY % 2 / 1000)
    (run,) = points_of(overview_spark(shown(store, monitor, END).histories[0]), "value")
    heights = [y for _, y in run]
    assert max(heights) - min(heights) < 3  # the drawing is 24 high


def test_a_plot_without_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="no value"):
        plot(Plot("p", "t", "s", Line("v", [0], [None]), 1))


def test_a_thinned_trail_is_evenly_spaced_and_keeps_the_newest(store: Store) -> None:
    (trail,) = snapshot_at(store, END).histories
    few = thinned(trail, 40)
    assert len(few) <= 41
    assert few[-1].end == END
    assert len({b.end - a.end for a, b in pairwise(few[:-1])}) == 1


def test_a_trail_with_a_single_value_still_renders(store: Store) -> None:
    snapshot = snapshot_at(store, END)
    (trail,) = snapshot.histories
    blank = [replace(p, value=None) for p in trail.points]
    holey = replace(trail, points=(*blank[:7], trail.points[7], *blank[8:]), newest=blank[-1])
    assert render(PageSource.of(END, replace(snapshot, histories=(holey,) * 30)))


def test_a_chart_is_described_in_words(store: Store) -> None:
    said = page(snapshot_at(store, END), END)
    assert '<title id="plot:search:0-title">ndcg@10 over 24h of search</title>' in said
    assert "lowest 0.700 at" in said
    assert "1 incident in this time" in said


def test_short_windows_get_an_extra_plot_of_the_last_three_days(store: Store) -> None:
    monitor = watched(bucket=300, windows=(HOUR,), alerts=(replace(RULE, window=HOUR),))
    end = START + 2 * DAY
    fallen = end - 9 * HOUR + 1800  # between two points of the six-week plot
    fill(store, monitor, range(START, end, 300), fell(fallen, fallen + HOUR))
    said = page(shown(store, monitor, end), end)
    assert "<h4>The last 3d</h4>" in said
    assert '<title id="plot:search:0:recent-title">ndcg@10 over 1h of search, the last 3d</title>' in said
    assert ("A point every 4h." in said, "A point every 15m." in said) == (True, True)
    assert "lowest 0.700 at 2022-01-02 16:30 UTC" in said


def test_a_short_incident_shows_its_lowest_value_despite_thinning(store: Store) -> None:
    rule = Rule("low", RULE.measure, HOUR, Floor(0.75, 0.75), min_requests=1)
    monitor = watched(bucket=300, windows=(HOUR,), alerts=(rule,))
    end = START + 2 * DAY
    fallen = end - 9 * HOUR + 1800
    fill(store, monitor, range(START, end, 300), fell(fallen, fallen + HOUR))
    assert '<td class="number">0.700</td>' in page(shown(store, monitor, end), end)


# ---- many monitors -------------------------------------------------------------------------------------------------


def many(store: Store, count: int, devices: int = 2) -> PageSource:
    names = tuple(f"device-{i}" for i in range(devices))
    monitor = watched()
    fill(store, monitor, range(START, END, HOUR), lambda t, d: 0.5 + hash((t // DAY, d)) % 1000 / 3000, names)
    one = shown(store, monitor, END)
    return PageSource.of(END, *(replace(one, monitor=replace(monitor, name=f"m{i:03}")) for i in range(count)))


def test_a_few_monitors_are_shown_in_full_worst_first(store: Store) -> None:
    well = snapshot_at(store, END)
    bad = replace(well, monitor=replace(well.monitor, name="z"), progress=replace(well.progress, last_error="away"))
    said = render(PageSource.of(END, well, bad))
    assert said.index('href="#z"') < said.index('href="#search"')
    assert said.index('<article id="z"') < said.index('<article id="search"')


def test_the_overview_counts_further_states_and_dates_each_value(store: Store) -> None:
    at = FALL + 30 * HOUR
    fires = snapshot_at(store, at)
    failing = replace(fires, progress=replace(fires.progress, last_error="away"))
    said = render(PageSource.of(at, failing, replace(fires, monitor=replace(fires.monitor, name="z"))))
    overview = said.partition('<ol class="overview">')[2].partition("</ol>")[0]
    states = [state.words for state in states_of(failing, at)]
    assert len(states) > 1
    assert states[0] in overview
    assert states[1] not in overview.partition("#z")[0]
    assert f"and {len(states) - 1} more" in overview
    assert "24h until 2022-01-" in overview


def test_many_monitors_become_an_overview_that_keeps_notification_anchors(store: Store) -> None:
    served = many(store, 30)
    said = render(served)
    assert "<article" not in said
    for name in served.board.snapshots:
        assert f'<li id="{name}">' in said
        assert f'href="monitors/{name}"' in said
    detail = render_monitor(served, "m007")
    assert detail is not None
    assert '<article id="m007"' in detail
    assert 'href="../metrics"' in detail


def test_an_unknown_monitor_has_no_page(store: Store) -> None:
    assert render_monitor(PageSource.of(END, snapshot_at(store, END)), "none") is None


def test_pages_of_200_monitors_with_20_slices_stay_below_200_kb(store: Store) -> None:
    served = many(store, 200, devices=20)
    said, detail = render(served), render_monitor(served, "m000")
    assert detail is not None
    assert len(gzip.compress(said.encode(), 5)) < 200_000
    assert len(detail.encode()) < 200_000


def test_an_empty_board_says_no_snapshot_yet() -> None:
    assert "No monitor has a snapshot yet." in render(PageSource.of(END))
