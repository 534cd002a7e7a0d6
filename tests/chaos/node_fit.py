"""Does a waiting pod fit on a node now? The driver's own answer, from the record.

Asked in calm times only: a pod that fits somewhere and is not bound is lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from chaos.invariants.capacity import exceeded, sum_requests
from chaos.invariants.constraints import ZONE, refused_by, repels, spread_constraints, zone_counts
from chaos.invariants.devices import RESERVATIONS, groups_of, share_of
from chaos.invariants.volumes import attached, claim_uid, exclusive_claims, pods_using, volume_of
from chaos.objects import (
    Tree,
    claims_of,
    devices_of,
    group_of,
    host_ports,
    is_deleted,
    is_waiting,
    key,
    labels,
    matches,
    name,
    namespace,
    node_of,
    occupies,
    spec,
    uid,
    volume_claims_of,
    volume_reaches,
)
from chaos.quantities import allocatable, amounts, pod_requests
from chaos.record import Record

GPU = "nvidia.com/gpu"


def fitting_node(record: Record, pod: Tree) -> str:
    """A node on which the pod fits, or an empty string."""
    return next((node for node, tree in record.nodes().items() if fits(record, pod, tree)), "")


def fits(record: Record, pod: Tree, node: Tree) -> bool:
    there = [each for each in record.pods_on(name(node)) if occupies(each)]
    return (
        not is_deleted(node)
        and not refused_by(pod, node)
        and not exceeded(sum_requests([*there, pod]), allocatable(node))
        and not any(host_ports(pod) & host_ports(each) or repels(pod, each) for each in there)
        and _spreads(record, pod, node)
        and _has_devices(record, pod, node)
        and _has_volumes(record, pod, node)
        and _has_share(there, pod, node)
    )


def _spreads(record: Record, pod: Tree, node: Tree) -> bool:
    selector = {"matchLabels": spec(pod).get("nodeSelector") or {}}
    zones = {
        name: labels(each)[ZONE]
        for name, each in record.nodes().items()
        if matches(selector, labels(each)) and ZONE in labels(each)
    }
    for each in spread_constraints(pod):
        mates = (other for other in record.all("Pod") if namespace(other) == namespace(pod))
        counts = zone_counts(mates, zones, each["labelSelector"])
        if counts[zones.get(name(node), "")] + 1 - min(counts.values()) > each["maxSkew"]:
            return False
    return True


def _has_devices(record: Record, pod: Tree, node: Tree) -> bool:
    wanted = 0
    for each in claims_of(pod):
        claim = record.named("ResourceClaim", f"{namespace(pod)}/{each}")
        if claim is None:
            return False
        given = devices_of(claim)
        if given and any(pool != name(node) for _, pool, _ in given):
            return False
        wanted += 0 if given else 1
    if not wanted:
        return True
    taken = {device for claim in record.all("ResourceClaim") for device in devices_of(claim)}
    free = 0
    for slice_ in record.all("ResourceSlice"):
        if spec(slice_).get("nodeName") == name(node):
            found = (
                (spec(slice_)["driver"], spec(slice_)["pool"]["name"], each["name"]) for each in spec(slice_)["devices"]
            )
            free += sum(each not in taken for each in found)
    return free >= wanted


def _has_volumes(record: Record, pod: Tree, node: Tree) -> bool:
    names = volume_claims_of(pod)
    if not names:
        return True
    if any(pods_using(record, namespace(pod), each) for each in exclusive_claims(record, pod)):
        return False
    limits = {driver: limit - len(used) for driver, used, limit in attached(record, name(node))}
    for each in names:
        claim = record.named("PersistentVolumeClaim", f"{namespace(pod)}/{each}")
        if claim is None:
            return False
        volume = volume_of(record, claim)
        if volume is None:
            if not any(_could_serve(each, claim, node) for each in record.all("PersistentVolume")):
                return False
            continue
        if not volume_reaches(volume, node):
            return False
        driver = (spec(volume).get("csi") or {}).get("driver")
        if driver in limits:
            limits[driver] -= 1
    return min(limits.values(), default=0) >= 0


def _could_serve(volume: Tree, claim: Tree, node: Tree) -> bool:
    given = claim_uid(volume)
    return (
        given in ("", uid(claim))
        and not (given == "" and spec(volume).get("claimRef"))
        and spec(volume).get("storageClassName") == spec(claim).get("storageClassName")
        and (volume.get("status") or {}).get("phase") == "Available"
        and volume_reaches(volume, node)
    )


def _has_share(there: list[Tree], pod: Tree, node: Tree) -> bool:
    wanted = share_of(pod)
    if not wanted:
        return True
    shares: Counter[str] = Counter()
    for each in there:
        for group in groups_of(each):
            shares[group] += share_of(each) if namespace(each) != RESERVATIONS else 0
    if any(share + wanted <= 100 for share in shares.values()):
        return True
    used = sum_requests(there)
    return used[GPU] + 1000 <= allocatable(node)[GPU] and used["pods"] + 2000 <= allocatable(node)["pods"]


# gangs


def fitting_gangs(record: Record) -> list[str]:
    """Gangs whose waiting pods all fit at once. The pods of a gang are equal and want resources alone."""
    waiting: dict[str, list[Tree]] = defaultdict(list)
    for each in record.all("Pod"):
        if is_waiting(each) and group_of(each):
            waiting[group_of(each)].append(each)
    return [group for group, pods in waiting.items() if _gang_fits(record, group, pods)]


def _gang_fits(record: Record, group: str, pods: list[Tree]) -> bool:
    found = record.named("PodGroup", group)
    if found is None or not _queue_admits(record, found, pods):
        return False
    bound = sum(group_of(each) == group and bool(node_of(each)) for each in record.all("Pod"))
    wanted: int = max(1, spec(found)["minMember"] - bound)
    if len(pods) < wanted:
        return False
    if wanted == 1:
        return any(fitting_node(record, each) for each in pods)
    room = 0
    for node in record.nodes().values():
        there = [each for each in record.pods_on(name(node)) if occupies(each)]
        if refused_by(pods[0], node):
            continue
        while room < wanted and fits_beside(there, pods[0], node):
            there.append(pods[0])
            room += 1
    return room >= wanted


def fits_beside(there: list[Tree], pod: Tree, node: Tree) -> bool:
    return not exceeded(sum_requests([*there, pod]), allocatable(node))


def _queue_admits(record: Record, group: Tree, pods: list[Tree]) -> bool:
    queue = record.named("Queue", spec(group).get("queue", "default"))
    if queue is None:
        return False
    limits = amounts(spec(queue).get("capability"))
    if not limits:
        return True
    used = sum((pod_requests(each) for each in pods), Counter[str]())
    for each in record.all("Pod"):
        counts = bool(group_of(each)) and occupies(each) and not is_deleted(each)
        other = record.named("PodGroup", group_of(each)) if counts else None
        if other is not None and spec(other).get("queue", "default") == name(queue):
            used.update(pod_requests(each))
    return all(used[resource] <= limit for resource, limit in limits.items())


def fitting_pods(record: Record) -> dict[str, str]:
    """Waiting pods that should be bound: uid, and where each fits. A pod of a gang counts when the gang fits."""
    gangs = set(fitting_gangs(record))
    found = {}
    for each in record.all("Pod"):
        if not is_waiting(each):
            continue
        if group_of(each):
            if group_of(each) in gangs:
                found[uid(each)] = f"gang {group_of(each)}"
        elif node := fitting_node(record, each):
            found[uid(each)] = f"node {node}"
    return found


def describe(pod: Tree) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    why = next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "no condition")
    return f"{key(pod)} ({why})"
