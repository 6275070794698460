"""Reports for people: Markdown, and one HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from monitor import __version__
from monitor.page.judged import judged_figure
from monitor.page.words import MARKDOWN, TEMPLATES
from monitor.service.reporting import QualityReport

POINTS = 400
"""Points of the chart."""


def as_text(found: Sequence[QualityReport]) -> list[str]:
    """The reports in Markdown, texts from outside escaped."""
    template = MARKDOWN.get_template("report.md")
    return [line for one in found for line in template.render(it=one).split("\n")]


def as_page(found: Sequence[QualityReport]) -> str:
    """The reports as one HTML file that needs nothing else, and prints well."""
    return TEMPLATES.get_template("report.html").render(
        reports=[(one, judged_figure(one.snapshot, POINTS)) for one in found], version=__version__
    )
