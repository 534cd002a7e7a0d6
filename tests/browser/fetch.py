"""Finds Chromium on the path, or fetches Debian's package and unpacks it into the user's cache without installing it.

    python -m browser.fetch                  (from the folder `tests`) fetch it if necessary; needs apt
    python -m browser.fetch --if-possible    the same, without an error if that is impossible

`BAYPLAN_CHROMIUM` names another one. Fetching uses apt's configured package lists in its own folder, and verifies every
package with them; no administrator rights are necessary.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WITHOUT = "BAYPLAN_WITHOUT_BROWSER"
_URI = re.compile(r"^'(?P<url>[^']+)' (?P<file>\S+) \d+ (SHA256:(?P<sha256>[0-9a-f]{64}))?", re.MULTILINE)
_DEADLINE_S = 300


@dataclass(frozen=True, slots=True)
class Chromium:
    """A program, and the libraries that it needs in addition to the system's."""

    program: str
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        known = os.environ.get("LD_LIBRARY_PATH", "")
        paths = [*map(str, self.libraries), *([known] if known else [])]
        return {**os.environ, **({"LD_LIBRARY_PATH": ":".join(paths)} if self.libraries else {})}


class NoBrowser(Exception):
    """No browser is available; the message has the reason."""


def folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bayplan" / "chromium"


def found() -> Chromium | None:
    """The available browser, if any; cheap."""
    if named := os.environ.get("BAYPLAN_CHROMIUM"):
        return Chromium(named)
    installed = next((path for name in NAMES if (path := shutil.which(name))), None)
    if installed is not None:
        return Chromium(installed)
    unpacked = folder() / "root" / "usr" / "lib" / "chromium" / "chromium"
    return Chromium(str(unpacked), _libraries(folder() / "root")) if (folder() / "complete").exists() else None


def reason_to_do_without() -> str:
    """The reason to skip the browser tests, or an empty string."""
    if os.environ.get(WITHOUT):
        return f"{WITHOUT} is set"
    return "" if found() else "there is no Chromium; install it, or `python -m browser.fetch` in the folder `tests`"


def fetch() -> Chromium:
    """The available browser, or Debian's, fetched now."""
    if known := found():
        return known
    with _locked():
        return found() or _fetched()


def _fetched() -> Chromium:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoBrowser("there is no apt here; install Chromium, or name one in BAYPLAN_CHROMIUM")
    own = folder() / "apt"
    for each in ("lists/partial", "cache/archives/partial"):
        (own / each).mkdir(parents=True, exist_ok=True)
    apt = ["apt-get", "-o", f"Dir::State::Lists={own / 'lists'}", "-o", f"Dir::Cache={own / 'cache'}", "-o"]
    apt += ["APT::Sandbox::User=", "-q"]
    _run([*apt, "update"])
    wanted = _run([*apt, "--print-uris", "--yes", "--no-install-recommends", "install", "chromium"])
    packages = list(_URI.finditer(wanted))
    if not packages:
        raise NoBrowser("apt knows no package chromium; install Chromium, or name one in BAYPLAN_CHROMIUM")
    root = folder() / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for package in packages:
        path = own / "cache" / "archives" / package["file"]
        _download(package["url"], path, package["sha256"])
        _run(["dpkg-deb", "--extract", str(path), str(root)])
    shutil.rmtree(own)
    (folder() / "complete").touch()
    chromium = found()
    assert chromium is not None
    return chromium


def _download(url: str, path: Path, sha256: str | None) -> None:
    with urllib.request.urlopen(url, timeout=_DEADLINE_S) as answer, path.open("wb") as file:
        shutil.copyfileobj(answer, file)
    if sha256 and hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise NoBrowser(f"{url} is not what the package lists promise; try again")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S)
    if done.returncode:
        raise NoBrowser(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def _libraries(root: Path) -> tuple[Path, ...]:
    """The folders of the unpacked packages that contain shared objects."""
    return tuple(sorted({path.parent for path in (root / "usr" / "lib").rglob("*.so*")} | {root / "usr/lib/chromium"}))


@contextmanager
def _locked() -> Iterator[None]:
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    if os.environ.get(WITHOUT):
        return 0
    try:
        print(f"Chromium: {fetch().program}")  # noqa: T201
    except (NoBrowser, OSError, subprocess.SubprocessError) as fault:
        print(f"no Chromium: {fault}", file=sys.stderr)  # noqa: T201
        return 0 if "--if-possible" in arguments else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
