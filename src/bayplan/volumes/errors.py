"""Errors of volumes that end an attempt, and the messages for missing objects.

Rejections are values. These are the cases in which kube-scheduler returns Error: a storage class without a binding
mode, an invalid selector, a volume without a translation. The plugin converts the text to a status.
"""

from __future__ import annotations

from bayplan.errors import BayplanError


class VolumeError(BayplanError):
    """The volumes of a pod cannot be evaluated. The message is kube-scheduler's and names the object to correct."""


def claim_not_found(name: str) -> str:
    return f'persistentvolumeclaim "{name}" not found'


def volume_not_found(name: str) -> str:
    return f'persistentvolume "{name}" not found'


def class_not_found(name: str) -> str:
    return f'storageclass.storage.k8s.io "{name}" not found'


def binding_mode_missing(class_name: str) -> str:
    return f'VolumeBindingMode not set for StorageClass "{class_name}"'
