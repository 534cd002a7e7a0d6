"""Builds the programs of Kubernetes from Go modules, once per user.

Called by `cluster.run` and by the end-to-end suite. The first build of all takes some ten minutes on two cores and a
gigabyte of Go's own cache; the result stays in the user's cache folder and later calls cost one file lookup. `python -m
cluster.build` (from the folder `tests`) builds them all beforehand.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = "1.36.4"
PROGRAMS = ("etcd", "kube-apiserver", "kubectl", "kube-scheduler", "kube-controller-manager", "helm")
OF_OTHER_VERSIONS = {
    "kube-apiserver-1.30": "1.30.14",
    "kube-apiserver-1.32": "1.32.13",
    "kube-apiserver-1.34": "1.34.4",
    "volcano": "1.34.4",
}
"""Programs with other versions of Kubernetes' libraries, which only the soak tests need."""

MODULE = Path(__file__).resolve().parent


def cache_folder() -> Path:
    """The user's cache folder of built programs; its name has the version, so another version has another folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bayplan" / f"kubernetes-{VERSION}"


def program(name: str) -> Path:
    """The path of an executable program, built if necessary."""
    assert name in (*PROGRAMS, *OF_OTHER_VERSIONS), f"{name!r} is none of {', '.join((*PROGRAMS, *OF_OTHER_VERSIONS))}"
    built = cache_folder() / name
    if not _is_current(name, built):
        with _locked(cache_folder()):
            if not _is_current(name, built):  # another process may have built it while this one waited for the lock
                _build(name, built)
    return built


def _is_current(name: str, built: Path) -> bool:
    """Whether the program exists and is up to date."""
    note = _note(built)
    return built.exists() and note.exists() and note.read_text(encoding="utf-8") == _recipe(name)


def _note(built: Path) -> Path:
    """The folder of a program's build recipe."""
    return built.with_name(f".{built.name}.recipe")


def _recipe(name: str) -> str:
    """A hash that changes with every input of the build."""
    folder = MODULE / name
    alone = (folder / "go.mod").exists()
    texts = [*sorted(folder.glob("*.go")), (folder if alone else MODULE) / "go.mod"]
    digest = hashlib.sha256(_linker_flags(OF_OTHER_VERSIONS.get(name, VERSION)).encode())
    for text in texts:
        digest.update(text.read_bytes())
    return digest.hexdigest()


def _build(name: str, built: Path) -> None:
    _say(f"building {name} into {built.parent}; the first time this takes minutes")
    unfinished = built.with_name(f"{name}.unfinished")
    command = [
        "go",
        "build",
        "-buildvcs=false",
        "-trimpath",
        "-ldflags",
        _linker_flags(OF_OTHER_VERSIONS.get(name, VERSION)),
        "-o",
        str(unfinished),
    ]
    # Programs with other versions of the same libraries have their own module.
    alone = (MODULE / name / "go.mod").exists()
    subprocess.run([*command, "." if alone else f"./{name}"], cwd=MODULE / name if alone else MODULE, check=True)
    unfinished.replace(built)
    _note(built).write_text(_recipe(name), encoding="utf-8")


def _linker_flags(version: str) -> str:
    """Without a version the programs report one that kubectl and discovery cannot parse."""
    major, minor, _ = version.split(".")
    known = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={text}" for key, text in known.items())])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One build at a time per user; the lock ends with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another build in {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    sys.stderr.write(f"cluster: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    for each in PROGRAMS:
        program(each)
