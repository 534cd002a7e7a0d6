"""Command line with a sampling profiler: attributes the processor time of a Bayplan process to its parts.

    python benchmarks/sampling_profiler.py SAMPLES.json cluster up --nodes 1000

Called by `demo.py`. Every few milliseconds of processor time the current stack is counted for the part of the program
that its innermost Bayplan frame belongs to. SIGUSR1 resets the counts, so that the start is excluded. The counts are
written when the process ends.
"""

from __future__ import annotations

import atexit
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from bayplan.cli import main

INTERVAL_S = 0.002

PARTS = (
    ("/bayplan/apiserver/http/watch_stream", "API server: watches"),
    ("/bayplan/apiserver/http/in_process", "API server: in-process access"),
    ("/bayplan/apiserver/http/server._handle", "API server: objects"),
    ("/bayplan/apiserver/http/server", "API server: HTTP"),
    ("/bayplan/apiserver/", "API server: objects"),
    ("/aiohttp/", "API server: HTTP"),
    ("/bayplan/client/", "clients of the parts"),
    ("/bayplan/controllers/kubelet/", "kubelet"),
    ("/bayplan/controllers/", "controllers"),
    ("/bayplan/telemetry/", "scheduler: records and events"),
    ("/bayplan/", "scheduler"),
    ("/asyncio/", "event loop and TLS"),
)


def part_of(frame: FrameType | None) -> str:
    """The part that a stack belongs to: that of the innermost frame in a module of `PARTS`.

    A compiled module has no frames. Each part is entered through a module that is never compiled, so its time counts
    for its caller: `server._handle` for all work of the API server on objects, `run_loop` for decisions.
    """
    while frame is not None:
        file = frame.f_code.co_filename.replace("\\", "/")
        if "/bayplan/objects/" not in file and "/bayplan/clock" not in file:
            place = f"{file.removesuffix('.py')}.{frame.f_code.co_name}"
            for folder, part in PARTS:
                if folder in place:
                    return part
        frame = frame.f_back
    return "other"


def sample(path: Path) -> None:
    """Count stacks until the process ends."""
    counts: Counter[str] = Counter()
    atexit.register(lambda: path.write_text(json.dumps(counts), encoding="utf-8"))
    signal.signal(signal.SIGPROF, lambda _, frame: counts.update((part_of(frame),)))
    signal.signal(signal.SIGUSR1, lambda _, __: counts.clear())
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)


if __name__ == "__main__":
    sample(Path(sys.argv[1]))
    main(sys.argv[2:])
