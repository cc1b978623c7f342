"""Headless Chromium, driven over its DevTools protocol by a client of a few lines."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

SECONDS = 60
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-port=0",
)  # fmt: skip


class Page:
    """A tab. problems: what the page wrote to the console as an error, such as what its policy does not allow.
    requested: the address of everything that it asked the network for."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._buffer, self._number = connection, b"", 0
        self.problems: list[str] = []
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        self._number += 1
        self._send(json.dumps({"id": self._number, "method": method, "params": parameters}).encode())
        while True:
            message = json.loads(self._receive())
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.problems.append(message["params"]["entry"]["text"])
            if message.get("method") == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
            if message.get("method") == "Runtime.exceptionThrown":
                self.problems.append(str(message["params"]["exceptionDetails"]))
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        """Waits until an expression of JavaScript is true; what the page shows is in the error."""
        waiting = f"""new Promise((resolve) => {{
            const ends = performance.now() + {1000 * SECONDS};
            const look = () => {condition} ? resolve(true)
                : performance.now() > ends ? resolve(false) : setTimeout(look, 20);
            look();
        }})"""
        assert self.run(waiting), self.run("document.body.innerText")

    def open(self, address: str, width: int = 1000, height: int = 900, dark: bool = False) -> None:
        """Loads a page in a window of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def type(self, text: str) -> None:
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """A key. code: of Windows' virtual keys. modifiers: 2 is Ctrl, 8 Shift."""
        text = "\r" if key == "Enter" and not modifiers else ""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                modifiers=modifiers, text=text if kind == "keyDown" else "",
            )  # fmt: skip

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _send(self, data: bytes) -> None:
        """A text frame, with a mask as clients must have (RFC 6455)."""
        mask = os.urandom(4)
        size = len(data)
        head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0xFE, size)
        assert size < 65536
        self._connection.sendall(head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(data)))

    def _receive(self) -> bytes:
        """The next message, of one frame or several."""
        message = b""
        while True:
            first, second = self._exactly(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self._exactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._exactly(8))
            message += self._exactly(size)
            if first & 0x80:
                return message

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            part = self._connection.recv(1 << 20)
            assert part, "Chromium has closed the connection"
            self._buffer += part
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found


@contextmanager
def browsing(folder: Path) -> Iterator[Page]:
    """A tab of a fresh Chromium with its profile in `folder`; skips where there is no Chromium, and fails
    there if BERTSMITH_NEEDS_BROWSER is set."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        missing = "there is no Chromium here (Debian: apt-get install chromium)"
        if os.environ.get("BERTSMITH_NEEDS_BROWSER"):
            pytest.fail(missing)
        pytest.skip(missing)
    command = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"ws://(127\.0\.0\.1:(\d+))", line):
                break
        else:
            pytest.fail("Chromium did not start")
        with urllib.request.urlopen(f"http://{found[1]}/json", timeout=SECONDS) as answer:
            (tab,) = [each for each in json.load(answer) if each["type"] == "page"]
        with closing(_handshaken(int(found[2]), tab["webSocketDebuggerUrl"].split(found[1])[1])) as connection:
            yield Page(connection)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def _handshaken(port: int, path: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=2 * SECONDS)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = ("Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13")
    connection.sendall("\r\n".join((f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *lines, "", "")).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    assert head.startswith(b"HTTP/1.1 101"), head
    return connection
