"""A headless Chromium with one page, controlled over a pipe, with the standard library only (no port, no WebSocket).

    with Browser(tmp_path) as browser:
        page = browser.open("http://127.0.0.1:8080/page/")
        page.until("document.title === 'Bayplan'")

Console messages and exceptions of a page are in `page.complaints`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from browser.fetch import Chromium, found
from support.harness.deadlines import DEADLINE_S

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--ignore-certificate-errors",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_INTO, _OUT_OF = 3, 4
"""The file descriptors that Chromium uses for the pipes."""

Tree = dict[str, Any]


class Browser:
    """One process, ended by its own pid at the end of the block."""

    def __init__(self, folder: Path, *flags: str, chromium: Chromium | None = None, size: str = "1280,800") -> None:
        chromium = chromium or found()
        assert chromium is not None, "there is no Chromium"
        ours_in, theirs_out = (_high(each) for each in os.pipe())
        theirs_in, ours_out = (_high(each) for each in os.pipe())

        def numbered() -> None:
            os.dup2(theirs_in, _INTO)
            os.dup2(theirs_out, _OUT_OF)

        profile = folder / f"profile-{time.monotonic_ns()}"
        self._log = (folder / "chromium.log").open("ab")
        self._process = subprocess.Popen(
            [chromium.program, *FLAGS, f"--user-data-dir={profile}", f"--window-size={size}", *flags, "about:blank"],
            env=chromium.environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            close_fds=False,  # only these two descriptors are inherited
            preexec_fn=numbered,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._buffer = b""
        self._calls = 0
        self.pages: dict[str, Page] = {}

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._out)  # which ends it
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._log.close()

    def open(self, url: str, *, dark: bool = False) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session, target)
        for domain in ("Runtime", "Page", "Log"):
            page.call(f"{domain}.enable")
        if dark:
            page.prefer_dark()
        page.call("Page.navigate", url=url)
        return page

    def call(self, method: str, session: str = "", **params: Any) -> Tree:
        """Send a command and wait for its result; events that arrive meanwhile are stored with their page."""
        self._calls += 1
        number = self._calls
        message: Tree = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + DEADLINE_S
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: Tree = answer["result"]
                return found
            self._note(answer)

    def _next(self, deadline: float, what: str) -> Tree:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium did not answer to {what} within {DEADLINE_S:g} s"
            data = os.read(self._in, 1 << 20)
            assert data, f"Chromium has ended, during {what}; see {self._log.name}"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: Tree = json.loads(line)
        return found

    def _note(self, event: Tree) -> None:
        page = self.pages.get(event.get("sessionId", ""))
        if page is not None:
            page.note(event["method"], event["params"])


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self.complaints: list[str] = []

    def call(self, method: str, **params: Any) -> Tree:
        return self._browser.call(method, self._session, **params)

    def close(self) -> None:
        self._browser.pages.pop(self._session)
        self._browser.call("Target.closeTarget", targetId=self._target)

    def note(self, method: str, params: Tree) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")

    def eval(self, script: str) -> Any:
        """The value of an expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = DEADLINE_S) -> None:
        """Wait until an expression holds."""
        deadline = time.monotonic() + seconds
        while not self.eval(f"!!({script})"):
            if time.monotonic() > deadline:
                seen = self.eval("document.body.innerText")
                raise AssertionError(f"never true: {script}\n{seen}\n{self.complaints}")
            time.sleep(0.1)

    def text(self, selector: str) -> str:
        return str(self.eval(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click_on(self, selector: str) -> None:
        """The centre of an element."""
        middle = "[b.x + b.width / 2, b.y + b.height / 2]"
        box = self.eval(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView();"
            f" const b = e.getBoundingClientRect(); return {middle}; }})()"
        )
        self.click(*box)

    def press(self, key: str, *, text: str = "") -> None:
        codes = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}
        code = codes.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **typed)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def prefer_dark(self) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def _high(number: int) -> int:
    """A duplicate of the pipe with a descriptor that does not collide with Chromium's two."""
    other = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(number)
    return other
