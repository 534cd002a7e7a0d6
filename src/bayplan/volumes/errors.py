"""What breaks an attempt instead of rejecting a node, and the words for things that are not there.

Rejections are values; these are the cases in which kube-scheduler answers Error: a storage class without a binding
mode, a selector that cannot be read, a volume that cannot be translated. The plugin turns the text into a status.
"""

from __future__ import annotations

from bayplan.errors import BayplanError


class VolumeError(BayplanError):
    """The volumes of a pod cannot be judged; the text is kube-scheduler's own and names what to mend."""


def claim_not_found(name: str) -> str:
    return f'persistentvolumeclaim "{name}" not found'


def volume_not_found(name: str) -> str:
    return f'persistentvolume "{name}" not found'


def class_not_found(name: str) -> str:
    return f'storageclass.storage.k8s.io "{name}" not found'


def binding_mode_missing(class_name: str) -> str:
    return f'VolumeBindingMode not set for StorageClass "{class_name}"'
