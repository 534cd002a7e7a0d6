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
from bayplan.apiserver.auth.authentication import People
from bayplan.apiserver.auth.rbac import Attributes, Roles
from bayplan.apiserver.auth.service_account_tokens import ISSUER, Tokens
from bayplan.apiserver.content_negotiation import wanted
from bayplan.apiserver.http.output_shapes import Shown
from bayplan.apiserver.http.responses import Reply, json_reply, text_reply
from bayplan.apiserver.requests import (
    Ask,
    User,
    WriteOptions,
    Writing,
)
from bayplan.apiserver.resources.kinds import Resource, Tree
from bayplan.apiserver.resources.lookup import Lookup, built_in
from bayplan.apiserver.schema.body_decoding import media_type, read_body, read_patch
from bayplan.apiserver.storage.stored_objects import encode
from bayplan.apiserver.writes import subresources
from bayplan.apiserver.writes.deletion import DeleteOptions
from bayplan.apiserver.writes.metadata import timestamp
from bayplan.apiserver.writes.status_templates import StateMoulds
from bayplan.apiserver.writes.writer import Writer, Written
from bayplan.clock import Clock

_SCALES = Resource("autoscaling", "v1", "Scale", "scales", "scale")
STREAMS = ("attach", "exec", "portforward")
SPECIAL = frozenset({"binding", "eviction", "log", "proxy", "scale", "token", *STREAMS})


def is_special(ask: Ask) -> bool:
    """Whether a request is answered here."""
    return ask.path.subresource in SPECIAL or not ask.resource.stored


@dataclass(slots=True)
class Parts:
    """Answers for the parts that are more than a piece of the object."""

    writer: Writer
    lookup: Lookup
    """What a write rests on: uncommitted writes are there."""
    committed: Lookup
    """What an answer may show, or a token be given for."""
    people: People
    roles: Roles
    tokens: Tokens
    clock: Clock
    states: StateMoulds

    def answer(self, ask: Ask, content: bytes) -> Reply:
        if not ask.resource.stored:
            return self._sent(ask, content)
        match ask.path.subresource:
            case "binding":
                return self._bind_one(ask, content)
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
                raise api_errors.Refusal(503, "ServiceUnavailable", why)
        return self._stream(ask)

    def _read(self, ask: Ask, content: bytes) -> Tree:
        sub = ask.resource.subresource(ask.path.subresource)
        validation = WriteOptions.of("CreateOptions", ask.query).validation
        return read_body(ask.resource, content, ask.headers.get("Content-Type", ""), validation, sub).object

    def _object(self, ask: Ask, lookup: Lookup) -> Tree:
        found = lookup.get(ask.resource, ask.namespace, ask.name)
        if found is None:
            raise api_errors.not_found(ask.resource, ask.name)
        return found

    def _now(self) -> str:
        return timestamp(self.clock.now())

    # Pods.

    def _bind_one(self, ask: Ask, content: bytes) -> Reply:
        sought = self.states.bound(ask, content)
        if sought is not None and self.states.cast(ask, sought) is not None:
            return json_reply(subresources.SUCCESS, 201)
        written = self._bind(ask, self._read(ask, content), ask.name)
        if sought is not None:
            self.states.learn(sought, written)
        return json_reply(subresources.SUCCESS, 201)

    def _bind(self, ask: Ask, binding: Tree, name: str) -> Written:
        subresources.check_name(binding, name, "Binding")
        pods = built_in("Pod")
        write = Writing(pods, ask.namespace, ask.user, WriteOptions.of("CreateOptions", ask.query))
        return self.writer.overwrite(write, name, lambda pod: subresources.bind(pod, binding, self._now()))

    def _evict(self, ask: Ask, content: bytes) -> Reply:
        eviction = self._read(ask, content)
        subresources.check_name(eviction, ask.name, "Eviction")
        given = eviction.get("deleteOptions") or {}
        options = DeleteOptions.of({**given, "dryRun": given.get("dryRun") or _dry_run(ask)})
        pod = self._object(ask, self.lookup)
        options.check(ask.resource, pod)
        made = subresources.evict(pod, self.lookup, self._now(), dry_run=options.dry_run)
        write = Writing(ask.resource, ask.namespace, ask.user, WriteOptions(dry_run=options.dry_run), ask.manager)
        if made.budget is not None:
            budgets = structs.replace(write, resource=built_in("PodDisruptionBudget", "policy"))
            budget = made.budget
            self.writer.overwrite(budgets, budget["metadata"]["name"], lambda _: budget)
        self.writer.overwrite(write, ask.name, lambda _: made.pod)
        self.writer.delete(write, ask.name, replace(options, version=""))
        return json_reply(subresources.SUCCESS, 201)

    def _log(self, ask: Ask) -> Reply:
        subresources.check_log_options(ask.name, ask.query)
        subresources.check_log(self._object(ask, self.committed), ask.query.get("container", ""), self.committed)
        return text_reply("", 204)

    def _stream(self, ask: Ask) -> Reply:
        container = ask.query.get("container", "") if ask.path.subresource != "portforward" else ""
        pod, upgrade = self._object(ask, self.committed), bool(ask.headers.get("Upgrade"))
        subresources.check_stream(pod, container, self.committed, upgrade=upgrade)
        raise api_errors.bad_request("Upgrade request required")

    # Scales.

    def _scale(self, ask: Ask, content: bytes) -> Reply:
        if ask.verb == "get":
            return self._shown_scale(ask, self._object(ask, self.committed))
        kind = "PatchOptions" if ask.verb == "patch" else "UpdateOptions"
        options = WriteOptions.of(kind, ask.query)
        write = Writing(ask.resource, ask.namespace, ask.user, options, ask.manager, "scale")
        scale = self._new_scale(ask, content, options)

        def revision(live: Tree) -> Tree:
            given = (scale.get("metadata") or {}).get("resourceVersion") or live["metadata"]["resourceVersion"]
            tree = subresources.scaled(ask.resource, live, scale)
            return {**tree, "metadata": {**tree["metadata"], "resourceVersion": given}}

        written = self.writer.revise(write, ask.name, revision)
        reply = self._shown_scale(ask, written.tree)
        reply.warnings = write.warnings
        return reply

    def _shown_scale(self, ask: Ask, tree: Tree) -> Reply:
        shown = Shown(
            _SCALES, wanted(ask.headers.get("Accept", "")), self.clock.now, ask.query.get("includeObject", "")
        )
        return Reply(shown.one(encode(subresources.scale_of(ask.resource, tree))) + b"\n")

    def _new_scale(self, ask: Ask, content: bytes, options: WriteOptions) -> Tree:
        if ask.verb == "update":
            return self._read(ask, content)
        live = subresources.scale_of(ask.resource, self._object(ask, self.lookup))
        sub = ask.resource.subresource("scale")
        media = media_type(ask.headers.get("Content-Type", ""))
        return read_patch(ask.resource, live, content, media, options.validation, sub).object

    # Tokens and reviews.

    def _token(self, ask: Ask, content: bytes) -> Reply:
        answer, claims = subresources.token_request(
            self._object(ask, self.committed), self._read(ask, content), self.clock.now(), ISSUER
        )
        answer["status"]["token"] = self.tokens.issue(claims)
        return json_reply(answer, 201)

    def _sent(self, ask: Ask, content: bytes) -> Reply:
        """Kinds of which there are no objects."""
        sent = self._read(ask, content)
        reviewing: dict[str, Callable[[Ask, Tree], Tree]] = {
            "SelfSubjectReview": lambda ask, _: reviews.self_subject_review(ask.user.info(), self._now()),
            "TokenReview": self._token_review,
            "SelfSubjectRulesReview": self._rules_review,
        }
        if ask.resource.kind == "Binding":
            self._bind(ask, sent, str((sent.get("metadata") or {}).get("name", "")))
            return json_reply(subresources.SUCCESS, 201)
        return json_reply(reviewing.get(ask.resource.kind, self._access_review)(ask, sent), 201)

    def _token_review(self, ask: Ask, review: Tree) -> Tree:
        del ask
        user = self.people.by_token(str((review.get("spec") or {}).get("token", "")))
        return reviews.token_review(review, user.info() if user else None, ISSUER)

    def _rules_review(self, ask: Ask, review: Tree) -> Tree:
        return reviews.rules_review(self.roles.rules(ask.user, reviews.rules_namespace(review)))

    def _access_review(self, ask: Ask, review: Tree) -> Tree:
        asked = Attributes(**reviews.access_asked(review, namespace=ask.namespace))
        user = ask.user if ask.resource.kind.startswith("Self") else _subject(review)
        allowed = self.roles.allows(user, asked)
        return reviews.access_review(review, allowed=allowed, namespace=ask.namespace)


def _subject(review: Tree) -> User:
    spec = review.get("spec") or {}
    extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
    return User(str(spec.get("user") or ""), tuple(spec.get("groups") or ()), str(spec.get("uid") or ""), extra)


def _dry_run(ask: Ask) -> list[str]:
    return [ask.query["dryRun"]] if ask.query.get("dryRun") else []
