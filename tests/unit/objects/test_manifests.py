"""Objects from files: kinds and structs, defaults of the API server, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.errors import ObjectError
from bayplan.objects.catalog import CATALOG_KINDS
from bayplan.objects.core import Node, Pod
from bayplan.objects.defaults import SYSTEM_PRIORITIES, with_all_defaults, with_identity, with_priority
from bayplan.objects.kinds import KINDS, convert, decode, kind_of, kinds_by_name, without_nulls
from bayplan.objects.manifests import LoadedManifests, load_manifests
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.workloads import PriorityClass
from support.builders.framework import make_pod, replace_fields

Write = Callable[[str, str], Path]

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: node}\n"
V1 = "apiVersion: v1\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return written


def named(objects: tuple[KubeObject, ...]) -> list[tuple[str, str]]:
    return [(type(item).__name__, item.name) for item in objects]


# Kinds.


def test_every_kind_has_one_struct_and_one_name() -> None:
    assert len({(kind.group, kind.name) for kind in KINDS}) == len({(kind.group, kind.plural) for kind in KINDS})
    assert len({(kind.group, kind.name) for kind in KINDS}) == len(KINDS)
    assert len({kind.struct for kind in KINDS}) == len(KINDS)
    assert kind_of(Pod).plural == "pods"
    assert kinds_by_name()["CSINode"].struct.__name__ == "CsiNode"


def test_the_catalog_has_every_kind_but_nodes_and_pods() -> None:
    assert {kind.struct for kind in KINDS} - set(CATALOG_KINDS) == {Node, Pod}


def test_nulls_mean_absent() -> None:
    raw = {"metadata": {"name": "p", "labels": None}, "spec": {"containers": None, "tolerations": [None]}}
    found = convert(raw, Pod)
    assert (found.labels, found.spec.containers, found.spec.tolerations) == ({}, (), ())
    assert without_nulls({"a": None, "b": [None, {"c": None}]}) == {"b": [{}]}


def test_unknown_fields_are_skipped() -> None:
    assert convert({"metadata": {"name": "p"}, "spec": {"hostAliases": []}, "more": 1}, Pod).name == "p"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param(
            {"metadata": {"name": "p"}, "spec": {"containers": 7}}, r'Pod "p" cannot be read: .*containers', id="field"
        ),
        pytest.param({"metadata": 7}, "a Pod without a name cannot be read: ", id="no-name"),
        pytest.param([], "a Pod without a name cannot be read: ", id="no-object"),
    ],
)
def test_decoding_errors_name_the_object(raw: Any, words: str) -> None:
    with pytest.raises(ObjectError, match=words):
        convert(raw, Pod)
    with pytest.raises(ObjectError, match=words):
        decode(json.dumps(raw), Pod)


def test_json_is_decoded_directly() -> None:
    assert decode('{"metadata": {"name": "p"}}', Pod).name == "p"
    assert decode(b'{"metadata": {"name": "p", "labels": null}}', Pod).labels == {}
    with pytest.raises(ObjectError, match="Pod is not JSON: "):
        decode("{", Pod)


# Files.


def test_documents_lists_and_json(write: Write) -> None:
    paths = [
        write("a.yaml", f"{POD}---\n{NODE}"),
        write("b.yaml", f"{V1}kind: List\nitems:\n- {V1}  kind: Pod\n  metadata: {{name: q}}\n"),
        write("c.json", '{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "r"}}]}'),
        write("d.yaml", f"{V1}kind: PodList\nitems:\n"),
        write("e.yaml", f"{V1}kind: List\nitems:\n- {V1}  kind: NodeList\n  items: [{{metadata: {{name: m}}}}]\n"),
    ]
    loaded = load_manifests(paths)
    assert named(loaded.objects) == [("Pod", "p"), ("Node", "node"), ("Pod", "q"), ("Pod", "r"), ("Node", "m")]
    assert loaded.skipped == ()
    assert [place.rpartition("/")[2] for place in loaded.places] == [
        "a.yaml, document 1",
        "a.yaml, document 2",
        "b.yaml, document 1, item 1",
        "c.json, document 1, item 1",
        "e.yaml, document 1, item 1, item 1",
    ]


def test_a_file_that_is_given_twice_is_read_once(write: Write, tmp_path: Path) -> None:
    path = write("a.yaml", POD)
    assert named(load_manifests([tmp_path, path, path]).objects) == [("Pod", "p")]


def test_folders_are_searched_in_order(write: Write, tmp_path: Path) -> None:
    write("z.yaml", POD.replace("p}", "last}"))
    write("a.yml", POD.replace("p}", "first}"))
    write("deep/er/m.json", '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "middle"}}')
    write("readme.md", "not looked at")
    assert [item.name for item in load_manifests([tmp_path]).objects] == ["first", "middle", "last"]


def test_unsupported_kinds_are_reported(write: Write) -> None:
    named_map = f"{V1}kind: ConfigMap\nmetadata: {{name: c}}\n"
    path = write("a.yaml", f"{named_map}---\n{POD}---\n{V1}kind: Secret\n---\n{V1}kind: Event\nmetadata: x\n")
    loaded = load_manifests([path])
    assert named(loaded.objects) == [("Pod", "p")]
    assert loaded.skipped == (f"ConfigMap c in {path}", f"Secret  in {path}", f"Event  in {path}")


@pytest.mark.parametrize(
    ("api_version", "kind"), [("example.com/v1", "Pod"), ("serving.knative.dev/v1", "Service"), ("v1", "StatefulSet")]
)
def test_a_kind_of_another_group_is_unsupported(write: Write, api_version: str, kind: str) -> None:
    path = write("a.yaml", f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\n")
    assert load_manifests([path]) == LoadedManifests((), (f"{api_version} {kind} x in {path}",))


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_versions_with_the_same_fields(write: Write, version: str) -> None:
    path = write("a.yaml", f"apiVersion: resource.k8s.io/{version}\nkind: DeviceClass\nmetadata: {{name: x}}\n")
    assert named(load_manifests([path]).objects) == [("DeviceClass", "x")]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        pytest.param(POD, POD, "Pod default/p is defined twice", id="pods"),
        pytest.param(NODE, NODE, "Node node is defined twice", id="nodes"),
        pytest.param(
            POD, POD.replace("p}", "p, namespace: default}"), "Pod default/p is defined twice", id="default-namespace"
        ),
    ],
)
def test_two_objects_of_one_name_are_refused(write: Write, first: str, second: str, words: str) -> None:
    one, other = write("one.yaml", first), write("other.yaml", f"{V1}kind: ConfigMap\n---\n{second}")
    with pytest.raises(ObjectError, match=words) as refusal:
        load_manifests([one, other])
    assert f"in {one}, document 1 and in {other}, document 2; remove one" in str(refusal.value)


def test_names_may_repeat_across_kinds_and_namespaces(write: Write) -> None:
    path = write("a.yaml", f"{POD}---\n{POD.replace('p}', 'p, namespace: x}')}---\n{NODE.replace('node}', 'p}')}")
    assert len(load_manifests([path]).objects) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("metadata: {name: x}\n", "has no kind; a manifest starts with apiVersion and kind", id="no-kind"),
        pytest.param("apiVersion: v1\nkind: 7\n", "has no kind", id="kind-is-no-text"),
        pytest.param(
            "kind: Pod\nmetadata: {name: x}\n", "Pod x has no apiVersion; add apiVersion: v1", id="no-version"
        ),
        pytest.param("kind: ConfigMap\n", "ConfigMap has no apiVersion; a manifest starts", id="no-version-unknown"),
        pytest.param(
            "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\n",
            "ResourceClaim of resource.k8s.io/v1beta1 is not supported; use resource.k8s.io/v1 or",
            id="wrong-version",
        ),
        pytest.param(f"{V1}kind: List\nitems: [7]\n", "item 1: an item of the List is not an object", id="item"),
        pytest.param(f"{V1}kind: List\nitems: x\n", "the items of the List are not a list", id="items"),
        pytest.param(f"{V1}kind: List\nitems: [{{kind: Pod}}]\n", "item 1: Pod has no apiVersion", id="item-version"),
        pytest.param(f"{V1}kind: Pod\nmetadata: 7\n", "a Pod without a name cannot be read", id="wrong-type"),
        pytest.param(
            f"{V1}kind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [7]}}\n",
            r'Pod "p" cannot be read: spec\.containers\[0\] is a whole number; write an object',
            id="wrong-type-deep",
        ),
        pytest.param(
            f"{V1}kind: Pod\nmetadata: {{name: y}}\n", "name is true or false; write a text, in quotes", id="y"
        ),
        pytest.param(f"a: {'[' * 300}{']' * 300}\n", "document 1: yaml: line 1: exceeded max depth of 200", id="deep"),
        pytest.param("a: .nan\n", "document 1: json: unsupported value: NaN", id="nan"),
        pytest.param(f"{POD}---\na: [\n", "document 2: yaml: ", id="second-document"),
        pytest.param('{"a": 1, "a": 2}', 'document 1: duplicate field "a"', id="json-duplicate"),
        pytest.param(f'{{"a": {"9" * 5000}}}', "a number has thousands of digits", id="json-digits"),
        pytest.param(f'{{"a": {"[" * 5000}', "json: exceeded max depth of 200", id="json-deep"),
        pytest.param(f'{{"a": {"[" * 300}{"]" * 300}}}', "json: exceeded max depth of 200", id="json-deep-enough"),
    ],
)
def test_errors_name_file_and_document(write: Write, text: str, words: str) -> None:
    path = write("bad.yaml", text)
    with pytest.raises(ObjectError, match=words) as refusal:
        load_manifests([path])
    assert "bad.yaml" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(f"{V1}kind: Pod\nspec: {{containers: [{{}}]}}", r"a Pod has no metadata\.name", id="no-name"),
        pytest.param(POD, r"spec\.containers: the list is empty", id="no-containers"),
        pytest.param(
            f"{POD}spec: {{containers: [{{}}], priorityClassName: none}}\n",
            'has priority class "none"',
            id="priority-class",
        ),
    ],
)
def test_validation_errors_name_file_and_document(write: Write, text: str, words: str) -> None:
    path = write("bad.yaml", f"{NODE}---\n{text}")
    loaded = load_manifests([path])
    with pytest.raises(ObjectError, match=words) as refusal:
        list(with_all_defaults(loaded.objects, loaded.places))
    assert str(refusal.value).startswith(f"{path}, document 2: ")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ObjectError, match="nowhere does not exist"):
        load_manifests([tmp_path / "nowhere"])
    with pytest.raises(ObjectError, match=r"has no \.yaml, \.yml or \.json file"):
        load_manifests([tmp_path])


# Defaults.


def test_identity() -> None:
    plain = with_identity(Pod(metadata=ObjectMeta(name="p")))
    assert (plain.namespace, plain.uid) == ("default", "pods/default/p")
    assert with_identity(Node(metadata=ObjectMeta(name="n"))).namespace == ""
    given = make_pod("p", namespace="x", uid="u")
    assert with_identity(given) == given
    with pytest.raises(ObjectError, match=r"a Node has no metadata\.name; add one"):
        with_identity(Node())


def klass(name: str, value: int, *, default: bool = False, policy: str | None = None) -> PriorityClass:
    fields = {} if policy is None else {"preemption_policy": policy}
    return PriorityClass(metadata=ObjectMeta(name=name), value=value, global_default=default, **fields)


@pytest.mark.parametrize(
    ("spec", "classes", "priority"),
    [
        pytest.param({}, [], 0, id="nothing"),
        pytest.param({"priority": 7}, [klass("high", 9, default=True)], 7, id="given"),
        pytest.param({"priority_class_name": "high"}, [klass("high", 9)], 9, id="by-class"),
        pytest.param({}, [klass("high", 9), klass("usual", 3, default=True)], 3, id="global-default"),
        pytest.param({}, [klass("b", 5, default=True), klass("a", 3, default=True)], 3, id="the-lowest-default"),
        pytest.param({"priority_class_name": "system-node-critical"}, [], 2_000_001_000, id="system"),
    ],
)
def test_priorities(spec: dict[str, Any], classes: list[PriorityClass], priority: int) -> None:
    pod = replace_fields(make_pod("p"), spec={"priority": None, **spec})
    (found,) = [item for item in with_all_defaults([*classes, pod]) if isinstance(item, Pod)]
    assert found.spec.priority == priority
    assert found.spec.scheduler_name == "default-scheduler"


def test_the_class_sets_the_preemption_policy() -> None:
    classes = {"gentle": klass("gentle", 5, policy="Never")}
    pod = replace_fields(make_pod("p"), spec={"priority": None, "priority_class_name": "gentle"})
    assert with_priority(pod, classes).spec.preemption_policy == "Never"
    own = replace_fields(pod, spec={"preemption_policy": "PreemptLowerPriority"})
    assert with_priority(own, classes).spec.preemption_policy == "PreemptLowerPriority"


def test_an_unknown_priority_class() -> None:
    pod = replace_fields(make_pod("p"), spec={"priority": None, "priority_class_name": "none"})
    with pytest.raises(ObjectError, match='pod default/p has priority class "none", which does not exist'):
        with_priority(pod, {})
    assert "system-cluster-critical" in SYSTEM_PRIORITIES
