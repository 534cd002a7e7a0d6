"""The command line: output of commands, exit codes, and one sentence instead of a traceback."""

from __future__ import annotations

import errno
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bayplan.cli import cli, main
from bayplan.errors import ConfigError
from support.harness.in_process_commands import CommandResult, CommandRunner

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "a"},
    "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10"}},
}


Write = Callable[[str, Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file with a text, or with objects as documents."""

    def written(name: str, content: Any) -> Path:
        path = tmp_path / name
        text = content if isinstance(content, str) else yaml.safe_dump_all(content)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        return path

    return written


def pod(name: str, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def one_sentence(ended: CommandResult) -> str:
    """The text on standard error, which must be one line and no traceback."""
    assert ended.out == ""
    assert ended.err.count("\n") == 1, ended.err
    assert ended.err.startswith("error: ")
    return ended.err.removeprefix("error: ").rstrip("\n")


# All commands.


def verbs(group: click.Group = cli, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and its subcommands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*before, name)
        below = group.get_command(context, name)
        if isinstance(below, click.Group):
            yield from verbs(below, (*before, name))


@pytest.mark.parametrize("verb", [*verbs()], ids=" ".join)
def test_help_has_examples(run: CommandRunner, verb: tuple[str, ...]) -> None:
    _, found, examples = run(*verb, "--help").out.partition("Examples:\n")
    assert found
    assert f"bayplan {' '.join(verb)}" in examples.partition("Options:")[0]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["place", "--help"], ["config", "show", "-h"]], ids=" ".join)
def test_help_is_not_an_error(run: CommandRunner, arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.code == 0
    assert ended.out.startswith("Usage: ")


def test_the_commands_are_listed(run: CommandRunner) -> None:
    out = run("--help").out
    assert [verb for verb in ("config", "conformance", "place") if f"\n  {verb} " in out] == [
        "config",
        "conformance",
        "place",
    ]


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["place"], ["config", "check"], ["place", "-f", "x", "-o", "xml"], ["config", "show", "--nope"]],
    ids=" ".join,
)
def test_a_wrong_call_is_a_usage_error(run: CommandRunner, arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert "Usage: " in ended.err
    assert "Traceback" not in ended.err


def test_the_version(run: CommandRunner) -> None:
    ended = run("--version")
    assert ended.code == 0
    assert ended.out.startswith("bayplan, version ")


# config.


def test_a_valid_configuration(run: CommandRunner, write: Write) -> None:
    path = write("ok.yaml", HEAD + "profiles: [{schedulerName: one}, {schedulerName: two}]\n")
    ended = run("config", "check", path)
    assert ended == (0, f"{path} is valid: 2 profile(s) for one, two\n", "")


TWO_SORTS = "class Mine:\n    name = 'Mine'\n    def less(self, a, b):\n        return False\n"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        pytest.param("a: [", 1, "bad.yaml: ", id="malformed-yaml"),
        pytest.param("kind: Pod\napiVersion: v1\n", 1, "bad.yaml: ", id="another-kind"),
        pytest.param(HEAD + "parallelism: many\n", 1, "bad.yaml: ", id="wrong-type"),
        pytest.param(
            HEAD + "nonsense: 1\n", 1, 'unknown field "nonsense"; see docs/configuration.md', id="unknown-field"
        ),
        pytest.param("a: 1\na: 2\n", 1, "bad.yaml: ", id="several-lines"),
        pytest.param("a: " + "x" * 5000, 1, "…; see docs/configuration.md", id="quoted-file"),
        pytest.param(
            HEAD + "profiles: [{plugins: {filter: {enabled: [{name: Unknown}]}}}]\n",
            1,
            'FilterPlugin "Unknown" does not exist; known plugins: BindRequestBinder, ',
            id="unknown-plugin",
        ),
        pytest.param(
            HEAD + "profiles: [{plugins: {queueSort: {disabled: [{name: '*'}]}}}]\n",
            1,
            'only one queue sort plugin required for profile with scheduler name "default-scheduler", but got 0',
            id="no-queue-sort",
        ),
        pytest.param(
            HEAD + "percentageOfNodesToScore: 200\n",
            1,
            "percentageOfNodesToScore: Invalid value: 200",
            id="out-of-range",
        ),
    ],
)
def test_invalid_configurations_are_errors(run: CommandRunner, write: Write, text: str, code: int, words: str) -> None:
    path, cluster = write("bad.yaml", text), write("all.yaml", [NODE, pod("p")])
    for call in (["config", "check", path], ["config", "show", path], ["place", "-f", cluster, "--config", path]):
        ended = run(*call)
        assert ended.code == code
        assert words in one_sentence(ended)
        assert ended.err.startswith(f"error: {path}: ")
        assert len(ended.err) < 2000


def test_an_error_without_a_file_has_no_file_name(run: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_: object, **__: object) -> None:
        raise ConfigError("odd", stage="profile")

    monkeypatch.setattr("bayplan.cli.engine_setup.build_engine", raise_error)
    assert one_sentence(run("config", "show")) == "odd; see docs/configuration.md"


@pytest.mark.parametrize("broken", [False, True], ids=["done", "broken"])
def test_plugins_are_closed(run: CommandRunner, write: Write, tmp_path: Path, broken: bool) -> None:
    (tmp_path / "plugins").mkdir()
    write("plugins/mine.py", CLOSING.format(flag=str(tmp_path / "closed"), answer="7" if broken else "None"))
    config = write("c.yaml", HEAD + "profiles: [{plugins: {multiPoint: {enabled: [{name: Closing}]}}}]\n")
    cluster = write("all.yaml", [NODE, pod("p")])
    for call in (["place", "-f", cluster, "--config"], ["config", "check"], ["config", "show"]):
        run(*call, config, "--plugins-dir", tmp_path / "plugins")
        assert (tmp_path / "closed").read_text() == "yes"
        (tmp_path / "closed").unlink()


CLOSING = """
from pathlib import Path

class Closing:
    name = "Closing"

    def filter(self, cycle, node):
        return {answer}

    def close(self):
        Path("{flag}").write_text("yes")
"""


def test_two_queue_sorts(run: CommandRunner, write: Write, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    write("plugins/mine.py", TWO_SORTS)
    path = write("two.yaml", HEAD + "profiles: [{plugins: {multiPoint: {enabled: [{name: Mine}]}}}]\n")
    ended = run("config", "check", path, "--plugins-dir", tmp_path / "plugins")
    assert ended.code == 1
    assert "only one queue sort plugin required" in one_sentence(ended)
    assert "but got 2" in ended.err


def test_a_missing_file(run: CommandRunner, tmp_path: Path) -> None:
    path = tmp_path / "nowhere.yaml"
    ended = run("config", "check", path)
    assert ended.code == 2
    assert one_sentence(ended) == f"cannot read {path}: No such file or directory; give a readable file"


def test_a_file_that_is_not_utf8_is_an_error(run: CommandRunner, tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    assert one_sentence(run("config", "check", path)) == f"{path} is not UTF-8 text; give a text file"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("class Mine:\n    def (\n", "mine.py, line 2: ", id="syntax-error"),
        pytest.param("raise ValueError('x')\n", "mine.py failed while it was loaded: ValueError: x", id="raises"),
        pytest.param("x = 1\n", "mine.py defines no plugin", id="no-plugin"),
    ],
)
def test_a_broken_plugin_file(run: CommandRunner, write: Write, tmp_path: Path, text: str, words: str) -> None:
    write("mine.py", text)
    for arguments in (["config", "show"], ["place", "-f", "x"]):
        ended = run(*arguments, "--plugins-dir", tmp_path)
        assert ended.code == 1
        assert words in one_sentence(ended)


def test_a_plugin_file_that_other_users_may_write_is_refused(run: CommandRunner, write: Write, tmp_path: Path) -> None:
    write("mine.py", TWO_SORTS).chmod(0o666)
    assert "is writable by group or other users (mode 666)" in one_sentence(
        run("config", "show", "--plugins-dir", tmp_path)
    )
    assert run("config", "show", "--plugins-dir", tmp_path, "--trust-writable-plugins").code == 0


def test_the_default_configuration_is_shown(run: CommandRunner) -> None:
    ended = run("config", "show")
    assert ended.code == 0
    assert "profile default-scheduler" in ended.out
    assert "TaintToleration:3" in ended.out
    assert "evaluated nodes: all" in ended.out


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)], ids=["json", "yaml"])
def test_output_for_programs(run: CommandRunner, form: str, read: Callable[[str], Any]) -> None:
    ended = run("config", "show", "-o", form)
    assert ended.code == 0
    shown = read(ended.out)
    assert shown["configuration"]["kind"] == "KubeSchedulerConfiguration"
    effective = shown["effective"]["default-scheduler"]
    assert effective["nodesLookedAt"] == "all"
    assert effective["plugins"]["queueSort"] == ["PrioritySort"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(
            "percentageOfNodesToScore: 30\n",
            "30%, because the configuration sets percentageOfNodesToScore\n",
            id="percentage",
        ),
        pytest.param(
            "profiles: [{percentageOfNodesToScore: 40}]\n",
            "40%, because the profile sets percentageOfNodesToScore\n",
            id="own-percentage",
        ),
        pytest.param(
            "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p, weight: 1}]\n",
            "adaptive sample, because the configuration has extenders: http://x\n"
            "set percentageOfNodesToScore: 100 in the profile to evaluate all nodes\n",
            id="extender",
        ),
    ],
)
def test_the_number_of_evaluated_nodes(run: CommandRunner, write: Write, text: str, shown: str) -> None:
    assert f"evaluated nodes: {shown}" in run("config", "show", write("c.yaml", HEAD + text)).out


def test_the_reason_of_a_sample_names_the_plugins(run: CommandRunner) -> None:
    ended = run("config", "show", "examples/config/fast-disks.yaml", "--plugins-dir", "examples/plugins", "-o", "json")
    effective = json.loads(ended.out)["effective"]["default-scheduler"]
    assert effective["nodesLookedAt"] == "adaptive sample"
    assert effective["because"] == "these plugins answer for one node at a time: FastDisks (filter and score)"


# place.


def test_a_cluster_in_files(run: CommandRunner, write: Write) -> None:
    path = write("all.yaml", [NODE, pod("p"), pod("big", "9")])
    ended = run("place", "-f", path)
    assert ended.code == 0
    assert "default/p" in ended.out
    assert "1 of 2 pods placed" in ended.out
    assert ended.err == ""


def test_placements_for_programs(run: CommandRunner, write: Write) -> None:
    path = write("all.yaml", [NODE, pod("p"), pod("big", "9"), pod("elsewhere", schedulerName="volcano")])
    placed = {each["pod"]: each for each in json.loads(run("place", "-f", path, "-o", "json").out)}
    assert placed["default/p"]["node"] == "a"
    assert placed["default/p"]["why"] == "the only node that fits"
    assert placed["default/big"]["node"] is None
    assert placed["default/big"]["why"].startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert placed["default/elsewhere"]["why"] == 'no profile serves scheduler name "volcano"'
    assert yaml.safe_load(run("place", "-f", path, "-o", "yaml").out) == list(placed.values())


def test_pods_of_higher_priority_go_first_and_may_preempt(run: CommandRunner, write: Write) -> None:
    urgent = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
        "value": 1000,
    }
    objects = [NODE, urgent, pod("there", "2", nodeName="a"), pod("late"), pod("vip", "2", priorityClassName="urgent")]
    placed = json.loads(run("place", "-f", write("all.yaml", objects), "-o", "json").out)
    assert [each["pod"] for each in placed] == ["default/vip", "default/late"]
    assert (placed[0]["node"], placed[0]["evicted"], placed[0]["priority"]) == ("a", ["default/there"], 1000)
    assert placed[1]["node"] is None


def test_gated_pods_stay_pending(run: CommandRunner, write: Write) -> None:
    path = write("all.yaml", [NODE, pod("p", schedulingGates=[{"name": "wait"}])])
    (placed,) = json.loads(run("place", "-f", path, "-o", "json").out)
    assert placed["node"] is None
    assert "wait" in placed["why"]


def test_the_same_seed_places_the_same_way(run: CommandRunner, write: Write) -> None:
    nodes = [{**NODE, "metadata": {"name": f"n{number}"}} for number in range(6)]
    path = write("all.yaml", [*nodes, *(pod(f"p{number}", "100m") for number in range(4))])
    outs = [run("place", "-f", path, "-o", "json", "--seed", seed).out for seed in (7, 7)]
    assert outs[0] == outs[1]


def test_wide_output_has_the_scores(run: CommandRunner, write: Write) -> None:
    nodes = [{**NODE, "metadata": {"name": name}} for name in ("a", "b")]
    out = run("place", "-f", write("all.yaml", [*nodes, pod("p")]), "-o", "wide").out
    assert "SCORES" in out
    assert "TaintToleration=300" in out
    assert "ImageLocality" not in out  # gave nothing


@pytest.mark.parametrize("columns", ["20", "80"])
def test_names_are_never_truncated(
    run: CommandRunner, write: Write, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    names = [f"{'a-node-of-a-long-name-' * 3}{number}" for number in range(2)]
    owner = "a-pod-of-a-long-name-" * 3 + "0"
    path = write("all.yaml", [*({**NODE, "metadata": {"name": name}} for name in names), pod(owner)])
    out = run("place", "-f", path, "-o", "wide").out
    assert "…" not in out
    assert out.count(f"default/{owner} ") == 2
    assert all(out.count(f"{name} ") >= 2 for name in names)


def test_wide_output_fits_a_terminal(run: CommandRunner, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    nodes = [{**NODE, "metadata": {"name": f"worker-{number}"}} for number in range(6)]
    out = run("place", "-f", write("all.yaml", [*nodes, pod("p"), pod("q", "9")]), "-o", "wide").out
    assert max(map(len, out.splitlines())) <= 80


def test_several_victims_are_listed_in_a_sentence(run: CommandRunner, write: Write) -> None:
    there = [pod(name, "1", nodeName="a") for name in ("x", "z")]
    objects = [NODE, *there, pod("vip", "2", priority=9)]
    (placed,) = json.loads(run("place", "-f", write("all.yaml", objects), "-o", "json").out)
    assert placed["why"].startswith("evicted {} and {}; ".format(*placed["evicted"]))
    assert sorted(placed["evicted"]) == ["default/x", "default/z"]


def test_ignored_documents_are_reported(run: CommandRunner, write: Write) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    path = write("all.yaml", [NODE, pod("p"), config_map])
    assert run("place", "-f", path).err == f"ignored: ConfigMap c in {path}\n"


@pytest.mark.parametrize(
    ("objects", "code", "words"),
    [
        pytest.param("a: [\n", 1, "all.yaml, document 1: yaml: ", id="malformed-yaml"),
        pytest.param("a: 1\na: 2\n", 1, 'line 2: key "a" already set in map', id="several-lines"),
        pytest.param([NODE, pod("p"), pod("p")], 1, "Pod default/p is defined twice, in ", id="twins"),
        pytest.param([NODE, pod("p", "-1")], 1, '"-1" is negative; write zero or more', id="negative"),
        pytest.param([NODE, pod("p", containers=[])], 1, 'document 2: Pod "p": spec.containers', id="no-containers"),
        pytest.param([NODE, pod("p", "many")], 1, '"many" is not a quantity', id="impossible-quantity"),
        pytest.param([NODE, {**pod("p"), "metadata": {}}], 1, "document 2: a Pod has no metadata.name", id="no-name"),
        pytest.param([{"metadata": {"name": "x"}}], 1, "has no kind", id="no-kind"),
        pytest.param(
            [NODE, pod("p", priorityClassName="none")],
            1,
            'pod default/p has priority class "none", which does not exist',
            id="unknown-priority-class",
        ),
        pytest.param([NODE, {**pod("p"), "spec": {"containers": 7}}], 1, 'Pod "p" cannot be read', id="wrong-type"),
        pytest.param([NODE], 2, "these files contain no pending pod", id="no-pending-pod"),
    ],
)
def test_invalid_clusters_are_errors(run: CommandRunner, write: Write, objects: Any, code: int, words: str) -> None:
    ended = run("place", "-f", write("all.yaml", objects))
    assert ended.code == code
    assert words in one_sentence(ended)


def test_missing_manifests_are_errors(run: CommandRunner, tmp_path: Path) -> None:
    ended = run("place", "-f", tmp_path / "nowhere.yaml")
    words = f"{tmp_path / 'nowhere.yaml'} does not exist; name a file or a folder of manifests"
    assert (ended.code, one_sentence(ended)) == (1, words)
    assert "has no .yaml, .yml or .json file" in one_sentence(run("place", "-f", tmp_path))


def test_a_missing_configuration_is_an_error(run: CommandRunner, write: Write, tmp_path: Path) -> None:
    ended = run("place", "-f", write("all.yaml", [NODE, pod("p")]), "--config", tmp_path / "nowhere.yaml")
    assert ended.code == 2
    assert "cannot read" in one_sentence(ended)


# conformance.


def line(name: str, *pending: dict[str, Any], expected: Any = None) -> dict[str, Any]:
    scenario = {"name": name, "nodes": [NODE], "pods": [], "pending": list(pending)}
    return {"scenario": scenario, **({} if expected is None else {"expected": expected})}


NAMED = {**pod("p"), "metadata": {"name": "p", "namespace": "default", "uid": "u"}}
TOO_BIG = {**pod("p", "9"), "metadata": {"name": "p", "namespace": "default", "uid": "u"}}
REFUSED = {
    "verdicts": [
        {
            "pod": "default/p",
            "filter": {
                "a": {
                    "code": "UnschedulableAndUnresolvable",
                    "plugin": "NodeResourcesFit",
                    "reasons": ["Insufficient cpu"],
                }
            },
            "message": "0/1 nodes are available: 1 Insufficient cpu.",
        }
    ]
}


def lines(*items: Any) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def test_agreement(run: CommandRunner, write: Write) -> None:
    path = write("ok.jsonl", lines(line("fit 1", TOO_BIG, expected=REFUSED)) + "\n")
    ended = run("conformance", path)
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "AGREE 1 of 1"


def test_a_disagreement_shows_expected_and_actual_values(run: CommandRunner, write: Write) -> None:
    wrong = json.loads(json.dumps(REFUSED).replace("Insufficient cpu.", "Insufficient gpu."))
    path = write("bad.jsonl", lines(line("fit 1", TOO_BIG, expected=wrong), line("fit 2", TOO_BIG, expected=REFUSED)))
    ended = run("conformance", path)
    assert ended.code == 1
    assert "fit 1 (line 1):" in ended.out
    assert "verdicts[0].message" in ended.out
    assert 'expected  "0/1 nodes are available: 1 Insufficient gpu."' in ended.out
    assert 'got       "0/1 nodes are available: 1 Insufficient cpu."' in ended.out
    assert ended.out.splitlines()[-1] == "AGREE 1 of 2"


def test_agreement_for_programs(run: CommandRunner, write: Write) -> None:
    path = write("both.jsonl", lines(line("fit 1", TOO_BIG, expected={"verdicts": []}), line("new-1", NAMED)))
    ended = run("conformance", path, "-o", "json")
    assert ended.code == 1
    data = json.loads(ended.out)
    assert (data["agree"], data["compared"]) == (0, 1)
    assert data["families"]["new"] == {"scenarios": 1, "compared": 0, "agree": 0}
    (difference,) = data["disagreements"]
    assert (difference["scenario"], difference["line"], difference["where"]) == ("fit 1", 1, "verdicts")


def test_answers_are_written(run: CommandRunner, write: Write, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    path = write("new.jsonl", lines(line("new 1", NAMED), line("new 2", TOO_BIG)))
    assert run("conformance", path, "--answers", answers).code == 0
    first, second = map(json.loads, answers.read_text(encoding="utf-8").splitlines())
    assert (first["name"], set(first["verdicts"][0]["total"])) == ("new 1", {"a"})
    assert second["verdicts"] == REFUSED["verdicts"]


def test_one_family(run: CommandRunner, write: Write) -> None:
    path = write("two.jsonl", lines(line("fit 1", TOO_BIG, expected=REFUSED), line("other-1", NAMED, expected={})))
    assert run("conformance", path, "--family", "fit").code == 0
    ended = run("conformance", path, "--family", "unknown")
    assert (ended.code, one_sentence(ended)) == (2, f"{path} has no lines of family unknown")


def test_gzip_files_are_read(run: CommandRunner, tmp_path: Path) -> None:
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(lines(line("fit 1", TOO_BIG, expected=REFUSED)).encode()))
    assert run("conformance", path).code == 0
    path.write_bytes(path.read_bytes()[:40])
    ended = run("conformance", path)
    assert ended.code == 1
    assert f"{path} cannot be read: " in one_sentence(ended)


def test_an_invalid_scenario_disagrees(run: CommandRunner, write: Write) -> None:
    broken = line("fit 1", TOO_BIG, expected=REFUSED)
    broken["scenario"]["nodes"] = [{"metadata": 7}]
    ended = run("conformance", write("bad.jsonl", lines(broken)), "-o", "json")
    assert ended.code == 1
    assert any(each["where"] == "failure" for each in json.loads(ended.out)["disagreements"])


def test_a_recording_without_lines(run: CommandRunner, write: Write) -> None:
    ended = run("conformance", write("bad.jsonl", ""))
    assert ended.code == 2
    assert "has no lines" in one_sentence(ended)


def scenario(**fields: Any) -> dict[str, Any]:
    return {"scenario": {"name": "mine 1", **fields}}


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        pytest.param("not json\n", "line 1", "the line is not JSON: ", id="not-json"),
        pytest.param("[]\n", "line 1", 'the line has no object "scenario"; see docs', id="no-scenario"),
        pytest.param('{"scenario": 7}\n', "line 1", 'has no object "scenario"', id="scenario-is-no-object"),
        pytest.param(f'{{"scenario": {"[" * 9000}\n', "line 1", "the line is not JSON: ", id="deep"),
        pytest.param(lines(scenario(nodes=5)), "mine 1", "nodes is not a list; see docs", id="nodes"),
        pytest.param(lines(scenario(nodes=[5])), "mine 1", "nodes[0] is not an object", id="node"),
        pytest.param(lines(scenario(nodes=[], storageClasses={})), "mine 1", "storageClasses is not a list", id="kind"),
        pytest.param(lines(scenario(config=5)), "mine 1", "config is not a text", id="config"),
        pytest.param(lines({"scenario": {"name": 5}}), "5", "name is not a text", id="name"),
        pytest.param(lines({**scenario(), "expected": 5}), "mine 1", "expected is not an object", id="expected"),
        pytest.param(lines({**scenario(), "exact": 5}), "mine 1", "exact is not true or false", id="exact"),
        pytest.param(lines(scenario(nodes=[], steps=5)), "mine 1", "steps is not a list", id="steps"),
        pytest.param(lines(scenario(nodes=[], steps=[5])), "mine 1", "steps[0] is not an object", id="step"),
        pytest.param(
            lines(scenario(nodes=[], steps=[{"bogus": 1}])),
            "mine 1",
            'steps[0] has the unknown action "bogus"',
            id="unknown-step",
        ),
        pytest.param(lines(scenario(nodes=[], steps=[{}])), "mine 1", "steps[0] has 0 actions", id="empty-step"),
        pytest.param(
            lines(scenario(nodes=[], steps=[{"dropNode": "a", "dropPod": "b"}])), "mine 1", "has 2 actions", id="two"
        ),
        pytest.param(
            lines(scenario(nodes=[], steps=[{"schedule": "p"}])),
            "mine 1",
            "steps[0].schedule is not an object",
            id="pod",
        ),
        pytest.param(
            lines(scenario(nodes=[], steps=[{"relabel": "a/b"}])),
            "mine 1",
            "steps[0].labels is not a map of texts",
            id="labels",
        ),
        pytest.param(
            lines(scenario(nodes=[], steps=[{"dropNode": "a"}])), "mine 1", 'node "a" is not in', id="unknown-node"
        ),
        pytest.param(
            lines(scenario(nodes=[{"metadata": 7}])), "mine 1", "a Node without a name cannot be", id="object"
        ),
    ],
)
def test_an_invalid_line_fails(
    run: CommandRunner, write: Write, tmp_path: Path, text: str, name: str, words: str
) -> None:
    good = lines(line("fit 1", TOO_BIG, expected=REFUSED))
    path, answers = write("bad.jsonl", text + good), tmp_path / "answers.jsonl"
    ended = run("conformance", path, "--answers", answers)
    assert ended.code == 1
    assert f"{name} (line 1):\n  failure   " in ended.out
    assert words in ended.out
    assert ended.out.splitlines()[-1] == "AGREE 1 of 1"
    first, second = map(json.loads, answers.read_text(encoding="utf-8").splitlines())
    assert first["name"] == name
    assert words in first["failure"]
    assert second["verdicts"] == REFUSED["verdicts"]


def test_failures_for_programs(run: CommandRunner, write: Write) -> None:
    ended = run("conformance", write("bad.jsonl", lines(scenario(nodes=5))), "-o", "json")
    assert ended.code == 1
    data = json.loads(ended.out)
    assert (data["agree"], data["compared"], data["disagreements"]) == (0, 0, [])
    (failure,) = data["failures"]
    assert (failure["scenario"], failure["line"]) == ("mine 1", 1)
    assert failure["failure"].startswith("nodes is not a list; ")


def test_failures_are_counted_by_family(run: CommandRunner, write: Write) -> None:
    out = run("conformance", write("bad.jsonl", lines(scenario(nodes=5), line("fit 1", NAMED)))).out
    assert [row.split() for row in out.splitlines()[-4:-1]] == [
        ["family", "scenarios", "compared", "agree", "failed"],
        ["mine", "1", "0", "0", "1"],
        ["fit", "1", "0", "0", "0"],
    ]


def test_pods_without_nodes_have_results(run: CommandRunner, write: Write, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    path = write("new.jsonl", lines(scenario(pending=[NAMED]), scenario(), {"scenario": {"name": "", "pods": []}}))
    assert run("conformance", path, "--answers", answers).code == 0
    first, second, third = map(json.loads, answers.read_text(encoding="utf-8").splitlines())
    assert [each["message"] for each in first["verdicts"]] == ["0/0 nodes are available:"]
    assert set(second["profiles"]) == {"default-scheduler"}
    assert third["verdicts"] == []


def test_a_rejection_without_a_stage(run: CommandRunner, write: Write) -> None:
    ended = run("conformance", write("odd.jsonl", lines({**scenario(config="a: ["), "expected": {"error": "odd"}})))
    assert ended.code == 1
    assert ended.out.splitlines()[-1] == "AGREE 0 of 1"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_recording_from_standard_input(
    run: CommandRunner, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    data = pack(lines(line("fit 1", TOO_BIG, expected=REFUSED)).encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    ended = run("conformance", "-")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "AGREE 1 of 1")


def test_a_missing_recording_is_an_error(run: CommandRunner, tmp_path: Path) -> None:
    ended = run("conformance", tmp_path / "nowhere.jsonl")
    assert ended.code == 1
    assert "nowhere.jsonl cannot be read" in one_sentence(ended)


def test_an_unwritable_answers_file_is_an_error(run: CommandRunner, write: Write, tmp_path: Path) -> None:
    path = write("ok.jsonl", lines(line("fit 1", TOO_BIG, expected=REFUSED)))
    ended = run("conformance", path, "--answers", tmp_path / "no" / "folder.jsonl")
    assert ended.code == 2
    assert "folder.jsonl: No such file or directory" in one_sentence(ended)


# Streams.


def test_a_configuration_from_standard_input(run: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(HEAD))
    assert run("config", "check", "-") == (0, "- is valid: 1 profile(s) for default-scheduler\n", "")


def test_a_closed_pipe_gives_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_broken_pipe(**_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("bayplan.cli.cli.main", raise_broken_pipe)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 141


def test_an_interrupted_command_prints_stopped(run: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_abort(**_: object) -> None:
        raise click.Abort

    monkeypatch.setattr("bayplan.cli.cli.main", raise_abort)
    assert run() == (130, "", "stopped\n")


@pytest.mark.parametrize("arguments", [["demo"], ["plugin", "list"], ["completion", "bash"]], ids=" ".join)
def test_a_full_device_is_one_sentence(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "bayplan", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert (
        ended.stderr
        == "error: cannot write the output: No space left on device; free space on the device or redirect the output\n"
    )


def test_an_os_error_has_the_file_name(run: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/var/lib/thing")

    monkeypatch.setattr("bayplan.cli.commands.objects.crds.command.callback", refuse)
    monkeypatch.setattr("bayplan.cli.commands.objects.crds.command.params", [])
    ended = run("crds")
    assert one_sentence(ended).startswith("cannot use /var/lib/thing: Permission denied; make it readable")
    assert ended.code == 1
