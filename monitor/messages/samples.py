"""Sample notifications: check-config tries a user's templates on them, and tests pin the built-in ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

from monitor.conditions.evidence import Evidence, SliceFall, kinds
from monitor.conditions.incident import Firing, Incident
from monitor.conditions.kinds.threshold import Threshold
from monitor.messages.notification import VARIABLES, About, Kind, notification
from monitor.messages.own import OwnTemplate, TemplateFault
from monitor.messages.templates import OwnTemplates, plain_mistakes
from monitor.units import DAY, HOUR

FELL = 1_700_000_000 // HOUR * HOUR
"""2023-11-14 22:00 UTC."""

DROP = Threshold(
    rule="quality-drop",
    severity="critical",
    judged="ndcg@10",
    dimension="",
    slice="",
    end=FELL + 3 * HOUR,
    window=DAY,
    since=FELL,
    requests=18_230,
    value=0.6123,
    lower=0.6012,
    upper=0.6234,
    before=0.7016,
    compared_with="the previous 21d",
    threshold=0.6525,
    coverage=0.414,
    coverage_before=0.422,
    slices=(
        SliceFall("device", "mobile", 0.7011, 0.5512, 0.62),
        SliceFall("country", "de", 0.7102, 0.6020, 0.31),
    ),
    interval="history",
)
FLOOR = replace(
    DROP, rule="floor", value=0.4421, lower=0.431, upper=0.4532, threshold=0.5, before=0.5502, requests=950,
    compared_with="the 1d before the fall", slices=(), severity="warning",
)  # fmt: skip
SLICE = replace(
    DROP,
    dimension="device",
    slice="mobile",
    slices=(),
    requests=11_300,
    value=0.5512,
    lower=None,
    upper=None,
    interval="none",
)
COVERAGE = replace(
    DROP, rule="labels", judged="label_coverage", value=0.052, lower=None, upper=None, interval="none", before=0.422,
    threshold=0.2, coverage=0.052, slices=(),
)  # fmt: skip
INCIDENT = Incident(
    "search",
    FELL,
    FELL + 3 * HOUR,
    severity="critical",
    firing={("quality-drop", "", ""): Firing("critical", False, FELL)},
)


def of_kind(kind: str, known: Evidence, **changes: Any) -> Any:
    """Evidence of one kind of condition, with the figures of another."""
    made = kinds()[kind]
    names = {f.name for f in fields(made)} & {f.name for f in fields(known)} - {"rule"}
    return made(**{name: getattr(known, name) for name in names} | {"rule": kind} | changes)


WITHOUT_PAST = replace(
    DROP, lower=None, upper=None, interval="none", before=None, coverage=None, coverage_before=None, slices=()
)
CLOSED = replace(INCIDENT, state="resolved", closed_at=FELL + 30 * HOUR)
_WHILE_OPEN: tuple[Kind, ...] = ("firing", "updated", "retrain")


def samples() -> Iterator[tuple[Kind, Incident, Sequence[Evidence]]]:
    """(kind, incident, findings) of notifications of each kind about each kind of condition."""
    yield "test", INCIDENT, ()
    yield "withdrawn", replace(CLOSED, state="withdrawn"), ()
    known = [of_kind(kind, one) for one in (DROP, WITHOUT_PAST, SLICE) for kind in ("threshold", "degraded")]
    for found in (*known, *(of_kind(kind, DROP) for kind in kinds() if kind not in ("threshold", "degraded"))):
        for told in _WHILE_OPEN[: 3 if found.audience == "quality" else 2]:
            yield told, INCIDENT, (found,)
        yield "resolved", CLOSED, (found,)
        yield "withdrawn", replace(CLOSED, state="withdrawn"), (found,)
    yield "firing", INCIDENT, (DROP, FLOOR, SLICE, COVERAGE)


def faults(own: Sequence[OwnTemplate], abouts: Sequence[About]) -> list[str]:
    """What is wrong with templates, tried on samples of each monitor; each mistake once."""
    found, told = dict[tuple[OwnTemplate, str], str](), ""

    def failed(fault: TemplateFault) -> None:
        key = (fault.template, fault.text.partition(";")[0])
        found.setdefault(key, f"{fault} (in a message of {told})" if told else str(fault))

    for fault in (fault for one in own for fault in plain_mistakes(one, VARIABLES)):
        failed(fault)
    templates = OwnTemplates(tuple(own), failed)
    for about, (kind, incident, findings) in product(abouts, samples()):
        told = " on ".join((kind, *(f.kind for f in findings[:1])))
        notification(kind, replace(about, templates=templates), incident, findings, 0, reason="a sample")
    return list(found.values())
