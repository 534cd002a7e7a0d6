"""The page of processes with a batch engine, in Chromium: queues as bars, gangs, and the reasons of placements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from browser.devtools import Browser, Page
from cluster.run import Cluster, free_ports
from support.e2e.batch_harness import GANGS, BatchSchedulerHarness
from support.fakes.tcp_proxy import run_tcp_proxy

CONF = GANGS.replace("preempt, reclaim, ", "")


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BatchSchedulerHarness]:
    mine = BatchSchedulerHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


def queued(harness: BatchSchedulerHarness) -> tuple[str, str]:
    """Two nodes that are almost full with one queue's pods; another queue whose gang is pending."""
    harness.add_nodes(2, cpu="4")
    greedy, modest = harness.queue("greedy"), harness.queue("modest")
    harness.gang("big", 7, minimum=1, queue=greedy)
    return greedy, modest


def is_shown(page: Page, harness: BatchSchedulerHarness, greedy: str, modest: str) -> None:
    """Queues, boxes, the pending gang, and the reason."""
    space = harness.namespace
    page.until(f"window.bayplan?.world.whole && bayplan.world.pods.get('{space}/big-w-6')?.node")
    harness.gang("late", 2, queue=modest)
    page.until(f"document.querySelector('#waiting')?.innerText.includes('{space}/late-w-0')")
    page.until(f"document.querySelector('#queues')?.innerText.includes('{modest}')")
    bars = "[...document.querySelectorAll('#queues [role=img]')].map((each) => each.ariaLabel)"
    page.until(f"{bars}.some((said) => /^{greedy} has [1-9][0-9]+ % of what it deserves$/.test(said))")
    assert f"{modest} has 0 % of what it deserves" in page.eval(bars)
    colour = "document.querySelectorAll('header select')[0]"
    page.eval(f"{colour}.value = 'queue', {colour}.dispatchEvent(new Event('change', {{bubbles: true}}))")
    page.until(f"document.querySelector('.legend').innerText.includes('{greedy}')")

    page.eval(f"location.hash = '#pod={space}%2Flate-w-0'")
    page.until(f"document.querySelector('#pod-name')?.innerText === '{space}/late-w-0'")
    page.until(f"document.querySelector('#why').innerText.includes('Gang {space}/late')")
    told = page.text("#why")
    assert f"Queue {modest}" in told
    assert f"{greedy} holds more than it deserves" in told

    page.eval(f"location.hash = '#pod={space}%2Fbig-w-0'")
    page.until(f"document.querySelector('#pod-name')?.innerText === '{space}/big-w-0'")
    page.until("document.querySelectorAll('#scores tbody tr').length === 2")
    assert "nodeorder" in page.text("#scores thead")
    page.until("document.querySelector('#decisions').innerText.includes('best of 2')")


def run_both(harness: BatchSchedulerHarness, *flags: str) -> AbstractContextManager[Any]:
    found: AbstractContextManager[Any] = harness.run_combined(*flags, conf=CONF)
    return found


def run_batch(harness: BatchSchedulerHarness, *flags: str) -> AbstractContextManager[Any]:
    return harness.run_batch(*flags, conf=CONF)


@pytest.mark.parametrize("run", [run_both, run_batch])
def test_queues_and_gangs(run: Any, harness: BatchSchedulerHarness, browser: Browser, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    greedy, modest = queued(harness)
    with run(harness, f"--page-address=127.0.0.1:{port}"):
        harness.wait_bound()
        page = browser.open(f"http://127.0.0.1:{port}/page/")
        is_shown(page, harness, greedy, modest)
        page.screenshot(tmp_path / "queues.png")
        assert page.complaints == []
        page.close()


def test_a_sign_in_sets_a_secure_cookie(cluster: Cluster, harness: BatchSchedulerHarness, browser: Browser) -> None:
    (port,) = free_ports(1)
    greedy, modest = queued(harness)
    with run_both(harness, f"--secure-port={port}", "--bind-address=127.0.0.1"), run_tcp_proxy(port) as pipe:
        harness.wait_bound()
        browser.call("Storage.clearCookies")  # cookies ignore ports: one of another server's page would be sent here
        page = browser.open(f"https://127.0.0.1:{pipe.port}/page/")
        page.until("document.querySelector('#token')")
        assert "401" in "".join(page.complaints)  # without a token the page is only a form
        assert harness.namespace not in page.eval("document.documentElement.outerHTML")
        page.complaints.clear()
        page.eval(f"document.querySelector('#token').value = {json.dumps(cluster.tokens['admin'])}")
        page.click_on("form button")
        is_shown(page, harness, greedy, modest)
        (kept,) = page.call("Network.getCookies", urls=[f"https://127.0.0.1:{pipe.port}/page/"])["cookies"]
        assert (kept["name"], kept["value"]) == ("bayplan-token", cluster.tokens["admin"])
        assert (kept["secure"], kept["httpOnly"], kept["sameSite"]) == (True, True, "Strict")
        assert page.eval("document.cookie") == ""
        assert page.complaints == []
        pipe.cut()
        page.until("bayplan.world.state === 'lost'")
        browser.call("Storage.clearCookies")
        pipe.open()  # after the token was revoked the page asks for another one
        page.until("document.querySelector('.state').innerText.includes('access denied')")
        page.click_on(".state a")
        page.until("document.querySelector('#token')")
        page.close()
