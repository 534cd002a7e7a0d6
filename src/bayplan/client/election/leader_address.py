"""Address of the leader: an annotation on its lease, reached through the API server's proxy.

A lease names only the identity of its holder, not its address. So a leader annotates its leases with its pod and port.
The annotation contains the identity, too: another program that takes the lease keeps annotations, and clients must not
use an outdated address.

The API server removes the caller's credentials from a proxied request. The token that authenticates the caller to the
leader is therefore sent in its own header, to a pod that the caller's API server has named.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from bayplan.client.auth.connection_config import SERVICE_ACCOUNT
from bayplan.client.client import Client
from bayplan.client.resources import LEASES
from bayplan.errors import NotFound, UsageError

LEADER_ANNOTATION = "bayplan.io/leader"
FORWARDED_TOKEN = "X-Bayplan-Token"


class _LeaderAnnotation(msgspec.Struct, frozen=True):
    identity: str = ""
    namespace: str = ""
    pod: str = ""
    port: int = 0


def leader_annotations(
    identity: str, port: int, env: Mapping[str, str], folder: Path = SERVICE_ACCOUNT
) -> dict[str, str] | None:
    """Annotations of a leader that runs in a pod; None for a leader outside of a pod."""
    namespace = env.get("POD_NAMESPACE", "")
    if not namespace:
        try:
            namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
        except OSError:
            return None
    mark = _LeaderAnnotation(identity, namespace, env.get("POD_NAME") or platform.node(), port)
    return {LEADER_ANNOTATION: msgspec.json.encode(mark).decode()}


async def leader_proxy_path(client: Client, namespace: str, name: str) -> str:
    """Path of the lease holder below the API server's address."""
    try:
        lease = await client.get_raw(LEASES, namespace, name)
    except NotFound:
        raise UsageError(
            f"there is no lease {namespace}/{name}: no scheduler uses it; name another with --lease, or the "
            "scheduler's address with --url"
        ) from None
    holder = (lease.get("spec") or {}).get("holderIdentity") or ""
    if not holder:
        raise UsageError(f"no process holds the lease {namespace}/{name}: no scheduler leads now; try again")
    text = ((lease.get("metadata") or {}).get("annotations") or {}).get(LEADER_ANNOTATION, "")
    try:
        mark = msgspec.json.decode(text, type=_LeaderAnnotation) if text else _LeaderAnnotation()
    except msgspec.DecodeError:
        mark = _LeaderAnnotation()
    if mark.identity != holder:
        raise UsageError(
            f"the lease {namespace}/{name} has no address of its holder {holder}: it is not Bayplan in a pod; name "
            "its address with --url"
        )
    return f"/api/v1/namespaces/{quote(mark.namespace)}/pods/https:{quote(mark.pod)}:{mark.port}/proxy"
