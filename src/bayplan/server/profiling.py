"""Where does the time go? `/debug/pprof/*`, as far as Python has something of the kind.

`profile` watches the loop for some seconds and answers with what took most time; `goroutine` lists what every task is
waiting for. Watching slows the process by some tens of per cent while it lasts.
"""

from __future__ import annotations

import asyncio
import cProfile
import io
import pstats
import sys
from collections.abc import Mapping

from bayplan.clock import LoopClock
from bayplan.server.http.insecure_server import InsecureHandler
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import HttpServerResponse, text

_DEFAULT_S, _LONGEST_S = 30.0, 50.0
_SHOWN = 60
_INDEX = """profile?seconds=30   what takes most time
goroutine            what every task waits for
cmdline              how the process was started
"""


def profiling_routes(clock: LoopClock) -> Mapping[str, InsecureHandler]:
    """Handlers by path."""
    profiler = _Profiler(clock)
    return {
        "/debug/pprof/": lambda _: text(_INDEX),
        "/debug/pprof/profile": profiler.profile,
        "/debug/pprof/goroutine": lambda _: text(_tasks()),
        "/debug/pprof/cmdline": lambda _: text("\0".join(sys.argv)),
    }


class _Profiler:
    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._busy = False

    async def profile(self, request: HttpRequest) -> HttpServerResponse:
        given = request.query.get("seconds", [""])[0]
        try:
            seconds = min(float(given), _LONGEST_S) if given else _DEFAULT_S
        except ValueError:
            return text(f"seconds={given} is no number", 400)
        if self._busy:
            return text("somebody is profiling already; wait until that is over", 503)
        self._busy = True
        watching = cProfile.Profile()
        try:
            watching.enable()
            await self._clock.sleep(seconds)
        except ValueError as fault:  # another tool watches
            return text(f"cannot profile: {fault}", 503)
        finally:
            watching.disable()
            self._busy = False
        told = io.StringIO()
        pstats.Stats(watching, stream=told).sort_stats("cumulative").print_stats(_SHOWN)
        return text(told.getvalue())


def _tasks() -> str:
    told = io.StringIO()
    for task in sorted(asyncio.all_tasks(), key=lambda each: each.get_name()):
        task.print_stack(limit=8, file=told)
    return told.getvalue()
