"""Kubeconfig files, read and merged as kubectl does.

Called once at start. The files of `KUBECONFIG` are merged: of two entries with one name the first is used,
whole, and the first file that sets `current-context` sets it. Relative paths start at the folder of their file. Every
error names the file, the key and what to write there, and repeats no value that could be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bayplan.client.auth.secret import NO_SECRET, Secret
from bayplan.codec.yaml import read_document
from bayplan.errors import KubeconfigError, ObjectError
from bayplan.objects.kinds import without_nulls


class KubeconfigEntry(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """Base of the entries of a kubeconfig. Unknown keys are ignored, as upstream does."""


class KubeconfigCluster(KubeconfigEntry, frozen=True, kw_only=True):
    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    extensions: tuple[dict[str, Any], ...] = ()


class EnvVar(msgspec.Struct, frozen=True):
    name: str = ""
    value: Secret = NO_SECRET


class ExecConfig(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    command: str = ""
    args: tuple[Secret, ...] = ()
    env: tuple[EnvVar, ...] = ()
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class KubeconfigUser(KubeconfigEntry, frozen=True, kw_only=True):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: Secret = NO_SECRET
    token: Secret = NO_SECRET
    token_file: str = msgspec.field(default="", name="tokenFile")
    as_user: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: dict[str, tuple[str, ...]] = {}
    username: str = ""
    password: Secret = NO_SECRET
    exec: ExecConfig | None = None
    auth_provider: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return "User(…)"  # an auth provider's settings hold tokens


class KubeconfigContext(KubeconfigEntry, frozen=True, kw_only=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class Kubeconfig(msgspec.Struct, frozen=True):
    """One kubeconfig file, or several merged."""

    clusters: dict[str, KubeconfigCluster] = {}
    users: dict[str, KubeconfigUser] = {}
    contexts: dict[str, KubeconfigContext] = {}
    current_context: str = ""
    origins: dict[tuple[str, str], Path] = {}
    """File of each entry: ("users", name) -> path."""

    @property
    def empty(self) -> bool:
        return not (self.clusters or self.users or self.contexts or self.current_context)

    def origin(self, section: str, name: str) -> str:
        """File and key of an entry, for error messages."""
        path = self.origins.get((section, name))
        return f"{path}, {section}[{name}]" if path else f"{section}[{name}]"


def kubeconfig_paths(env: Mapping[str, str]) -> list[Path]:
    """Files that `KUBECONFIG` names, without duplicates, or the one in the home folder."""
    if variable := env.get("KUBECONFIG"):
        return [Path(each) for each in dict.fromkeys(variable.split(os.pathsep)) if each]
    home = env.get("HOME")
    return [Path(home) / ".kube" / "config"] if home else []


def read_kubeconfig(path: Path) -> Kubeconfig:
    """Read one file, which must exist."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8"
        raise KubeconfigError(
            f"cannot read the kubeconfig {path}: {why}; name a file that exists and can be read"
        ) from None
    try:
        tree = read_document(text)
    except ObjectError as fault:
        raise KubeconfigError(f"the kubeconfig {path} is not YAML{_parse_error_text(fault)}; correct it") from None
    if tree is None:
        return Kubeconfig()
    if not isinstance(tree, dict):
        raise KubeconfigError(f"the kubeconfig {path} is not a mapping; it starts with apiVersion: v1 and kind: Config")
    return _decode(path, without_nulls(tree))


def load_merged(paths: Iterable[Path]) -> Kubeconfig:
    """Merge the files in their order of precedence. Files that do not exist are skipped, as upstream does."""
    merged = Kubeconfig(origins={})
    for path in paths:
        if path.exists():
            merged = _merge(merged, read_kubeconfig(path))
    return merged


def _merge(first: Kubeconfig, second: Kubeconfig) -> Kubeconfig:
    return Kubeconfig(
        clusters=second.clusters | first.clusters,
        users=second.users | first.users,
        contexts=second.contexts | first.contexts,
        current_context=first.current_context or second.current_context,
        origins=second.origins | first.origins,
    )


_KINDS: dict[str, tuple[str, type[KubeconfigEntry]]] = {
    "clusters": ("cluster", KubeconfigCluster),
    "users": ("user", KubeconfigUser),
    "contexts": ("context", KubeconfigContext),
}


def _decode(path: Path, tree: dict[str, Any]) -> Kubeconfig:
    current = tree.get("current-context", "")
    if not isinstance(current, str):
        raise KubeconfigError(f"the kubeconfig {path}: current-context is not a text; write the name of a context")
    sections = {section: _section(path, tree, section) for section in _KINDS}
    origins = {(section, name): path for section, entries in sections.items() for name in entries}
    return Kubeconfig(**sections, current_context=current, origins=origins)


def _section(path: Path, tree: dict[str, Any], section: str) -> dict[str, Any]:
    items = tree.get(section, [])
    if not isinstance(items, list):
        raise KubeconfigError(f"the kubeconfig {path}: {section} is not a list; write one with - before each entry")
    entries: dict[str, Any] = {}
    for number, item in enumerate(items):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            raise KubeconfigError(f"the kubeconfig {path}: {section}[{number}] has no name; every entry needs one")
        entries.setdefault(name, _entry(path, section, name, item))
    return entries


def _entry(path: Path, section: str, name: str, item: dict[str, Any]) -> KubeconfigEntry:
    key, struct = _KINDS[section]
    try:
        entry = msgspec.convert(item.get(key, {}), struct, dec_hook=_secret)
    except msgspec.ValidationError as fault:
        # Safe to show: msgspec's errors name types and places, and no value of these structs.
        raise KubeconfigError(f"the kubeconfig {path}, {section}[{name}].{key}: {fault}; correct it") from None
    return _resolve_paths(entry, path.parent)


def _secret(wanted: type, raw: object) -> object:
    if wanted is Secret and isinstance(raw, str):
        return Secret(raw)
    raise TypeError(f"Expected `str`, got `{type(raw).__name__}`")  # msgspec adds the place


def _resolve_paths(entry: KubeconfigEntry, folder: Path) -> KubeconfigEntry:
    """Make relative paths absolute, from the file's folder. A command without a slash stays as it is, for PATH."""
    if isinstance(entry, KubeconfigCluster):
        return msgspec.structs.replace(entry, certificate_authority=_absolute(entry.certificate_authority, folder))
    if isinstance(entry, KubeconfigUser):
        program = entry.exec
        if program is not None and "/" in program.command:
            program = msgspec.structs.replace(program, command=_absolute(program.command, folder))
        paths = ("client_certificate", "client_key", "token_file")
        absolute = {key: _absolute(getattr(entry, key), folder) for key in paths}
        return msgspec.structs.replace(entry, exec=program, **absolute)
    return entry


def _absolute(text: str, folder: Path) -> str:
    return str((folder / text).absolute()) if text else ""


def _parse_error_text(fault: ObjectError) -> str:
    """Line and problem, when the YAML reader gives both; its other errors may quote the file's content."""
    parsed = re.match(r"yaml: (line \d+: .*)", str(fault))
    return f" ({parsed[1]})" if parsed else ""
