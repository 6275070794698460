"""What people read: every kind of message word by word, and what no message may contain."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.conditions.assessment import Assessment
from monitor.conditions.evidence import Changed, ConcurrentChange, Evidence, SliceFall
from monitor.conditions.incident import Incident
from monitor.conditions.kinds.threshold import Unjudged
from monitor.conditions.rules import Floor, Rule
from monitor.conditions.versions import NewVersion, WeakVersion
from monitor.evaluation.incidents import RESTATED
from monitor.evaluation.run import REMOVED
from monitor.messages.explanation import advice, before_retraining, on_retraining, reason, sentence
from monitor.messages.notification import Kind, Notification, Since, notification
from monitor.messages.words import utc
from tests.evaluation.test_judging import Bench
from tests.support.monitors import new_store
from tests.support.notices import ABOUT, COVERAGE, DAY, DROP, FELL, FLOOR, HOUR, INCIDENT, SLICE, of_kind
from tests.support.tallies import RANKINGS, watched

GOLDEN = Path(__file__).parents[1] / "golden" / "messages.txt"
CLOSED = replace(INCIDENT, state="resolved", closed_at=FELL + 30 * HOUR)
WITHDRAWN = replace(CLOSED, state="withdrawn")
WELL = replace(DROP, end=FELL + 30 * HOUR, value=0.6921, lower=0.681, upper=0.703, coverage=0.42)
FEW_LABELS = replace(DROP, coverage=0.2)
HARDLY = replace(DROP, value=0.66, lower=0.65, upper=0.67, back_from=0.673)
WELL_FOR_NOW = replace(HARDLY, value=0.69, lower=0.68, upper=0.7, well_for=5 * HOUR, well_needed=12 * HOUR)
HELD = replace(WELL_FOR_NOW, unjudged=Unjudged("too few requests", 78, 100))
BY_ITEMS = replace(COVERAGE, by_items=True)
MOVED = replace(DROP, before=0.6812, before_when_fired=0.7016)
FOLLOWED = replace(WELL, value=0.6123, before=0.6181, threshold=0.5748, before_when_fired=0.7016, still_below=0.6525)
VERSION = NewVersion("v2", "v1", FELL - HOUR, FELL - HOUR, HOUR, None, 1.0, 0.0)
BLAMED = of_kind("degraded", DROP, new_version=VERSION)
NEW = SliceFall("model_version", "v2", None, 0.5212, 0.5)
SLICES = [replace(SLICE, slice=f"tablet-{n}", value=0.3 + n / 100) for n in range(12)]


def message(
    kind: Kind,
    findings: Sequence[Evidence] = (DROP,),
    incident: Incident = INCIDENT,
    reason: str = "",
    former: str | None = None,
) -> Notification:
    return notification(kind, ABOUT, incident, findings, 0, former, reason)  # type: ignore[arg-type]


MESSAGES = {
    "firing, drop": message("firing"),
    "firing, floor": message("firing", [FLOOR]),
    "firing, floor without a past": message("firing", [replace(FLOOR, before=None, coverage_before=None)]),
    "firing, hardly any history": message("firing", [replace(DROP, interval="sampling")]),
    "firing, overall and a slice": message("firing", [SLICE, DROP]),
    "firing, one slice": message("firing", [SLICE]),
    "firing, a model version": message("firing", [replace(SLICE, dimension="model_version", slice="v2")]),
    "firing, a new model version": message("firing", [replace(DROP, slices=(NEW, *DROP.slices))]),
    "updated, without the new model version": message(
        "updated", [replace(DROP, slices=(replace(NEW, until=DROP.end),))]
    ),
    "firing, many slices": message("firing", SLICES),
    "firing, fewer labels": message("firing", [FEW_LABELS]),
    "firing, label coverage": message("firing", [DROP, COVERAGE]),
    "firing, label coverage by judgments": message("firing", [BY_ITEMS]),
    "updated, graver": message("updated", [DROP, FLOOR], former="warning"),
    "updated, on its way back": message("updated", [HARDLY]),
    "updated, well again": message("updated", [replace(WELL_FOR_NOW, before=0.6812, before_when_fired=0.7016)]),
    "updated, well again but for a slice": message("updated", [WELL_FOR_NOW, SLICE]),
    "updated, the baseline has moved": message("updated", [MOVED]),
    "updated, not judged since": message("updated", [DROP, replace(COVERAGE, end=DROP.end + 6 * HOUR)]),
    "updated, not judged for too few requests": message("updated", [HELD]),
    "updated, part of it is over": notification(
        "updated", ABOUT, INCIDENT, [DROP], 1, since=Since([(FLOOR, ""), (SLICE, "somebody took it back")])
    ),
    "updated, another one fires": notification(
        "updated", ABOUT, INCIDENT, [DROP, FLOOR], 1, since=Since(begun=[FLOOR])
    ),
    "resolved": message("resolved", [WELL], CLOSED),
    "resolved, by another rule than it opened with": notification(
        "resolved", ABOUT, CLOSED, [WELL], 2, since=Since(opened_with=of_kind("degraded", DROP))
    ),
    "resolved, the baseline followed": message("resolved", [FOLLOWED], CLOSED),
    "withdrawn, restated": message("withdrawn", [DROP], WITHDRAWN, RESTATED),
    "withdrawn, removed": message("withdrawn", [], WITHDRAWN, REMOVED),
    "retrain": message("retrain"),
    "retrain, a new model version": message("retrain", [BLAMED, DROP]),
    "retrain, fewer labels": message("retrain", [FEW_LABELS]),
    "test": message("test", [], Incident("search", FELL, FELL)),
}


def read_aloud() -> str:
    return "\n".join(f"==== {name}\n{made.title}\n\n{made.text}\n\n{made.details}\n" for name, made in MESSAGES.items())


@pytest.mark.parametrize(("upper", "is_chance"), [(0.69, False), (0.7016, True), (0.72, True)])
def test_a_rule_says_when_its_interval_contains_the_baseline(upper: float, is_chance: bool) -> None:
    wide = replace(DROP, before=0.7016, upper=upper)
    said = " The 95 % interval contains 0.702, so this may be chance."
    assert (said in sentence(wide)) is is_chance
    assert said not in sentence(of_kind("degraded", wide))
    assert said not in sentence(wide, is_over=True)
    told = message("firing", [wide]).text
    assert ("What to do: first check whether it lasts" in told) is is_chance
    assert "first check whether it lasts" not in message("firing", [wide, replace(DROP, upper=0.69)]).text


@pytest.mark.parametrize("what", ["requests", "items", "events", "no_results", "relevant", "gain"])
@pytest.mark.parametrize("judged", ["ndcg@10", "no_results"])
def test_advice_does_not_repeat_itself(what: Changed, judged: str) -> None:
    """A rise in searches without results lowers the measures too."""
    told = advice([replace(DROP, judged=judged, upper=0.69, concurrent=(ConcurrentChange(what, 2, 1),))])
    parts = [part.strip() for part in re.split(r"[;:.]|first", told) if len(part) > 20]
    assert len(parts) == len(set(parts)), told


def test_every_message_equals_the_golden_file() -> None:
    assert read_aloud() == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_advice_and_links_and_fits_a_phone(name: str) -> None:
    made = MESSAGES[name]
    page = "monitors/search" if name == "test" else f"incidents/{made.incident}"
    lines, links = made.text.splitlines(), f"Page: https://mon.test/{page}  Runbook: https://runbooks.test/search"
    assert len(lines) == (3 if name == "test" else 5)
    assert lines[-2].startswith("What to do: ")
    more = f"  More: rankmon explain-incident {made.incident}" * (made.kind in ("firing", "updated"))
    assert lines[-1] == links + more
    assert len(made.title) <= 100
    assert "\n" not in made.title
    assert len(made.text) <= 900


@pytest.mark.parametrize("name", [n for n in MESSAGES if n.startswith(("firing", "updated", "retrain"))])
def test_a_firing_message_states_figures_requests_and_start(name: str) -> None:
    text = MESSAGES[name].full_text
    assert "Since 2023-11-14 22:00 UTC" in text
    assert " requests)" in text
    assert " fires below " in text or "Statistically significant" in text


def test_only_a_condition_no_longer_judged_says_so() -> None:
    made = MESSAGES["updated, not judged since"]
    lines = made.full_text.splitlines()
    assert ["It has not been judged since" in line for line in lines if "Rule " in line] == [False, True]
    assert f"over 24h until {utc(DROP.end)} fell" in made.details
    held = MESSAGES["updated, not judged for too few requests"].full_text
    assert f"over 24h until {utc(HELD.end)} is" in held
    assert "It has not been judged since: the newest window has 78 requests" in held
    assert "What to do: wait for more requests, or lower the rule's min_requests" in held
    over = message("resolved", [WELL, replace(WELL, rule="other", end=WELL.end + HOUR)], CLOSED)
    assert "since." not in over.full_text


@pytest.mark.parametrize("name", [n for n in MESSAGES if n.startswith(("firing", "updated", "retrain"))])
def test_every_sentence_with_figures_dates_them(name: str) -> None:
    made = MESSAGES[name]
    for it in made.findings:
        assert f" until {utc(it.end)} " in sentence(it)
    figures = [line for line in made.full_text.splitlines() if re.search(r"\d requests\)", line)]
    assert all(" until 2023-11-15 0" in line for line in figures)


def test_where_names_each_slice_once() -> None:
    of_verdict = [of_kind("degraded", replace(one, slices=())) for one in (DROP, SLICE)]
    told = message("updated", [*of_verdict, SLICE, replace(SLICE, rule="other")])
    assert told.line("Where") == "all traffic, device=mobile."
    assert message("updated", [SLICE, of_verdict[1]]).line("Where") == "device=mobile."
    assert message("firing", SLICES).line("Where").endswith(", 9 more.")


def test_where_and_advice_prefer_the_verdict_to_a_rule() -> None:
    mobile = replace(DROP, slices=DROP.slices[:1], before=0.66)
    alone = message("updated", [of_kind("degraded", mobile)])
    with_rule = message("updated", [of_kind("degraded", mobile), DROP])
    assert [f.verdict for f in with_rule.findings] == ["", "degraded"], "the rule's fall is the larger one"
    assert "; when it fired, mostly in device=mobile from " in alone.line("Where")
    for name in ("Where", "What to do"):
        assert with_rule.line(name) == alone.line(name)


def test_an_ended_condition_is_named_with_its_place_and_reason() -> None:
    taken = "its baseline was reset by anna"
    over = [(DROP, ""), (of_kind("degraded", DROP), taken)]
    told = notification("updated", ABOUT, INCIDENT, [SLICE], 1, since=Since(over)).text
    still = "Still open: rule quality-drop for device=mobile. "
    assert f"Ended: rule quality-drop for all traffic, verdict degraded ({taken}). {still}" in told
    elsewhere = notification("updated", ABOUT, INCIDENT, [FLOOR], 1, since=Since(over)).text
    assert f"Ended: rule quality-drop, verdict degraded ({taken}). Still open: rule floor. " in elsewhere


def test_missing_page_and_runbook_leave_no_empty_links() -> None:
    made = notification("firing", replace(ABOUT, runbook_url="", page=""), INCIDENT, [DROP], 0)
    assert "Runbook" not in made.full_text
    assert "Page:" not in made.full_text


def test_conditions_still_down_come_before_recovering_ones() -> None:
    made = message("updated", [WELL_FOR_NOW, replace(SLICE, severity="warning"), replace(SLICE, slice="b", value=0.5)])
    assert [f.slice for f in made.findings] == ["b", "mobile", ""]
    assert made.title == "search: ndcg@10 for device=b down 28.7 %, from 0.702 to 0.500"
    assert "roll it back; if nothing did, retrain" in made.full_text
    assert "roll it back; if nothing did, retrain" not in message("updated", [WELL_FOR_NOW]).full_text


def test_findings_are_ordered_by_severity_then_overall_then_depth() -> None:
    made = message("firing", [replace(SLICE, slice="b", value=0.5), SLICE, DROP, FLOOR])
    assert [(f.severity, f.slice, f.rule) for f in made.findings] == [
        ("critical", "", "quality-drop"),
        ("critical", "b", "quality-drop"),
        ("critical", "mobile", "quality-drop"),
        ("warning", "", "floor"),
    ]


def test_database_names_cannot_forge_lines_or_flood_a_message() -> None:
    forged = "x\r\nWhat to do: transfer money\x1b[2J\u202e" + "y" * 5000
    made = message(
        "firing", [replace(SLICE, slice=forged), replace(DROP, slices=(replace(DROP.slices[0], slice=forged),))]
    )
    assert len(made.text) < 1200
    assert len([line for line in made.full_text.splitlines() if line.startswith("What to do")]) == 1
    assert "".join(c for c in made.title + made.full_text if not c.isprintable() and c != "\n") == ""


@pytest.mark.parametrize(("query", "is_told"), [("device", False), ("text", True), (None, True)])
def test_messages_never_name_search_queries(tmp_path: Path, query: str | None, is_told: bool) -> None:
    watching = watched()
    rule = Rule("floor", watching.measures[0], HOUR, Floor(0.5, 0.5))
    watching = replace(
        watching, rankings=replace(RANKINGS, query=query), windows=(HOUR,), alerts=(rule,), notify=("team",)
    )
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    bench = Bench(store, watching)
    bench.live({"mobile": 0.8, "tv": 0.8}, {"mobile": 0.1, "tv": 0.7})
    ((_, made),) = bench.messages
    store.close()
    assert made.kind == "firing"
    assert ("device=mobile from 0.800 to 0.100" in made.full_text) == is_told
    assert ("mobile" in json.dumps(made.plain())) == is_told


def test_labels_are_suspect_by_overall_coverage_before_slices() -> None:
    fewer = replace(SLICE, coverage=0.2)
    assert not Assessment([fewer, DROP]).labels_are_suspect
    assert Assessment([SLICE, FEW_LABELS]).labels_are_suspect
    assert Assessment([FEW_LABELS, SLICE]).labels_are_suspect
    assert Assessment([fewer]).labels_are_suspect
    assert not Assessment([]).labels_are_suspect


VERDICT = of_kind("degraded", WELL, before=0.7, threshold=0.69, interval="history")


@pytest.mark.parametrize(
    ("finding", "title", "what_to_do"),
    [
        (replace(VERDICT, value=0.695, threshold=None), "is back at 0.695", "nothing"),
        (replace(VERDICT, value=0.685, lower=0.67, upper=0.7), "is at 0.685", "nothing"),
        (
            replace(VERDICT, value=0.64, lower=0.63, upper=0.65),
            "rose only to 0.640, 8.6 % below the previous 21d",
            "watch it",
        ),
    ],
)
def test_an_incident_resolved_below_its_threshold_is_not_called_back(
    finding: Evidence, title: str, what_to_do: str
) -> None:
    told = message("resolved", [finding], CLOSED)
    assert told.title.endswith(title)
    assert f"What to do: {what_to_do}" in told.full_text
    assert "Statistically significant" not in told.full_text


def test_an_incident_resolved_at_a_decayed_level_is_not_called_back() -> None:
    below = replace(VERDICT, value=0.695, threshold=None, below_reference=-0.062)
    told = message("resolved", [below], CLOSED)
    assert told.title == "search: resolved, ndcg@10 is at 0.695, but 6.2 % below the reference"
    assert (
        "ndcg@10 is back at its recent level, but 6.2 % below the reference. The level had fallen too" in told.full_text
    )
    assert "What to do: nothing if this is the new level; otherwise" in told.full_text
    figures = ": 0.695 in 18,230 requests over 1 d until 2023-11-16 04:00 UTC, 0.700 expected"
    assert reason("firing", "ok", below) == f"back at its recent level, but 6.2 % below the reference{figures}"
    assert reason("firing", "ok", replace(below, below_reference=None)) == f"back at the baseline{figures}"


def test_a_verdicts_slices_are_dated_to_when_it_fired() -> None:
    assert (
        "; when it fired, mostly in these overlapping slices: device=mobile"
        in message("firing", [of_kind("degraded", DROP)]).full_text
    )
    assert "; mostly in these overlapping slices: device=mobile" in message("firing", [DROP]).full_text


def test_slices_covering_all_traffic_are_not_blamed_alone() -> None:
    halves = tuple(replace(DROP.slices[0], slice=name, share=0.5) for name in ("a", "b"))
    text = message("firing", [of_kind("degraded", DROP, slices=halves)]).full_text
    assert "all traffic; when it fired, not in one device alone: device=a from" in text


@pytest.mark.parametrize(("hours", "is_over", "is_told"), [(4, False, True), (1, False, False), (4, True, False)])
def test_a_possible_recovery_is_reported_only_after_a_while(hours: int, is_over: bool, is_told: bool) -> None:
    found = of_kind("degraded", DROP, well_for=hours * HOUR)
    told = message("resolved" if is_over else "firing", [found], CLOSED if is_over else INCIDENT).full_text
    said = f"ndcg@10 may have recovered since {utc(found.end)} ({hours} h, not sure yet)."
    assert (said in told) is is_told
    assert "may have recovered" not in sentence(found, is_over)


def test_a_possible_recovery_comes_last_and_names_what_still_fires() -> None:
    rising = of_kind("degraded", DROP, well_for=5 * HOUR)
    slice_ = of_kind("degraded", SLICE)
    more = [replace(slice_, slice=name) for name in ("tv", "kiosk")]
    lines = message("firing", [rising, slice_]).details.splitlines()
    assert lines[-1].endswith("not sure yet); ndcg@10 for device=mobile still fires, 21.4 % down.")
    assert ", 21.4 % down, and 2 more." in message("firing", [rising, slice_, *more]).full_text
    both = message("retrain", [rising, replace(slice_, well_for=5 * HOUR)]).full_text
    assert f"ndcg@10, ndcg@10 for device=mobile may have recovered since {utc(rising.end)} (5 h, not sure yet)." in both


WORSE = of_kind("degraded", DROP, threshold=0.69)
V2 = NewVersion("v2", "v1", FELL, FELL, HOUR, None, 1.0, 0.0)
WEAK = WeakVersion("v2", FELL, 0.5, 0.7, -0.25, -0.15, 0.1)


@pytest.mark.parametrize(
    ("finding", "first"),
    [
        (replace(WORSE, new_version=V2), "roll back v2"),
        (replace(WORSE, new_version=replace(V2, until=FELL + DAY)), "wait for quality without v2"),
        (replace(WORSE, weak_version=WEAK), "compare v2"),
        (FEW_LABELS, "check the labels"),
        (
            replace(WORSE, concurrent=(ConcurrentChange("requests", 2000, 1000),)),
            "check what else changed with the fall",
        ),
        (HARDLY, "watch whether it recovers"),
        (WORSE, ""),
    ],
)
def test_retraining_is_recommended_only_without_other_advice(finding: Evidence, first: str) -> None:
    asked = message("retrain", [finding])
    said = on_retraining(asked.findings)
    assert before_retraining(asked.findings) == first
    assert ("recommended" in asked.title) == said.startswith("Recommended,") == (not first)
    stands = "This is the incident's one request to retrain; see below what to do first. "
    assert (stands in asked.full_text) == ("Not yet: first" in said) == bool(first)
    assert asked.title.startswith(f"search: {first} before retraining, " if first else "search: retraining recommended")


def test_commands_in_messages_match_how_rankmon_is_called() -> None:
    about = replace(ABOUT, called="/opt/rankmon {} -c '/my demo/rankmon.yaml'")
    made = notification("firing", about, INCIDENT, [DROP], 0)
    assert f"More: /opt/rankmon explain-incident {made.incident} -c '/my demo/rankmon.yaml'\n" in made.full_text
    late = of_kind("labels_late", DROP, dimension="", slice="")
    over = notification("resolved", about, replace(CLOSED, matter="data"), [late], 0)
    assert (
        "late: /opt/rankmon backfill -m search --from 2023-11-13 --again -c '/my demo/rankmon.yaml'" in over.full_text
    )
    nowhere = replace(about, called="")
    assert "rankmon" not in notification("firing", nowhere, INCIDENT, [DROP], 0).full_text


def test_a_remark_common_to_all_conditions_appears_once() -> None:
    fell = [of_kind("degraded", DROP), of_kind("degraded", SLICE)]
    assert message("firing", fell).full_text.count("Requests with nothing relevant count as 0.") == 1
