"""`python -m bayplan`: the same as the console script."""

from bayplan.cli import main

main()
