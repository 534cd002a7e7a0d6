#!/bin/bash
# Performs the planned renames in the worktree that is the current directory; see README.md next to this file.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: run.sh [moves|symbols] [--dry-run] [--python PATH] [--types-python PATH]

moves      moves modules (one commit), then moves symbols between modules (one commit)
symbols    renames symbols and members (one commit)
           without either, both

--dry-run            change no tracked file; needs `moves` or `symbols`
--python PATH        interpreter with the project, ruff and mypy (default: .venv/bin/python, else python3)
--types-python PATH  interpreter for the symbols step: 3.12 or later, with mypy (default: that of --python)
TEXT
}

step=all dry= python= types=
while [ $# -gt 0 ]; do
    case $1 in
        moves | symbols) step=$1 ;;
        --dry-run) dry=--dry-run ;;
        --python) python=${2:?--python needs a path}; shift ;;
        --types-python) types=${2:?--types-python needs a path}; shift ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
if [ -n "$dry" ] && [ $step = all ]; then usage >&2; exit 2; fi
steps=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/steps
if [ -z "$python" ]; then python=python3; [ ! -x .venv/bin/python ] || python=$PWD/.venv/bin/python; fi
types=${types:-$python}
if [ "$(git rev-parse --show-toplevel)" != "$(pwd -P)" ]; then echo "not the root of a worktree" >&2; exit 2; fi
if [ -n "$(git status --porcelain)" ]; then echo "the worktree is not clean" >&2; exit 2; fi
export PYTHONPATH=$PWD/src
logs=build/renames
mkdir -p $logs

ruff() { "$python" -m ruff "$@"; }
# Findings are for the developer and do not stop the run: the next step does not need a clean tree.
check() {
    ruff check . --output-format concise | tee $logs/$1.ruff | tail -5 || true
    "$python" -m mypy --strict | tee $logs/$1.mypy | tail -5 || true
}

moves() {
    if [ -n "$dry" ]; then "$python" "$steps/move_modules.py" --dry-run; return; fi
    "$python" "$steps/move_modules.py" > $logs/moves.log 2>&1
    ruff check --select I --fix -q . || true
    ruff format -q .
    find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
    find src tests -type d -empty -delete
    "$python" "$steps/after_moves.py"
    ruff check --select I --fix -q . || true
    ruff format -q .
    git add -A
    git commit -qm "layout: move modules into sub-packages"
    check moves
}

splits() {
    "$python" "$steps/split_symbols.py"
    "$python" "$steps/after_splits.py"
    ruff check --select I,F401 --fix -q . > /dev/null || true
    ruff format -q .
    git add -A
    git commit -qm "layout: move symbols to the modules that own them"
    check splits
}

symbols() {
    "$types" "$steps/rename_symbols.py" --python "$python" --reports $dry
    if [ -n "$dry" ]; then return; fi
    "$python" "$steps/after_symbols.py"
    git add -A
    git commit -qm "names: use the terms of kube-scheduler, Volcano and KAI"
    check symbols
    "$python" "$steps/check_imports.py"
    "$python" "$steps/list_keywords.py" > $logs/keywords.log
}

if [ $step != symbols ]; then
    moves
    if [ -z "$dry" ]; then splits; fi
fi
if [ $step != moves ]; then symbols; fi
