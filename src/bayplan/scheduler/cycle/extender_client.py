"""Sends the calls to HTTP extenders that scheduling attempts and binding cycles make.

Called once for each call of an attempt, and once for each binding. A failing extender is logged once, and once more
when it answers again. The caller of `call` decides what the reply means for the pod.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from bayplan.client import ConnectionConfig, HttpService, Secret, ServiceCallError
from bayplan.clock import LoopClock
from bayplan.config.extenders import PROFILE_STAGE, sort_extenders
from bayplan.config.model import ExtenderConfig as ExtenderConfig
from bayplan.config.model import ExtenderTLSConfig
from bayplan.errors import ApiError, ConfigError, KubeconfigError, LeaseLost
from bayplan.framework.api.status import SUCCESS, Status, error
from bayplan.intents.pod_intents import BindPod
from bayplan.objects.core import Pod
from bayplan.scheduler.cycle.http_extender import ExtenderCall, ExtenderError, ExtenderReply, HttpExtender

log = logging.getLogger(__name__)


WaitForBinding = Callable[[BindPod, ApiError], Awaitable[bool]]


class ExtenderClient:
    """Calls every configured extender. `may_write` raises `LeaseLost` when this process must not bind."""

    def __init__(
        self, services: Mapping[ExtenderConfig, HttpService], may_write: Callable[[], Awaitable[None]]
    ) -> None:
        self._services = services
        self._binding = [HttpExtender(each) for each in sort_extenders(tuple(services)) if each.bind_verb]
        self._may_write = may_write
        self._failing: set[str] = set()

    async def call(self, call: ExtenderCall) -> ExtenderReply:
        """The extender's reply, or the reason why there is none."""
        config = call.extender.config
        try:
            answer = await self._services[config].post(call.url, call.body, config.timeout.seconds)
        except ServiceCallError as fault:
            self._log_failure(call.extender, str(fault))
            return ExtenderReply(failure=str(fault), may_have_acted=fault.sent)
        self._log_failure(call.extender, "")
        return ExtenderReply(answer.status, answer.body, may_have_acted=answer.status >= 500)

    async def bind(self, pod: Pod, node_name: str, *, await_binding: WaitForBinding) -> Status | None:
        """Let the first interested extender bind the pod; None if the bind plugins have to.

        `await_binding`: whether the pod is on its node although the extender reports an error or no result.
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
                # An extender that answers with an error may have sent the binding before. After an ignorable extender
                # the next binder binds the pod to the same node, so there is nothing to wait for.
                refusal.outcome_unknown = reply.may_have_acted or not (reply.failure or extender.ignorable)
                if await await_binding(BindPod(pod, node_name), refusal):
                    return SUCCESS
                if extender.ignorable:
                    log.debug("ignorable extender %s does not bind pod %s: %s", extender.name, pod.key, fault)
                    continue
                return error(str(fault))
            return SUCCESS
        return None

    def _log_failure(self, extender: HttpExtender, failure: str) -> None:
        if failure and extender.name not in self._failing:
            self._failing.add(extender.name)
            effect = "it is ignorable and skipped" if extender.ignorable else "pods that need it stay pending"
            log.warning("extender %s does not answer, %s: %s", extender.name, effect, failure)
        elif not failure and extender.name in self._failing:
            self._failing.discard(extender.name)
            log.info("extender %s answers again", extender.name)


def extender_transports(
    extenders: Iterable[ExtenderConfig], clock: LoopClock, *, user_agent: str
) -> dict[ExtenderConfig, HttpService]:
    """An HTTP client for each extender; `ConfigError` if its certificates cannot be used."""
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
    """TLS settings of an extender. As upstream, `enableHTTPS` without a certificate authority verifies nothing."""
    tls = extender.tls_config or ExtenderTLSConfig()
    has_authority = bool(tls.ca_data or tls.ca_file)
    insecure = tls.insecure or (extender.enable_https and not has_authority)
    if insecure and has_authority:
        raise ConfigError(
            "couldn't build extenders: specifying a root certificates file with the insecure flag is not allowed",
            stage=PROFILE_STAGE,
        )
    has_client_cert = bool(tls.cert_data or tls.cert_file) and bool(tls.key_data or tls.key_file)
    return ConnectionConfig(
        server="",
        verify=not insecure,
        ca_data=tls.ca_data,
        ca_file="" if tls.ca_data else tls.ca_file,
        server_name=tls.server_name,
        cert_data=tls.cert_data if has_client_cert else b"",
        cert_file="" if tls.cert_data or not has_client_cert else tls.cert_file,
        key_data=Secret(tls.key_data.decode("latin-1")),
        key_file="" if tls.key_data else tls.key_file,
        origin=f"extender {extender.url_prefix}",
    )
