"""Whose client certificates name users, and whose may speak for others? From files, or from what the cluster publishes.

Read at start and again every minute: authorities rotate. kube-apiserver keeps them in the ConfigMap
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
    """Who may say, in headers, for whom it asks: holders of a certificate of `ca` with one of the names, or any."""

    ca: str = ""
    allowed_names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ("x-remote-user",)
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ("x-remote-group",)
    extra_prefixes: tuple[str, ...] = ("x-remote-extra-",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAuthorities:
    """Authorities for client certificates, in PEM."""

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
    """What the flags say besides the file."""
    skip_lookup: bool = False
    tolerate_lookup_failure: bool = True


class ConfigMapReader(Protocol):
    """Reads an object of the API server; the client does."""

    async def get_raw(self, resource: GroupVersionResource, namespace: str, name: str) -> dict[str, Any]: ...


class ClientAuthorityReloader:
    """Tells the server whom to trust, at start and whenever it changes."""

    def __init__(
        self,
        options: ClientAuthorityOptions,
        reader: ConfigMapReader | None,
        clock: LoopClock,
        tell: Callable[[ClientAuthorities], None],
    ) -> None:
        self._options = options
        self._reader = reader
        self._clock = clock
        self._tell = tell
        self._told: ClientAuthorities | None = None
        self._found: Mapping[str, str] = {}
        self._faults = ErrorLogThrottle(log, clock, again_s=math.inf)

    async def run(self) -> None:
        """Look again now and then; `refresh` has looked once before."""
        while True:
            await self._clock.sleep(RELOAD_S)
            try:
                await self.refresh()
                self._faults.clear(_REFUSALS)
            except ServingError as fault:
                self._faults.log_error(_REFUSALS, f"{fault}; what was trusted stays trusted")

    async def refresh(self) -> None:
        """Look once, and tell if something is new."""
        await self._look_up()
        trust = self._read()
        if trust != self._told:
            self._tell(trust)
            self._told = trust

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
                    _LOOKUPS, f"client certificates name nobody: cannot read {NAMESPACE}/{NAME}: {fault}"
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
        raise ServingError(f"cannot read the authority {path}: {fault}; name a file of certificates in PEM") from None
