"""Versions of the model in words: which began with a fall, which is worse than the others, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from monitor.conditions.findings import NEW, Finding, NewVersion, WeakVersion
from monitor.conditions.verdict_words import share_of, shown
from monitor.drift.series import DAY, HOUR
from monitor.messages.words import between, lasting, over_the_last, utc


def with_first_version(findings: Sequence[Finding], opened_at: int) -> list[Finding]:
    """Findings of an incident, of which the one that fell first alone names a version.

    What falls later has the same cause, rather than a version that came when the incident was open already.
    """
    first = min((f for f in findings if f.verdict), key=lambda f: (f.since, f.dimension), default=None)
    return [f if f is first and f.since <= opened_at else replace(f, new_version=None) for f in findings]


def new_version(finding: Finding) -> str:
    """Which version of the model began to serve when a verdict's fall began; empty if none did."""
    new = finding.new_version
    if new is None:
        return ""
    began = "began to serve" if new.share_before < NEW * new.share else "was given more of the requests"
    began = f"Model version {shown(new.version)} {began} at {utc(new.since)}, {_when(new)}."
    before = f", {share_of(new.share_before)} in the day before it began" if new.share_before else ""
    of_all = f" It had {share_of(new.share)} of the requests {_last_day(new, finding.end)}{before}."
    former = f" Most requests before were of {shown(new.former)}." if new.former != new.version else ""
    over = "" if new.until is None else f" It has not served since {utc(new.until)}."
    return f"{began}{of_all}{former}{over}"


def _last_day(new: NewVersion, end: int) -> str:
    """The time that a version's share is of, at the end of what was judged, seconds."""
    if new.until is None:
        return over_the_last(end - new.since)
    return "while it served" if new.until - new.since <= DAY else "in the last day that it served"


def _when(new: NewVersion) -> str:
    """When a version began, beside when the fall did."""
    apart, (first, last) = new.since - new.fell_at, new.fell_within or (new.fell_at, new.fell_at)
    step = "hour" if new.step == HOUR else lasting(new.step)
    if 0 <= apart < new.step:
        return f"in the {step} in which the fall began"
    if first <= new.since < last + new.step:
        return f"with the fall, which began {between(first, last + new.step)}"
    return f"{lasting(abs(apart))} {'before' if apart < 0 else 'after'} the fall began, as far as that can be told"


def advice_on_version(new: NewVersion) -> str:
    """What to do about a fall that began with a version of the model."""
    if new.until is not None:
        return _taken_back(new.version)
    back = f" to {shown(new.former)}" if new.former != new.version else ""
    return (
        f"first think of rolling model version {shown(new.version)} back{back}, then see whether an index or a "
        "feature changed then too; retrain only if it was none of these."
    )


def first_on_version(new: NewVersion) -> str:
    """The same in a few words, of what is done before anybody retrains."""
    version = shown(new.version)
    return f"roll back {version}" if new.until is None else f"see how it is without {version}"


def weak_version(finding: Finding) -> str:
    """Which version of the model is clearly worse than those beside it; empty where it was named, or none is."""
    one = finding.weak_version
    if one is None or (finding.new_version is not None and finding.new_version.version == one.version):
        return ""
    over = "" if one.until is None else f" It has not served since {utc(one.until)}."
    return (
        f"Model version {shown(one.version)}, which began to serve at {utc(one.since)}, is at {one.value:.3f} with "
        f"{share_of(one.share)} of the requests, {_beside(one)}: {one.value - one.others:+.3f} (95 %: {one.lower:+.3f} "
        f"to {one.upper:+.3f}), which takes {-one.part:.3f} from the mean of all.{over}"
    )


def _beside(one: WeakVersion) -> str:
    """What a version is held against."""
    if one.is_before:
        return f"what it alone serves by {shown(one.dimension)} at {one.others:.3f} in the same hours of weeks before"
    return f"the others{' in the same ' + shown(one.dimension) if one.dimension else ''} at {one.others:.3f}"


def advice_on_weak(one: WeakVersion) -> str:
    """What to do about a version that is clearly worse than what serves beside it."""
    if one.until is not None:
        return _taken_back(one.version)
    people = (
        f"if nothing else changed in what it alone serves by {shown(one.dimension)}"
        if one.is_before
        else "if it serves the same people as the others"
    )
    return (
        f"compare it by `rankmon versions`; take model version {shown(one.version)} back {people}, then see whether "
        "anything else fell; retrain only if it was none of these."
    )


def first_on_weak(one: WeakVersion) -> str:
    """The same in a few words, of what is done before anybody retrains."""
    version = shown(one.version)
    return f"compare {version}" if one.until is None else f"see how it is without {version}"


def _taken_back(version: str) -> str:
    return f"see whether it is well again now that model version {shown(version)} has been taken back."
