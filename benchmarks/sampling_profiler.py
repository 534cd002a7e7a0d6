"""The command line with a sampler in it: where does a process of ours spend its processor time?

    python benchmarks/sampling_profiler.py SAMPLES.json cluster up --nodes 1000

Called by `demo.py`. Every few milliseconds of processor time the stack is looked at, and counted for the part of the
program that holds it: the innermost frame of a room of ours says which. SIGUSR1 begins anew, so that the start is not
counted. Written when the process ends.
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
    ("/bayplan/cluster/watching", "API server: watches"),
    ("/bayplan/cluster/inside", "API server: the way inside"),
    ("/bayplan/cluster/serving.answered", "API server: objects"),
    ("/bayplan/cluster/serving", "API server: HTTP"),
    ("/bayplan/cluster/", "API server: objects"),
    ("/aiohttp/", "API server: HTTP"),
    ("/bayplan/client/", "clients of the parts"),
    ("/bayplan/controllers/fake_", "kubelet"),
    ("/bayplan/controllers/pod_reports", "kubelet"),
    ("/bayplan/controllers/pod_st", "kubelet"),
    ("/bayplan/controllers/", "controllers"),
    ("/bayplan/telemetry/", "scheduler: records and events"),
    ("/bayplan/", "scheduler"),
    ("/asyncio/", "event loop and TLS"),
)


def part_of(frame: FrameType | None) -> str:
    """The part that a stack belongs to: the innermost frame that is nobody's helper.

    A compiled module has no frames. Each part is entered through one that is never compiled, so its time is counted
    where it was called: `serving.answered` for all that the API server does with objects, `live` for decisions.
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
