"""The page: the board as HTML with charts. Only incident pages read the store.

It does not reload automatically, which would close what a reader has opened and move the focus; it shows its age and a
link to refresh.
"""

from monitor.page.incident import IncidentSource, render_incident
from monitor.page.pages import PageSource, render, render_monitor
from monitor.page.words import utc

__all__ = ["IncidentSource", "PageSource", "render", "render_incident", "render_monitor", "utc"]
