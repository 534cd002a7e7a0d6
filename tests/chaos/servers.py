"""API servers under test: etcd with kube-apiserver, or Bayplan's embedded server with its file.

Each has components that the director kills and starts again. A component starts with its old port and data.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from chaos import certificates
from chaos.child_processes import free_ports, spawn
from chaos.client import Access, trust
from cluster.build import program

TOKEN = "token-of-chaos"
_READY_S = 120.0


class ServerFailed(RuntimeError):
    """A component of the API server did not start."""


class ApiServer(Protocol):
    components: tuple[str, ...]
    access: Access

    async def start(self) -> None: ...
    def kill(self, component: str) -> None: ...
    async def restart(self, component: str) -> None: ...
    def compact(self) -> bool: ...
    def stop(self) -> None: ...
    def files(self) -> certificates.Files: ...


class _Components:
    """Processes by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def kill(self, component: str) -> None:
        process = self.processes.pop(component)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for component in reversed(list(self.processes)):
            self.kill(component)

    async def _wait_ready(self, access: Access) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _READY_S
        while loop.time() < deadline:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise ServerFailed(f"{name} ended with {process.returncode}; see {self.folder / name}.log")
            if await asyncio.to_thread(_is_ready, access):
                return
            await asyncio.sleep(0.1)
        raise ServerFailed(f"the API server was not ready within {_READY_S:.0f} s; see {self.folder}")


def _is_ready(access: Access) -> bool:
    if not access.ca_file.exists():
        return False
    request = urllib.request.Request(f"{access.url}/readyz", headers={"Authorization": f"Bearer {access.token}"})
    try:
        with urllib.request.urlopen(request, timeout=3, context=trust(access.ca_file)) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class RealServer(_Components):
    """etcd and kube-apiserver."""

    components: tuple[str, ...] = ("etcd", "kube-apiserver")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._client_port, self._peer_port, self._port = free_ports(3)
        self._files = certificates.write(folder)
        (folder / "tokens.csv").write_text(f'{TOKEN},chaos,uid-of-chaos,"system:masters"\n')
        self.access = Access(f"https://127.0.0.1:{self._port}", self._files.ca, TOKEN)

    def files(self) -> certificates.Files:
        return self._files

    async def start(self) -> None:
        self._spawn("etcd")
        self._spawn("kube-apiserver")
        await self._wait_ready(self.access)

    async def restart(self, component: str) -> None:
        """Start a component that was killed. kube-apiserver ends by itself when etcd is away for long."""
        self._spawn(component)
        api_server = self.processes.get("kube-apiserver")
        if api_server is not None and api_server.poll() is not None:
            self._spawn("kube-apiserver")
        await self._wait_ready(self.access)

    def compact(self) -> bool:
        """Drop etcd's history up to now."""
        try:
            revision = int(self._etcd("kv/range", {"key": "AA=="})["header"]["revision"])
            self._etcd("kv/compaction", {"revision": str(revision), "physical": True})
        except (urllib.error.URLError, OSError):
            return False
        return True

    def _etcd(self, call: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        url = f"http://127.0.0.1:{self._client_port}/v3/{call}"
        with urllib.request.urlopen(urllib.request.Request(url, data=json.dumps(body).encode()), timeout=5) as answer:
            found: dict[str, dict[str, str]] = json.load(answer)
            return found

    def _spawn(self, component: str) -> None:
        flags = self._etcd_flags() if component == "etcd" else self._api_server_flags()
        command = [str(program(component)), *flags]
        self.processes[component] = spawn(command, self.folder / f"{component}.log")

    def _etcd_flags(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._client_port}", f"http://127.0.0.1:{self._peer_port}"
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=error",
            "--unsafe-no-fsync",  # the process is killed, not the machine
        ]

    def _api_server_flags(self) -> list[str]:
        files = self._files
        return [
            f"--etcd-servers=http://127.0.0.1:{self._client_port}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self.folder / 'certs'}",
            f"--tls-cert-file={files.certificate}",
            f"--tls-private-key-file={files.key}",
            f"--client-ca-file={files.ca}",
            "--service-account-issuer=https://chaos.test",
            f"--service-account-key-file={files.accounts_key}",
            f"--service-account-signing-key-file={files.accounts_key}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            # StorageObjectInUseProtection keeps claims until a controller releases them; the driver has none for that.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection",
            "--runtime-config=api/all=true",
        ]


class EmbeddedServer(_Components):
    """`bayplan cluster up` without nodes, scheduler and controllers, and with a file for its objects."""

    components: tuple[str, ...] = ("server",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        self._files = certificates.write(folder)  # for the proxies; the server has certificates of its own
        (folder / "tokens.csv").write_text(f'{TOKEN},chaos,uid-of-chaos,"system:masters"\n')
        home = folder / "state" / "bayplan" / "clusters" / "bayplan"
        self.access = Access(f"https://127.0.0.1:{self._port}", home / "ca.crt", TOKEN)

    def files(self) -> certificates.Files:
        return self._files

    async def start(self) -> None:
        await self.restart("server")

    async def restart(self, component: str) -> None:
        command = [
            *(sys.executable, "-m", "bayplan", "cluster", "up"),
            *("--nodes=0", "--no-scheduler", "--no-controllers"),
            f"--port={self._port}",
            f"--data={self.folder / 'objects.db'}",
            f"--token-file={self.folder / 'tokens.csv'}",
        ]
        env = {"XDG_STATE_HOME": str(self.folder / "state")}
        self.processes[component] = spawn(command, self.folder / f"{component}.log", env)
        await self._wait_ready(self.access)

    def compact(self) -> bool:
        """There is no call for it: a restart drops the history."""
        return False


SERVERS: dict[str, Callable[[Path], ApiServer]] = {"real": RealServer, "embedded": EmbeddedServer}
