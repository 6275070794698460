"""The page: what the board holds, as HTML with its charts. No request touches a database, and nothing runs in it.

It does not reload by itself: that would close what a reader has opened and move the focus. It says how old it is
instead, with a link to refresh it.
"""

from monitor.page.pages import PageSource, render, render_monitor
from monitor.page.words import utc

__all__ = ["PageSource", "render", "render_monitor", "utc"]
