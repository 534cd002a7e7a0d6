"""Bayplan's commands as processes: one slot for each place in a configuration.

A slot keeps one process running. The director kills, stops or ends it; the slot starts the next one, as a Deployment
would, when no write of the old one is still under way in the proxy.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from chaos.child_processes import spawn
from chaos.client import Access
from chaos.proxy.server import Proxy

_TERM_S = 45.0
_POLL_S = 0.1
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(?:[A-Za-z_][\w.]*(?::.*)?\n)?")
_FRAME = re.compile(r'File "(?:.*/)?(\S+?/\S+)", line (\d+), in (\S+)')


@dataclass(frozen=True, slots=True)
class Instance:
    """One process of a slot."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    started_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """An instance that ended without a signal of the driver."""

    slot: str
    code: int
    log: Path
    lived_s: float


@dataclass(eq=False)
class Slot:
    """`role` is "scheduler" or "binder". `ends_alone`: exit codes with which a process may end by itself."""

    name: str
    role: str
    arguments: tuple[str, ...]
    folder: Path
    proxy: Proxy
    now: Callable[[], float]
    ends_alone: tuple[int, ...] = ()
    on_end: Callable[[Ended], None] = lambda _: None
    instances: list[Instance] = field(default_factory=list)
    held: bool = False
    """While a fault has the process, the slot starts no other one."""
    _read: dict[Path, int] = field(default_factory=dict)

    @property
    def running(self) -> Instance | None:
        last = self.instances[-1] if self.instances else None
        return last if last is not None and last.process.poll() is None else None

    def start(self) -> None:
        number, self.proxy.requests = len(self.instances), 0
        log = self.folder / f"{self.name}-{number}.log"
        process = spawn([sys.executable, "-m", "bayplan", *self.arguments], log)
        self.instances.append(Instance(number, process, log, self.now()))

    async def supervise(self) -> None:
        """Start the next process whenever there is none, until cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            if self.held or self.running is not None:
                continue
            if self.instances:
                self._note_end(self.instances[-1])
            await self.writes_landed()
            if not self.held:
                self.start()

    def _note_end(self, last: Instance) -> None:
        code = last.process.returncode
        if code not in (-signal.SIGKILL, *self.ends_alone):
            self.on_end(Ended(self.name, code, last.log, self.now() - last.started_s))

    async def writes_landed(self) -> None:
        while self.proxy.pending_writes:
            await asyncio.sleep(_POLL_S)

    def signal(self, number: int) -> None:
        if self.running is not None:
            self.running.process.send_signal(number)

    async def kill(self) -> None:
        """End the process by SIGKILL, and wait until it is gone."""
        running = self.running
        if running is not None:
            running.process.kill()
            await asyncio.to_thread(running.process.wait)

    async def terminate(self) -> int | None:
        """End the process by SIGTERM; its exit code, None where it had to be killed."""
        running = self.running
        if running is None:
            return 0
        running.process.terminate()
        try:
            return await asyncio.to_thread(running.process.wait, _TERM_S)
        except subprocess.TimeoutExpired:
            await self.kill()
            return None

    def stop(self) -> None:
        """End every process, also stopped ones."""
        running = self.running
        if running is not None:
            running.process.kill()
            running.process.wait()

    def resident_mib(self) -> float | None:
        """Resident memory of the process now."""
        running = self.running
        if running is None:
            return None
        with suppress(OSError):
            for line in Path(f"/proc/{running.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        return None

    def new_tracebacks(self) -> list[tuple[str, str]]:
        """Stack traces in the logs that were not returned before: the code location, and the whole of each."""
        found: list[tuple[str, str]] = []
        for instance in self.instances:
            text = instance.log.read_text(errors="replace") if instance.log.exists() else ""
            start = self._read.get(instance.log, 0)
            for each in _TRACEBACK.finditer(text, start):
                place = " < ".join(
                    f"{file}:{line} {name}" for file, line, name in reversed(_FRAME.findall(each[0])[-4:])
                )
                found.append((place, f"{instance.log.name}: {each[0]}"))
                start = each.end()
            self._read[instance.log] = start
        return found


def write_kubeconfig(path: Path, access: Access, ca: Path, port: int) -> Path:
    """A kubeconfig that connects through a proxy."""
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(ca)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "chaos",
        "clusters": [{"name": "chaos", "cluster": cluster}],
        "users": [{"name": "chaos", "user": {"token": access.token}}],
        "contexts": [{"name": "chaos", "context": {"cluster": "chaos", "user": "chaos"}}],
    }
    path.write_text(json.dumps(content))
    return path
