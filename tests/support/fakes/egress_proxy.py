"""A pod network for an API server that has none: connections to any pod address go to a port on loopback.

API servers do not proxy to loopback. An egress selector lets them connect to pods through an HTTP proxy on a Unix
socket, which is this module: for `CONNECT 10.1.2.3:10259` it connects to that port on loopback.
"""

from __future__ import annotations

import json
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.harness.deadlines import DEADLINE_S

_LARGEST = 1 << 16


class _Dialling(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        words = self.rfile.readline().split()
        while self.rfile.readline().strip():
            pass  # headers
        assert words[0] == b"CONNECT", words
        with socket.create_connection(("127.0.0.1", int(words[1].rpartition(b":")[2])), timeout=DEADLINE_S) as there:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_copy_bytes, args=(there, self.connection), daemon=True)
            back.start()
            _copy_bytes(self.connection, there)
            back.join(60)


def _copy_bytes(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(_LARGEST):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """The API server reports a pod that does not answer."""


@contextmanager
def run_egress_proxy() -> Iterator[str]:
    """The flag that makes a kube-apiserver use the proxy."""
    folder = Path(tempfile.mkdtemp(prefix="pods-"))  # names of Unix sockets must be short
    name = folder / "network"
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(name)}}}
    config = {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }
    (folder / "egress.json").write_text(json.dumps(config))
    try:
        with _Server(str(name), _Dialling) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"--egress-selector-config-file={folder / 'egress.json'}"
            finally:
                server.shutdown()
    finally:
        shutil.rmtree(folder)
