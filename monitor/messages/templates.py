"""Text templates for conditions and notifications, their filters, and the user's own templates.

All run in a sandbox: a template can read what it is given, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from monitor.conditions.evidence import Evidence, SliceFall
from monitor.conditions.kinds.degraded import Degraded
from monitor.conditions.kinds.threshold import Threshold
from monitor.conditions.rules import COVERAGE, is_beyond
from monitor.messages.own import BUILT_IN, OwnTemplate, TemplateFault
from monitor.messages.words import (
    NO_OTHER_LISTS,
    assumes,
    between,
    brief,
    counted,
    lasting,
    named,
    over_the_last,
    share_of,
    shown,
    utc,
)
from monitor.types import format_duration

if TYPE_CHECKING:
    from jinja2 import Environment, Template, TemplateSyntaxError


def _ignored(fault: TemplateFault) -> None:
    pass


LONGEST_FROM_TEMPLATE = 10_000
"""Most characters of a text from a user's template: Teams accepts the smallest messages, 28 KB."""


@dataclass(frozen=True)
class OwnTemplates:
    """A user's templates. `failed` gets each fault; the built-in one is used then."""

    files: tuple[OwnTemplate, ...] = ()
    failed: Callable[[TemplateFault], None] = _ignored

    def render(self, name: str, **facts: Any) -> list[str]:
        """Lines of the user's template, or else of the built-in one."""
        for own in self.files:
            if own.name == name:
                try:
                    return _filled_in(own, self.files, facts)
                except TemplateFault as fault:
                    self.failed(fault)
        return render(name, **facts)


AS_BUILT_IN = OwnTemplates()


def render(name: str, **facts: Any) -> list[str]:
    """Lines of a template in `monitor/messages/templates`, without empty ones."""
    return _lines(_environment().get_template(f"{name}.txt").render(**facts))


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def _filled_in(own: OwnTemplate, files: tuple[OwnTemplate, ...], facts: Mapping[str, Any]) -> list[str]:
    from jinja2 import TemplateNotFound, TemplateSyntaxError, UndefinedError

    try:
        filled = _lines(_environment(files).get_template(f"{own.name}.txt").render(**facts))
    except TemplateSyntaxError as error:
        raise _syntax(own, error) from error
    except TemplateNotFound as error:
        text = f"there is no template {error.name!r}; the built-in ones begin with {BUILT_IN}"
        raise TemplateFault(own, _line(own, error.__traceback__), text) from error
    except RecursionError as error:
        text = f"includes itself; the built-in template is {BUILT_IN}{own.name}.txt"
        raise TemplateFault(own, 0, text) from error
    except Exception as error:  # a template can fail in any way, and no page may be lost by it
        name = "" if isinstance(error, UndefinedError) else f"{type(error).__name__}: "
        text = f"{name}{error}".replace("'StrictUndefined'", "something that does not exist")
        raise TemplateFault(own, _line(own, error.__traceback__), text) from error
    if not filled and own.name != "details":
        raise TemplateFault(own, 0, "gives an empty text; write at least one line")
    if (length := sum(map(len, filled))) > LONGEST_FROM_TEMPLATE:
        raise TemplateFault(own, 0, f"gives {length:,} characters; receivers take {LONGEST_FROM_TEMPLATE:,} at most")
    return filled


def _line(own: OwnTemplate, trace: TracebackType | None) -> int:
    """The last line of a user's template in a traceback; 0 if it is not there."""
    found = 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == own.path:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def plain_mistakes(own: OwnTemplate, known: Mapping[str, Any]) -> list[TemplateFault]:
    """What is wrong with a template whatever it is given: its syntax, or variables that are never `known`."""
    from jinja2 import TemplateSyntaxError, meta, nodes

    try:
        tree = _environment().parse(own.text)
        unknown = meta.find_undeclared_variables(tree) - set(known)
    except TemplateSyntaxError as error:
        return [_syntax(own, error)]
    first = {node.name: node.lineno for node in reversed([*tree.find_all(nodes.Name)]) if node.name in unknown}
    return [
        TemplateFault(own, line, f"{name!r} is undefined; known are {', '.join(known)}")
        for name, line in sorted(first.items(), key=lambda one: one[1])
    ]


def _syntax(own: OwnTemplate, error: TemplateSyntaxError) -> TemplateFault:
    return TemplateFault(own, error.lineno, error.message or "is not a Jinja template")


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
    judged = brief(it.judged)
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


def span(it: Evidence) -> str:
    """The time that a condition's figures are of: `over 24h until 2022-02-24 05:00 UTC`."""
    return f"over {lasting(it.window) if it.verdict else format_duration(it.window)} until {utc(it.end)}"


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


def count(value: float | None) -> str:
    """A number without decimals."""
    return _number(value, ",.0f")


def items(value: float | None) -> str:
    """A number to one decimal."""
    return _number(value, ".1f")


def digits(value: float | None) -> str:
    """A number to three digits."""
    return _number(value, ".3g")


def _number(value: float | None, form: str) -> str:
    return "unknown" if value is None else f"{value:{form}}"


def slice_name(one: SliceFall) -> str:
    """A slice of `it.slices` as `dimension=value`."""
    return named(one.dimension, one.slice)


def between_two(span: tuple[int, int]) -> str:
    """A time from one instant to another."""
    return between(*span)


def estimated(dimension: str) -> str:
    """The assumptions behind a figure by estimated examination; `dimension`: estimated for each of its values."""
    return assumes(NO_OTHER_LISTS, dimension)


def fill_in(it: Evidence, text: str) -> str:
    """A text of a condition, such as `it.headline`, filled in for it."""
    return "\n\n".join(fill(text, it=it))


FILTERS: Mapping[str, Callable[..., str]] = {
    "utc": utc,
    "lasting": lasting,
    "over_the_last": over_the_last,
    "duration": format_duration,
    "counted": counted,
    "named": named,
    "brief": brief,
    "shown": shown,
    "share": share_of,
    "percent": percent,
    "count": count,
    "items": items,
    "digits": digits,
    "slice": slice_name,
    "between": between_two,
    "slices": slices,
    "topic": topic,
    "subject": subject,
    "written": written,
    "span": span,
    "side": side,
    "recovery": recovery,
    "below": below,
    "estimated": estimated,
    "fill": fill_in,
}
"""Filters in every template."""


@lru_cache(maxsize=8)
def _environment(own: tuple[OwnTemplate, ...] = ()) -> Environment:
    # Imported here: most commands use no template.
    from jinja2 import ChoiceLoader, FunctionLoader, PackageLoader, PrefixLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            return super().is_safe_attribute(obj, attr, value) and not isinstance(value, ModuleType)

    texts = {f"{one.name}.txt": (one.text, one.path, lambda: True) for one in own}
    built_in = PackageLoader("monitor.messages")
    loaders = [FunctionLoader(texts.get), PrefixLoader({BUILT_IN.rstrip("/"): built_in}), built_in]
    found = Sandbox(loader=ChoiceLoader(loaders), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters |= FILTERS
    return found
