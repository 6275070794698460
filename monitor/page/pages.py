"""The landing page, and a page per monitor if all of them would be too much for one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import quote

from monitor import __version__
from monitor.clock import Clock
from monitor.conditions.evidence import Evidence
from monitor.conditions.incident import Incident
from monitor.conditions.verdict_hours import judged
from monitor.conditions.verdicts import DEGRADED
from monitor.messages.explanation import (
    announced,
    beginning,
    begun_lately,
    changes,
    each_sentence,
    may_be_well,
    title_of,
)
from monitor.messages.notification import About, notification
from monitor.messages.templates import topic
from monitor.messages.words import (
    ago,
    brief,
    command,
    counted,
    decayed,
    not_judged,
    over_the_last,
    rank_one_missing,
)
from monitor.page.figures import DrawingBudget, figures, overview_spark
from monitor.page.judged import judged_figure
from monitor.page.position_bias import corrected, examination_figures
from monitor.page.state import MonitorState, coverage_of, history_now, main_history, overall_point, states_of
from monitor.page.words import TEMPLATES, change, number, utc
from monitor.service.snapshot import Board, MonitorSnapshot, Series, StoredIncident, lasted
from monitor.types import OVERALL, format_duration

MOST_FIGURES = 12
"""With more figures, the landing page is an overview and each monitor has its own page."""

MOST_INCIDENTS = 10


class PageSource(Protocol):
    """What the page needs to know."""

    clock: Clock
    board: Board
    called: str
    notice: str

    def health(self) -> str:
        """Empty, or what is wrong with the process."""

    def pending(self) -> str:
        """Empty, or how many monitors are not shown yet."""

    def refused(self) -> str:
        """Empty, or that the last reload of the configuration was refused."""

    def next_run_at(self, name: str) -> float | None:
        """A monitor's next run, real seconds."""


def render(served: PageSource) -> str:
    """The landing page: all monitors, worst first, in full if there are few."""
    now, snapshots = served.clock.now(), served.board.snapshots
    count = sum(_plots(s) for s in snapshots.values())
    is_short = len(snapshots) > 1 and count > MOST_FIGURES
    states = {name: states_of(snapshots[name], now, served.clock.speed) for name in snapshots}
    ordered = sorted(snapshots, key=lambda name: (states[name][0].rank, name))
    lines = [
        _line(snapshots[n], states[n], now, f"monitors/{quote(n, safe='')}" if is_short else f"#{n}") for n in ordered
    ]
    budget = DrawingBudget.of(count)
    return _page(
        served,
        now,
        lines=lines if len(lines) > 1 else [],
        anchors=is_short,
        monitors=[] if is_short else [_article(snapshots[n], states[n], served, now, budget, "") for n in ordered],
        root="",
    )


def render_monitor(served: PageSource, name: str) -> str | None:
    """One monitor in full; None if the name is unknown."""
    now, snapshot = served.clock.now(), served.board.snapshots.get(name)
    if snapshot is None:
        return None
    states = states_of(snapshot, now, served.clock.speed)
    article = _article(snapshot, states, served, now, DrawingBudget.of(_plots(snapshot)), "../")
    return _page(served, now, lines=[], anchors=False, monitors=[article], root="../")


def _plots(snapshot: MonitorSnapshot) -> int:
    return sum(1 if t.recent is None else 2 for t in snapshot.histories)


def _page(served: PageSource, now: float, **parts: Any) -> str:
    template = TEMPLATES.get_template("index.html")
    told = {
        "notice": served.notice,
        "health": served.health(),
        "refused": served.refused(),
        "pending": served.pending(),
    }
    return template.render(version=__version__, now=utc(now, seconds=True), **told, **parts)


def _line(snapshot: MonitorSnapshot, states: Sequence[MonitorState], now: float, link: str) -> dict[str, Any]:
    history, newest_at = history_now(snapshot), snapshot.progress.newest_source_at
    newest = None if history is None else history.newest
    return {
        "name": snapshot.monitor.name,
        "link": link,
        "state": states[0],
        "more": len(states) - 1,
        "what": "" if history is None else f"{brief(history.judged)} {format_duration(history.window)}",
        "value": number(None if newest is None else newest.value),
        "until": "" if newest is None else utc(newest.end),
        "change": "" if newest is None or newest.change is None else change(newest.change),
        "spark": "" if history is None else overview_spark(history),
        "newest": ago(None if newest_at is None else now - newest_at),
    }


def _article(
    snapshot: MonitorSnapshot,
    states: Sequence[MonitorState],
    served: PageSource,
    now: float,
    budget: DrawingBudget,
    root: str,
) -> dict[str, Any]:
    next_run = served.next_run_at(snapshot.monitor.name)
    past = [s for s in snapshot.incidents if not s.incident.is_open]
    others = [one for matter, one in snapshot.opened.items() if matter != "quality"]
    return {
        "root": root,
        "shown": snapshot,
        "states": states,
        "now": now,
        "next_run": None if next_run is None else time.time() - next_run,
        "coverage": coverage_of(snapshot),
        "rank_one_missing": rank_one_missing(snapshot.without_rank_one, snapshot.requests),
        "unjudged": _unjudged(snapshot),
        "incident": None if snapshot.incident is None else _open(snapshot, snapshot.incident),
        "others_open": [_open(snapshot, one) for one in others],
        "corrected": list(corrected(snapshot)),
        "examination_figures": examination_figures(snapshot),
        "newcomers": [begun_lately(one) for one in snapshot.newcomers],
        "announced": [announced(one) for one in snapshot.announced],
        "verdict": _verdict(snapshot, served.called),
        "judged": judged_figure(snapshot, budget.points),
        "figures": figures(snapshot, budget),
        "series": [_row(s, snapshot.monitor.min_completeness) for s in snapshot.series],
        "incidents": [_past(snapshot, stored) for stored in past[:MOST_INCIDENTS]],
    }


def _open(snapshot: MonitorSnapshot, stored: StoredIncident) -> dict[str, Any]:
    incident, about = stored.incident, About(snapshot.monitor.name)
    told = notification("firing", about, incident, stored.findings, 0)
    until = max((r.evaluation.end for r in snapshot.readings), default=0)
    sentences = zip(told.findings, each_sentence(told.findings, until=until), strict=True)
    return {
        "stored": stored,
        "incident": incident,
        "title": told.title.removeprefix(f"{about.name}: "),
        "began": beginning(incident, told.findings),
        "lasts": lasted(stored, snapshot.judged_until),
        "where": told.line("Where"),
        "sentences": [text for f, sentence in sentences for text in (sentence, *changes(f))],
        "refused": _refused(snapshot, incident),
        "advice": told.line("What to do"),
        "outlook": may_be_well(told.findings),
    }


def _past(snapshot: MonitorSnapshot, stored: StoredIncident) -> dict[str, Any]:
    incident = stored.incident
    closed_at = incident.opened_at if incident.closed_at is None else incident.closed_at
    about = dict.fromkeys(_about(f) for f in stored.findings)
    return {
        "stored": stored,
        "incident": incident,
        "closed_at": closed_at,
        "about": list(about) or ["what it judged is gone"],
        "refused": _refused(snapshot, incident),
        "lowest": _lowest(snapshot, incident, closed_at),
    }


def _refused(snapshot: MonitorSnapshot, incident: Incident) -> str:
    """Refused rows by reason, most first; empty if the incident is not about them."""
    rows = snapshot.refused_then.get(incident.id, {})
    return ", ".join(counted(n, reason) for reason, n in sorted(rows.items(), key=lambda one: (-one[1], one[0])))


def _about(finding: Evidence) -> str:
    if finding.verdict and finding.verdict != DEGRADED:
        return topic(finding)
    by = f"verdict {title_of(finding.verdict)}" if finding.verdict else f"rule {finding.rule}"
    return f"{brief(finding.judged)}{' of ' if finding.where else ''}{finding.where}, {by}"


def _unjudged(snapshot: MonitorSnapshot) -> list[tuple[str, str, list[str]]]:
    """(rule, why, slices) of rules that cannot be judged on slices now, such as under `min_requests`."""
    found: dict[tuple[str, str], list[str]] = {}
    for reading in snapshot.readings:
        if reading.evaluation.unknown and reading.key != OVERALL:
            found.setdefault((reading.rule.name, reading.evaluation.unknown), []).append("=".join(reading.key))
    return [(rule, why, slices) for (rule, why), slices in found.items()]


def _verdict(snapshot: MonitorSnapshot, called: str) -> dict[str, str] | None:
    verdict, drift = snapshot.verdict, snapshot.monitor.drift
    if verdict is None or drift is None:
        return None
    parts = [title_of(snapshot.verdict_kind)]
    if verdict.observed is not None and verdict.expected is not None:
        over = over_the_last(verdict.observed_span)
        parts.append(f"{number(verdict.observed)} {over}, {number(verdict.expected)} expected")
    if verdict.mix_shifted:
        parts.append(f"the mix of {drift.mix_by} moves the mean by {change(verdict.mix_effect)}")
    if verdict.improved:
        begin = command(called, f"baseline begin {snapshot.monitor.name}")
        parts.append(f"a better baseline is available{f': {begin}' if begin else ''}")
    if verdict.decayed and verdict.moved is not None:
        parts.append(decayed(verdict.moved, verdict.labels_moved))
    parts += not_judged(verdict.unjudged)
    if verdict.lacks:
        parts.append(f"still needs {verdict.lacks}")
    return {"measure": str(judged(drift.measure)), "words": "; ".join(parts)}


def _lowest(snapshot: MonitorSnapshot, incident: Incident, closed_at: int) -> str:
    history = main_history(snapshot)
    known = [p for t in (history, history and history.recent) if t is not None for p in t.points]
    inside = (p for p in known if incident.began_at <= p.end <= closed_at)
    lowest = min((p for p in inside if p.value is not None), key=lambda p: p.value or 0.0, default=None)
    if lowest is None:
        return ""
    return number(lowest.value) + ("" if lowest.change is None else f" ({change(lowest.change)})")


def _row(series: Series, least: float) -> dict[str, Any]:
    latest = next((p for p in series.provisional if (p.dimension, p.slice) == OVERALL), None)
    return {"series": series, "point": overall_point(series, least), "provisional": latest}
