"""Chromium without a window, driven over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_S, WAIT_S = 90.0, 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
Result = TypeVar("Result")


def chromium() -> str | None:
    """The command of a browser; None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class NoPage(Exception):
    """The browser refused a command, for example because the page has just been left."""


class Browser:
    """One page of a browser."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._number = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self.problems: list[str] = []
        """Errors of scripts, content that the policy refused, and dialogs."""
        self.hosts: set[str] = set()
        """Addresses to which the page has sent requests."""
        self._run(self._connect(port))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def _run(self, steps: Awaitable[Result]) -> Result:
        return self._loop.run_until_complete(asyncio.wait_for(steps, WAIT_S))

    async def _connect(self, port: int) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json") as found:
            pages = [one for one in await found.json() if one["type"] == "page"]
        self._socket = await self._session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)

    def send(self, method: str, **values: Any) -> dict[str, Any]:
        return self._run(self._sent(method, values))

    async def _sent(self, method: str, values: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        number = self._number
        await self._socket.send_json({"id": number, "method": method, "params": values})
        while number not in self._replies:
            self._note(json.loads((await self._socket.receive()).data))
        reply = self._replies.pop(number)
        if "error" in reply:
            raise NoPage(f"{method}: {reply['error']}")
        found: dict[str, Any] = reply["result"]
        return found

    def _note(self, said: dict[str, Any]) -> None:
        if "id" in said:
            self._replies[said["id"]] = said
        elif said["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(said["params"]["exceptionDetails"])[:600])
        elif said["method"] == "Log.entryAdded":
            self._note_entry(said["params"]["entry"])
        elif said["method"] == "Page.javascriptDialogOpening":
            self.problems.append(f"a dialog of a script: {said['params']['message']}")
        elif said["method"] == "Network.requestWillBeSent":
            self.hosts.add(said["params"]["request"]["url"].partition("//")[2].partition("/")[0])

    def _note_entry(self, entry: dict[str, Any]) -> None:
        """Without refused requests: an answer that is late on a busy machine is asked for again."""
        if entry["level"] == "error" and entry["source"] != "network":
            self.problems.append(f"{entry['text']} {entry.get('url')}")

    def value(self, code: str) -> Any:
        """The value of an expression."""
        found = self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def until(self, code: str) -> None:
        """Wait for an expression to be true.  While a page is loaded, there may be nothing to look at."""
        end = time.monotonic() + WAIT_S
        while not self._is_true(code):
            assert time.monotonic() < end, f"{code} did not become true; the page has {self.text()!r}"
            time.sleep(0.05)

    def _is_true(self, code: str) -> bool:
        try:
            return bool(self.value(f"(() => {{ try {{ return Boolean({code}); }} catch {{ return false; }} }})()"))
        except NoPage:
            return False

    def text(self) -> str:
        return str(self.value("document.body.innerText"))

    def shows(self, text: str) -> None:
        """Wait for a text on the page."""
        self.until(f"document.body.innerText.includes({json.dumps(text)})")

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            for kind in ("keyDown", "keyUp"):
                self.send("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "")

    def picture(self, file: Path) -> None:
        found = self.send("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(found["data"]))

    def size(self, width: int, height: int, scale: float = 1.0) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def scheme(self, name: str) -> None:
        """`dark` or `light`, as the user's system says."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def close(self) -> None:
        self._run(self._session.close())
        self._loop.close()


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a fresh profile in a folder."""
    command = chromium()
    assert command is not None, "there is no chromium"
    process = subprocess.Popen(
        [command, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        page = Browser(_port(folder / "DevToolsActivePort", process))
        try:
            yield page
        finally:
            page.close()
    finally:
        process.kill()
        process.wait()


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise AssertionError(f"chromium did not start: exit status {process.poll()}")
