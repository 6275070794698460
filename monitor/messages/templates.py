"""Text templates for conditions, and their filters."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from monitor.conditions.evidence import Evidence
from monitor.conditions.kinds.degraded import Degraded
from monitor.conditions.kinds.threshold import Threshold
from monitor.conditions.rules import COVERAGE, is_beyond
from monitor.messages.words import between, counted, lasting, named, over_the_last, share_of, shown, utc
from monitor.types import format_duration

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def render(name: str, **facts: Any) -> list[str]:
    """Lines of a template in `monitor/messages/templates`, without empty ones."""
    found = _environment().get_template(f"{name}.txt").render(**facts)
    return [line for line in found.split("\n") if line.strip()]


def fill(text: str, **facts: Any) -> list[str]:
    """Paragraphs of an inline template, each on one line."""
    parts = re.split(r"\n\s*\n", _compiled(text).render(**facts).strip())
    return [re.sub(r"\s*\n\s*", " ", part) for part in parts if part.strip()]


@cache
def _compiled(text: str) -> Template:
    return _environment().from_string(text)


def topic(it: Evidence) -> str:
    """Title of a condition, with its slices where it concerns these."""
    return f"{it.title}: {slices(it)}" if it.is_of_slices else it.title


def slices(it: Evidence) -> str:
    """The slices in an evidence."""
    return ", ".join(named(s.dimension, s.slice) for s in it.slices) or "unknown"


def subject(it: Evidence) -> str:
    """What fell: the measure, and of which slice."""
    judged = it.judged
    if judged == COVERAGE:
        judged = "label coverage" + " (items with a judgment)" * (isinstance(it, Threshold) and it.by_items)
    return f"{judged} for {named(it.dimension, it.slice)}" if it.dimension else judged


def written(value: float | None, it: Evidence) -> str:
    """A value of what is judged."""
    if value is None:
        return "unknown"
    if it.judged == COVERAGE:
        return percent(value)
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def percent(value: float | None) -> str:
    """A share to a tenth of a percent."""
    return "unknown" if value is None else f"{100 * value:.1f} %"


def side(it: Evidence) -> str:
    """The side of its threshold on which it fires."""
    return "above" if it.rises else "below"


def recovery(it: Evidence) -> str:
    """How far it has recovered."""
    if it.well_for and it.well_needed:
        return f"recovering: normal for {lasting(it.well_for)} of {lasting(it.well_needed)}"
    back = it.back_from if isinstance(it, Threshold) else None
    if back is not None and it.value is not None and is_beyond(it.value, back, it.rises):
        well = f"up to {written(back, it)}" if it.rises else f"from {written(back, it)} on"
        return f"{'below' if it.rises else 'above'} its threshold, normal {well}"
    return "recovering"


def below(it: Degraded) -> str:
    """Says that what resolved is clearly below the reference; empty if it is not."""
    return "" if it.below_reference is None else f", but {-100 * it.below_reference:.1f} % below the reference"


def _number(value: float | None, digits: str) -> str:
    return "unknown" if value is None else f"{value:{digits}}"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # most commands use no template

    found = Environment(
        loader=PackageLoader("monitor.messages"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {
        "utc": utc,
        "lasting": lasting,
        "over_the_last": over_the_last,
        "duration": format_duration,
        "counted": counted,
        "named": named,
        "shown": shown,
        "share": share_of,
        "percent": percent,
        "count": lambda value: _number(value, ",.0f"),
        "items": lambda value: _number(value, ".1f"),
        "digits": lambda value: _number(value, ".3g"),
        "slice": lambda one: named(one.dimension, one.slice),
        "between": lambda span: between(*span),
        "slices": slices,
        "topic": topic,
        "subject": subject,
        "written": written,
        "side": side,
        "recovery": recovery,
        "below": below,
        "fill": lambda it, text: "\n\n".join(fill(text, it=it)),
    }
    return found
