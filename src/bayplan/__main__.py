"""`python -m bayplan`, and the console script.

Ctrl-C ends the process at once, without a word, until a verb takes the matter into its own hands: what is being
imported then has nothing that would have to be cleaned up, and a traceback of it helps nobody.
"""

import signal


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where somebody had it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bayplan.cli import main as run

    run()


if __name__ == "__main__":
    main()
