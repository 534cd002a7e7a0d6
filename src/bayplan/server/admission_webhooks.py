"""HTTPS server of the admission webhooks.

    server = WebhookServer(webhooks, port=8443, tls=ServingTls(TlsOptions(), clock), clock=clock)
    await server.start()

One request is one AdmissionReview of admission.k8s.io/v1, on the path of a webhook. An invalid review is answered with
status 400. Cost: the decision and a JSON document.
"""

from __future__ import annotations

import base64
import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

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
from bayplan.clock import LoopClock
from bayplan.errors import ServingError
from bayplan.server.http.connections import ConnectionHandler
from bayplan.server.http.listener import Listener, bind_socket
from bayplan.server.http.requests import HttpRequest
from bayplan.server.http.responses import JSON, HttpServerResponse, text
from bayplan.server.http.serving_tls import ServingTls

log = logging.getLogger(__name__)

Tree = dict[str, Any]

MAX_BODY_BYTES = 3 * 1024 * 1024
"""The limit of the API server for its own requests."""

_GRACE_S = 5.0


class InvalidAdmissionReview(Exception):
    """The body is not an AdmissionReview."""


class AdmissionHandler:
    def __init__(
        self, webhooks: Sequence[AdmissionWebhook], context: AdmissionContext, settings: AdmissionSettings
    ) -> None:
        self._webhooks = {webhook.path: webhook for webhook in webhooks}
        self._context = context
        self._settings = settings

    @property
    def paths(self) -> list[str]:
        return list(self._webhooks)

    def respond(self, path: str, body: bytes) -> Tree:
        """The review with its response. Raises KeyError for an unknown path, and `InvalidAdmissionReview`."""
        webhook, request = self._webhooks[path], _request(body)
        operation = str(request.get("operation") or "")
        response: Tree = {"uid": request.get("uid") or "", "allowed": True}
        new_object = request.get("object") or {}
        if operation not in webhook.operations:
            message = f"expect operation to be {' or '.join(repr(each) for each in webhook.operations)}"
            return _review({**response, "allowed": False, "status": {"message": message}})
        item = _set_namespace(new_object, str(request.get("namespace") or ""))
        admission = AdmissionRequest(
            operation=operation,
            object=item,
            old=request.get("oldObject") or None,
            name=str(request.get("name") or ""),
            context=self._context,
            settings=self._settings,
        )
        result, fault = run_webhook(webhook, admission)
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
        raise InvalidAdmissionReview("the body is not an AdmissionReview with a request")
    for key in ("object", "oldObject"):
        if not isinstance(request.get(key) or {}, dict):
            raise InvalidAdmissionReview(f"request.{key} is not an object")
    return request


def _set_namespace(item: Tree, namespace: str) -> Tree:
    """The object with the namespace of its request; the body of a create request may leave it out."""
    metadata = item.get("metadata")
    if not namespace or not isinstance(metadata, dict) or metadata.get("namespace"):
        return item
    return {**item, "metadata": {**metadata, "namespace": namespace}}


def _review(response: Tree) -> Tree:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


class WebhookServer:
    """HTTPS server, from `start` to `close`."""

    def __init__(
        self, webhooks: AdmissionHandler, *, tls: ServingTls, clock: LoopClock, address: str = "", port: int = 8443
    ) -> None:
        self._webhooks = webhooks
        self._tls = tls
        self._address, self._port = address or "0.0.0.0", port
        self._listening = Listener(ConnectionHandler(self._handle, tls, clock, max_body=MAX_BODY_BYTES), "webhooks")

    @property
    def port(self) -> int:
        """The port of the server, also when port 0 was requested."""
        return self._listening.port

    async def start(self) -> None:
        """Start the server. Raises `ServingError` when the address or the certificate is unusable."""
        self._tls.context()
        try:
            found = socket.getaddrinfo(self._address, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as fault:
            raise self._listen_error(fault) from None
        self._listening.start(bind_socket(found[0], self._listen_error))

    async def close(self) -> None:
        await self._listening.close(_GRACE_S)

    def _listen_error(self, fault: OSError) -> ServingError:
        where = f"{self._address}:{self._port}"
        return ServingError(f"cannot listen on {where}: {fault.strerror}; choose another --port")

    async def _handle(self, request: HttpRequest) -> HttpServerResponse:
        path = request.path
        if path == "/healthz" and request.method in ("GET", "HEAD"):
            return text("ok")
        if request.method != "POST":
            return text(f"{request.method} is not allowed; use POST", 405)
        if path not in self._webhooks.paths:
            return text(f"{path} is not a webhook; use {', '.join(self._webhooks.paths)}", 404)
        if request.header("content-type").partition(";")[0].strip().lower() != JSON:
            return text("unsupported content type; send application/json", 415)
        try:
            answer = self._webhooks.respond(path, request.body)
        except InvalidAdmissionReview as fault:
            return text(str(fault), 400)
        return HttpServerResponse(200, msgspec.json.encode(answer), JSON)


def webhook_configurations(
    webhooks: Sequence[AdmissionWebhook],
    *,
    name: str,
    client: Mapping[str, Any],
    sharing: Sequence[str] = (DEFAULT_SCHEDULER,),
    timeout_s: int = 10,
) -> list[Tree]:
    """The configurations that make an API server call the webhooks. `client`: `url` or `service`, and `caBundle`; the
    path is added. `sharing`: the schedulers whose pods may share GPUs."""
    found: list[Tree] = []
    for webhook in webhooks:
        client_config = dict(client)
        if "url" in client_config:
            client_config["url"] = f"{str(client_config['url']).rstrip('/')}{webhook.path}"
        else:
            client_config["service"] = {**client_config["service"], "path": webhook.path}
        rule = {
            "apiGroups": [webhook.group],
            "apiVersions": [webhook.version],
            "operations": list(webhook.operations),
            "resources": [webhook.plural],
            "scope": "*",
        }
        hook: Tree = {
            "name": webhook.webhook,
            "admissionReviewVersions": ["v1"],
            "clientConfig": client_config,
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "rules": [rule],
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": timeout_s,
        }
        if webhook.plural == "pods":
            # A cluster must be able to start the webhook's pod while the webhook is down.
            exempt = sorted({"kube-system", str(client_config.get("service", {}).get("namespace", "kube-system"))})
            not_system = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": exempt}
            hook["namespaceSelector"] = {"matchExpressions": [not_system]}
        metadata: Tree = {"name": webhook.registration(name)}
        if webhook in GPU_WEBHOOKS:
            hook["matchConditions"] = match_conditions(sharing)
            metadata["annotations"] = {SCHEDULERS_ANNOTATION: ",".join(sharing)}
        kind = "MutatingWebhookConfiguration" if webhook.mutating else "ValidatingWebhookConfiguration"
        found.append(
            {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "webhooks": [hook]}
        )
    return found
