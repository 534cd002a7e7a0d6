"""Admission of pods that share GPUs: validation, and the references that the webhook adds."""

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


class NoContext:
    """An admission context that no webhook may read."""

    def queues(self) -> Mapping[str, Tree]:
        raise AssertionError("no webhook of pods reads the queues")

    def namespace(self, name: str) -> Tree | None:
        raise AssertionError(name)

    def template_errors(self, name: str, namespace: str, template: Tree) -> list[str]:
        raise AssertionError((name, namespace, template))


def pod(annotations: Mapping[str, str] = HALF, *, metadata: Tree | None = None, **spec: Any) -> Tree:
    meta = {"name": "web", "namespace": "ml", "annotations": {**annotations}, **(metadata or {})}
    containers = [{"name": "main", "image": "main"}, {"name": "side", "image": "side"}]
    return {"metadata": meta, "spec": {"schedulerName": "default-scheduler", "containers": containers, **spec}}


def run(path: str, item: Tree, **settings: Any) -> tuple[Tree, str]:
    (webhook,) = webhooks_for([path])
    chosen = AdmissionSettings(**{"random_suffix": lambda: "abcdefg", **settings})
    return run_webhook(webhook, AdmissionRequest("CREATE", item, None, "web", NoContext(), chosen))


def mutate(item: Tree, **settings: Any) -> Tree:
    found, error = run("/gpus/mutate", item, **settings)
    assert error == ""
    return found


def validation_error(item: Tree, **settings: Any) -> str:
    return run("/gpus/validate", item, **settings)[1]


def container_with_limit(resource: str) -> Tree:
    amount = {resource: "1"}
    return {"name": "main", "image": "main", "resources": {"requests": amount, "limits": amount}}


# validation


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"gpu-fraction": "0.01"}, id="a fraction"),
        pytest.param({"gpu-memory": "1"}, id="memory"),
        pytest.param({"gpu-memory": "1000", "gpu-fraction-num-devices": "2"}, id="memory of several devices"),
        pytest.param({"gpu-fraction": "0.3", CONTAINER: "side"}, id="a container"),
        pytest.param({"gpu-fraction": "0.3", CONTAINER: "first"}, id="an init container"),
    ],
)
def test_valid_annotations_are_admitted(annotations: dict[str, str]) -> None:
    assert validation_error(pod(annotations, initContainers=[{"name": "first"}])) == ""


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        *(
            pytest.param(
                {"gpu-fraction": text}, f'gpu-fraction is "{text}"; it must be between 0 and 1', id=text or "empty"
            )
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
            "pod ml/web has the annotation gpu-fraction-num-devices and neither gpu-fraction nor gpu-memory; "
            "add one of these",
            id="devices alone",
        ),
        pytest.param(
            {**HALF, CONTAINER: "none"},
            f'pod ml/web has no container "none" of its annotation {CONTAINER}',
            id="no such container",
        ),
    ],
)
def test_invalid_annotations_are_refused_and_not_mutated(annotations: dict[str, str], message: str) -> None:
    assert message in validation_error(pod(annotations))
    assert mutate(original := pod(annotations)) is original  # an invalid pod gets no names


@pytest.mark.parametrize("annotations", [HALF, {"gpu-memory": "1000"}], ids=["fraction", "memory"])
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"])
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_gpu_share_beside_whole_gpus_or_mig_instances_is_refused(
    annotations: dict[str, str], resource: str, field: str
) -> None:
    mixed = pod(annotations)
    mixed["spec"][field] = [container_with_limit(resource)]
    assert (
        validation_error(mixed)
        == "pod ml/web requests whole GPUs or MIG instances, and a part of a GPU; remove one request"
    )


def test_the_error_of_an_unnamed_pod_uses_generate_name() -> None:
    unnamed = pod({"gpu-fraction": "2"}, metadata={"name": "", "generateName": "web-5d8f-"})
    assert validation_error(unnamed).startswith("pod ml/web-5d8f: ")


@pytest.mark.parametrize("path", ["/gpus/mutate", "/gpus/validate"])
def test_only_pods_of_the_configured_schedulers_are_checked(path: str) -> None:
    kai_pod = pod({"gpu-fraction": "2" if path == "/gpus/validate" else "0.5"}, schedulerName="kai-scheduler")
    assert run(path, kai_pod) == (kai_pod, "")
    found, error = run(path, kai_pod, sharing_schedulers=("bayplan", "kai-scheduler"))
    assert (found, error) != (kai_pod, "")
    unnamed = pod(kai_pod["metadata"]["annotations"], schedulerName="")
    assert run(path, unnamed) != (unnamed, "")  # the API server sets default-scheduler for it


# mutation


def test_a_pod_gets_config_map_names_and_its_first_container_refers_to_them() -> None:
    original = pod(volumes=[{"name": "mine", "emptyDir": {}}])
    found = mutate(original)
    prefix = "web-abcdefg-shared-gpu"
    assert found["metadata"]["annotations"] == {**HALF, NAME: prefix}
    first, second = found["spec"]["containers"]
    assert first["env"] == [
        {"name": name, "valueFrom": {"configMapKeyRef": {"name": f"{prefix}-0", "key": name}}}
        for name in ("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION")
    ]
    assert first["envFrom"] == [{"configMapRef": {"name": f"{prefix}-0-evar", "optional": False}}]
    assert second == original["spec"]["containers"][1]
    volume = {"name": f"{prefix}-0-vol", "configMap": {"name": f"{prefix}-0", "defaultMode": 0o644}}
    assert found["spec"]["volumes"] == [{"name": "mine", "emptyDir": {}}, volume]
    assert original == pod(volumes=[{"name": "mine", "emptyDir": {}}])  # the argument is not changed


@pytest.mark.parametrize(("name", "field"), [("side", "1"), ("first", "i0"), ("second", "i1")])
def test_the_container_named_in_the_annotation_gets_the_references(name: str, field: str) -> None:
    inits = [{"name": "first"}, {"name": "second"}]
    found = mutate(pod({**HALF, CONTAINER: name}, initContainers=inits))
    capabilities = f"web-abcdefg-shared-gpu-{field}"
    referring = [each for key in ("containers", "initContainers") for each in found["spec"][key] if "env" in each]
    assert [each["name"] for each in referring] == [name]
    assert referring[0]["env"][0]["valueFrom"]["configMapKeyRef"]["name"] == capabilities
    read = convert(found, Pod)
    assert config_map_names(read.metadata.annotations[NAME], sharing_container(read))[0] == capabilities


def test_device_variables_of_the_container_are_replaced() -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "MODE", "value": "x"}]
    found = mutate(pod(containers=[{"name": "main", "env": env}]))
    (container,) = found["spec"]["containers"]
    assert [each["name"] for each in container["env"]] == [
        "NVIDIA_VISIBLE_DEVICES",
        "MODE",
        "RUNAI_NUM_OF_GPUS",
        "GPU_PORTION",
    ]
    assert "value" not in container["env"][0]


def test_a_mutated_pod_is_not_mutated_again() -> None:
    mutated_once = mutate(pod())
    assert mutate(mutated_once, random_suffix=lambda: "zzzzzzz") == mutated_once


def test_a_config_map_name_in_the_annotation_is_kept() -> None:
    found = mutate(pod({**HALF, NAME: "my.own"}))
    assert found["metadata"]["annotations"][NAME] == "my.own"
    assert found["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"] == "my.own-0-evar"
    assert "volumes" not in found["spec"]  # the name of a volume cannot have a dot


@pytest.mark.parametrize(
    ("metadata", "prefix"),
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
def test_the_prefix_of_config_map_names(metadata: Tree, prefix: str) -> None:
    assert mutate(pod(metadata=metadata))["metadata"]["annotations"][NAME] == prefix


@pytest.mark.parametrize("container", ["main", "last"])
@pytest.mark.parametrize("length", [30, 39, 40, 63, 253])
def test_generated_names_are_within_the_length_limits(length: int, container: str) -> None:
    inits = [{"name": f"init-{number}"} for number in range(11)] + [{"name": "last"}]
    found = mutate(pod({**HALF, CONTAINER: container}, metadata={"name": "a" * length}, initContainers=inits))
    (volume,) = found["spec"]["volumes"]
    assert dns_label_problems(volume["name"]) == []
    assert dns_subdomain_problems(volume["configMap"]["name"]) == []
    assert length < 63 or len(volume["name"]) == 63


def test_pods_of_one_template_get_different_names() -> None:
    suffixes = {mutate(pod(), random_suffix=random_suffix)["metadata"]["annotations"][NAME] for _ in range(100)}
    assert len(suffixes) == 100
    letters = next(iter(suffixes)).split("-")[1]
    assert (len(letters), set(letters) - set(NAME_SUFFIX_ALPHABET)) == (7, set())


@pytest.mark.parametrize("annotations", [{}, {"team": "ml"}], ids=["no annotations", "other annotations"])
def test_pods_without_a_gpu_share_are_not_changed(annotations: dict[str, str]) -> None:
    assert mutate(original := pod(annotations)) is original
    assert validation_error(original) == ""


def test_a_pod_with_a_field_of_the_wrong_type_is_refused() -> None:
    assert "cannot be read" in validation_error(pod(containers=3))


# webhooks


def test_gpu_webhooks_are_disabled_by_default_and_need_no_context() -> None:
    assert {webhook.path for webhook in GPU_WEBHOOKS}.isdisjoint(DEFAULT_WEBHOOKS)
    assert not any(webhook.needs_context for webhook in GPU_WEBHOOKS)
    assert any(webhook.needs_context for webhook in webhooks_for(DEFAULT_WEBHOOKS))
    assert [webhook.registration("some-service") for webhook in GPU_WEBHOOKS] == [
        "bayplan-gpus-mutate",
        "bayplan-gpus-validate",
    ]
    assert webhooks_for(["/jobs/mutate"])[0].registration("some-service") == "some-service-jobs-mutate"


def test_match_conditions_select_the_pods_of_the_schedulers() -> None:
    placed, shares = (each["expression"] for each in match_conditions(["bayplan", "other"]))
    assert placed == "object.spec.schedulerName in ['bayplan', 'other']"
    assert shares == (
        "has(object.metadata.annotations) && ('gpu-fraction' in object.metadata.annotations || 'gpu-memory' in "
        "object.metadata.annotations || 'gpu-fraction-num-devices' in object.metadata.annotations)"
    )


def test_scheduler_names_of_a_registration() -> None:
    assert registered_schedulers({"metadata": {"annotations": {"bayplan.dev/scheduler-names": "a,b"}}}) == ("a", "b")
    assert registered_schedulers({"metadata": {}}) == ("default-scheduler",)


def test_the_manual_example_in_the_docs_matches_the_webhook() -> None:
    documents = [each for block in blocks(ROOT / "docs" / "gpu-sharing.md") for each in _documents(block)]
    (by_hand,) = [each for each in documents if each["kind"] == "Pod"]
    assert mutate(by_hand)["metadata"] == by_hand["metadata"]
    (manual,), (mutated,) = by_hand["spec"]["containers"], mutate(by_hand)["spec"]["containers"]
    assert [each for each in manual["env"] if each not in mutated["env"]] == []
    assert [each["configMapRef"]["name"] for each in manual["envFrom"]] == ["by-hand-gpu-0-evar"]
    assert len(mutated["envFrom"]) == 1


def _documents(block: Block) -> list[Tree]:
    return list(yaml.safe_load_all(block.text)) if block.language == "yaml" else []
