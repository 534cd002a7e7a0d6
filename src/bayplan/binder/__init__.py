"""Binder: turns BindRequests into bound pods, or into failures with a reason.

It knows the API and no scheduling. Every step can be repeated: the binder can be killed at any point and continues from
the state of the API server. `controller.BinderController` runs it. The names exported here are for its plugins."""

from bayplan.binder.plugin import BinderHandle, BindingState, RejectBind
from bayplan.objects.kai.bind_request import BindRequest, annotation_key, annotations_for_plugin

__all__ = ["BindRequest", "BinderHandle", "BindingState", "RejectBind", "annotation_key", "annotations_for_plugin"]
