"""The page in Chromium, on a running cluster: live updates, a restart, keyboard control, dark mode."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from browser.devtools import Browser, Page
from support.fakes.tcp_proxy import run_tcp_proxy
from support.harness.deadlines import DEADLINE_S

BAYPLAN = [sys.executable, "-m", "bayplan"]
NASTY = "<img src=x onerror=document.title='pwned'>"


def manifest(name: str, cpu: str, **more: object) -> dict[str, object]:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [container], **more},
    }


@dataclass
class EmbeddedProcess:
    """A cluster in a separate process, started by `bayplan cluster up`."""

    env: dict[str, str]
    url: str
    screenshots: Path

    def bayplan(self, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [*BAYPLAN, *arguments], env=self.env, input=given, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *trees: dict[str, object]) -> None:
        self.bayplan("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": trees}))


@contextmanager
def cluster_up(folder: Path, *arguments: str) -> Iterator[EmbeddedProcess]:
    env = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "PYTHONUNBUFFERED": "1"}
    env.pop("KUBECONFIG", None)
    said = subprocess.run(
        [*BAYPLAN, "cluster", "up", "--detach", *arguments], env=env, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert said.returncode == 0, said.stderr
    url = re.search(r"open (\S+)", said.stdout)
    assert url is not None, said.stdout
    up = EmbeddedProcess(env, url[1], folder)
    try:
        yield up
    finally:
        up.bayplan("cluster", "down")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedProcess]:
    with cluster_up(tmp_path_factory.mktemp("page"), "--nodes", "12:cpu=4,memory=8Gi", "--zones", "3") as running:
        running.apply(*(manifest(f"web-{number}", "500m") for number in range(8)), manifest("giant", "64"))
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def page(up: EmbeddedProcess, browser: Browser) -> Iterator[Page]:
    """A page with the default view; any error on its console fails the test."""
    opened = browser.open(up.url)
    opened.until(
        "window.bayplan?.world.whole && bayplan.world.nodes.size === 12 && bayplan.world.pods.has('default/web-7')"
    )
    opened.until("document.querySelector('#waiting')?.innerText.includes('default/giant')")
    yield opened
    assert opened.complaints == []
    opened.close()


def pixel(page: Page, script: str) -> list[int]:
    """The colour of the plan at a point that a script returns."""
    found = page.eval(
        f"""(() => {{ const [x, y] = {script}; const one = new OffscreenCanvas(1, 1).getContext("2d");
        one.drawImage(bayplan.plan.canvas, x, y, 1, 1, 0, 0, 1, 1);
        return [...one.getImageData(0, 0, 1, 1).data]; }})()"""
    )
    return list(found)[:3]


def bay_of(pod: str) -> str:
    """A script for the centre of a pod's box on the canvas."""
    return f"""(() => {{ const {{ world, plan }} = bayplan; const node = world.nodes.get(world.pods.get("{pod}").node);
        const place = plan.podsOf(node).findIndex((pod) => pod.key === "{pod}");
        const box = node.boxes.subarray(4 * place);
        return [(node.x + (box[0] + box[2] / 2) * 60) * plan.view.scale - plan.view.x,
                (node.y + (box[1] + box[3] / 2) * 40) * plan.view.scale - plan.view.y].map(Math.round); }})()"""


def test_content(page: Page, up: EmbeddedProcess) -> None:
    assert page.eval("document.title") == "Bayplan"
    assert (page.text("#node-count"), page.text(".state")) == ("12", "live")
    page.until("document.querySelector('#waiting-count').innerText === '1'")
    page.until("document.querySelector('#waiting').innerText.includes('Insufficient cpu')")
    page.until("document.querySelectorAll('#decisions li').length >= 9")
    assert "best of 12" in page.text("#decisions")
    page.until("document.querySelectorAll('.plots canvas').length === 2")
    page.until("bayplan.plan.tiles.size > 0 && !bayplan.plan.frame")
    empty = page.eval("getComputedStyle(document.documentElement).getPropertyValue('--bay')")
    assert empty == "#fff"
    assert pixel(page, bay_of("default/web-0")) not in ([255, 255, 255], [0, 0, 0])
    page.screenshot(up.screenshots / "light.png")


def test_it_is_live(page: Page, up: EmbeddedProcess) -> None:
    before = page.eval("bayplan.world.pods.size")
    up.apply(manifest("late", "250m"))
    page.until("bayplan.world.pods.get('default/late')?.node")
    page.until(f"document.querySelector('#pod-count').innerText === '{before + 1}'")
    page.until("document.querySelector('#decisions').innerText.includes('default/late')")
    stored = json.loads(up.bayplan("get", "pod", "late", "-o", "json"))
    assert page.eval("bayplan.world.pods.get('default/late').node") == stored["spec"]["nodeName"]
    up.bayplan("delete", "pod", "late")
    page.until("!bayplan.world.pods.has('default/late')")
    page.until(f"document.querySelector('#pod-count').innerText === '{before}'")


def test_a_changed_node_is_drawn_in_its_current_state(page: Page, up: EmbeddedProcess) -> None:
    """Nodes change all the time, by the status updates of their kubelets, which must invalidate cached plans."""
    page.until("bayplan.plan.tiles.size > 0 && !bayplan.plan.frame")
    page.eval("document.querySelector('canvas').focus()")
    page.press("ArrowRight")
    page.until("bayplan.plan.selected.node")
    name = page.eval("bayplan.plan.selected.node")
    corner = f"""(() => {{ const {{ view }} = bayplan.plan; const node = bayplan.world.nodes.get({json.dumps(name)});
        return [(node.x + 56) * view.scale - view.x, (node.y + 12) * view.scale - view.y].map(Math.round); }})()"""
    assert pixel(page, corner) == [255, 255, 255]
    node = json.loads(up.bayplan("get", "node", name, "-o", "json"))
    up.apply({**node, "spec": {**node.get("spec", {}), "unschedulable": True}})
    page.until(f"bayplan.world.nodes.get({json.dumps(name)}).state !== 'ready' && !bayplan.plan.frame")
    assert pixel(page, corner) == [243, 217, 211]
    page.press("ArrowRight")
    page.until(f"bayplan.plan.selected.node !== {json.dumps(name)}")
    up.apply(manifest("settled", "3", nodeName=name))
    page.until("bayplan.world.pods.get('default/settled')?.node && !bayplan.plan.frame")
    assert pixel(page, bay_of("default/settled")) not in ([255, 255, 255], [243, 217, 211])
    up.bayplan("delete", "pod", "settled")
    page.until("!bayplan.world.pods.has('default/settled')")
    up.apply({**json.loads(up.bayplan("get", "node", name, "-o", "json")), "spec": node.get("spec", {})})
    page.until(f"bayplan.world.nodes.get({json.dumps(name)}).state === 'ready' && !bayplan.plan.frame")
    assert pixel(page, corner) == [255, 255, 255]


def test_gangs_that_change_with_their_pods_are_drawn_in_the_colours_of_queues(page: Page) -> None:
    page.until("bayplan.plan.tiles.size > 0 && !bayplan.plan.frame")
    colour = "document.querySelectorAll('header select')[0]"
    page.eval(f"{colour}.value = 'queue', {colour}.dispatchEvent(new Event('change', {{bubbles: true}}))")
    page.until("bayplan.plan.colours.way === 'queue' && !bayplan.plan.frame")
    page.eval(
        """(() => { const { world } = bayplan; const twin = { ...world.pods.get("default/web-0"), key: "default/twin" };
        const group = ["default/gang", "default", 1, "Running"];
        world.rows({ groups: [group], pods: [world.fields.pods.map((field) => twin[field])] }); })()"""
    )
    page.until("!bayplan.plan.frame")
    drawn = "bayplan.plan.podsOf(bayplan.world.nodes.get(bayplan.world.pods.get('default/web-0').node))"
    assert page.eval(f"{drawn}.some((pod) => pod.key === 'default/twin')")


def test_an_address_that_was_cut_off_shows_the_page(up: EmbeddedProcess, browser: Browser) -> None:
    page = browser.open(f"{up.url}#pod=default%2")
    page.until("window.bayplan?.world.whole && document.querySelector('#node-count').innerText === '12'")
    assert page.complaints == []
    page.close()


def test_a_click_shows_why(page: Page, up: EmbeddedProcess) -> None:
    page.until("bayplan.plan.tiles.size > 0 && !bayplan.plan.frame")
    left, top = page.eval(
        "(() => { const b = document.querySelector('canvas').getBoundingClientRect(); return [b.x, b.y]; })()"
    )
    x, y = page.eval(bay_of("default/web-3"))
    page.click(left + x, top + y)
    page.until("document.querySelector('#pod-name')?.innerText === 'default/web-3'")
    page.until("/best of 12|as good/.test(document.querySelector('#why').innerText)")
    page.until("document.querySelectorAll('#scores tbody tr').length > 1")
    assert page.eval("location.hash") == "#pod=default%2Fweb-3"
    page.click_on("#waiting button")
    page.until("document.querySelector('#pod-name')?.innerText === 'default/giant'")
    page.until("document.querySelector('#why').innerText.includes('Insufficient cpu')")
    page.until("document.querySelector('#why .changes')?.innerText.includes('CPU')")
    page.screenshot(up.screenshots / "why.png")


def test_search(page: Page) -> None:
    page.press("/", text="/")
    page.until("document.activeElement.type === 'search'")
    page.type("web-5")
    page.until("document.querySelector('#found')?.innerText.startsWith('1 pods')")
    page.until("bayplan.plan.matches?.size === 1 && bayplan.plan.matches.has('default/web-5')")
    page.press("Enter")
    page.until("document.querySelector('#pod-name')?.innerText === 'default/web-5'")
    assert page.eval("location.hash") == "#pod=default%2Fweb-5"
    page.press("Escape")
    page.until("!document.querySelector('#found') && !bayplan.plan.matches && !document.querySelector('#pod-name')")
    assert page.eval("location.hash") == ""


def test_by_keyboard_alone(page: Page) -> None:
    page.eval("document.querySelector('canvas').focus()")
    page.press("ArrowRight")
    page.until("document.querySelector('#node-name')")
    first = page.text("#node-name")
    page.press("ArrowRight")
    page.until(f"document.querySelector('#node-name').innerText !== {json.dumps(first)}")
    said = page.text("[aria-live]") or page.eval("document.querySelector('[aria-live]').textContent")
    assert re.fullmatch(rf"node {page.text('#node-name')} in zone-\d, ready, \d+ pods, \d+ % of its cpu, .*", said)
    page.press("Enter")
    page.until("document.activeElement.id === 'details'")
    unnamed = """[...document.querySelectorAll('button, input, select, canvas, [role=img]')]
        .filter((each) => !(each.innerText || each.ariaLabel || each.labels?.length || each.closest('[aria-hidden]')))
        .map((each) => each.outerHTML)"""
    assert page.eval(unnamed) == []
    unreachable = "[...document.querySelectorAll('[onclick], .name')].filter((each) => each.tabIndex < 0).length"
    assert page.eval(unreachable) == 0


def test_zoom_and_move(page: Page) -> None:
    page.until("bayplan.plan.tiles.size > 0 && !bayplan.plan.frame")
    page.eval("document.querySelector('canvas').focus()")
    before, *home = page.eval("[bayplan.plan.view.scale, bayplan.plan.view.x, bayplan.plan.view.y]")
    page.press("+", text="+")
    page.until(f"bayplan.plan.view.scale > {before}")
    x, y = page.eval("[bayplan.plan.view.x, bayplan.plan.view.y]")
    page.call("Input.dispatchMouseEvent", type="mousePressed", x=300, y=300, button="left", clickCount=1)
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=200, y=300, button="left", buttons=1)
    page.call("Input.dispatchMouseEvent", type="mouseReleased", x=200, y=300, button="left", clickCount=1)
    page.until(f"bayplan.plan.view.x === {x + 100}")
    assert page.eval("bayplan.plan.view.y") == y, "it was pulled aside, neither up nor down"
    page.press("0", text="0")
    page.until(f"bayplan.plan.view.scale === {before}")
    assert page.eval("[bayplan.plan.view.x, bayplan.plan.view.y]") == home


def test_in_the_dark(up: EmbeddedProcess, browser: Browser) -> None:
    page = browser.open(up.url, dark=True)
    page.until("window.bayplan?.world.whole && bayplan.plan.tiles.size > 0 && !bayplan.plan.frame")
    dark = "getComputedStyle(document.body).backgroundColor"
    assert page.eval(dark) == "rgb(18, 22, 28)"
    assert pixel(page, "[1, 1]") == [12, 15, 20]
    page.screenshot(up.screenshots / "dark.png")
    choose = "document.querySelectorAll('header select')[1]"
    page.eval(f"{choose}.value = 'light', {choose}.dispatchEvent(new Event('change', {{bubbles: true}}))")
    page.until(f"{dark} === 'rgb(246, 247, 249)'")
    page.until("!bayplan.plan.frame")
    assert pixel(page, "[1, 1]") == [233, 237, 242]
    page.eval("localStorage.clear()")
    assert page.complaints == []
    page.close()


def test_a_page_left_open_over_a_restart_recovers(up: EmbeddedProcess, browser: Browser) -> None:
    page = browser.open(up.url)
    page.until("window.bayplan?.world.whole && bayplan.world.nodes.size === 12")
    began = page.eval("bayplan.world.about.began")
    page.eval("window.leftOpen = true")
    up.bayplan("cluster", "reset")
    page.until(f"bayplan.world.about.began !== {began} && bayplan.world.whole && bayplan.world.state === 'live'")
    page.until("bayplan.world.pods.size === 0 && document.querySelector('#pod-count').innerText === '0'")
    up.apply(*(manifest(f"web-{number}", "500m") for number in range(8)), manifest("giant", "64"))
    page.until("bayplan.world.pods.size === 9 && bayplan.world.waiting.size === 1")
    assert page.eval("window.leftOpen && bayplan.world.nodes.size") == 12, "the page was reloaded"
    page.close()


def test_a_connection_that_broke_leaves_nothing_twice(up: EmbeddedProcess, browser: Browser) -> None:
    with run_tcp_proxy(urlsplit(up.url).port or 0) as pipe:
        page = browser.open(f"http://127.0.0.1:{pipe.port}/page/")
        page.until("window.bayplan?.world.whole && bayplan.world.decisions.length >= 9")
        said, generation = "bayplan.world.decisions.map((each) => each.pod + each.at)", "bayplan.world.generation"
        before, told = page.eval(said), page.eval(generation)
        pipe.cut()
        page.until("bayplan.world.state === 'lost'")
        pipe.open()
        page.until(f"bayplan.world.state === 'live' && bayplan.world.whole && {generation} > {told}")
        page.until(f"{said}.length >= {len(before)}")
        assert page.eval(said) == before
        page.until("!bayplan.plan.frame")
        assert pixel(page, bay_of("default/web-0")) not in ([255, 255, 255], [0, 0, 0])
        page.close()


def test_markup_is_shown_as_text(page: Page, up: EmbeddedProcess) -> None:
    """Names of objects cannot contain markup; messages of schedulers and typed text can."""
    up.apply(manifest("odd", "1", schedulerName="absent"))
    page.until("bayplan.world.waiting.has('default/odd')")
    page.eval(f"bayplan.world.waiting.get('default/odd').message = {json.dumps(NASTY)}, bayplan.world.changed()")
    page.until(f"document.querySelector('#waiting').innerText.includes({json.dumps(NASTY)})")
    page.press("/", text="/")
    page.type(NASTY)
    page.until("document.querySelector('#found')?.innerText.startsWith('0 pods')")
    assert (page.eval("document.images.length"), page.eval("document.title")) == (0, "Bayplan")
    up.bayplan("delete", "pod", "odd")
