"""Makes `src/bayplan/apiserver/validation/go_struct_text.json.gz`: fields of the API server's structs, in their order.

    python scripts/types/make_go_forms.py

Messages about updates that are refused show parts of objects as these structs, which have other names and another
order than the wire. Facts come from the modules k8s.io/kubernetes and k8s.io/api of the release that is served; both
are found by `go env GOMODCACHE`.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from pathlib import Path

VERSION, API_VERSION = "v1.36.4", "v0.36.4"
TARGET = Path(__file__).parent.parent.parent / "src/bayplan/apiserver/validation/go_struct_text.json.gz"
GROUPS = ("core", "batch", "resource")
ROOTS = (
    "core.PodSpec",
    "core.PodTemplateSpec",
    "core.PersistentVolumeSource",
    "core.PersistentVolumeClaimSpec",
    "core.EphemeralContainer",
    "core.EventSource",
    "core.ObjectReference",
    "core.VolumeNodeAffinity",
    "batch.PodFailurePolicy",
    "batch.SuccessPolicy",
    "resource.ResourceClaimSpec",
    "resource.ResourceClaimTemplateSpec",
)
SIMPLE = {
    "string": "s",
    "bool": "b",
    **dict.fromkeys(("int", "int32", "int64", "uint32", "uint8"), "i"),
    "resource.Quantity": "q",
    "apiresource.Quantity": "q",
    "intstr.IntOrString": "n",
    "metav1.Time": "t",
    "metav1.MicroTime": "t",
    "metav1.LabelSelector": "l",
    "metav1.ObjectMeta": "o",
    "runtime.RawExtension": "r",
    "types.UID": "s",
}
_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"^type (\w+) ([\[\]\w.*]+)$", re.MULTILINE)
_TAG = r'(?:[ \t]+`json:"([^"]*)".*`)?'
_FIELD = re.compile(rf"^\t(\w+)[ \t]+([\[\]\w.*]+){_TAG}", re.MULTILINE)
_EMBEDDED = re.compile(rf"^\t([\w.]+){_TAG}[ \t]*$", re.MULTILINE)

Fields = list[tuple[str, str, str]]


def modules() -> Path:
    return Path(subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip())


def _wire_name(tag: str | None) -> str:
    return (tag or "").split(",")[0]


def structs(source: str) -> tuple[dict[str, Fields], dict[str, str]]:
    """Fields (Go name, type, json name) by struct, an embedded one with an empty name; and named simple types."""
    text = re.sub(r"//.*", "", source)
    known = {}
    for name, body in _STRUCT.findall(text):
        rows = [(found.start(), (found[1], found[2], _wire_name(found[3]))) for found in _FIELD.finditer(body)]
        rows += [(found.start(), ("", found[1], _wire_name(found[2]))) for found in _EMBEDDED.finditer(body)]
        known[name] = [row for _, row in sorted(rows)]
    return known, dict(_NAMED.findall(text))


class Table:
    """Internal structs with the names that their fields have in JSON."""

    def __init__(self, cache: Path) -> None:
        self._inside, self._named, self._wire = {}, {}, {}
        for group in GROUPS:
            inside = (cache / f"k8s.io/kubernetes@{VERSION}/pkg/apis/{group}/types.go").read_text()
            self._inside[group], self._named[group] = structs(inside)
            self._wire[group], _ = structs((cache / f"k8s.io/api@{API_VERSION}/{group}/v1/types.go").read_text())
        self.rows: dict[str, list[list[str]]] = {}

    def add(self, full: str) -> None:
        if full in self.rows:
            return
        group, name = full.split(".")
        self.rows[full] = rows = []
        wire = {go: json_name for go, _, json_name in self._wire[group].get(name, ())}
        for go, type_, _ in self._inside[group][name]:
            code = self.code(group, type_)
            rows.append([go, wire.get(go, "") or (go[:1].lower() + go[1:]), code])

    def code(self, group: str, type_: str) -> str:
        if type_.startswith("*"):
            return f"*{self.code(group, type_[1:])}"
        if type_.startswith("[]"):
            return f"[{self.code(group, type_[2:])}"
        if match := re.fullmatch(r"map\[[\w.]+\](.+)", type_):
            return f"{{{self.code(group, match[1])}"
        if type_ in SIMPLE:
            return SIMPLE[type_]
        prefix, _, name = type_.rpartition(".")
        home = {"api": "core", "core": "core", "corev1": "core"}.get(prefix, prefix or group)
        if name in self._inside.get(home, {}):
            self.add(f"{home}.{name}")
            return f"{home}.{name}"
        return self.code(home, self._named.get(home, {}).get(name, "string"))


def main() -> None:
    table = Table(modules())
    for root in ROOTS:
        table.add(root)
    text = json.dumps(table.rows, separators=(",", ":"), sort_keys=True)
    TARGET.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
