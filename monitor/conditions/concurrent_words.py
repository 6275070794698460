"""What changed with a fall and may be all there is to it, in words: in messages, as advice, and against retraining."""

from __future__ import annotations

from monitor.conditions.findings import Beside, Finding
from monitor.conditions.verdict_words import named

_TOLD = {
    "requests": "Far more requests{of} than usual came with it: {value:,.0f} in the last day of it, where about "
    "{usual:,.0f} are usual.",
    "items": "Lists{of} are of another length since: {value:.1f} items a request, where {usual:.1f} are usual.",
    "events": "A request{of} brings more events that count since: {value:.3g}, where {usual:.3g} are usual. Worse "
    "lists alone mostly bring fewer.",
    "no_results": "{share:.1f} % of requests{of} have no results, where {usual_share:.1f} % are usual.",
    "relevant": "More requests{of} have something relevant: {share:.1f} %, {usual_share:.1f} % before. {judged} also "
    "falls when people find more further down.",
    "gain": "A request{of} brings more gain: {value:.3g}, {usual:.3g} before. {judged} also falls when people find "
    "more further down.",
}
_ANOTHER_MEASURE = "the measure is another one then, and `rankmon baseline begin` has it judged by its new level"
_FOUND_MORE = (
    "do not retrain for this, for people find more than before. See what changed (a model version, the page, the "
    "lists), and judge what rises with it, such as dcg@10 or the `empty=zero` reading."
)
_ADVICE = {
    "requests": "see first who sends so many requests, for robots choose at random",
    "items": f"see first whether lists were changed on purpose: {_ANOTHER_MEASURE}",
    "events": f"see first whether other events count as labels than before, or lists are longer: {_ANOTHER_MEASURE}",
    "no_results": "see first why searches find nothing: the index, the catalogue, filters, or how queries are read",
    "relevant": _FOUND_MORE,
    "gain": _FOUND_MORE,
}
_SUBJECTS = {
    "requests": "far more requests",
    "items": "lists of another length",
    "events": "more events for each request",
    "no_results": "more requests without results",
    "relevant": "more requests with something relevant",
    "gain": "more gain for each request",
}


def told_beside(finding: Finding) -> list[str]:
    """What changed when a fall began."""
    of = f" of {named(finding.dimension, finding.slice)}" if finding.dimension else ""
    return [_told(one, of, finding.judged) for one in finding.beside]


def _told(one: Beside, of: str, judged: str) -> str:
    shares = {"share": 100 * one.value, "usual_share": 100 * one.usual}
    return _TOLD[one.what].format(of=of, value=one.value, usual=one.usual, judged=judged, **shares)


def advice_on_beside(one: Beside, steps: str) -> str:
    """What to look at before the model, and `steps` if that is not it; but not where people find more."""
    return _ADVICE[one.what] if _ADVICE[one.what] is _FOUND_MORE else f"{_ADVICE[one.what]}; else {steps}"


def held_back_by(one: Beside) -> str:
    """Why nobody is asked to retrain."""
    return f"{_SUBJECTS[one.what]} came with the fall, and may be all there is to it"
