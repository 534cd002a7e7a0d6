"""Binding through the API server."""

from __future__ import annotations

import asyncio

from bayplan.errors import BayplanError
from bayplan.intents.pod_intents import BindPod
from bayplan.plugins.default_binder import DefaultBinder
from support.builders.framework import FakeHandle, errored, filter_result, make_cycle, make_pod


def test_it_writes_one_binding() -> None:
    handle = FakeHandle()
    pod = make_pod("web", namespace="shop")
    assert asyncio.run(DefaultBinder(handle).bind(make_cycle(pod), "node-1")) is None
    (intent,) = handle.writes.performed
    assert isinstance(intent, BindPod)
    assert intent.manifest() == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": "shop", "name": "web", "uid": "uid-shop-web"},
        "target": {"kind": "Node", "name": "node-1"},
    }


def test_a_refused_binding_is_an_error_with_the_servers_text() -> None:
    handle = FakeHandle()
    handle.writes.failure = BayplanError('pods "web" not found')
    status = asyncio.run(DefaultBinder(handle).bind(make_cycle(make_pod("web")), "node-1"))
    assert status is not None
    assert filter_result(status) == errored('pods "web" not found')
