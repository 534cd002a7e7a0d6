"""kube-scheduler's benchmark files: fetched once and verified, parsed as by upstream, refused if invalid."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from benchmarks.perf.configs import ConfigFault, LabelFilter, TestCase, Workload, chosen, load_all
from benchmarks.perf.go_module import Module, SourceUnavailable, cache_folder, checksum, ensure, proxies
from benchmarks.perf.go_templates import TemplateError, has_marks, render
from benchmarks.perf.templates import Names, Template, TemplateFault

from bayplan.errors import UsageError

# the Go module


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """A Go module registry on the disk, with one small module."""
    folder = tmp_path / "registry" / "example.com" / "mod" / "@v"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "v1.2.3.zip", "w") as archive:
        archive.writestr("example.com/mod@v1.2.3/go.mod", "module example.com/mod\n")
        archive.writestr("example.com/mod@v1.2.3/perf/misc/performance-config.yaml", "[]")
        archive.writestr("example.com/mod@v1.2.3/perf/run.go", "package perf")
        archive.writestr("example.com/mod@v1.2.3/perfect/other.yaml", "{}")
    return tmp_path / "registry"


def module(registry: Path, **changes: str) -> Module:
    with zipfile.ZipFile(registry / "example.com" / "mod" / "@v" / "v1.2.3.zip") as archive:
        known = {"path": "example.com/mod", "version": "v1.2.3", "checksum": checksum(archive), "folder": "perf"}
    return Module(**{**known, **changes})


def environment(tmp_path: Path, proxy: str) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "GOPROXY": proxy, "GOENV": str(tmp_path / "none")}


def test_the_yaml_files_of_the_folder_are_kept_and_nothing_else(registry: Path, tmp_path: Path) -> None:
    found = ensure(module(registry), environment(tmp_path, registry.as_uri()))
    files = [path.relative_to(tmp_path / "cache").as_posix() for path in (tmp_path / "cache").rglob("*.*")]
    assert (found / "misc" / "performance-config.yaml").read_text() == "[]"
    assert [name for name in files if name.endswith((".go", ".zip", "other.yaml"))] == []


def test_a_fetched_folder_is_not_fetched_again(registry: Path, tmp_path: Path) -> None:
    wanted = module(registry)
    first = ensure(wanted, environment(tmp_path, registry.as_uri()))
    assert ensure(wanted, environment(tmp_path, "file:///nowhere")) == first


def test_the_next_registry_is_asked_when_one_does_not_answer(registry: Path, tmp_path: Path) -> None:
    assert ensure(module(registry), environment(tmp_path, f"file:///nowhere,direct|{registry.as_uri()}/")).is_dir()


def test_without_a_registry_the_error_says_what_to_do(registry: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"file:///nowhere.*set GOPROXY"):
        ensure(module(registry), environment(tmp_path, "file:///nowhere"))
    with pytest.raises(SourceUnavailable, match="names no registry"):
        ensure(module(registry), environment(tmp_path, "off"))
    assert not list((tmp_path / "cache").rglob("*.yaml"))


def test_a_module_that_was_changed_is_refused(registry: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="instead of h1:other"):
        ensure(module(registry, checksum="h1:other"), environment(tmp_path, registry.as_uri()))
    assert not list((tmp_path / "cache").rglob("*.yaml"))


def test_the_checksum_is_that_of_go_sum(tmp_path: Path) -> None:
    file = tmp_path / "module.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("m@v1/b", "two\n")
        archive.writestr("m@v1/a", "one\n")
    with zipfile.ZipFile(file) as archive:
        assert checksum(archive) == "h1:zb453PES2rPAidRde5q3gYZh6RJHsovZZ5Vk1PeSPdY="


@pytest.mark.parametrize(
    ("told", "found"),
    [
        pytest.param({}, ["https://proxy.golang.org"], id="default"),
        pytest.param({"GOPROXY": "https://a/,https://b|direct"}, ["https://a", "https://b"], id="several"),
        pytest.param({"GOPROXY": "off"}, [], id="off"),
    ],
)
def test_registries_are_those_of_the_go_command(told: dict[str, str], found: list[str], tmp_path: Path) -> None:
    assert proxies({"GOENV": str(tmp_path / "none"), **told}) == found


def test_settings_of_the_go_command_count(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("GOFLAGS=-mod=mod\nGOPROXY=https://mine\n")
    assert proxies({"GOENV": str(tmp_path / "env")}) == ["https://mine"]


def test_the_cache_is_outside_of_the_tree() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/bayplan/modules")


# templates


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("plain: {a: 1}", "plain: {a: 1}"),
        ("name: pod-{{.Index}}", "name: pod-7"),
        ("{{ .Index }} of {{ .Count }}", "7 of 30"),
        ("memory: {{ DivideInt 30000 .Count }}Mi", "memory: 1000Mi"),
        ("port: 8{{ Mod .Index 5 }}", "port: 82"),
        ("{{DivideInt .Index 5}}", "1"),
        ("{{AddInt .Index 1 2}} {{SubtractInt 1 .Index}} {{MultiplyInt .Index 2}}", "10 -6 14"),
        ("{{DivideFloat .Index 2}} {{AddFloat 1 2}} {{MultiplyFloat 0.5 3}} {{SubtractFloat 1 3}}", "3.5 3 1.5 -2"),
        ("{{Mod -7 5}}", "-2"),
    ],
)
def test_marks(text: str, rendered: str) -> None:
    assert render(text, index=7, count=30) == rendered


@pytest.mark.parametrize(
    "text", ["{{ range . }}", "{{.Name}}", "{{ Mod .Index }}", "{{ DivideInt 1 0 }}", "{{ AddInt x }}", "{{}}"]
)
def test_marks_that_are_not_known_are_refused_by_name(text: str) -> None:
    with pytest.raises(TemplateError):
        render(text, index=0, count=1)


def test_a_text_without_marks_is_known_as_such() -> None:
    assert has_marks("a: {{.Index}}")
    assert not has_marks("a: {b: {c: 1}}")


def template(tmp_path: Path, text: str) -> Template:
    (tmp_path / "pod.yaml").write_text(text, encoding="utf-8")
    return Template(tmp_path / "pod.yaml", Names())


def test_generated_names_are_all_different(tmp_path: Path) -> None:
    found = template(tmp_path, "metadata: {generateName: pod-, labels: {App: x}}\nspec: {priority: 3}")
    names = [each["metadata"]["name"] for each in found.objects(100)]
    assert len(set(names)) == 100
    assert all(name.startswith("pod-") and len(name) == 9 for name in names)
    assert found.object()["metadata"]["labels"] == {"App": "x"}
    assert "generateName" not in found.object()["metadata"]


def test_objects_with_marks_differ(tmp_path: Path) -> None:
    found = template(tmp_path, "metadata: {name: 'p-{{.Index}}'}\nspec: {count: {{.Count}}}")
    assert [(each["metadata"]["name"], each["spec"]["count"]) for each in found.objects(2)] == [("p-0", 2), ("p-1", 2)]


def test_field_names_are_read_as_go_reads_them(tmp_path: Path) -> None:
    text = (
        "spec:\n  topologySpreadConstraints:\n  - {NodeTaintsPolicy: Honor, labelSelector: {matchLabels: {Foo: Bar}}}"
    )
    (constraint,) = template(tmp_path, text).object()["spec"]["topologySpreadConstraints"]
    assert constraint == {"nodeTaintsPolicy": "Honor", "labelSelector": {"matchLabels": {"Foo": "Bar"}}}


def test_invalid_templates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateFault, match="incomplete"):
        Template(tmp_path / "missing.yaml", Names())
    with pytest.raises(TemplateFault, match="no object"):
        template(tmp_path, "- a").object()


# configurations

CONFIG = """
- name: Basic
  featureGates: {One: true, Two: true}
  defaultPodTemplatePath: ../pod.yaml
  workloadTemplate:
  - {opcode: createNodes, countParam: $nodes}
  - {opcode: createPodSets, countParam: $sets, createPodsOp: {opcode: createPods, countParam: $pods, count: 9}}
  workloads:
  - name: small
    labels: [short, integration-test]
    params: {nodes: 5, sets: 2, pods: 3}
  - name: large
    labels: [performance]
    featureGates: {Two: false}
    threshold: {topic/deep: 30, other: 1}
    params: {nodes: 50, sets: 2, pods: 3}
- name: Other
  workloadTemplate: [{opcode: barrier}]
  workloads: [{name: small, threshold: 7}, {name: slow, threshold: 7, thresholdMetricSelector: {name: latency}}]
"""


@pytest.fixture
def cases(tmp_path: Path) -> list[TestCase]:
    folder = tmp_path / "topic" / "deep"
    folder.mkdir(parents=True)
    (folder / "performance-config.yaml").write_text(CONFIG, encoding="utf-8")
    return load_all(tmp_path)


def test_parameters_are_filled_in_everywhere(cases: list[TestCase]) -> None:
    basic = cases[0]
    nodes, sets = basic.operations_for(basic.workloads[0])
    assert nodes == {"opcode": "createNodes", "count": 5}
    assert sets == {"opcode": "createPodSets", "count": 2, "createPodsOp": {"opcode": "createPods", "count": 3}}


def test_a_case_knows_its_topic_gates_thresholds_and_files(cases: list[TestCase], tmp_path: Path) -> None:
    basic, other = cases
    assert basic.topic == "topic/deep"
    assert basic.file("../pod.yaml") == tmp_path / "topic" / "pod.yaml"
    assert [each.threshold for each in basic.workloads] == [None, 30]
    assert [each.threshold for each in other.workloads] == [7, None]
    assert basic.workloads[1].feature_gates == {"One": True, "Two": False}


def test_a_parameter_that_is_missing_is_named(cases: list[TestCase]) -> None:
    with pytest.raises(ConfigFault, match="no parameter nodes"):
        cases[0].operations_for(Workload("empty"))


@pytest.mark.parametrize(
    ("names", "workload", "labels", "found"),
    [
        pytest.param((), None, "", ["small", "large", "small", "slow"], id="everything"),
        pytest.param((), None, "performance", ["large"], id="a label"),
        pytest.param((), None, "-performance,+short", ["small"], id="a label and not another"),
        pytest.param(("Basic",), None, "", ["small", "large"], id="a test"),
        pytest.param(("topic/deep",), "small", "performance", ["small", "small"], id="a topic; a name beats labels"),
        pytest.param(("topic/deep/Other",), None, "", ["small", "slow"], id="a test of a topic"),
    ],
)
def test_choosing(cases: list[TestCase], names: tuple[str, ...], workload: Any, labels: str, found: list[str]) -> None:
    assert [each.name for _, each in chosen(cases, names, workload, LabelFilter.of(labels))] == found


@pytest.mark.parametrize(("names", "workload"), [(("Nobody",), None), (("Basic",), "huge"), (("Other",), None)])
def test_choosing_nothing_is_an_error(cases: list[TestCase], names: tuple[str, ...], workload: str | None) -> None:
    with pytest.raises(UsageError, match="list"):
        chosen(cases, names, workload, LabelFilter.of("performance"))


@pytest.mark.parametrize("text", ["a: 1", "- {name: x}", "- {name: x, workloadTemplate: [], workloads: 3}"])
def test_invalid_configurations_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "performance-config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigFault):
        load_all(tmp_path)
    with pytest.raises(ConfigFault, match="not a folder"):
        load_all(tmp_path / "elsewhere")
