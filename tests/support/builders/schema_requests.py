"""The cases of `schema_cases.json` as requests, for the recorder of responses and for the test that compares them.

Also the random histories of objects with several field managers: the same seed makes the same history.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

Tree = dict[str, Any]

HERE = Path(__file__).parents[2] / "unit" / "apiserver"
CASES: Tree = json.loads((HERE / "schema_cases.json").read_text())
RECORDING = HERE / "schema.json.xz"

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
JSON, YAML = "application/json", "application/yaml"
ABSENT = "<absent>"

PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
WIDGETS = "/apis/ex.io/v1/namespaces/default/widgets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPLIED_MAP = "/api/v1/namespaces/default/configmaps/applied"


class SchemaRequest(NamedTuple):
    topic: str
    method: str
    path: str
    body: str
    media: str = JSON
    validation: str = "Strict"


def _text(body: Any) -> str:
    return body if isinstance(body, str) else json.dumps(body)


def schema_requests() -> Iterator[SchemaRequest]:
    """Requests for a server that has only the pod and the definition."""
    for path, key in ((PODS, "pod_bodies"), (SECRETS, "secret_bodies"), (LEASES, "lease_bodies")):
        yield from (SchemaRequest("decoding", "POST", path, body) for body in CASES[key])
    yield from (SchemaRequest("decoding", "POST", PODS, body, YAML) for body in CASES["pod_yaml"])
    yield SchemaRequest("decoding", "POST", SECRETS, CASES["warned_secret"], validation="Warn")
    for media in (MERGE, STRATEGIC):
        for body, validation in CASES["merge_patches"]:
            yield SchemaRequest("patching", "PATCH", f"{PODS}/pp", _text(body), media, validation)
    for media, key in ((JSON_PATCH, "json_patches"), (STRATEGIC, "strategic_patches")):
        yield from (SchemaRequest("patching", "PATCH", f"{PODS}/pp", _text(body), media) for body in CASES[key])
    yield from (SchemaRequest("applying", "PATCH", APPLIED_MAP, _text(body), APPLY) for body in CASES["applied"])
    header = {"apiVersion": "ex.io/v1", "kind": "Widget", "metadata": {"name": "w"}}
    for spec in CASES["custom_specs"]:
        yield SchemaRequest("custom", "POST", WIDGETS, json.dumps({**header, "spec": spec}))
    for body, validation in CASES["custom_bodies"]:
        yield SchemaRequest("custom", "POST", WIDGETS, body, validation=validation)
    for change in CASES["definition_changes"]:
        yield SchemaRequest(
            "definitions",
            "POST",
            DEFINITIONS,
            json.dumps(changed(CASES["sound_definition"], change)),
            validation="Warn",
        )


def changed(tree: Tree, change: list[Any]) -> Tree:
    """The tree with fields set or removed, by their paths."""
    made = deepcopy(tree)
    for path, value in change:
        holder: Any = made
        *way, last = path.split("/")
        for name in way:
            holder = holder[int(name)] if isinstance(holder, list) else holder.setdefault(name, {})
        if value == ABSENT:
            holder.pop(last, None)
        else:
            holder[last] = deepcopy(value)
    return made


# Histories of writes by several field managers.


class Write(NamedTuple):
    """One write of a history. `verb` is apply, force, create, update, merge or status."""

    verb: str
    manager: str
    body: Tree


class Kind(NamedTuple):
    group: str
    version: str
    kind: str
    path: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


KINDS = {
    "configmaps": Kind("", "v1", "ConfigMap", "/api/v1/namespaces/default/configmaps"),
    "deployments": Kind("apps", "v1", "Deployment", "/apis/apps/v1/namespaces/default/deployments"),
    "widgets": Kind("ex.io", "v1", "Widget", WIDGETS),
}


class History:
    """Random writes to one object of a kind."""

    def __init__(self, plural: str, seed: int) -> None:
        self.kind = KINDS[plural]
        self.name = f"history-{plural}"
        self._random = random.Random(seed)
        self._make = {"configmaps": self._config_map, "deployments": self._deployment, "widgets": self._widget}[plural]

    def next_write(self, *, exists: bool) -> Write:
        verbs = ["apply", "apply", "apply", "force", "update", "merge"] if exists else ["apply", "create"]
        if exists and self.kind.kind == "Widget":
            verbs.append("status")
        verb = self._random.choice(verbs)
        manager = self._random.choice(["m1", "m2", "m3"] if self._random.random() < 0.9 else ["kubectl"])
        if verb == "status":
            return Write(verb, manager, {"status": self._status()})
        body = self._make()
        body["metadata"]["name"] = self.name
        return Write(verb, manager, {"apiVersion": self.kind.api_version, "kind": self.kind.kind, **body})

    def _maybe(self, chance: float) -> bool:
        return self._random.random() < chance

    def _some(self, names: str, least: int, most: int) -> list[str]:
        return self._random.sample(names, self._random.randint(least, most))

    def _texts(self, names: str, least: int, most: int) -> Tree:
        return {name: self._random.choice("xyz") for name in self._some(names, least, most)}

    def _metadata(self) -> Tree:
        found: Tree = {}
        if self._maybe(0.6):
            found["labels"] = self._texts("abc", 0, 2)
        if self._maybe(0.3):
            found["annotations"] = self._texts("abc", 0, 2)
        return found

    def _config_map(self) -> Tree:
        made: Tree = {"metadata": self._metadata()}
        if self._maybe(0.8):
            made["data"] = self._texts("abcd", 0, 3)
        return made

    def _container(self, name: str) -> Tree:
        made: Tree = {"name": name, "image": f"i:{self._random.choice('12')}"}
        if self._maybe(0.5):
            ports = self._random.sample([80, 81, 82], self._random.randint(0, 2))
            more = [{"protocol": self._random.choice(["TCP", "UDP"])} if self._maybe(0.5) else {} for _ in ports]
            made["ports"] = [{"containerPort": port, **each} for port, each in zip(ports, more, strict=True)]
        if self._maybe(0.4):
            made["env"] = [{"name": each, "value": self._random.choice("xy")} for each in self._some("ABC", 0, 3)]
        if self._maybe(0.3):
            made["args"] = self._some("abc", 2, 2)
        if self._maybe(0.4):
            made["resources"] = {"limits": {"cpu": self._random.choice(["1", "500m"])}}
        return made

    def _deployment(self) -> Tree:
        pod: Tree = {"containers": [self._container(name) for name in self._some("cde", 1, 2)]}
        source = self._random.choice([{"emptyDir": {}}, {"hostPath": {"path": "/x"}}])
        pod["volumes"] = [{"name": "v", **source}]
        spec: Tree = {"selector": {"matchLabels": {"app": "x"}}, "template": {"metadata": {"labels": {"app": "x"}}}}
        spec["template"]["spec"] = pod
        if self._maybe(0.5):
            spec["replicas"] = self._random.randint(0, 3)
        if self._maybe(0.3):
            spec["strategy"] = self._random.choice([{"type": "Recreate"}, {"type": "RollingUpdate"}])
        if self._maybe(0.3):
            pod["nodeSelector"] = self._texts("ab", 1, 1)
        if self._maybe(0.3):
            pod["tolerations"] = [{"key": key, "operator": "Exists"} for key in self._some("ab", 1, 1)]
        if self._maybe(0.3):
            pod["imagePullSecrets"] = [{"name": name} for name in self._some("ab", 1, 2)]
        return {"metadata": self._metadata(), "spec": spec}

    def _widget(self) -> Tree:
        spec: Tree = {"size": self._random.randint(3, 50)}
        if self._maybe(0.4):
            spec["nums"] = self._random.sample([1, 2, 3], self._random.randint(1, 3))
        if self._maybe(0.5):
            spec["set"] = self._some("abc", 0, 3)
        if self._maybe(0.5):
            more = [{"l": 8}, {}]
            spec["maps"] = [{"k": k, "v": "x", **self._random.choice(more)} for k in self._some("ab", 0, 2)]
        if self._maybe(0.4):
            spec["any"] = {"a": 1, self._random.choice("qr"): self._random.choice([1, {"x": "y"}, [1, 2]])}
        if self._maybe(0.4):
            spec["labels"] = self._texts("ab", 1, 2)
        if self._maybe(0.3):
            spec["nul"] = self._random.choice([None, "x"])
        if self._maybe(0.3):
            spec["atomic"] = self._texts("ab", 1, 2)
        if self._maybe(0.3):
            spec["def"] = self._random.choice([{"x": "q"}, {"y": [{}]}])
        return {"metadata": self._metadata(), "spec": spec}

    def _status(self) -> Tree:
        conditions = [{"type": each, "status": self._random.choice("TF")} for each in self._some("AB", 0, 2)]
        return {"phase": self._random.choice("xy"), "conditions": conditions}
