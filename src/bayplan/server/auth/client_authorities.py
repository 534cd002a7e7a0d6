"""Client authorities: CAs for client certificates and for the front proxy, from files or from the cluster.

Read at start and again every minute, because CAs rotate. kube-apiserver publishes them in the ConfigMap
`kube-system/extension-apiserver-authentication`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from bayplan.client import ErrorLogThrottle, GroupVersionResource
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, ServingError

log = logging.getLogger(__name__)

CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
RELOAD_S = 60.0
_REFUSALS, _LOOKUPS = "refusals", "lookups"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxy:
    """A front proxy, which names the user in headers: a client with a certificate of `ca` and an allowed name, if
    any."""

    ca: str = ""
    allowed_names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ("x-remote-user",)
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ("x-remote-group",)
    extra_prefixes: tuple[str, ...] = ("x-remote-extra-",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAuthorities:
    """CAs for client certificates, in PEM."""

    client_ca: str = ""
    front_proxy: FrontProxy = field(default_factory=FrontProxy)

    @property
    def authorities(self) -> str:
        return "\n".join(part for part in (self.client_ca, self.front_proxy.ca) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAuthorityOptions:
    """`--client-ca-file`, `--requestheader-*` and `--authentication-*lookup*`."""

    client_ca_file: str = ""
    front_proxy_ca_file: str = ""
    front_proxy: FrontProxy = field(default_factory=FrontProxy)
    """The flags of the front proxy besides its CA file."""
    skip_lookup: bool = False
    tolerate_lookup_failure: bool = True


class ConfigMapReader(Protocol):
    """Reads an object of the API server, as the client does."""

    async def get_raw(self, resource: GroupVersionResource, namespace: str, name: str) -> dict[str, Any]: ...


class ClientAuthorityReloader:
    """Passes the client authorities to the server, at start and at each change."""

    def __init__(
        self,
        options: ClientAuthorityOptions,
        reader: ConfigMapReader | None,
        clock: LoopClock,
        report: Callable[[ClientAuthorities], None],
    ) -> None:
        self._options = options
        self._reader = reader
        self._clock = clock
        self._report = report
        self._reported: ClientAuthorities | None = None
        self._found: Mapping[str, str] = {}
        self._faults = ErrorLogThrottle(log, clock, again_s=math.inf)

    async def run(self) -> None:
        """Reload every minute. The caller has called `refresh` once before."""
        while True:
            await self._clock.sleep(RELOAD_S)
            try:
                await self.refresh()
                self._faults.clear(_REFUSALS)
            except ServingError as fault:
                self._faults.log_error(_REFUSALS, f"{fault}; the previous client authorities stay in use")

    async def refresh(self) -> None:
        """Read the client authorities once, and report a change."""
        await self._look_up()
        trust = self._read()
        if trust != self._reported:
            self._report(trust)
            self._reported = trust

    async def _look_up(self) -> None:
        options = self._options
        complete = options.client_ca_file and options.front_proxy_ca_file
        if options.skip_lookup or complete or self._reader is None:
            return
        try:
            tree = await self._reader.get_raw(CONFIG_MAPS, NAMESPACE, NAME)
        except ApiError as fault:
            if not options.tolerate_lookup_failure:
                raise ServingError(
                    f"cannot read the ConfigMap {NAMESPACE}/{NAME}: {fault}; let this user read it, or set "
                    "--authentication-tolerate-lookup-failure"
                ) from None
            if not self._found:
                self._faults.log_error(
                    _LOOKUPS, f"client certificates are ignored: cannot read {NAMESPACE}/{NAME}: {fault}"
                )
            return
        self._found = tree.get("data") or {}
        self._faults.clear(_LOOKUPS)

    def _read(self) -> ClientAuthorities:
        options, found = self._options, self._found
        client_ca = _content(options.client_ca_file) or found.get("client-ca-file", "")
        if options.front_proxy_ca_file:
            front = replace(options.front_proxy, ca=_content(options.front_proxy_ca_file))
        else:
            front = _from_config_map(found)
        return ClientAuthorities(client_ca=client_ca, front_proxy=front)


def _from_config_map(found: Mapping[str, str]) -> FrontProxy:
    def words(key: str) -> tuple[str, ...]:
        try:
            return tuple(str(word) for word in json.loads(found.get(f"requestheader-{key}") or "[]"))
        except (ValueError, TypeError):
            return ()

    return FrontProxy(
        ca=found.get("requestheader-client-ca-file", ""),
        allowed_names=words("allowed-names"),
        user_headers=words("username-headers"),
        uid_headers=words("uid-headers"),
        group_headers=words("group-headers"),
        extra_prefixes=words("extra-headers-prefix"),
    )


def _content(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as fault:
        raise ServingError(
            f"cannot read the client authority {path}: {fault}; give a file of PEM certificates"
        ) from None
