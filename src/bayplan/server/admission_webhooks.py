"""What does an API server hear when it asks whether an object may be? HTTPS in front of the doors.

    server = WebhookServer(webhooks, port=8443, tls=ServingTls(TlsOptions(), clock))
    await server.start()

One request is one AdmissionReview of admission.k8s.io/v1, on the path of a door. A review that cannot be read is
answered 400 and judged by nobody. Cost: the decision and a JSON document.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from bayplan.admission.gpu_sharing import DEFAULT_SCHEDULER, SCHEDULERS_ANNOTATION, match_conditions
from bayplan.admission.webhooks import (
    GPU_WEBHOOKS,
    AdmissionContext,
    AdmissionRequest,
    AdmissionSettings,
    AdmissionWebhook,
    json_patch,
    run_webhook,
)
from bayplan.errors import ServingError
from bayplan.server.http.serving_tls import ServingTls

log = logging.getLogger(__name__)

Tree = dict[str, Any]

MAX_BODY_BYTES = 3 * 1024 * 1024
"""As large as a request to the API server itself may be."""


class InvalidAdmissionReview(Exception):
    """A body that is no AdmissionReview."""


class AdmissionHandler:
    """Answers reviews."""

    def __init__(
        self, doors: Sequence[AdmissionWebhook], around: AdmissionContext, settings: AdmissionSettings
    ) -> None:
        self._doors = {door.path: door for door in doors}
        self._around = around
        self._settings = settings

    @property
    def paths(self) -> list[str]:
        return list(self._doors)

    def respond(self, path: str, body: bytes) -> Tree:
        """The review with its response. Raises KeyError for a path that is no door, and `InvalidAdmissionReview`."""
        door, request = self._doors[path], _request(body)
        operation = str(request.get("operation") or "")
        response: Tree = {"uid": request.get("uid") or "", "allowed": True}
        given = request.get("object") or {}
        if operation not in door.operations:
            message = f"expect operation to be {' or '.join(repr(each) for each in door.operations)}"
            return _review({**response, "allowed": False, "status": {"message": message}})
        item = _in_namespace(given, str(request.get("namespace") or ""))
        asked = AdmissionRequest(
            operation=operation,
            object=item,
            old=request.get("oldObject") or None,
            name=str(request.get("name") or ""),
            context=self._around,
            settings=self._settings,
        )
        result, fault = run_webhook(door, asked)
        if fault:
            return _review({**response, "allowed": False, "status": {"message": fault.strip()}})
        patch = [] if result is item else list(json_patch(item, result))
        if patch:
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
        return _review(response)


def _request(body: bytes) -> Tree:
    try:
        review = msgspec.json.decode(body)
    except msgspec.DecodeError as fault:
        raise InvalidAdmissionReview(f"the body is not JSON: {fault}") from None
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or review.get("kind") != "AdmissionReview":
        raise InvalidAdmissionReview("the body is no AdmissionReview with a request")
    for key in ("object", "oldObject"):
        if not isinstance(request.get(key) or {}, dict):
            raise InvalidAdmissionReview(f"request.{key} is not an object")
    return request


def _in_namespace(item: Tree, namespace: str) -> Tree:
    """A new object may leave its namespace to the path that it is sent to."""
    metadata = item.get("metadata")
    if not namespace or not isinstance(metadata, dict) or metadata.get("namespace"):
        return item
    return {**item, "metadata": {**metadata, "namespace": namespace}}


def _review(response: Tree) -> Tree:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


class WebhookServer:
    """Listens from `start` to `close`."""

    def __init__(self, webhooks: AdmissionHandler, *, tls: ServingTls, address: str = "", port: int = 8443) -> None:
        self._webhooks = webhooks
        self._tls = tls
        self._address, self._port = address or "0.0.0.0", port
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port that is listened on; another than was asked for if that was 0."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Listen. `ServingError` when the address or the certificate cannot be used."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", self._healthy)
        app.router.add_post("/{path:.*}", self._handle_review)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address, self._port, ssl_context=self._tls.context())
        try:
            await site.start()
        except OSError as fault:
            await self._runner.cleanup()
            where = f"{self._address}:{self._port}"
            raise ServingError(f"nobody can listen on {where}: {fault.strerror}; choose another --port") from None

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _handle_review(self, request: web.Request) -> web.Response:
        path = request.path
        if path not in self._webhooks.paths:
            return web.Response(status=404, text=f"{path} is no webhook; there are {', '.join(self._webhooks.paths)}")
        if request.content_type != "application/json":
            return web.Response(status=415, text="reviews are application/json")
        try:
            answer = self._webhooks.respond(path, await request.read())
        except InvalidAdmissionReview as fault:
            return web.Response(status=400, text=str(fault))
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def webhook_configurations(
    doors: Sequence[AdmissionWebhook],
    *,
    name: str,
    client: Mapping[str, Any],
    sharing: Sequence[str] = (DEFAULT_SCHEDULER,),
    timeout_s: int = 10,
) -> list[Tree]:
    """The objects that make an API server ask us. `client`: `url` or `service`, and `caBundle`; the path is added.
    `sharing`: the schedulers whose pods may share GPUs."""
    found: list[Tree] = []
    for door in doors:
        way = dict(client)
        if "url" in way:
            way["url"] = f"{str(way['url']).rstrip('/')}{door.path}"
        else:
            way["service"] = {**way["service"], "path": door.path}
        rule = {
            "apiGroups": [door.group],
            "apiVersions": [door.version],
            "operations": list(door.operations),
            "resources": [door.plural],
            "scope": "*",
        }
        hook: Tree = {
            "name": door.webhook,
            "admissionReviewVersions": ["v1"],
            "clientConfig": way,
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "rules": [rule],
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": timeout_s,
        }
        if door.plural == "pods":
            # A cluster whose webhook is away must still be able to start the webhook.
            spared = sorted({"kube-system", str(way.get("service", {}).get("namespace", "kube-system"))})
            not_system = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": spared}
            hook["namespaceSelector"] = {"matchExpressions": [not_system]}
        metadata: Tree = {"name": door.registration(name)}
        if door in GPU_WEBHOOKS:
            hook["matchConditions"] = match_conditions(sharing)
            metadata["annotations"] = {SCHEDULERS_ANNOTATION: ",".join(sharing)}
        kind = "MutatingWebhookConfiguration" if door.mutating else "ValidatingWebhookConfiguration"
        found.append(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": metadata,
                "webhooks": [hook],
            }
        )
    return found
