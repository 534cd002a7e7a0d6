"""Builds the kernel: a copy of the package in which the modules of a decision are compiled.

    python tools/build_kernel.py                 build what is missing or out of date
    python tools/build_kernel.py --if-possible   the same, without an error if there is no compiler
    python tools/build_kernel.py --path          print the path of an up-to-date kernel; nothing if there is none

The sources stay plain Python. Cython compiles each module with a `.pxd` beside it, which declares its attributes; the
other modules are copied. The copy is used only with `PYTHONPATH=build/kernel`, so an edited source is never hidden by
an older build. About a minute for everything, then only for changed modules.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "bayplan"
KERNEL = ROOT / "build" / "kernel"
STAMP = KERNEL / "stamp"
BUILT_WITH = KERNEL / "options"
DIRECTIVES: dict[str, Any] = {"language_level": 3, "annotation_typing": False, "initializedcheck": False}
OPTIONS = ["-O2", "-g0", "-w", "-ffp-contract=off"]  # every operation of a float is rounded by itself, as in Python
LOOPS = [*OPTIONS, "-O3", "-fno-trapping-math", *(["-msse4.2"] if platform.machine() in ("x86_64", "AMD64") else [])]


def sources() -> list[Path]:
    """Every file of the package, as a relative path."""
    files = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(path.relative_to(SOURCE) for path in files)


def stamp() -> str:
    """A hash that changes whenever the kernel would change."""
    sum_ = hashlib.sha256(f"{sys.version} {platform.machine()} {DIRECTIVES} {LOOPS}".encode())
    for file in [Path(__file__), *(SOURCE / path for path in sources())]:
        sum_.update(f"{file.name}\0".encode())
        sum_.update(hashlib.sha256(file.read_bytes()).digest())
    return sum_.hexdigest()


def is_fresh() -> bool:
    return STAMP.exists() and STAMP.read_text(encoding="utf-8") == stamp()


def missing() -> str | None:
    """The missing build requirements."""
    if find_spec("Cython") is None:
        return "Cython is not installed; `make setup` installs it"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler}"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return None if headers.exists() else f"Python's headers are not installed ({headers})"


def build() -> None:
    options = f"{sys.version} {DIRECTIVES} {LOOPS}"
    if not BUILT_WITH.exists() or BUILT_WITH.read_text(encoding="utf-8") != options:
        shutil.rmtree(KERNEL, ignore_errors=True)  # the compiled files contain no path of the build
        KERNEL.mkdir(parents=True)
        BUILT_WITH.write_text(options, encoding="utf-8")
    STAMP.unlink(missing_ok=True)
    told = stamp()
    _copy()
    _compile([path.with_suffix(".py") for path in sources() if path.suffix == ".pxd"])
    STAMP.write_text(told, encoding="utf-8")


def _copy() -> None:
    """Update the copy; unchanged files keep their modification time, so that they are not compiled again."""
    target, wanted = KERNEL / "bayplan", set(sources())
    for path in wanted:
        copy = target / path
        if not copy.exists() or not filecmp.cmp(SOURCE / path, copy, shallow=False):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(SOURCE / path, copy)
    for old in _built_from_nothing(target, wanted):
        old.unlink()


def _built_from_nothing(target: Path, wanted: set[Path]) -> Iterator[Path]:
    """Files of the copy that no longer belong to it."""
    for old in target.rglob("*"):
        if not old.is_file() or "__pycache__" in old.parts:
            continue
        path = old.relative_to(target)
        made = path.parent / f"{path.name.partition('.')[0]}.pxd"  # a library and its C file, of this module
        if path not in wanted and (made not in wanted or path.suffix not in (".c", ".so", ".pyd")):
            yield old


def _compile(modules: list[Path]) -> None:
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    before = Path.cwd()
    os.chdir(KERNEL)
    try:
        extensions = [
            Extension(
                ".".join(("bayplan", *path.with_suffix("").parts)),
                [f"bayplan/{path}"],
                extra_compile_args=LOOPS if path.name == "row_loops.py" else OPTIONS,
            )
            for path in modules
        ]
        found = cythonize(extensions, nthreads=os.cpu_count() or 1, compiler_directives=DIRECTIVES, quiet=True)
        command: Any = Distribution({"ext_modules": found}).get_command_obj("build_ext")
        command.inplace, command.parallel, command.build_temp = True, os.cpu_count(), "objects"
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the compiled copy of the package.")
    parser.add_argument("--if-possible", action="store_true", help="exit with 0 if it cannot be built")
    parser.add_argument("--path", action="store_true", help="print its path if it is up to date")
    asked = parser.parse_args()
    if asked.path:
        print(KERNEL if is_fresh() else "")  # noqa: T201
        return 0
    if is_fresh():
        return 0
    fault = missing() or _built()
    if fault is None:
        return 0
    print(f"no kernel is built: {fault}", file=sys.stderr)  # noqa: T201
    return 0 if asked.if_possible else 1


def _built() -> str | None:
    """Compile; returns an error message, if any, in addition to the compiler's own output."""
    try:
        build()
    except Exception as fault:
        return f"compiling failed ({type(fault).__name__}: {fault})"
    return None


if __name__ == "__main__":
    sys.exit(main())
