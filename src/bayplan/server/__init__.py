"""Health, metrics, configuration and status over HTTPS, for probes, scrapers and people; reads published views only."""

from bayplan.server.auth.authentication import Authenticator
from bayplan.server.auth.authorization import ALWAYS_ALLOWED, Authorizer
from bayplan.server.auth.client_authorities import (
    FrontProxy,
    Trust,
    TrustKeeper,
    TrustOptions,
)
from bayplan.server.health import Check, election_check, handlers_check, shutdown_check
from bayplan.server.http.serving_tls import TlsOptions
from bayplan.server.http.why import NotLeading, Why
from bayplan.server.routes import Views, routes_of
from bayplan.server.server import GRACE_S, PORT, Access, Server, Serving
from bayplan.server.web.loopback_page import PageDoor
from bayplan.server.web.page_streams import PageViews, Viewers
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
