"""Who asks extenders, and has them bind? The calls that attempts and bindings yield, as requests.

Asked once a call by an attempt of a profile with extenders, and once a binding. A service that stops answering is told
once, and once more when it answers again; what that means for a pod is said by whoever reads the reply.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from bayplan.client import ConnectionConfig, HttpService, Secret, ServiceCallError
from bayplan.clock import LoopClock
from bayplan.config.extenders import PROFILE_STAGE, sort_extenders
from bayplan.config.model import ExtenderConfig as ExtenderConfig
from bayplan.config.model import ExtenderTLSConfig
from bayplan.errors import ApiError, ConfigError, KubeconfigError, LeaseLost
from bayplan.framework.api.status import SUCCESS, Status, error
from bayplan.intents.pod_intents import BindPod
from bayplan.objects.core import Pod
from bayplan.scheduler.cycle.http_extender import (
    ExtenderCall,
    ExtenderError,
    ExtenderReply,
    HttpExtender,
)

log = logging.getLogger(__name__)


WaitForBinding = Callable[[BindPod, ApiError], Awaitable[bool]]


async def _trust_bind_answer(_: BindPod, __: ApiError) -> bool:
    """For callers that cannot read pods: what the extender says is taken as it is."""
    return False


async def _always() -> None:
    """For processes without a lease."""


class ExtenderHttpResponse(Protocol):
    """An answer, as the client has it."""

    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...


class ExtenderTransport(Protocol):
    """Reaches one extender, as `client.Service` does."""

    async def post(self, url: str, body: bytes, timeout_s: float) -> ExtenderHttpResponse: ...


class ExtenderClient:
    """Every configured extender, reachable. `may_write` raises `LeaseLost` when this process must not bind."""

    def __init__(
        self,
        services: Mapping[ExtenderConfig, ExtenderTransport],
        *,
        may_write: Callable[[], Awaitable[None]] = _always,
    ) -> None:
        self._services = services
        self._binding = [HttpExtender(each) for each in sort_extenders(tuple(services)) if each.bind_verb]
        self._may_write = may_write
        self._silent: set[str] = set()

    async def call(self, call: ExtenderCall) -> ExtenderReply:
        """What an extender replies, or why it does not."""
        config = call.extender.config
        try:
            answer = await self._services[config].post(call.url, call.body, config.timeout.seconds)
        except ServiceCallError as fault:
            self._log_failure(call.extender, str(fault))
            return ExtenderReply(failure=str(fault), may_have_acted=fault.sent)
        self._log_failure(call.extender, "")
        return ExtenderReply(answer.status, answer.body, may_have_acted=answer.status >= 500)

    async def bind(
        self, pod: Pod, node_name: str, *, await_binding: WaitForBinding = _trust_bind_answer
    ) -> Status | None:
        """Have the first extender bind that is interested; None where the plugins have to.

        `await_binding`: whether a pod is on its node although the extender says otherwise, or nothing.
        """
        for extender in self._binding:
            if not extender.is_binder(pod):
                continue
            try:
                await self._may_write()
                reply = await self.call(extender.bind_call(pod, node_name))
                extender.parse_bind(reply)
            except LeaseLost as fault:
                return error(str(fault))
            except ExtenderError as fault:
                refusal = ApiError(str(fault))
                # An extender that answers with an error may have sent the binding before that. The binder that follows
                # an ignorable extender binds the pod to the same node, so there is nothing to wait for.
                refusal.outcome_unknown = reply.may_have_acted or not (reply.failure or extender.ignorable)
                if await await_binding(BindPod(pod, node_name), refusal):
                    return SUCCESS
                if extender.ignorable:
                    log.debug("extender %s does not bind pod %s, and need not: %s", extender.name, pod.key, fault)
                    continue
                return error(str(fault))
            return SUCCESS
        return None

    def _log_failure(self, extender: HttpExtender, failure: str) -> None:
        if failure and extender.name not in self._silent:
            self._silent.add(extender.name)
            meaning = "it is left out" if extender.ignorable else "pods that need it wait"
            log.warning("extender %s does not answer, and %s: %s", extender.name, meaning, failure)
        elif not failure and extender.name in self._silent:
            self._silent.discard(extender.name)
            log.info("extender %s answers again", extender.name)


def extender_transports(
    extenders: Iterable[ExtenderConfig], clock: LoopClock, *, user_agent: str
) -> dict[ExtenderConfig, HttpService]:
    """The way to each extender; `ConfigError` where its certificates cannot be used."""
    services = {}
    for extender in extenders:
        services[extender] = HttpService(clock, user_agent=user_agent, trust=_tls_settings(extender))
        if extender.url_prefix.startswith("https://"):
            try:
                services[extender].check(extender.url_prefix)
            except KubeconfigError as fault:
                raise ConfigError(f"couldn't build extenders: {fault}", stage=PROFILE_STAGE) from None
    return services


def _tls_settings(extender: ExtenderConfig) -> ConnectionConfig:
    """Whom to trust, and who to be. With `enableHTTPS` and no authority anybody is trusted, as upstream has it."""
    tls = extender.tls_config or ExtenderTLSConfig()
    has_authority = bool(tls.ca_data or tls.ca_file)
    insecure = tls.insecure or (extender.enable_https and not has_authority)
    if insecure and has_authority:
        raise ConfigError(
            "couldn't build extenders: specifying a root certificates file with the insecure flag is not allowed",
            stage=PROFILE_STAGE,
        )
    is_somebody = bool(tls.cert_data or tls.cert_file) and bool(tls.key_data or tls.key_file)
    return ConnectionConfig(
        server="",
        verify=not insecure,
        ca_data=tls.ca_data,
        ca_file="" if tls.ca_data else tls.ca_file,
        server_name=tls.server_name,
        cert_data=tls.cert_data if is_somebody else b"",
        cert_file="" if tls.cert_data or not is_somebody else tls.cert_file,
        key_data=Secret(tls.key_data.decode("latin-1")),
        key_file="" if tls.key_data else tls.key_file,
        origin=f"extender {extender.url_prefix}",
    )
