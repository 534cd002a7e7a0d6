"""Carries out what engines have decided: BindRequests become bound pods, or an honest failure.

It knows the API and nothing of the brain. Everything that it does may be done again: it can be killed at any point and
goes on from what the API server shows. `live.BinderController` is the whole of it; what is named here is for its
plugins."""

from bayplan.binder.plugin import BinderHandle, BindingState, RejectBind
from bayplan.objects.kai.bind_request import BindRequest, annotation_key, annotations_for_plugin

__all__ = ["BindRequest", "BinderHandle", "BindingState", "RejectBind", "annotation_key", "annotations_for_plugin"]
