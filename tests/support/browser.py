"""Debian's chromium, driven over its debugging protocol: pages with a user's cookie, what they show, what they request."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tidemark.processes import wait_until

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
"""Flags of a browser without a window, which asks for nothing by itself."""
_FLAGS = (*QUIET, "--hide-scrollbars", "--remote-debugging-port=0", "--remote-allow-origins=*", "--no-proxy-server")
_START_S, _ANSWER_S = 120, 60
_REPLACED = {"Inspected target navigated or closed", "Execution context was destroyed."}
"""The errors with which chromium answers a command if another page replaces the one that was asked."""
_CONNECTION: dict[str, Any] = {
    "max_size": None,
    "max_queue": None,
    "ping_interval": None,
    "proxy": None,
    "open_timeout": _START_S,
}
"""A test may do something else for a minute while the page sends events. With a bounded queue the client stops reading at
the sixteenth, does not see the answer to its own ping either, and closes the connection."""


class PageReplaced(AssertionError):
    """The page was replaced by another one before it answered."""


class Tab:
    """One page. `errors` are messages of its console that are errors, `requests` the addresses that it asked for."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result, noting the events that come before it. Raises `PageReplaced`."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": params}))
        ends = time.monotonic() + _ANSWER_S
        while True:
            message = json.loads(self._connection.recv(timeout=max(0.1, ends - time.monotonic())))
            if message.get("id") == self._number:
                if message.get("error", {}).get("message") in _REPLACED:
                    raise PageReplaced(method)
                assert "error" not in message, (method, message["error"])
                found: dict[str, Any] = message["result"]
                return found
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def look_like(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Set the size of the window in CSS pixels, and the colours that the system asks for."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Load a page and wait until it, and not the page before it, is complete."""
        self.value("window.isBefore = true")
        self.call("Page.navigate", url=address)
        self.wait_for("!window.isBefore && document.readyState === 'complete'")

    def value(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition: str, timeout_s: float = _ANSWER_S) -> None:
        """Wait until an expression is true. A page without a body, or that another one replaces, counts as not yet true."""
        script = f"document.body !== null && ({condition})"

        def is_true() -> bool:
            try:
                return bool(self.value(script))
            except PageReplaced:
                return False

        assert wait_until(is_true, timeout_s, every_s=0.2), condition

    def barriers(self) -> list[str]:
        """Return what axe finds in the page that keeps people from reading or using it: rule, help, and the elements."""
        # The package has the script beside code for Playwright, which is not installed.
        package = find_spec("axe_playwright_python")
        assert package is not None
        assert package.origin is not None
        self.value(f"{Path(package.origin).with_name('axe.min.js').read_text(encoding='utf-8')};0")
        found: list[str] = self.value(
            "axe.run().then(all => all.violations.map(one => "
            "`${one.id}: ${one.help}: ${one.nodes.map(node => node.html.slice(0, 150)).join(' ')}`))"
        )
        return found

    def press(self, key: str) -> None:
        """Press and release a key such as `Tab`."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=9 if key == "Tab" else 13
            )

    def set_cookie(self, name: str, value: str, address: str) -> None:
        """Set a cookie for a server."""
        self.call("Network.setCookie", name=name, value=value, url=address)

    def picture(self, path: Path, *, whole: bool = True) -> Path:
        """Write a PNG of the window, or of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))
        return path


@contextmanager
def open_tab(folder: Path) -> Iterator[Tab]:
    """Start a browser with a profile in `folder`, and yield its page. At the end nothing of it is left."""
    profile = folder / "profile"
    port_file = profile / "DevToolsActivePort"
    chromium = shutil.which("chromium")
    assert chromium is not None, "no chromium: on Debian `apt-get install chromium`"
    browser = subprocess.Popen(
        [chromium, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(lambda: port_file.exists() and len(port_file.read_text().split()) == 2, _START_S)
        port, path = port_file.read_text().split()
        with connect(f"ws://127.0.0.1:{port}{path}", **_CONNECTION) as root:
            root.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
            while (answer := json.loads(root.recv(timeout=_ANSWER_S))).get("id") != 1:
                pass
            target = answer["result"]["targetId"]
            address = f"ws://127.0.0.1:{port}/devtools/page/{target}"
            with connect(address, **_CONNECTION) as connection:
                yield Tab(connection)
    finally:
        browser.terminate()
        try:
            browser.wait(60)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait()
