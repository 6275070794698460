"""Labels have been broken for a day or more: they were lost, or people really stopped choosing."""

from __future__ import annotations

from typing import ClassVar

from monitor.conditions.evidence import register
from monitor.conditions.kinds.labels_suspect import LabelsSuspect


@register
class LabelsCollapsed(LabelsSuspect):
    """Labels that were suspect for a day."""

    kind: ClassVar[str] = "labels_collapsed"
    title: ClassVar[str] = "labels or relevance collapsed"
    is_grave: ClassVar[bool] = True
    grows_into: ClassVar[str] = ""
    suspected: ClassVar[str] = (
        "Labels or relevance collapsed: {% if it.worthless %}for a day or more every request has a value of 0, "
        "although the usual number have labels{% else %}labels have been missing for a day or more{% endif %}."
    )
    advice: ClassVar[str] = (
        "{{ it|fill(it.cause) }}; {% if it.counts_unlabelled or it.worthless %}if events are fine, people really "
        "stopped choosing: look at the ranking itself.{% else %}if fewer requests will have labels from now on, that "
        "counts as normal after four whole days, unless hardly any has one.{% endif %}"
    )
