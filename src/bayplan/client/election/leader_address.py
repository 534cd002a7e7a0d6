"""Where is the leader, and how does a laptop reach it? By marks on its lease, and through the API server's proxy.

The holder of a lease is known by its identity alone, which says nothing about where it serves. So a leader marks its
leases with the pod that it runs in and the port. The mark names the identity, too: another program that takes the lease
leaves annotations as they are, and its clients must not be sent to us.

The API server takes the caller's credentials off a request that it passes on. What is to prove who the caller is
travels in a header of its own, to a pod that the caller's API server has named.
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
    """The annotations of a leader that runs in a pod; none for one that does not."""
    namespace = env.get("POD_NAMESPACE", "")
    if not namespace:
        try:
            namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
        except OSError:
            return None
    mark = _LeaderAnnotation(identity, namespace, env.get("POD_NAME") or platform.node(), port)
    return {LEADER_ANNOTATION: msgspec.json.encode(mark).decode()}


async def leader_proxy_path(client: Client, namespace: str, name: str) -> str:
    """The path, at the API server, below which the holder of a lease serves."""
    try:
        lease = await client.get_raw(LEASES, namespace, name)
    except NotFound:
        raise UsageError(
            f"there is no lease {namespace}/{name}, which the scheduler would hold; name another with --lease, or the "
            "scheduler's address with --url"
        ) from None
    holder = (lease.get("spec") or {}).get("holderIdentity") or ""
    if not holder:
        raise UsageError(f"nobody holds the lease {namespace}/{name}: no scheduler leads at the moment; try again")
    text = ((lease.get("metadata") or {}).get("annotations") or {}).get(LEADER_ANNOTATION, "")
    try:
        mark = msgspec.json.decode(text, type=_LeaderAnnotation) if text else _LeaderAnnotation()
    except msgspec.DecodeError:
        mark = _LeaderAnnotation()
    if mark.identity != holder:
        raise UsageError(
            f"the lease {namespace}/{name} does not say where its holder {holder} serves: it is no Bayplan in a pod; "
            "name its address with --url"
        )
    return f"/api/v1/namespaces/{quote(mark.namespace)}/pods/https:{quote(mark.pod)}:{mark.port}/proxy"
