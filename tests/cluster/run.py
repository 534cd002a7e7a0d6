"""A running cluster of real parts: etcd and kube-apiserver on free loopback ports, with users and kubectl.

    with Cluster(folder) as cluster:
        cluster.kubectl("create", "namespace", "team")
        target = cluster.target()

Data is in the given folder. Every process ends with this one (PR_SET_PDEATHSIG) or at the end of the block, by its own
pid. The API server answers some three seconds after the start; the pair takes about 400 MB.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from bayplan.client import ConnectionConfig, Secret
from cluster.build import program
from support.fakes.certificates import Authority, private_key
from support.harness.deadlines import DEADLINE_S

ADMIN = "admin"
API_SERVER = "kube-apiserver"
_PR_SET_PDEATHSIG = 1

BENCHMARK_FLAGS = (
    "--max-requests-inflight=4000",
    "--max-mutating-requests-inflight=2000",
    "--enable-priority-and-fairness=false",
)


class ClusterError(RuntimeError):
    """A part of the cluster failed; its own output is in the message."""


class Cluster:
    """etcd and kube-apiserver. Users are tokens: `admin` has all rights, another user those that RBAC grants."""

    def __init__(
        self, folder: Path, *, flags: Sequence[str] = (), users: Sequence[str] = (), server: str = API_SERVER
    ) -> None:
        """`server`: another program than the API server of the default version."""
        self.folder = folder
        self._server = server
        self.tokens = {name: f"token-of-{name}" for name in (ADMIN, *users)}
        self.authority = Authority()
        self._flags = tuple(flags)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # A child ends with the thread that started it, so one thread that lives as long as the cluster starts them all.
        self._parent = ThreadPoolExecutor(1, "cluster")
        self._etcd_port, self._peer_port, self._port = free_ports(3)

    # lifecycle

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._prepare()
            self.start_etcd()
            self.start_api_server()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        for name in reversed(list(self._processes)):
            self.end(name)
        self._parent.shutdown()

    def start_etcd(self) -> None:
        client, peer = self.etcd_url, f"http://127.0.0.1:{self._peer_port}"
        self.run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def start_api_server(self) -> None:
        """Start it, also again after `end("kube-apiserver")`, and wait until it is ready."""
        self.run(API_SERVER, *self._api_server_flags(), *self._flags, program_name=self._server)
        self._wait_ready()

    def run(self, name: str, *arguments: str, program_name: str = "") -> subprocess.Popen[bytes]:
        """Start a program beside the running ones; its output goes to a file in the folder."""
        process = self._parent.submit(self._spawn, name, arguments, program_name or name).result()
        self._processes[name] = process
        return process

    def _spawn(self, name: str, arguments: Sequence[str], program_name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [program(program_name), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )

    def end(self, name: str, *, kill: bool = False) -> None:
        """End one program and wait until it has exited."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            process.wait(15.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def pids(self) -> list[int]:
        """The pids of all running programs."""
        return [process.pid for process in self._processes.values()]

    # credentials

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def etcd_url(self) -> str:
        return f"http://127.0.0.1:{self._etcd_port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.crt"

    def target(self, user: str = ADMIN, **more: Any) -> ConnectionConfig:
        """The target for Bayplan's client."""
        return ConnectionConfig(server=self.url, ca_file=str(self.ca_file), token=Secret(self.tokens[user]), **more)

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """A kubeconfig file of a user, for programs."""
        path = self.folder / f"{user}.kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)}}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        }
        text = json.dumps(content)
        if not path.exists() or path.read_text() != text:  # another process may be reading it
            new = path.with_suffix(".new")
            new.write_text(text)
            new.replace(path)
        return path

    # operations of tests

    def kubectl(self, *arguments: str, stdin: str | None = None, user: str = ADMIN) -> str:
        """The output of kubectl."""
        command = [str(program("kubectl")), f"--kubeconfig={self.kubeconfig(user)}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S)
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create or change objects with kubectl."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def compact(self) -> int:
        """Compact etcd's history; returns the revision."""
        revision = int(self._etcd("kv/range", {"key": "AA=="})["header"]["revision"])
        self._etcd("kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    def _etcd(self, call: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self.etcd_url}/v3/{call}", data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return json.load(answer)

    # start

    def _prepare(self) -> None:
        pair = self.authority.server("127.0.0.1", "localhost")
        files = {
            "ca.crt": self.authority.certificate,
            "server.crt": pair.certificate,
            "server.key": pair.key,
            "accounts.key": private_key(),
            "tokens.csv": "".join(self._token_line(name) for name in self.tokens),
        }
        for name, content in files.items():
            (self.folder / name).write_text(content)

    def _token_line(self, name: str) -> str:
        group = "system:masters" if name == ADMIN else "bayplan:tests"
        return f'{self.tokens[name]},{name},uid-of-{name},"{group}"\n'

    def _api_server_flags(self) -> list[str]:
        return [
            f"--etcd-servers={self.etcd_url}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self.folder / 'certs'}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--client-ca-file={self.ca_file}",
            "--service-account-issuer=https://bayplan.test",
            f"--service-account-key-file={self.folder / 'accounts.key'}",
            f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",  # as in every cluster with network plugins
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--runtime-config=api/all=true",
        ]

    def _wait_ready(self) -> None:
        trusted = ssl.create_default_context(cafile=str(self.ca_file))
        trusted.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        who = {"Authorization": f"Bearer {self.tokens[ADMIN]}"}
        request = urllib.request.Request(f"{self.url}/readyz", headers=who)
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise ClusterError(f"{name} ended with {process.returncode}: {self.log(name)}")
            if _answers(request, trusted):
                return
            time.sleep(0.1)
        raise ClusterError(f"the API server was not ready within {DEADLINE_S:g} s: {self.log('kube-apiserver')}")

    def log(self, name: str, *, last: int = 2000) -> str:
        """The last lines of a program's output."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-last:]


def _answers(request: urllib.request.Request, trusted: ssl.SSLContext) -> bool:
    try:
        with urllib.request.urlopen(request, timeout=5, context=trusted) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def die_with_parent() -> None:
    """In the child: the kernel ends it when the parent process ends for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Different ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
