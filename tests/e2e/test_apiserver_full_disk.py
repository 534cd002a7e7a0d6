"""The storage file of the embedded API server cannot grow: writes are refused and not visible until there is room
again.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from cluster.api import Api, Refused
from cluster.embedded import API_SERVER, Embedded
from support.e2e.scheduler_process import wait_until

Tree = dict[str, Any]


def lease(name: str) -> Tree:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}}


def limit_files(cluster: Embedded, size: int) -> None:
    """Limit the size of the server's files (RLIMIT_FSIZE), as a full disk would; larger files keep their size."""
    (pid,) = cluster.pids
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


def seen(api: Api) -> tuple[list[str], str]:
    found = api._ask("GET", api.path("Lease"))
    return [each["metadata"]["name"] for each in found["items"]], found["metadata"]["resourceVersion"]


def ready(api: Api) -> str:
    """The lines of /readyz if a check fails, else an empty list."""
    try:
        api._ask("GET", "/readyz")
    except Refused as refused:
        return str(refused)
    except ValueError:  # "ok" is not JSON
        return ""
    raise AssertionError("readyz answers in plain text")


@pytest.mark.parametrize("sync", ["full", "normal"])
def test_writes_are_refused_while_the_disk_is_full_and_accepted_again_afterwards(tmp_path: Path, sync: str) -> None:
    with Embedded(tmp_path, flags=[f"--data-sync={sync}"]) as cluster:
        api = Api(cluster, "default")
        api.create(lease("before"))
        before = seen(api)
        limit_files(cluster, (tmp_path / "objects.db-wal").stat().st_size)
        for name in ("refused-0", "refused-1"):
            with pytest.raises(Refused, match=r"500: .*the write was not committed: cannot write .*objects\.db"):
                api.create(lease(name))
            with pytest.raises(Refused, match="404"):
                api.get("Lease", name)
        with pytest.raises(Refused, match="500"):
            api.delete("Lease", "before")
        assert seen(api) == before
        assert ready(api) == "500: [+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n"

        limit_files(cluster, resource.RLIM_INFINITY)
        wait_until(lambda: not ready(api), "the server is ready again, without a write of a client")
        api.create(lease("after"))
        cluster.end(API_SERVER, kill=True)
        cluster.start_api_server()
        assert seen(Api(cluster, "default"))[0] == ["after", "before"]
