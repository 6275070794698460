"""Times and numbers as the page writes them, and its templates."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined

from monitor.conditions.incident import Incident
from monitor.messages.explanation import title_of
from monitor.messages.words import ago, assumed, brief, counted, lasting, named
from monitor.types import format_duration


def utc(instant: float | None, seconds: bool = False) -> str:
    """`2022-02-24 05:00 UTC`, or a dash."""
    form = "%Y-%m-%d %H:%M:%S UTC" if seconds else "%Y-%m-%d %H:%M UTC"
    return "–" if instant is None else datetime.fromtimestamp(instant, UTC).strftime(form)


def caption(incident: Incident) -> str:
    """An incident's start, and its duration if it is over.

    >>> caption(Incident("search", 0, 7200)), caption(Incident("search", 0, 7200, state="resolved", closed_at=86_400))
    ('incident since 1 Jan 00:00', 'incident on 1 Jan 00:00, lasted 1 d')
    """
    began = datetime.fromtimestamp(incident.began_at, UTC)
    when = f"{began.day} {began:%b %H:%M}"
    if incident.closed_at is None:
        return f"incident since {when}"
    return f"incident on {when}, lasted {lasting(incident.closed_at - incident.began_at)}"


def number(value: float | None) -> str:
    """Three decimals, as in notifications; four digits from ten on.

    >>> number(0.81239), number(1234.5), number(None)
    ('0.812', '1234', '–')
    """
    return "–" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def percent(share: float | None) -> str:
    """
    >>> percent(0.123), percent(None)
    ('12.3 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"


def change(share: float | None) -> str:
    """A signed percentage.

    >>> change(-0.0712), change(0.01)
    ('-7.1 %', '+1.0 %')
    """
    return "–" if share is None else f"{signed(100 * share, 1)} %"


def signed(value: float, decimals: int) -> str:
    """
    >>> signed(-0.5, 3), signed(0.0, 1)
    ('-0.500', '0.0')
    """
    text = f"{abs(value):.{decimals}f}"
    return text if not float(text) else f"{'-' if value < 0 else '+'}{text}"


TEMPLATES = Environment(
    loader=PackageLoader("monitor.page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(
    ago=ago, utc=utc, duration=format_duration, number=number, percent=percent, change=change, signed=signed
)
TEMPLATES.filters["age"] = lambda at, now: None if at is None else now - at
TEMPLATES.filters["unbroken"] = lambda text: str(text).replace(" %", "\N{NO-BREAK SPACE}%")
TEMPLATES.filters["cell"] = lambda text: re.sub(r"([\\|<&*`\[\]])", r"\\\1", str(text))
"""A text within a cell of a Markdown table, in which it begins no markup."""
TEMPLATES.filters.update(named=named, title_of=title_of, assumed=assumed, brief=brief)
TEMPLATES.filters.update(lasting=lasting, counted=counted, px="{:.1f}".format, axis="{:.6g}".format)
MARKDOWN = TEMPLATES.overlay(autoescape=False)
"""`TEMPLATES` without escaping for HTML."""
