"""Profiling endpoints, `/debug/pprof/*`, as far as Python has equivalents.

`profile` profiles the loop for some seconds and returns the functions with the largest share of the time. `goroutine`
returns the stacks of all tasks. Profiling slows the process by some tens of per cent while it lasts.
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
_INDEX = """profile?seconds=30   functions by time
goroutine            stacks of all tasks
cmdline              command line of the process
"""


def profiling_routes(clock: LoopClock) -> Mapping[str, InsecureHandler]:
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
            return text(f"seconds={given} is not a number; give seconds=30, for example", 400)
        if self._busy:
            return text("another profile is in progress; retry when it is finished", 503)
        self._busy = True
        profiler = cProfile.Profile()
        try:
            profiler.enable()
            await self._clock.sleep(seconds)
        except ValueError as fault:  # another profiler is active
            return text(f"cannot profile: {fault}", 503)
        finally:
            profiler.disable()
            self._busy = False
        output = io.StringIO()
        pstats.Stats(profiler, stream=output).sort_stats("cumulative").print_stats(_SHOWN)
        return text(output.getvalue())


def _tasks() -> str:
    output = io.StringIO()
    for task in sorted(asyncio.all_tasks(), key=lambda each: each.get_name()):
        task.print_stack(limit=8, file=output)
    return output.getvalue()
