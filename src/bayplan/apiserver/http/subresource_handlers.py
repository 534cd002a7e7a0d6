"""Handlers of sub-resources and of kinds without stored objects: bindings, evictions, scales, logs, tokens, reviews.

`ResourceHandlers` calls them. The rules are in `writes.subresources` and `auth.reviews`. `status` and other
sub-resources that are fields of the object are ordinary updates. Cost: that of the write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import structs

from bayplan.apiserver import api_errors
from bayplan.apiserver.auth import reviews
from bayplan.apiserver.auth.authentication import RequestAuthenticator
from bayplan.apiserver.auth.rbac import AuthorizationAttributes, RbacAuthorizer
from bayplan.apiserver.auth.service_account_tokens import ISSUER, ServiceAccountTokens
from bayplan.apiserver.content_negotiation import negotiate_media_type
from bayplan.apiserver.http.output_shapes import OutputShape
from bayplan.apiserver.http.responses import ApiResponse, json_response, text_response
from bayplan.apiserver.requests import RequestUser, ResourceRequest, WriteOptions, WriteRequest
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.resources.lookup import ObjectLookup, built_in
from bayplan.apiserver.schema.body_decoding import decode_body, decode_patch, media_type
from bayplan.apiserver.storage.stored_objects import encode
from bayplan.apiserver.writes import subresources
from bayplan.apiserver.writes.deletion import DeleteOptions
from bayplan.apiserver.writes.metadata import timestamp
from bayplan.apiserver.writes.status_templates import StatusTemplates
from bayplan.apiserver.writes.writer import ObjectWriter, WriteResult
from bayplan.clock import Clock

_SCALE_RESOURCE = ServedResource("autoscaling", "v1", "Scale", "scales", "scale")
STREAM_SUBRESOURCES = ("attach", "exec", "portforward")
HANDLED_SUBRESOURCES = frozenset({"binding", "eviction", "log", "proxy", "scale", "token", *STREAM_SUBRESOURCES})


def has_own_handler(request: ResourceRequest) -> bool:
    return request.path.subresource in HANDLED_SUBRESOURCES or not request.resource.stored


@dataclass(slots=True)
class SubresourceHandlers:
    writer: ObjectWriter
    lookup: ObjectLookup
    """The objects on which writes are decided, uncommitted writes included."""
    committed: ObjectLookup
    """The objects that a response may show and for which a token may be issued."""
    authenticator: RequestAuthenticator
    authorizer: RbacAuthorizer
    tokens: ServiceAccountTokens
    clock: Clock
    status_templates: StatusTemplates

    def handle(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        if not request.resource.stored:
            return self._handle_review(request, content)
        match request.path.subresource:
            case "binding":
                return self._handle_binding(request, content)
            case "eviction":
                return self._evict(request, content)
            case "scale":
                return self._scale(request, content)
            case "token":
                return self._token(request, content)
            case "log":
                return self._log(request)
            case "proxy":
                message = "error trying to reach service: this cluster has an API and no containers"
                raise api_errors.StatusError(503, "ServiceUnavailable", message)
        return self._reject_stream(request)

    def _read(self, request: ResourceRequest, content: bytes) -> Tree:
        sub = request.resource.subresource(request.path.subresource)
        validation = WriteOptions.of("CreateOptions", request.query).validation
        return decode_body(request.resource, content, request.headers.get("Content-Type", ""), validation, sub).object

    def _object(self, request: ResourceRequest, lookup: ObjectLookup) -> Tree:
        found = lookup.get(request.resource, request.namespace, request.name)
        if found is None:
            raise api_errors.not_found(request.resource, request.name)
        return found

    def _now(self) -> str:
        return timestamp(self.clock.now())

    # Pods

    def _handle_binding(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        parsed = self.status_templates.parse_binding(request, content)
        if parsed is not None and self.status_templates.apply(request, parsed) is not None:
            return json_response(subresources.SUCCESS, 201)
        written = self._bind(request, self._read(request, content), request.name)
        if parsed is not None:
            self.status_templates.learn(parsed, written)
        return json_response(subresources.SUCCESS, 201)

    def _bind(self, request: ResourceRequest, binding: Tree, name: str) -> WriteResult:
        subresources.check_body_name(binding, name, "Binding")
        pods = built_in("Pod")
        write = WriteRequest(pods, request.namespace, request.user, WriteOptions.of("CreateOptions", request.query))
        return self.writer.update_unchecked(write, name, lambda pod: subresources.bind(pod, binding, self._now()))

    def _evict(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        eviction = self._read(request, content)
        subresources.check_body_name(eviction, request.name, "Eviction")
        given = eviction.get("deleteOptions") or {}
        options = DeleteOptions.of({**given, "dryRun": given.get("dryRun") or _dry_run(request)})
        pod = self._object(request, self.lookup)
        options.check(request.resource, pod)
        evicted = subresources.evict(pod, self.lookup, self._now(), dry_run=options.dry_run)
        write = WriteRequest(
            request.resource, request.namespace, request.user, WriteOptions(dry_run=options.dry_run), request.manager
        )
        if evicted.budget is not None:
            budgets = structs.replace(write, resource=built_in("PodDisruptionBudget", "policy"))
            budget = evicted.budget
            self.writer.update_unchecked(budgets, budget["metadata"]["name"], lambda _: budget)
        self.writer.update_unchecked(write, request.name, lambda _: evicted.pod)
        self.writer.delete(write, request.name, replace(options, version=""))
        return json_response(subresources.SUCCESS, 201)

    def _log(self, request: ResourceRequest) -> ApiResponse:
        subresources.check_log_options(request.name, request.query)
        subresources.check_log(
            self._object(request, self.committed), request.query.get("container", ""), self.committed
        )
        return text_response("", 204)

    def _reject_stream(self, request: ResourceRequest) -> ApiResponse:
        container = request.query.get("container", "") if request.path.subresource != "portforward" else ""
        pod, upgrade = self._object(request, self.committed), bool(request.headers.get("Upgrade"))
        subresources.check_stream(pod, container, self.committed, upgrade=upgrade)
        raise api_errors.bad_request("Upgrade request required")

    # Scales

    def _scale(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        if request.verb == "get":
            return self._scale_response(request, self._object(request, self.committed))
        kind = "PatchOptions" if request.verb == "patch" else "UpdateOptions"
        options = WriteOptions.of(kind, request.query)
        write = WriteRequest(request.resource, request.namespace, request.user, options, request.manager, "scale")
        scale = self._new_scale(request, content, options)

        def set_replicas(live: Tree) -> Tree:
            given = (scale.get("metadata") or {}).get("resourceVersion") or live["metadata"]["resourceVersion"]
            tree = subresources.apply_scale(request.resource, live, scale)
            return {**tree, "metadata": {**tree["metadata"], "resourceVersion": given}}

        written = self.writer.update(write, request.name, set_replicas)
        response = self._scale_response(request, written.tree)
        response.warnings = write.warnings
        return response

    def _scale_response(self, request: ResourceRequest, tree: Tree) -> ApiResponse:
        shape = OutputShape(
            _SCALE_RESOURCE,
            negotiate_media_type(request.headers.get("Accept", "")),
            self.clock.now,
            request.query.get("includeObject", ""),
        )
        return ApiResponse(shape.render_object(encode(subresources.to_scale(request.resource, tree))) + b"\n")

    def _new_scale(self, request: ResourceRequest, content: bytes, options: WriteOptions) -> Tree:
        if request.verb == "update":
            return self._read(request, content)
        live = subresources.to_scale(request.resource, self._object(request, self.lookup))
        sub = request.resource.subresource("scale")
        media = media_type(request.headers.get("Content-Type", ""))
        return decode_patch(request.resource, live, content, media, options.validation, sub).object

    # Tokens and reviews

    def _token(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        answer, claims = subresources.token_request(
            self._object(request, self.committed), self._read(request, content), self.clock.now(), ISSUER
        )
        answer["status"]["token"] = self.tokens.issue(claims)
        return json_response(answer, 201)

    def _handle_review(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        """Creates of kinds that are never stored."""
        sent = self._read(request, content)
        review_handlers: dict[str, Callable[[ResourceRequest, Tree], Tree]] = {
            "SelfSubjectReview": lambda request, _: reviews.self_subject_review(request.user.info(), self._now()),
            "TokenReview": self._token_review,
            "SelfSubjectRulesReview": self._rules_review,
        }
        if request.resource.kind == "Binding":
            self._bind(request, sent, str((sent.get("metadata") or {}).get("name", "")))
            return json_response(subresources.SUCCESS, 201)
        return json_response(review_handlers.get(request.resource.kind, self._access_review)(request, sent), 201)

    def _token_review(self, request: ResourceRequest, review: Tree) -> Tree:
        del request
        user = self.authenticator.authenticate_token(str((review.get("spec") or {}).get("token", "")))
        return reviews.token_review(review, user.info() if user else None, ISSUER)

    def _rules_review(self, request: ResourceRequest, review: Tree) -> Tree:
        return reviews.rules_review(self.authorizer.rules(request.user, reviews.rules_namespace(review)))

    def _access_review(self, request: ResourceRequest, review: Tree) -> Tree:
        attributes = AuthorizationAttributes(**reviews.review_attributes(review, namespace=request.namespace))
        user = request.user if request.resource.kind.startswith("Self") else _review_user(review)
        allowed = self.authorizer.allows(user, attributes)
        return reviews.access_review(review, allowed=allowed, namespace=request.namespace)


def _review_user(review: Tree) -> RequestUser:
    spec = review.get("spec") or {}
    extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
    return RequestUser(str(spec.get("user") or ""), tuple(spec.get("groups") or ()), str(spec.get("uid") or ""), extra)


def _dry_run(request: ResourceRequest) -> list[str]:
    return [request.query["dryRun"]] if request.query.get("dryRun") else []
