"""The served kinds, with their names, verbs and sub-resources.

Discovery, routing, the store and the rules read them. The built-in kinds are a table; CustomResourceDefinitions add to
it at run time. `ResourceRegistry.version` changes with each of them, and with it the ETag of discovery.
Cost: a dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Tree = dict[str, Any]
"""An object as decoded JSON. The store never changes a tree that it owns."""

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CREATE_ONLY = ("create",)
_CHANGE = ("get", "patch", "update")
_PROXY = ("create", "delete", "get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Subresource:
    """A sub-resource. `kind` is the kind of its body; without group and version it has those of the parent."""

    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class ServedResource:
    """One kind in one version, as in discovery."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    storage_group: str = ""
    storage_plural: str = ""
    list_kind: str = ""
    definition: Mapping[str, Any] | None = field(default=None, compare=False)
    """The entry of `spec.versions` of its CustomResourceDefinition; None for a built-in kind."""
    has_other_versions: bool = False
    """Whether another version, with another schema, may have stored its objects."""
    cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False, hash=False)
    """Values that other modules derive once from the kind, such as the type of a custom resource."""
    deprecated: str = field(default="", compare=False)
    """The deprecation warning of responses; empty if the version is not deprecated."""
    api_version: str = field(init=False, compare=False)
    storage: tuple[str, str] = field(init=False, compare=False)
    """Key of its objects in the store. Versions of one kind share it, as do both groups of events."""
    custom: bool = field(init=False, compare=False)
    """Whether a CustomResourceDefinition defines it."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Derives values once; each request reads them dozens of times."""
        derived = {
            "api_version": f"{self.group}/{self.version}" if self.group else self.version,
            "storage": (self.storage_group, self.storage_plural),
            "custom": self.definition is not None,
            "_hash": hash((self.group, self.version, self.plural)),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        """Hash of the names: computed once, because watches use it for every event."""
        return self._hash

    @property
    def qualified(self) -> str:
        """`deployments.apps`: the resource in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def stored(self) -> bool:
        """Whether objects of the kind are stored; reviews and bindings are not."""
        return "get" in self.verbs

    def subresource(self, name: str) -> Subresource | None:
        return next((sub for sub in self.subresources if sub.name == name), None)


_SPECIAL = {
    "attach": Subresource("attach", "PodAttachOptions", ("create", "get")),
    "binding": Subresource("binding", "Binding", CREATE_ONLY),
    "eviction": Subresource("eviction", "Eviction", CREATE_ONLY, "policy", "v1"),
    "exec": Subresource("exec", "PodExecOptions", ("create", "get")),
    "portforward": Subresource("portforward", "PodPortForwardOptions", ("create", "get")),
    "scale": Subresource("scale", "Scale", _CHANGE, "autoscaling", "v1"),
    "token": Subresource("token", "TokenRequest", CREATE_ONLY, "authentication.k8s.io", "v1"),
}


def _subresource(name: str, kind: str) -> Subresource:
    if name in _SPECIAL:
        return _SPECIAL[name]
    if name == "proxy":
        return Subresource(name, f"{kind}ProxyOptions", _PROXY)
    verbs = {"finalize": ("update",), "log": ("get",)}.get(name, _CHANGE)
    return Subresource(name, kind, verbs)


def _parse_rows(group_version: str, text: str) -> Iterator[ServedResource]:
    """One kind a line: plural, Kind, then any of `short=`, `in=` (categories), `sub=`, `verbs=`, `cluster`."""
    group, _, version = group_version.rpartition("/")
    for line in text.strip().splitlines():
        plural, kind, *more = line.split()
        given = {key: tuple(value.split(",")) for key, _, value in (each.partition("=") for each in more)}
        yield ServedResource(
            group=group,
            version=version,
            kind=kind,
            plural=plural,
            singular=kind.lower(),
            short_names=given.get("short", ()),
            categories=given.get("in", ()),
            namespaced="cluster" not in given,
            verbs=given.get("verbs", ALL_VERBS),
            subresources=tuple(_subresource(name, kind) for name in given.get("sub", ())),
            storage_group="" if plural == "events" else group,
            storage_plural=plural,
            list_kind=f"{kind}List",
            deprecated=_DEPRECATED.get((group, plural), ""),
        )


_DEPRECATED = {("", "endpoints"): "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"}

_CORE = """
bindings Binding verbs=create
configmaps ConfigMap short=cm
endpoints Endpoints short=ep
events Event short=ev
limitranges LimitRange short=limits
namespaces Namespace short=ns cluster verbs=create,delete,get,list,patch,update,watch sub=finalize,status
nodes Node short=no cluster sub=proxy,status
persistentvolumeclaims PersistentVolumeClaim short=pvc sub=status
persistentvolumes PersistentVolume short=pv cluster sub=status
pods Pod short=po in=all sub=attach,binding,ephemeralcontainers,eviction,exec,log,portforward,proxy,resize,status
podtemplates PodTemplate
replicationcontrollers ReplicationController short=rc in=all sub=scale,status
resourcequotas ResourceQuota short=quota sub=status
secrets Secret
serviceaccounts ServiceAccount short=sa sub=token
services Service short=svc in=all sub=proxy,status
"""

_GROUPS = {
    "v1": _CORE,
    "admissionregistration.k8s.io/v1": """
mutatingadmissionpolicies MutatingAdmissionPolicy in=api-extensions cluster
mutatingadmissionpolicybindings MutatingAdmissionPolicyBinding in=api-extensions cluster
mutatingwebhookconfigurations MutatingWebhookConfiguration in=api-extensions cluster
validatingadmissionpolicies ValidatingAdmissionPolicy in=api-extensions cluster sub=status
validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding in=api-extensions cluster
validatingwebhookconfigurations ValidatingWebhookConfiguration in=api-extensions cluster
""",
    "apiextensions.k8s.io/v1": """
customresourcedefinitions CustomResourceDefinition short=crd,crds in=api-extensions cluster sub=status
""",
    "apiregistration.k8s.io/v1": "apiservices APIService in=api-extensions cluster sub=status",
    "apps/v1": """
controllerrevisions ControllerRevision
daemonsets DaemonSet short=ds in=all sub=status
deployments Deployment short=deploy in=all sub=scale,status
replicasets ReplicaSet short=rs in=all sub=scale,status
statefulsets StatefulSet short=sts in=all sub=scale,status
""",
    "authentication.k8s.io/v1": """
selfsubjectreviews SelfSubjectReview cluster verbs=create
tokenreviews TokenReview cluster verbs=create
""",
    "authorization.k8s.io/v1": """
localsubjectaccessreviews LocalSubjectAccessReview verbs=create
selfsubjectaccessreviews SelfSubjectAccessReview cluster verbs=create
selfsubjectrulesreviews SelfSubjectRulesReview cluster verbs=create
subjectaccessreviews SubjectAccessReview cluster verbs=create
""",
    "autoscaling/v2": "horizontalpodautoscalers HorizontalPodAutoscaler short=hpa in=all sub=status",
    "autoscaling/v1": "horizontalpodautoscalers HorizontalPodAutoscaler short=hpa in=all sub=status",
    "batch/v1": """
cronjobs CronJob short=cj in=all sub=status
jobs Job in=all sub=status
""",
    "certificates.k8s.io/v1": """
certificatesigningrequests CertificateSigningRequest short=csr cluster sub=approval,status
""",
    "coordination.k8s.io/v1": "leases Lease",
    "discovery.k8s.io/v1": "endpointslices EndpointSlice",
    "events.k8s.io/v1": "events Event short=ev",
    "flowcontrol.apiserver.k8s.io/v1": """
flowschemas FlowSchema cluster sub=status
prioritylevelconfigurations PriorityLevelConfiguration cluster sub=status
""",
    "networking.k8s.io/v1": """
ingressclasses IngressClass cluster
ingresses Ingress short=ing sub=status
ipaddresses IPAddress short=ip cluster
networkpolicies NetworkPolicy short=netpol
servicecidrs ServiceCIDR cluster sub=status
""",
    "node.k8s.io/v1": "runtimeclasses RuntimeClass cluster",
    "policy/v1": "poddisruptionbudgets PodDisruptionBudget short=pdb sub=status",
    "rbac.authorization.k8s.io/v1": """
clusterrolebindings ClusterRoleBinding cluster
clusterroles ClusterRole cluster
rolebindings RoleBinding
roles Role
""",
    "resource.k8s.io/v1": """
deviceclasses DeviceClass cluster
resourceclaims ResourceClaim sub=status
resourceclaimtemplates ResourceClaimTemplate
resourceslices ResourceSlice cluster
""",
    "scheduling.k8s.io/v1": "priorityclasses PriorityClass short=pc cluster",
    "scheduling.k8s.io/v1alpha2": """
podgroups PodGroup sub=status
workloads Workload
""",
    "storage.k8s.io/v1": """
csidrivers CSIDriver cluster
csinodes CSINode cluster
csistoragecapacities CSIStorageCapacity
storageclasses StorageClass short=sc cluster
volumeattachments VolumeAttachment cluster sub=status
volumeattributesclasses VolumeAttributesClass short=vac cluster
""",
}

BUILT_IN: tuple[ServedResource, ...] = tuple(row for name, text in _GROUPS.items() for row in _parse_rows(name, text))


class ResourceRegistry:
    """The built-in kinds and those of CustomResourceDefinitions."""

    def __init__(self, built_in: Iterable[ServedResource] = BUILT_IN) -> None:
        self._built_in = tuple(built_in)
        self._custom: dict[str, tuple[ServedResource, ...]] = {}
        self._by_path: dict[tuple[str, str, str], ServedResource] = {}
        self._by_kind: dict[tuple[str, str, str], ServedResource] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self.version = 0
        """Changes with every definition that is added, changed or removed."""
        self._index()

    def __iter__(self) -> Iterator[ServedResource]:
        return iter(self._by_path.values())

    def find(self, group: str, version: str, plural: str) -> ServedResource | None:
        return self._by_path.get((group, version, plural))

    def find_kind(self, group: str, version: str, kind: str) -> ServedResource | None:
        return self._by_kind.get((group, version, kind))

    def built_in(self, kind: str, group: str = "") -> ServedResource:
        return next(each for each in self._built_in if each.kind == kind and each.group == group)

    def is_built_in(self, group: str) -> bool:
        return any(each.group == group for each in self._built_in)

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Group names with their versions, the preferred one first."""
        return self._groups

    def of_group(self, group: str, version: str) -> list[ServedResource]:
        return [each for each in self if each.group == group and each.version == version]

    def add(self, name: str, resources: Iterable[ServedResource]) -> None:
        """Serve the kinds of a CustomResourceDefinition, in place of its earlier kinds."""
        added = tuple(resources)
        previous = self._custom.get(name, ())
        if previous == added and [r.definition for r in previous] == [r.definition for r in added]:
            return
        self._custom[name] = added
        self._index()

    def remove(self, name: str) -> None:
        if self._custom.pop(name, None) is not None:
            self._index()

    def _index(self) -> None:
        all_kinds = [*self._built_in, *(each for added in self._custom.values() for each in added)]
        self._by_path = {(each.group, each.version, each.plural): each for each in all_kinds}
        self._by_kind = {(each.group, each.version, each.kind): each for each in all_kinds}
        versions: dict[str, list[str]] = {}
        for each in all_kinds:
            versions_of_group = versions.setdefault(each.group, [])
            if each.version not in versions_of_group:
                versions_of_group.append(each.version)
        self._groups = {group: tuple(sorted(found, key=version_rank)) for group, found in versions.items()}
        self.version += 1


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Sort key of versions in Kubernetes' order: v2, v1, v2beta1, v1beta2, v1alpha1, then the rest by name."""
    for order, mark in ((1, "beta"), (2, "alpha")):
        major, found, minor = version.partition(mark)
        if found and major[:1] == "v" and major[1:].isdigit() and minor.isdigit():
            return order, -int(major[1:]), -int(minor), ""
    if version[:1] == "v" and version[1:].isdigit():
        return 0, -int(version[1:]), 0, ""
    return 3, 0, 0, version
