"""HTTPS endpoints for health, metrics, configuration, status and the web page. They read published views only."""

from bayplan.server.auth.authentication import Authenticator
from bayplan.server.auth.authorization import ALWAYS_ALLOW_PATHS, Authorizer
from bayplan.server.auth.client_authorities import (
    ClientAuthorities,
    ClientAuthorityOptions,
    ClientAuthorityReloader,
    FrontProxy,
)
from bayplan.server.health import Check, election_check, handlers_check, shutdown_check
from bayplan.server.http.serving_tls import TlsOptions
from bayplan.server.http.why import ExplainFunction, NotLeader
from bayplan.server.routes import ServerViews, build_routes
from bayplan.server.server import GRACE_S, PORT, AccessControl, SecureServingOptions, Server
from bayplan.server.web.loopback_page import LoopbackPageServer
from bayplan.server.web.page_streams import PageStreams, PageViews
from bayplan.server.zpages import ComponentInfo

__all__ = [
    "ALWAYS_ALLOW_PATHS",
    "GRACE_S",
    "PORT",
    "AccessControl",
    "Authenticator",
    "Authorizer",
    "Check",
    "ClientAuthorities",
    "ClientAuthorityOptions",
    "ClientAuthorityReloader",
    "ComponentInfo",
    "ExplainFunction",
    "FrontProxy",
    "LoopbackPageServer",
    "NotLeader",
    "PageStreams",
    "PageViews",
    "SecureServingOptions",
    "Server",
    "ServerViews",
    "TlsOptions",
    "build_routes",
    "election_check",
    "handlers_check",
    "shutdown_check",
]
