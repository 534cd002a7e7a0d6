"""Makes `src/bayplan/apiserver/schema/types.json.gz`, the table of field names, types, merge keys and protobuf numbers.

    python scripts/types/make_types.py

Needs Go, and the module k8s.io/kubernetes of the release (it is downloaded when missing). The facts have two
sources: reflection over the Go types (`dump.go`) knows Go's names for errors, pointers, `omitempty`, patch tags and
protobuf numbers; the published OpenAPI v3 documents know required fields, list and map types and defaults. Descriptions
are left out. The answer depends on the release alone, so running this twice changes nothing.

The table, as `bayplan.apiserver.schema.types` reads it:

    kinds   {"apps/v1": {"Deployment": type}}
    types   [[Go name, OpenAPI name, "atomic" or "", [field, ...]], ...]
    shapes  [[kind, Go text, of]]: what a value is; `of` is a shape (of lists and maps), a type (of structs) or the
            values (of texts that are an enumeration)
    field   [JSON name, shape, flags, protobuf number, facts]
    flags   1 omitempty, 2 pointer, 4 required, 8 omitzero
    facts   list (type), keys, map (type), strategy, key, default, inline (Go's name); only those that are there
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGET = HERE.parent.parent / "src/bayplan/apiserver/schema/types.json.gz"
MODULE = "k8s.io/kubernetes@v1.36.4"
ENUMERATED = ("k8s.io/api@v0.36.4", "k8s.io/apimachinery@v0.36.4", "k8s.io/apiextensions-apiserver@v0.36.4")

OMITEMPTY, POINTER, REQUIRED, OMITZERO = 1, 2, 4, 8

META = "k8s.io/apimachinery/pkg/apis/meta/v1."
EXTENSIONS = "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1."
SPECIAL = {
    "k8s.io/apimachinery/pkg/api/resource.Quantity": "quantity",
    "k8s.io/apimachinery/pkg/util/intstr.IntOrString": "int-or-string",
    "k8s.io/apimachinery/pkg/runtime.RawExtension": "raw",
    f"{META}Time": "time",
    f"{META}MicroTime": "micro-time",
    f"{META}Duration": "duration",
    f"{META}FieldsV1": "fields",
    f"{EXTENSIONS}JSON": "json",
    f"{EXTENSIONS}JSONSchemaPropsOrArray": "schema-or-array",
    f"{EXTENSIONS}JSONSchemaPropsOrBool": "schema-or-bool",
    f"{EXTENSIONS}JSONSchemaPropsOrStringArray": "schema-or-strings",
}
# Registered with every group; not a kind of the group.
MACHINERY = {"CreateOptions", "UpdateOptions", "PatchOptions", "GetOptions", "ListOptions", "WatchEvent"}
MARKER = "!"  # dump.go's mark for a type with its own UnmarshalJSON


def openapi_name(go_name: str) -> str:
    """`k8s.io/api/core/v1.Pod` is `io.k8s.api.core.v1.Pod`."""
    package, _, name = go_name.rpartition(".")
    host, *path = package.split("/")
    return ".".join([*reversed(host.split(".")), *path, name])


def go_types() -> Any:
    done = subprocess.run(["go", "run", "."], cwd=HERE, check=True, capture_output=True)
    return json.loads(done.stdout)


def documents() -> tuple[set[str], dict[str, Any]]:
    """The group versions that are published, and all their schemas."""
    done = subprocess.run(["go", "mod", "download", "-json", MODULE], cwd=HERE, check=True, capture_output=True)
    folder = Path(json.loads(done.stdout)["Dir"]) / "api/openapi-spec/v3"
    groups, schemas = set(), {}
    for file in sorted(folder.glob("*.json")):
        named = re.fullmatch(r"apis?__(.*)_openapi\.json", file.name)
        if named:
            groups.add(named[1].replace("__", "/"))
            schemas.update(json.loads(file.read_text())["components"]["schemas"])
    return groups, schemas


def enumerations() -> dict[str, list[str]]:
    """The values of every string type that the sources mark as an enumeration."""
    found: dict[str, list[str]] = {}
    for module in ENUMERATED:
        done = subprocess.run(["go", "mod", "download", "-json", module], cwd=HERE, check=True, capture_output=True)
        root = Path(json.loads(done.stdout)["Dir"])
        for folder in {file.parent for file in root.rglob("types*.go")}:
            package = f"{module.partition('@')[0]}/{folder.relative_to(root)}"
            text = "\n".join(file.read_text() for file in sorted(folder.glob("types*.go")))
            for name in re.findall(r"// \+enum\n(?://[^\n]*\n)*type (\w+) string", text):
                values = re.findall(rf'^\s*\w+\s+{name}\s*=\s*"([^"]*)"', text, re.MULTILINE)
                values += re.findall(rf'^\s*\w+\s*=\s*{name}\("([^"]*)"\)', text, re.MULTILINE)
                if not re.search(rf"=\s*{name}\([^\"]", text):  # incomplete without the other package
                    found[f"{package}.{name}"] = sorted(set(values))
    return found


class Table:
    def __init__(self, structs: dict[str, Any], schemas: dict[str, Any], values: dict[str, list[str]]) -> None:
        self.structs, self.schemas, self.values = structs, schemas, values
        self.types: list[Any] = []
        self.shapes: list[Any] = []
        self._known: dict[str, int] = {}
        self._shaped: dict[str, int] = {}

    def type_of(self, go_name: str, holder: Any = None) -> int:
        """`holder` is the schema of the struct that embeds this one: it has the facts if this one has no schema."""
        if go_name in self._known:
            return self._known[go_name]
        number = self._known[go_name] = len(self.types)
        self.types.append(None)
        schema = self.schemas.get(openapi_name(go_name), holder or {})
        if any(field["json"] == MARKER for field in self.structs[go_name]):
            raise ValueError(f"{go_name} has its own UnmarshalJSON, which the table cannot express")
        fields = [self._field(field, schema) for field in self.structs[go_name]]
        short = go_name.rpartition("/")[2]
        self.types[number] = [short, openapi_name(go_name), _own_map_type(schema, holder), fields]
        return number

    def _field(self, field: Any, schema: Any) -> list[Any]:
        name, *options = field["json"].split(",")
        facts = schema.get("properties", {}).get(name, {})
        flags = OMITEMPTY * ("omitempty" in options) + POINTER * field["type"].get("pointer", False)
        flags += REQUIRED * (name in schema.get("required", ())) + OMITZERO * ("omitzero" in options)
        number = re.match(r"\w+,(\d+),", field.get("proto", ""))
        if field.get("inline"):
            self.type_of(field["type"]["name"], schema)
        return [name, self.shape(field["type"]), flags, int(number[1]) if number else 0, _facts(field, facts)]

    def shape(self, told: Any) -> int:
        kind, of = told["kind"], told.get("of")
        named = told.get("name", "")
        inner: int | list[str] | None = self.values.get(named)
        if named in SPECIAL:
            kind = SPECIAL[named]
            if kind.startswith("schema-"):
                inner = self.type_of(f"{EXTENSIONS}JSONSchemaProps")
        elif kind == "struct":
            inner = self.type_of(named)
        elif kind == "slice" and of["kind"] == "uint8":
            kind = "bytes"
        elif of:
            inner = self.shape(of)
        entry = [kind, told["text"], inner]
        if of and of.get("pointer"):
            raise ValueError(f"{told['text']}: the table cannot express elements that are pointers")
        return self._shaped.setdefault(json.dumps(entry), self._added(entry))

    def _added(self, entry: list[Any]) -> int:
        known = self._shaped.get(json.dumps(entry))
        if known is not None:
            return known
        self.shapes.append(entry)
        return len(self.shapes) - 1


def _own_map_type(schema: Any, holder: Any) -> str:
    return "" if schema is holder else str(schema.get("x-kubernetes-map-type", ""))


def _facts(field: Any, schema: Any) -> dict[str, Any]:
    found = {
        "list": schema.get("x-kubernetes-list-type"),
        "keys": schema.get("x-kubernetes-list-map-keys"),
        "map": schema.get("x-kubernetes-map-type"),
        "strategy": field.get("strategy"),
        "key": field.get("key"),
        "default": schema.get("default"),
        "inline": field["go"] if field.get("inline") else None,
    }
    return {name: value for name, value in found.items() if value is not None and value != {}}


def main() -> None:
    told, (groups, schemas) = go_types(), documents()
    table = Table(told["structs"], schemas, enumerations())
    kinds: dict[str, dict[str, int]] = {}
    for key in sorted(told["kinds"]):
        group_version, _, kind = key.rpartition("/")
        if group_version.removeprefix("/") in groups and not kind.endswith("List") and kind not in MACHINERY:
            kinds.setdefault(group_version.removeprefix("/"), {})[kind] = table.type_of(told["kinds"][key])
    text = json.dumps({"kinds": kinds, "types": table.types, "shapes": table.shapes}, separators=(",", ":"))
    TARGET.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(table.types)} types, {len(table.shapes)} shapes, {TARGET.stat().st_size} bytes in {TARGET}")  # noqa: T201


if __name__ == "__main__":
    main()
