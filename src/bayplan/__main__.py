"""Entry point of `python -m bayplan` and of the console script: sets early signal handlers, then imports the CLI.

Imports take up to a second, and the default action of SIGUSR1, SIGUSR2 and SIGTERM in that time is wrong for a server.
Handlers are Python functions and not SIG_IGN: a child process, such as a credential program, inherits ignored signals
but no handlers. Commands replace them when they run an event loop. Cost: 5 ms, for the `signal` module.
"""

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_SERVERS = ("scheduler", "run", "binder", "controllers", "kubelet")


def main() -> None:
    _handle_signals(sys.argv[1:])
    from bayplan.cli import main as run

    run()


def _handle_signals(arguments: "Sequence[str]") -> None:
    """Set the handlers. Ctrl-C ends a command at once and without a traceback: imports need no clean-up.

    A signal that the parent process set to be ignored, as nohup does, stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _replace_default((signal.SIGUSR1, signal.SIGUSR2), _ignore)
    if _is_server(arguments):
        _replace_default((signal.SIGTERM, signal.SIGINT), _end)


def _replace_default(numbers: "Sequence[int]", handler: "signal._HANDLER") -> None:
    for number in numbers:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, handler)


def _is_server(arguments: "Sequence[str]") -> bool:
    """Whether the command runs until it is stopped, and then ends with exit code 0."""
    command, verb = (*arguments[:2], "", "")[:2]
    if command == "batch":
        return verb == "run" or verb.startswith("-")
    if command == "admission":
        return verb != "manifests"
    if command == "cluster":
        return verb == "up" and not {"--detach", "-d"}.intersection(arguments)
    return command in _SERVERS


def _ignore(_number: int, _frame: "FrameType | None") -> None:
    """Ignore a signal: there is no state to dump yet."""


def _end(_number: int, _frame: "FrameType | None") -> None:
    """End before the event loop runs. Without a handler the kernel drops a SIGTERM that is sent to process 1."""
    os._exit(0)


if __name__ == "__main__":
    main()
