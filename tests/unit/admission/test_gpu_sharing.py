"""Pods that want parts of GPUs, at the door: what they are given, and which of them are not let in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from bayplan.admission.gpu_sharing import match_conditions, random_suffix, registered_schedulers
from bayplan.admission.webhooks import (
    DEFAULT_WEBHOOKS,
    GPU_WEBHOOKS,
    AdmissionRequest,
    AdmissionSettings,
    run_webhook,
    webhooks_for,
)
from bayplan.objects.core import Pod
from bayplan.objects.kai.gpu_sharing import config_map_names, sharing_container
from bayplan.objects.kinds import convert
from bayplan.objects.meta import NAME_SUFFIX_ALPHABET
from bayplan.objects.name_validation import dns_label_problems, dns_subdomain_problems
from docs.fences import ROOT, Block, blocks

Tree = dict[str, Any]
HALF = {"gpu-fraction": "0.5"}
CONTAINER = "gpu-fraction-container-name"
NAME = "runai/shared-gpu-configmap"


class Nowhere:
    """A cluster that nobody is to look at."""

    def queues(self) -> Mapping[str, Tree]:
        raise AssertionError("nobody has queues here")

    def namespace(self, name: str) -> Tree | None:
        raise AssertionError(name)

    def template_faults(self, name: str, namespace: str, template: Tree) -> list[str]:
        raise AssertionError((name, namespace, template))


def pod(said: Mapping[str, str] = HALF, *, metadata: Tree | None = None, **spec: Any) -> Tree:
    about = {"name": "web", "namespace": "ml", "annotations": {**said}, **(metadata or {})}
    containers = [{"name": "main", "image": "main"}, {"name": "side", "image": "side"}]
    return {"metadata": about, "spec": {"schedulerName": "default-scheduler", "containers": containers, **spec}}


def ask(path: str, item: Tree, **settings: Any) -> tuple[Tree, str]:
    (door,) = webhooks_for([path])
    given = AdmissionSettings(**{"random_suffix": lambda: "abcdefg", **settings})
    return run_webhook(door, AdmissionRequest("CREATE", item, None, "web", Nowhere(), given))


def mutated(item: Tree, **settings: Any) -> Tree:
    found, fault = ask("/gpus/mutate", item, **settings)
    assert fault == ""
    return found


def refused(item: Tree, **settings: Any) -> str:
    return ask("/gpus/validate", item, **settings)[1]


def limited(resource: str) -> Tree:
    amount = {resource: "1"}
    return {"name": "main", "image": "main", "resources": {"requests": amount, "limits": amount}}


# validation


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"gpu-fraction": "0.01"}, id="a fraction"),
        pytest.param({"gpu-memory": "1"}, id="memory"),
        pytest.param({"gpu-memory": "1000", "gpu-fraction-num-devices": "2"}, id="memory of several devices"),
        pytest.param({"gpu-fraction": "0.3", CONTAINER: "side"}, id="a container"),
        pytest.param({"gpu-fraction": "0.3", CONTAINER: "first"}, id="a container that initialises"),
    ],
)
def test_what_is_let_in(said: dict[str, str]) -> None:
    assert refused(pod(said, initContainers=[{"name": "first"}])) == ""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        *(
            pytest.param({"gpu-fraction": text}, f'gpu-fraction is "{text}"; it must be between 0 and 1', id=text or "empty")
            for text in ("0", "1", "1.2", "-1", "half", "nan", "", "0_0.5", "0.5 ", "٠.٥")
        ),
        *(
            pytest.param(
                {"gpu-memory": text}, f'gpu-memory is "{text}"; it must be a whole number above 0', id=f"m{text}"
            )
            for text in ("0", "-1", "0.5", "1Gi", "")
        ),
        pytest.param({"gpu-fraction": "0.5", "gpu-memory": "1"}, "has both annotations", id="both"),
        *(
            pytest.param(
                {**HALF, "gpu-fraction-num-devices": text},
                f'gpu-fraction-num-devices is "{text}"; it must be a whole number above 0',
                id=f"n{text}",
            )
            for text in ("0", "1.2", "-2", "two")
        ),
        pytest.param(
            {"gpu-fraction-num-devices": "2"},
            "pod ml/web has the annotation gpu-fraction-num-devices and neither gpu-fraction nor gpu-memory; add one of these",
            id="devices alone",
        ),
        pytest.param(
            {**HALF, CONTAINER: "none"},
            f'pod ml/web has no container "none" of its annotation {CONTAINER}',
            id="no such container",
        ),
    ],
)
def test_annotations_that_are_refused(said: dict[str, str], words: str) -> None:
    assert words in refused(pod(said))
    assert mutated(given := pod(said)) is given  # and nobody draws names for it


@pytest.mark.parametrize("said", [HALF, {"gpu-memory": "1000"}], ids=["fraction", "memory"])
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"])
@pytest.mark.parametrize("place", ["containers", "initContainers"])
def test_whole_gpus_and_instances_of_mig_exclude_a_part(said: dict[str, str], resource: str, place: str) -> None:
    beside = pod(said)
    beside["spec"][place] = [limited(resource)]
    assert refused(beside) == "pod ml/web requests whole GPUs or MIG instances, and a part of a GPU; remove one request"


def test_a_pod_without_a_name_is_spoken_of_by_what_makes_its_name() -> None:
    made = pod({"gpu-fraction": "2"}, metadata={"name": "", "generateName": "web-5d8f-"})
    assert refused(made).startswith("pod ml/web-5d8f: ")


@pytest.mark.parametrize("path", ["/gpus/mutate", "/gpus/validate"])
def test_only_pods_of_named_schedulers_are_looked_at(path: str) -> None:
    theirs = pod({"gpu-fraction": "2" if path == "/gpus/validate" else "0.5"}, schedulerName="kai-scheduler")
    assert ask(path, theirs) == (theirs, "")
    found, fault = ask(path, theirs, sharing_schedulers=("bayplan", "kai-scheduler"))
    assert (found, fault) != (theirs, "")
    unnamed = pod(theirs["metadata"]["annotations"], schedulerName="")
    assert ask(path, unnamed) != (unnamed, "")  # the API server says default-scheduler for it


# mutation


def test_a_pod_gets_names_and_its_first_container_refers_to_them() -> None:
    given = pod(volumes=[{"name": "mine", "emptyDir": {}}])
    found = mutated(given)
    beginning = "web-abcdefg-shared-gpu"
    assert found["metadata"]["annotations"] == {**HALF, NAME: beginning}
    first, second = found["spec"]["containers"]
    assert first["env"] == [
        {"name": name, "valueFrom": {"configMapKeyRef": {"name": f"{beginning}-0", "key": name}}}
        for name in ("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION")
    ]
    assert first["envFrom"] == [{"configMapRef": {"name": f"{beginning}-0-evar", "optional": False}}]
    assert second == given["spec"]["containers"][1]
    volume = {"name": f"{beginning}-0-vol", "configMap": {"name": f"{beginning}-0", "defaultMode": 0o644}}
    assert found["spec"]["volumes"] == [{"name": "mine", "emptyDir": {}}, volume]
    assert given == pod(volumes=[{"name": "mine", "emptyDir": {}}])  # what it was made of stays as it was


@pytest.mark.parametrize(("name", "place"), [("side", "1"), ("first", "i0"), ("second", "i1")])
def test_the_container_that_is_named_is_told(name: str, place: str) -> None:
    inits = [{"name": "first"}, {"name": "second"}]
    found = mutated(pod({**HALF, CONTAINER: name}, initContainers=inits))
    capabilities = f"web-abcdefg-shared-gpu-{place}"
    told = [each for key in ("containers", "initContainers") for each in found["spec"][key] if "env" in each]
    assert [each["name"] for each in told] == [name]
    assert told[0]["env"][0]["valueFrom"]["configMapKeyRef"]["name"] == capabilities
    read = convert(found, Pod)
    assert config_map_names(read.metadata.annotations[NAME], sharing_container(read))[0] == capabilities


def test_what_a_container_says_of_its_devices_itself_does_not_count() -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "MODE", "value": "x"}]
    found = mutated(pod(containers=[{"name": "main", "env": env}]))
    (container,) = found["spec"]["containers"]
    assert [each["name"] for each in container["env"]] == [
        "NVIDIA_VISIBLE_DEVICES",
        "MODE",
        "RUNAI_NUM_OF_GPUS",
        "GPU_PORTION",
    ]
    assert "value" not in container["env"][0]


def test_a_pod_that_was_here_before_keeps_all_it_has() -> None:
    once = mutated(pod())
    assert mutated(once, random_suffix=lambda: "zzzzzzz") == once


def test_a_name_that_somebody_has_chosen_is_kept() -> None:
    found = mutated(pod({**HALF, NAME: "my.own"}))
    assert found["metadata"]["annotations"][NAME] == "my.own"
    assert found["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"] == "my.own-0-evar"
    assert "volumes" not in found["spec"]  # none may have a dot in its name


@pytest.mark.parametrize(
    ("metadata", "beginning"),
    [
        pytest.param(
            {"name": "", "generateName": "web-5d8f-", "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d8f"}]},
            "web-5d8f-abcdefg-shared-gpu",
            id="of a ReplicaSet",
        ),
        pytest.param({"name": "", "generateName": "run-"}, "run-abcdefg-shared-gpu", id="named later"),
        pytest.param({"name": "web.example.com"}, "web-example-com-abcdefg-shared-gpu", id="dots"),
        pytest.param({"name": "", "generateName": ""}, "pod-abcdefg-shared-gpu", id="no name"),
    ],
)
def test_what_the_names_begin_with(metadata: Tree, beginning: str) -> None:
    assert mutated(pod(metadata=metadata))["metadata"]["annotations"][NAME] == beginning


@pytest.mark.parametrize("container", ["main", "last"])
@pytest.mark.parametrize("length", [30, 39, 40, 63, 253])
def test_names_are_never_longer_than_allowed(length: int, container: str) -> None:
    inits = [{"name": f"init-{number}"} for number in range(11)] + [{"name": "last"}]
    found = mutated(pod({**HALF, CONTAINER: container}, metadata={"name": "a" * length}, initContainers=inits))
    (volume,) = found["spec"]["volumes"]
    assert dns_label_problems(volume["name"]) == []
    assert dns_subdomain_problems(volume["configMap"]["name"]) == []
    assert length < 63 or len(volume["name"]) == 63


def test_two_pods_of_one_template_have_names_of_their_own() -> None:
    drawn = {mutated(pod(), random_suffix=random_suffix)["metadata"]["annotations"][NAME] for _ in range(100)}
    assert len(drawn) == 100
    letters = next(iter(drawn)).split("-")[1]
    assert (len(letters), set(letters) - set(NAME_SUFFIX_ALPHABET)) == (7, set())


@pytest.mark.parametrize("said", [{}, {"team": "ml"}], ids=["no annotations", "others"])
def test_other_pods_are_left_as_they_are(said: dict[str, str]) -> None:
    assert mutated(given := pod(said)) is given
    assert refused(given) == ""


def test_a_pod_that_cannot_be_read_is_told_so() -> None:
    assert "cannot be read" in refused(pod(containers=3))


# the doors


def test_they_are_off_unless_they_are_named_and_need_nothing_of_the_cluster() -> None:
    assert {door.path for door in GPU_WEBHOOKS}.isdisjoint(DEFAULT_WEBHOOKS)
    assert not any(door.needs_context for door in GPU_WEBHOOKS)
    assert any(door.needs_context for door in webhooks_for(DEFAULT_WEBHOOKS))
    assert [door.registration("some-service") for door in GPU_WEBHOOKS] == [
        "bayplan-gpus-mutate",
        "bayplan-gpus-validate",
    ]
    assert webhooks_for(["/jobs/mutate"])[0].registration("some-service") == "some-service-jobs-mutate"


def test_an_api_server_is_told_of_whose_pods_it_is_to_ask() -> None:
    placed, shares = (each["expression"] for each in match_conditions(["bayplan", "other"]))
    assert placed == "object.spec.schedulerName in ['bayplan', 'other']"
    assert shares == (
        "has(object.metadata.annotations) && ('gpu-fraction' in object.metadata.annotations || 'gpu-memory' in "
        "object.metadata.annotations || 'gpu-fraction-num-devices' in object.metadata.annotations)"
    )


def test_a_registration_says_whose_pods_it_is_about() -> None:
    assert registered_schedulers({"metadata": {"annotations": {"bayplan.dev/scheduler-names": "a,b"}}}) == ("a", "b")
    assert registered_schedulers({"metadata": {}}) == ("default-scheduler",)


def test_the_page_shows_by_hand_what_the_webhook_would_put_in() -> None:
    documents = [each for block in blocks(ROOT / "docs" / "gpu-sharing.md") for each in _documents(block)]
    (by_hand,) = [each for each in documents if each["kind"] == "Pod"]
    assert mutated(by_hand)["metadata"] == by_hand["metadata"]
    (written,), (made,) = by_hand["spec"]["containers"], mutated(by_hand)["spec"]["containers"]
    assert [each for each in written["env"] if each not in made["env"]] == []
    assert [each["configMapRef"]["name"] for each in written["envFrom"]] == ["by-hand-gpu-0-evar"]
    assert len(made["envFrom"]) == 1


def _documents(block: Block) -> list[Tree]:
    return list(yaml.safe_load_all(block.text)) if block.language == "yaml" else []
