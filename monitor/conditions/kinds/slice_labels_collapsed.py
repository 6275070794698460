"""Some slices have had almost no labels for a day or more."""

from __future__ import annotations

from typing import ClassVar

from monitor.conditions.evidence import register
from monitor.conditions.kinds.slice_labels_suspect import SliceLabelsSuspect


@register
class SliceLabelsCollapsed(SliceLabelsSuspect):
    """Labels of slices that were suspect for a day."""

    kind: ClassVar[str] = "slice_labels_collapsed"
    title: ClassVar[str] = "labels or relevance of slices collapsed"
    is_grave: ClassVar[bool] = True
    grows_into: ClassVar[str] = ""
    suspected: ClassVar[str] = (
        "Labels or relevance of slices collapsed a day ago or more: they lost most of their labels"
    )
    advice: ClassVar[str] = (
        "{{ it|fill(it.cause) }}; if that is fine, check what they are shown. If they will never have labels again, "
        "leave them out of the rankings (`select:`)."
    )
