"""Health, metrics, configuration and status over HTTPS, for probes, scrapers and people; reads published views only."""

from bayplan.server.authentication import Authenticator
from bayplan.server.authorization import ALWAYS_ALLOWED, Authorizer
from bayplan.server.health import Check, election_check, handlers_check, shutdown_check
from bayplan.server.page_door import PageDoor
from bayplan.server.pages import Views, routes_of
from bayplan.server.server import GRACE_S, PORT, Access, Server, Serving
from bayplan.server.tls import TlsOptions
from bayplan.server.trust import FrontProxy, Trust, TrustKeeper, TrustOptions
from bayplan.server.viewers import PageViews, Viewers
from bayplan.server.why import NotLeading, Why
from bayplan.server.zpages import About

__all__ = [
    "ALWAYS_ALLOWED",
    "GRACE_S",
    "PORT",
    "About",
    "Access",
    "Authenticator",
    "Authorizer",
    "Check",
    "FrontProxy",
    "NotLeading",
    "PageDoor",
    "PageViews",
    "Server",
    "Serving",
    "TlsOptions",
    "Trust",
    "TrustKeeper",
    "TrustOptions",
    "Viewers",
    "Views",
    "Why",
    "election_check",
    "handlers_check",
    "routes_of",
    "shutdown_check",
]
