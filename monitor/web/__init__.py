"""HTTP: the site, and its server with TLS, passwords and limits."""

from monitor.web.access import Access
from monitor.web.connection import Limits
from monitor.web.server import WebServer
from monitor.web.site import create_site

__all__ = ["Access", "Limits", "WebServer", "create_site"]
