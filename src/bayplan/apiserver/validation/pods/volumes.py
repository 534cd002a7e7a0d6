"""Validation of a pod's volumes: one source each, and the fields that the source requires.

Called by the validation of pods and templates. For rare sources of older clouds it checks required fields only.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.metadata import check_annotations, check_labels
from bayplan.apiserver.validation.names import dns_label, dns_subdomain, local_file_path, no_backsteps
from bayplan.apiserver.validation.pods.containers import check_field_reference, check_resource_reference
from bayplan.codec.field_errors import FieldErrorList
from bayplan.codec.quantity import parse_quantity

MODE_RULE = "must be a number between 0 and 0777 (octal), both inclusive"
_VOLUME_FIELDS = ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
_HOST_PATH_TYPES = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "awsElasticBlockStore": ("volumeID",),
    "azureFile": ("secretName", "shareName"),
    "cephfs": ("monitors",),
    "cinder": ("volumeID",),
    "configMap": ("name",),
    "flexVolume": ("driver",),
    "gcePersistentDisk": ("pdName",),
    "gitRepo": ("repository",),
    "glusterfs": ("endpoints", "path"),
    "hostPath": ("path",),
    "iscsi": ("targetPortal", "iqn"),
    "nfs": ("server", "path"),
    "persistentVolumeClaim": ("claimName",),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "rbd": ("monitors", "image"),
    "scaleIO": ("gateway", "system", "volumeName"),
    "secret": ("secretName",),
    "storageos": ("volumeName",),
    "vsphereVolume": ("volumePath",),
}


def check_volumes(out: FieldErrorList, volumes: list[Tree], pod_name: str, path: str) -> dict[str, Tree]:
    """The volumes that mounts may refer to: those without an error."""
    generated_claims = (
        {f"{pod_name}-{each.get('name', '')}" for each in volumes if each.get("ephemeral")} if pod_name else set()
    )
    known: dict[str, Tree] = {}
    for index, volume in enumerate(volumes):
        where, name = f"{path}[{index}]", volume.get("name", "")
        before = len(out)
        _check_source(out, volume, where)
        if pod_name and volume.get("image") is not None and not volume["image"].get("reference"):
            out.required(f"{where}.image.reference")  # optional in a template: a controller may fill it in later
        if pod_name and name and volume.get("ephemeral") is not None:
            claim_name = f"{pod_name}-{name}"
            for problem in dns_subdomain(claim_name):
                out.invalid(f"{where}.name", name, f'PVC name "{claim_name}": {problem}')
        if not name:
            out.required(f"{where}.name")
        elif problems := dns_label(name):
            out.each_invalid(f"{where}.name", name, problems)
        if name in known:
            out.duplicate(f"{where}.name", name)
        if len(out) == before:
            known[name] = volume
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim in generated_claims:
            rule = "must not reference a PVC that gets created for an ephemeral volume"
            out.invalid(f"{where}.persistentVolumeClaim.claimName", claim, rule)
    return known


_ORDER = (  # noqa: SIM905
    "emptyDir hostPath gitRepo gcePersistentDisk awsElasticBlockStore secret nfs iscsi glusterfs flocker "
    "persistentVolumeClaim rbd cinder cephfs quobyte downwardAPI fc flexVolume configMap azureFile vsphereVolume "
    "photonPersistentDisk portworxVolume azureDisk storageos projected scaleIO csi ephemeral image"
).split()
"""The first source in this order is validated; any further one is one too many."""
_CALLED = {"cephfs": "cephFS", "downwardAPI": "downwarAPI"}


def _check_source(out: FieldErrorList, volume: Tree, path: str) -> None:
    kinds = [key for key in volume if key != "name"]
    if len(kinds) > 1:
        kinds.sort(key=_ORDER.index)
    if not kinds:
        out.required(path, "must specify a volume type")
        return
    for extra in kinds[1:]:
        out.forbidden(f"{path}.{_CALLED.get(extra, extra)}", "may not specify more than 1 volume type")
    check_source(out, kinds[0], volume[kinds[0]], f"{path}.{kinds[0]}")


def check_source(out: FieldErrorList, kind: str, source: Tree, path: str) -> None:
    if kind == "emptyDir":
        limit = source.get("sizeLimit")
        if limit is not None and parse_quantity(limit).sign() < 0:
            out.forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")
        return
    for name in _REQUIRED.get(kind, ()):
        if not source.get(name):
            out.required(f"{path}.{name}")
            if kind in ("hostPath",):
                return
    if kind in ("configMap", "secret"):
        check_mode(out, source.get("defaultMode"), f"{path}.defaultMode")
        _check_items(out, source, path)
    elif kind == "hostPath":
        check_host_path(out, source, path)
    elif kind == "nfs" and not source.get("path", "").startswith("/"):
        out.invalid(f"{path}.path", source.get("path", ""), "must be an absolute path")
    elif kind == "downwardAPI":
        check_mode(out, source.get("defaultMode"), f"{path}.defaultMode")
        for item in source.get("items", ()):
            _check_file(out, item, path)
    elif kind == "projected":
        check_mode(out, source.get("defaultMode"), f"{path}.defaultMode")
        _check_projections(out, source, path)
    elif kind == "csi":
        _check_csi(out, source, path)
    elif kind == "ephemeral":
        _check_ephemeral(out, source, path)


def check_mode(out: FieldErrorList, mode: int | None, path: str) -> None:
    if mode is not None and not 0 <= mode <= 0o777:
        out.invalid(path, mode, MODE_RULE)


def check_host_path(out: FieldErrorList, source: Tree, path: str) -> None:
    out.each_invalid(f"{path}.path", source.get("path", ""), no_backsteps(source.get("path", "")))
    kind = source.get("type", "")
    if kind not in _HOST_PATH_TYPES:
        out.unsupported(f"{path}.type", kind, _HOST_PATH_TYPES)


def _check_items(out: FieldErrorList, source: Tree, path: str) -> None:
    for index, item in enumerate(source.get("items", ())):
        where = f"{path}.items[{index}]"
        if not item.get("key"):
            out.required(f"{where}.key")
        if not item.get("path"):
            out.required(f"{where}.path")
        out.each_invalid(f"{where}.path", item.get("path", ""), local_file_path(item.get("path", "")))
        check_mode(out, item.get("mode"), f"{where}.mode")


def _check_file(out: FieldErrorList, item: Tree, path: str) -> None:
    name = item.get("path", "")
    if not name:
        out.required(f"{path}.path")
    out.each_invalid(f"{path}.path", name, local_file_path(name))
    field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
    if field is not None:
        check_field_reference(out, field, _VOLUME_FIELDS, f"{path}.fieldRef")
        if resource is not None:
            out.invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
    elif resource is not None:
        check_resource_reference(out, resource, f"{path}.resourceFieldRef", in_volume=True)
    else:
        out.required(path, "one of fieldRef and resourceFieldRef is required")
    check_mode(out, item.get("mode"), f"{path}.mode")


def _check_projections(out: FieldErrorList, source: Tree, path: str) -> None:
    paths: set[str] = set()

    def claim(name: str, shown: str) -> None:
        if name in paths:
            out.invalid(path, shown, "conflicting duplicate paths")
        paths.add(name)

    for index, projection in enumerate(source.get("sources") or ()):
        where = f"{path}.sources[{index}]"
        for kind in ("secret", "configMap"):
            if (part := projection.get(kind)) is not None:
                if not part.get("name"):
                    out.required(f"{where}.{kind}.name")
                _check_items(out, part, f"{where}.{kind}")
                for item in part.get("items", ()):
                    if item.get("path"):
                        claim(item["path"], part.get("name", ""))
        if (files := projection.get("downwardAPI")) is not None:
            for item in files.get("items", ()):
                _check_file(out, item, f"{where}.downwardAPI")
                if item.get("path"):
                    claim(item["path"], item["path"])
        if (token := projection.get("serviceAccountToken")) is not None:
            _check_token(out, token, where, path)
        if len(projection) > 1:
            out.forbidden(where, "may not specify more than 1 volume type per source")


def _check_token(out: FieldErrorList, token: Tree, where: str, path: str) -> None:
    seconds = token.get("expirationSeconds", 3600)
    if seconds < 600:
        rule = "may not specify a duration less than 10 minutes"
        out.invalid(f"{where}.serviceAccountToken.expirationSeconds", seconds, rule)
    if seconds > 1 << 32:
        rule = "may not specify a duration larger than 2^32 seconds"
        out.invalid(f"{where}.serviceAccountToken.expirationSeconds", seconds, rule)
    if not token.get("path"):
        out.required(f"{path}.path")
    else:
        out.each_invalid(f"{path}.path", token["path"], local_file_path(token["path"]))


def check_driver_name(out: FieldErrorList, name: str, path: str) -> None:
    if not name:
        out.required(path)
        return
    if len(name) > 63:
        out.too_long(path, 63)
    out.each_invalid(path, name, dns_subdomain(name.lower()))


def _check_csi(out: FieldErrorList, source: Tree, path: str) -> None:
    check_driver_name(out, source.get("driver", ""), f"{path}.driver")
    secret = source.get("nodePublishSecretRef")
    if secret is not None:
        if not secret.get("name"):
            out.required(f"{path}.nodePublishSecretRef.name")
        else:
            out.each_invalid(f"{path}.nodePublishSecretRef.name", secret["name"], dns_subdomain(secret["name"]))


def _check_ephemeral(out: FieldErrorList, source: Tree, path: str) -> None:
    from bayplan.apiserver.validation.storage import check_claim_spec

    template = source.get("volumeClaimTemplate")
    if template is None:
        out.required(f"{path}.volumeClaimTemplate")
        return
    where = f"{path}.volumeClaimTemplate"
    metadata = template.get("metadata") or {}
    check_annotations(out, metadata.get("annotations") or {}, f"{where}.metadata.annotations")
    check_labels(out, metadata.get("labels") or {}, f"{where}.metadata.labels")
    for name in metadata:
        if name not in ("annotations", "labels"):
            out.forbidden(f"{where}.metadata.{name}", "cannot be set")
    check_claim_spec(out, template.get("spec") or {}, f"{where}.spec")
