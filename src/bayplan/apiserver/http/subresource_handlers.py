"""What is asked of parts of objects, and of kinds that are only ever sent: bindings, evictions, scales, logs, reviews?

The rules are in `rules.subresources` and `rules.reviews`; here they meet the store and the people. `status` and the
other parts that are pieces of the object itself go the way of every update. Cost: that of the write behind it.
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
from bayplan.apiserver.requests import (
    RequestUser,
    ResourceRequest,
    WriteOptions,
    WriteRequest,
)
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

_SCALES = ServedResource("autoscaling", "v1", "Scale", "scales", "scale")
STREAM_SUBRESOURCES = ("attach", "exec", "portforward")
HANDLED_SUBRESOURCES = frozenset({"binding", "eviction", "log", "proxy", "scale", "token", *STREAM_SUBRESOURCES})


def has_own_handler(ask: ResourceRequest) -> bool:
    """Whether a request is answered here."""
    return ask.path.subresource in HANDLED_SUBRESOURCES or not ask.resource.stored


@dataclass(slots=True)
class SubresourceHandlers:
    """Answers for the parts that are more than a piece of the object."""

    writer: ObjectWriter
    lookup: ObjectLookup
    """What a write rests on: uncommitted writes are there."""
    committed: ObjectLookup
    """What an answer may show, or a token be given for."""
    authenticator: RequestAuthenticator
    authorizer: RbacAuthorizer
    tokens: ServiceAccountTokens
    clock: Clock
    status_templates: StatusTemplates

    def handle(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        if not ask.resource.stored:
            return self._handle_review(ask, content)
        match ask.path.subresource:
            case "binding":
                return self._handle_binding(ask, content)
            case "eviction":
                return self._evict(ask, content)
            case "scale":
                return self._scale(ask, content)
            case "token":
                return self._token(ask, content)
            case "log":
                return self._log(ask)
            case "proxy":
                why = "error trying to reach service: this cluster has an API and no containers"
                raise api_errors.StatusError(503, "ServiceUnavailable", why)
        return self._reject_stream(ask)

    def _read(self, ask: ResourceRequest, content: bytes) -> Tree:
        sub = ask.resource.subresource(ask.path.subresource)
        validation = WriteOptions.of("CreateOptions", ask.query).validation
        return decode_body(ask.resource, content, ask.headers.get("Content-Type", ""), validation, sub).object

    def _object(self, ask: ResourceRequest, lookup: ObjectLookup) -> Tree:
        found = lookup.get(ask.resource, ask.namespace, ask.name)
        if found is None:
            raise api_errors.not_found(ask.resource, ask.name)
        return found

    def _now(self) -> str:
        return timestamp(self.clock.now())

    # Pods.

    def _handle_binding(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        sought = self.status_templates.parse_binding(ask, content)
        if sought is not None and self.status_templates.apply(ask, sought) is not None:
            return json_response(subresources.SUCCESS, 201)
        written = self._bind(ask, self._read(ask, content), ask.name)
        if sought is not None:
            self.status_templates.learn(sought, written)
        return json_response(subresources.SUCCESS, 201)

    def _bind(self, ask: ResourceRequest, binding: Tree, name: str) -> WriteResult:
        subresources.check_body_name(binding, name, "Binding")
        pods = built_in("Pod")
        write = WriteRequest(pods, ask.namespace, ask.user, WriteOptions.of("CreateOptions", ask.query))
        return self.writer.update_unchecked(write, name, lambda pod: subresources.bind(pod, binding, self._now()))

    def _evict(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        eviction = self._read(ask, content)
        subresources.check_body_name(eviction, ask.name, "Eviction")
        given = eviction.get("deleteOptions") or {}
        options = DeleteOptions.of({**given, "dryRun": given.get("dryRun") or _dry_run(ask)})
        pod = self._object(ask, self.lookup)
        options.check(ask.resource, pod)
        made = subresources.evict(pod, self.lookup, self._now(), dry_run=options.dry_run)
        write = WriteRequest(ask.resource, ask.namespace, ask.user, WriteOptions(dry_run=options.dry_run), ask.manager)
        if made.budget is not None:
            budgets = structs.replace(write, resource=built_in("PodDisruptionBudget", "policy"))
            budget = made.budget
            self.writer.update_unchecked(budgets, budget["metadata"]["name"], lambda _: budget)
        self.writer.update_unchecked(write, ask.name, lambda _: made.pod)
        self.writer.delete(write, ask.name, replace(options, version=""))
        return json_response(subresources.SUCCESS, 201)

    def _log(self, ask: ResourceRequest) -> ApiResponse:
        subresources.check_log_options(ask.name, ask.query)
        subresources.check_log(self._object(ask, self.committed), ask.query.get("container", ""), self.committed)
        return text_response("", 204)

    def _reject_stream(self, ask: ResourceRequest) -> ApiResponse:
        container = ask.query.get("container", "") if ask.path.subresource != "portforward" else ""
        pod, upgrade = self._object(ask, self.committed), bool(ask.headers.get("Upgrade"))
        subresources.check_stream(pod, container, self.committed, upgrade=upgrade)
        raise api_errors.bad_request("Upgrade request required")

    # Scales.

    def _scale(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        if ask.verb == "get":
            return self._scale_response(ask, self._object(ask, self.committed))
        kind = "PatchOptions" if ask.verb == "patch" else "UpdateOptions"
        options = WriteOptions.of(kind, ask.query)
        write = WriteRequest(ask.resource, ask.namespace, ask.user, options, ask.manager, "scale")
        scale = self._new_scale(ask, content, options)

        def revision(live: Tree) -> Tree:
            given = (scale.get("metadata") or {}).get("resourceVersion") or live["metadata"]["resourceVersion"]
            tree = subresources.apply_scale(ask.resource, live, scale)
            return {**tree, "metadata": {**tree["metadata"], "resourceVersion": given}}

        written = self.writer.update(write, ask.name, revision)
        reply = self._scale_response(ask, written.tree)
        reply.warnings = write.warnings
        return reply

    def _scale_response(self, ask: ResourceRequest, tree: Tree) -> ApiResponse:
        shown = OutputShape(
            _SCALES,
            negotiate_media_type(ask.headers.get("Accept", "")),
            self.clock.now,
            ask.query.get("includeObject", ""),
        )
        return ApiResponse(shown.render_object(encode(subresources.to_scale(ask.resource, tree))) + b"\n")

    def _new_scale(self, ask: ResourceRequest, content: bytes, options: WriteOptions) -> Tree:
        if ask.verb == "update":
            return self._read(ask, content)
        live = subresources.to_scale(ask.resource, self._object(ask, self.lookup))
        sub = ask.resource.subresource("scale")
        media = media_type(ask.headers.get("Content-Type", ""))
        return decode_patch(ask.resource, live, content, media, options.validation, sub).object

    # Tokens and reviews.

    def _token(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        answer, claims = subresources.token_request(
            self._object(ask, self.committed), self._read(ask, content), self.clock.now(), ISSUER
        )
        answer["status"]["token"] = self.tokens.issue(claims)
        return json_response(answer, 201)

    def _handle_review(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        """Kinds of which there are no objects."""
        sent = self._read(ask, content)
        reviewing: dict[str, Callable[[ResourceRequest, Tree], Tree]] = {
            "SelfSubjectReview": lambda ask, _: reviews.self_subject_review(ask.user.info(), self._now()),
            "TokenReview": self._token_review,
            "SelfSubjectRulesReview": self._rules_review,
        }
        if ask.resource.kind == "Binding":
            self._bind(ask, sent, str((sent.get("metadata") or {}).get("name", "")))
            return json_response(subresources.SUCCESS, 201)
        return json_response(reviewing.get(ask.resource.kind, self._access_review)(ask, sent), 201)

    def _token_review(self, ask: ResourceRequest, review: Tree) -> Tree:
        del ask
        user = self.authenticator.authenticate_token(str((review.get("spec") or {}).get("token", "")))
        return reviews.token_review(review, user.info() if user else None, ISSUER)

    def _rules_review(self, ask: ResourceRequest, review: Tree) -> Tree:
        return reviews.rules_review(self.authorizer.rules(ask.user, reviews.rules_namespace(review)))

    def _access_review(self, ask: ResourceRequest, review: Tree) -> Tree:
        asked = AuthorizationAttributes(**reviews.review_attributes(review, namespace=ask.namespace))
        user = ask.user if ask.resource.kind.startswith("Self") else _review_user(review)
        allowed = self.authorizer.allows(user, asked)
        return reviews.access_review(review, allowed=allowed, namespace=ask.namespace)


def _review_user(review: Tree) -> RequestUser:
    spec = review.get("spec") or {}
    extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
    return RequestUser(str(spec.get("user") or ""), tuple(spec.get("groups") or ()), str(spec.get("uid") or ""), extra)


def _dry_run(ask: ResourceRequest) -> list[str]:
    return [ask.query["dryRun"]] if ask.query.get("dryRun") else []
