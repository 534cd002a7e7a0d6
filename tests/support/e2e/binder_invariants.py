"""Invariants of pods, bind requests, reservations and claims in a settled cluster, after any crash.

Checked by `BinderHarness.check_invariants` on the state of the API server. Each violation is a sentence; a test expects
none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from cluster.api import Tree
from support.e2e.scheduler_harness import overcommitted_resources
from support.e2e.scheduler_process import node_name

GROUP_LABEL = "runai-gpu-group"
CONFIG_MAP_NAME = "runai/shared-gpu-configmap"
_ENDED_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True)
class ClusterState:
    """The objects of a test. `expected_annotations`: those that the request must have."""

    nodes: list[Tree]
    pods: list[Tree]
    requests: list[Tree] = field(default_factory=list)
    reservations: list[Tree] = field(default_factory=list)
    config_maps: list[Tree] = field(default_factory=list)
    claims: list[Tree] = field(default_factory=list)
    volumes: list[Tree] = field(default_factory=list)
    volume_claims: list[Tree] = field(default_factory=list)
    expected_annotations: Callable[[Tree], Tree] = lambda request: {}  # noqa: ARG005

    def faults(self) -> list[str]:
        checks = (self._requests, self._room, self._groups, self._config_maps, self._claims, self._volumes)
        return [fault for check in checks for fault in check()]

    # I1, I3, I5, I6

    def _requests(self) -> Iterator[str]:
        living = self._living()
        live = Counter(pod_uid(each) for each in self.requests if is_live(each))
        yield from (f"pod {uid} has {count} live requests" for uid, count in live.items() if count > 1)
        for each in self.requests:
            name, status = each["metadata"]["name"], each.get("status", {})
            if status.get("failedAttempts", 0) > max_attempts(each):
                yield f"request {name} was tried {status['failedAttempts']} times, of {max_attempts(each)}"
            pod = living.get(pod_uid(each))
            if (
                pod is not None
                and status.get("phase") == "Succeeded"
                and node_name(pod) != each["spec"]["selectedNode"]
            ):
                yield f'pod {name} is on "{node_name(pod)}", not on the node of its request'
            found, wanted = each["metadata"].get("annotations", {}), self.expected_annotations(each)
            if found != wanted:
                yield f"request {name} says {found}, its plugins {wanted}"

    # I2

    def _room(self) -> Iterator[str]:
        placed = [*self.pods, *self.reservations]
        by_uid = {
            uid: each["spec"]["selectedNode"] for each in self.requests if is_live(each) and (uid := pod_uid(each))
        }
        for pod in self.pods:
            node = by_uid.get(pod["metadata"]["uid"])
            if node is not None and not node_name(pod):
                placed.append({**pod, "spec": {**pod["spec"], "nodeName": node}})
        yield from overcommitted_resources(self.nodes, placed)
        shares: Counter[str] = Counter()
        for each in self._of_the_living():
            portion = each["spec"].get("receivedGPU", {}).get("portion", "0")
            shares.update(dict.fromkeys(each["spec"].get("selectedGPUGroups", []), round(100 * float(portion))))
        yield from (f"group {group} is given out to {share} %" for group, share in shares.items() if share > 100)

    # I4

    def _groups(self) -> Iterator[str]:
        held = {
            (group, node_name(each))
            for each in self.reservations
            if not _is_terminating(each)
            for group in groups_of(each)
        }
        used = {(group, node_name(each)) for each in self._living().values() for group in groups_of(each)}
        awaited = {
            (group, each["spec"]["selectedNode"])
            for each in self._of_the_living()
            if each.get("status", {}).get("phase") != "Succeeded"
            for group in each["spec"].get("selectedGPUGroups", [])
        }
        for group, node in sorted(held - used - awaited):
            yield f"the device of group {group} on {node} is reserved but unused"
        for group, node in sorted(used - held):
            if node or group not in {each for each, _ in awaited}:
                yield f'a pod on "{node}" is of group {group}, but the device is not reserved'
        living = self._living()
        for each in self._of_the_living():
            wanted = set(each["spec"].get("selectedGPUGroups", []))
            pod = living[pod_uid(each)]
            if node_name(pod) and each["spec"].get("receivedResourceType") == "Fraction" and groups_of(pod) != wanted:
                yield f"pod {pod['metadata']['name']} is of groups {groups_of(pod)}, its request says {wanted}"

    # environment of the containers

    def _config_maps(self) -> Iterator[str]:
        there = {each["metadata"]["name"] for each in self.config_maps}
        for pod in self._living().values():
            said = pod["metadata"].get("annotations", {})
            if node_name(pod) and said.get("received-resource-type") == "Fraction" and CONFIG_MAP_NAME in said:
                named = {f"{said[CONFIG_MAP_NAME]}-0", f"{said[CONFIG_MAP_NAME]}-0-evar"}
                for name in sorted(named - there):
                    yield f"pod {pod['metadata']['name']} is bound, and its ConfigMap {name} is not there"

    # claims

    def _claims(self) -> Iterator[str]:
        living, given = self._living(), Counter[tuple[str, str, str]]()
        reserved: dict[str, set[str]] = {}
        labels = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in self.nodes}
        reach = {
            each["metadata"]["name"]: each.get("status", {}).get("allocation", {}).get("nodeSelector")
            for each in self.claims
        }
        for each in self.claims:
            name, status = each["metadata"]["name"], each.get("status", {})
            users = {user["uid"] for user in status.get("reservedFor", [])}
            reserved[name] = users
            yield from (f"claim {name} is reserved for {uid}, which is gone" for uid in users - living.keys())
            if "allocation" in status and not users:
                yield f"claim {name} has devices but no user"
            results = status.get("allocation", {}).get("devices", {}).get("results", [])
            given.update((result["driver"], result["pool"], result["device"]) for result in results)
        yield from (f"device {device} is given out {count} times" for device, count in given.items() if count > 1)
        for uid, pod in living.items():
            for entry in pod["spec"].get("resourceClaims", []):
                name = entry.get("resourceClaimName")
                if node_name(pod) and name is not None and uid not in reserved.get(name, set()):
                    yield f"pod {pod['metadata']['name']} is bound, and claim {name} is not reserved for it"
                if node_name(pod) in labels and not _selects(reach.get(name), node_name(pod), labels[node_name(pod)]):
                    yield f"pod {pod['metadata']['name']} is on {node_name(pod)}, where claim {name} cannot be used"

    # volumes

    def _volumes(self) -> Iterator[str]:
        promised = Counter(each["spec"]["claimRef"]["uid"] for each in self.volumes)
        claims = {each["metadata"]["name"]: each for each in self.volume_claims}
        labels = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in self.nodes}
        for name, each in claims.items():
            if (count := promised[each["metadata"]["uid"]]) > 1:
                yield f"claim {name} is promised {count} volumes"
        for pod in self._living().values():
            for name in volume_claims_of(pod) if node_name(pod) else ():
                uid, bound_to = claims[name]["metadata"]["uid"], claims[name]["spec"].get("volumeName")
                found = [each for each in self.volumes if each["metadata"]["name"] == bound_to]
                if not found or found[0]["spec"]["claimRef"]["uid"] != uid:
                    yield f"pod {pod['metadata']['name']} is bound, and the volume of claim {name} is not"
                elif not is_volume_reachable(found[0], labels.get(node_name(pod), {})):
                    yield f"pod {pod['metadata']['name']} is on {node_name(pod)}, where volume {bound_to} is not"

    # helpers

    def _living(self) -> dict[str, Tree]:
        return {
            each["metadata"]["uid"]: each
            for each in self.pods
            if each.get("status", {}).get("phase") not in _ENDED_PHASES
        }

    def _of_the_living(self) -> Iterable[Tree]:
        living = self._living()
        return [each for each in self.requests if is_live(each) and pod_uid(each) in living]


def pod_uid(request: Tree) -> str:
    owners = request["metadata"].get("ownerReferences", [])
    return str(request["spec"].get("podUID") or (owners[0]["uid"] if owners else ""))


def max_attempts(request: Tree) -> int:
    """Maximum number of attempts for a request: a binder tries existing requests once after its start, whatever the
    limit.
    """
    return max(int(request["spec"].get("backoffLimit", 0)), 1) + 1


def is_live(request: Tree) -> bool:
    """Whether the request was or may still be executed."""
    status = request.get("status", {})
    return status.get("phase") != "Failed" or status.get("failedAttempts", 0) < request["spec"].get("backoffLimit", 0)


def groups_of(pod: Tree) -> set[str]:
    labels = pod["metadata"].get("labels", {})
    return {value for key, value in labels.items() if key.partition("/")[0] == GROUP_LABEL}


def _selects(selector: Tree | None, node: str, labels: Tree) -> bool:
    """Whether a node selector matches the node, for the forms that allocations use: by name, and by label values."""
    if selector is None:
        return True
    return any(
        all(node in each["values"] for each in term.get("matchFields", []))
        and all(labels.get(each["key"]) in each["values"] for each in term.get("matchExpressions", []))
        for term in selector["nodeSelectorTerms"]
    )


def volume_claims_of(pod: Tree) -> list[str]:
    named = (each.get("persistentVolumeClaim", {}).get("claimName") for each in pod["spec"].get("volumes", []))
    return [name for name in named if name is not None]


def is_volume_reachable(volume: Tree, labels: Tree) -> bool:
    """Whether a volume with a one-label topology is reachable from a node with these labels."""
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    (where,) = [each for term in terms for each in term["matchExpressions"]]
    return labels.get(where["key"]) in where["values"]


def _is_terminating(pod: Tree) -> bool:
    return "deletionTimestamp" in pod["metadata"]
