"""The page: the board as HTML with charts. No request touches a database.

It does not reload by itself, which would close what a reader has opened and move the focus; it shows its age and a
link to refresh.
"""

from monitor.page.pages import PageSource, render, render_monitor
from monitor.page.words import utc

__all__ = ["PageSource", "render", "render_monitor", "utc"]
