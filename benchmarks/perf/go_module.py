"""Fetches kube-scheduler's benchmark files into a cache, once, from the Go module registry.

Called by `scheduler_perf.py` at its start. The module's zip is streamed into a temporary file, checked against the
module's checksum (the `h1:` of `go.sum` files), and its folder of benchmarks is unpacked; the rest is discarded. 20 MB
over the network the first time, nothing afterwards.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from bayplan.errors import BayplanError

DEFAULT_PROXY = "https://proxy.golang.org,direct"
_CHUNK = 1 << 20
_TIMEOUT_S = 60.0


class SourceUnavailable(BayplanError):
    """The benchmark files are not cached and cannot be fetched."""


@dataclass(frozen=True, slots=True)
class Module:
    """A folder of one version of a Go module."""

    path: str
    version: str
    checksum: str
    folder: str

    @property
    def prefix(self) -> str:
        """Prefix of the names in the zip."""
        return f"{self.path}@{self.version}/"


SCHEDULER_PERF = Module(
    path="k8s.io/kubernetes",
    version="v1.36.4",
    checksum="h1:08GT0ZOMtyCcRnslyvnpWurf1wm20KHbC/aRS+0LxSo=",
    folder="test/integration/scheduler_perf",
)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of fetched files, outside every source tree."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayplan" / "modules"


def ensure(module: Module = SCHEDULER_PERF, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder, fetched if it does not exist."""
    target = cache_folder(environment) / module.path / module.version / module.folder
    if not target.is_dir():
        _fetch(module, target, environment)
    return target


def proxies(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The registries to use, as the go command would: GOPROXY, its own settings, or the default."""
    setting = environment.get("GOPROXY") or _settings(environment).get("GOPROXY") or DEFAULT_PROXY
    found = [each.strip() for each in re.split(r"[,|]", setting)]
    return [each.rstrip("/") for each in found if each and each not in ("direct", "off")]


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of `go env -w`."""
    config = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    file = Path(environment.get("GOENV") or config / "go" / "env")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {key: value for key, separator, value in (line.partition("=") for line in lines) if separator}


# fetching


def _fetch(module: Module, target: Path, environment: Mapping[str, str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as folder:
        file = Path(folder) / "module.zip"
        _download(module, file, environment)
        with zipfile.ZipFile(file) as archive:
            _verify(archive, module)
            unpacked = Path(folder) / "unpacked"
            _unpack(archive, module, unpacked)
        unpacked.rename(target)  # a rename is atomic: another process sees no partial folder


def _download(module: Module, file: Path, environment: Mapping[str, str]) -> None:
    known = proxies(environment)
    faults = []
    for proxy in known:
        url = f"{proxy}/{module.path}/@v/{module.version}.zip"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, file.open("wb") as out:
                shutil.copyfileobj(answer, out, _CHUNK)
        except (urllib.error.URLError, OSError, ValueError) as fault:
            faults.append(f"{url}: {getattr(fault, 'reason', None) or fault}")
        else:
            return
    why = "; ".join(faults) or "GOPROXY names no registry"
    raise SourceUnavailable(
        f"{module.path} {module.version} is not in the cache and cannot be fetched ({why}); "
        "connect to the network, set GOPROXY to a registry that is reachable, or give a folder with --source"
    )


def _verify(archive: zipfile.ZipFile, module: Module) -> None:
    found = checksum(archive)
    if found != module.checksum:
        raise SourceUnavailable(
            f"the file fetched as {module.path} {module.version} has the checksum {found} instead of "
            f"{module.checksum}; set GOPROXY to a registry that serves the module unchanged"
        )


def checksum(archive: zipfile.ZipFile) -> str:
    """The module's checksum, as in go.sum: a hash of the hashes of all files, by name."""
    summary = hashlib.sha256()
    for name in sorted(archive.namelist()):
        with archive.open(name) as content:
            summary.update(f"{_digest(content)}  {name}\n".encode())
    return "h1:" + base64.b64encode(summary.digest()).decode("ascii")


def _digest(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _unpack(archive: zipfile.ZipFile, module: Module, target: Path) -> None:
    for name, place in _members(archive, module):
        file = target / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(archive.read(name))


def _members(archive: zipfile.ZipFile, module: Module) -> Iterator[tuple[str, PurePosixPath]]:
    """The YAML files of the folder, with their relative paths."""
    inside = f"{module.prefix}{module.folder}/"
    for name in archive.namelist():
        place = PurePosixPath(name.removeprefix(inside))
        if name.startswith(inside) and place.suffix == ".yaml" and ".." not in place.parts:
            yield name, place
