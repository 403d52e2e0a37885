"""A headless Chromium driven over its debugging pipe: no package needed, only the browser."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
# the pipes' descriptors may be 3 and 4 themselves, so they step aside first
_EXEC = """
import fcntl, os, sys
aside = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(aside[0], 3)
os.dup2(aside[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """Path of a Chromium: ``$CHROMIUM``, or one on the path."""
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in _NAMES if (found := shutil.which(name))), None)


@dataclass
class Tab:
    """A page in the browser, and everything it said and asked for."""

    reader: Any
    writer: Any
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _calls: int = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and wait for its answer."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.writer.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._calls:
            self.events.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def show(self, page: Path, width: int, height: int, *, dark: bool = False) -> None:
        """Open a file in a window of that size, and wait until it is loaded."""
        self.resize(width, height, dark=dark)
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the window a size and a scheme of colours."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=width < 600, **size)
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def told(self, method: str) -> list[dict[str, Any]]:
        """Parameters of every event of a kind since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def _read(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self.reader.read(1)) != b"\0":
            assert byte, "the browser ended"
            data += byte
        return dict(json.loads(data))


@contextmanager
def open_browser(program: str) -> Iterator[Tab]:
    """Start a browser with an empty profile; it reads from descriptor 3 and writes to 4."""
    its_read, our_write = os.pipe()
    our_read, its_write = os.pipe()
    ends = its_read, its_write
    with (
        os.fdopen(our_read, "rb") as reader,
        os.fdopen(our_write, "wb", 0) as writer,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        command = [sys.executable, "-c", _EXEC, *map(str, ends), program, *_OPTIONS]
        process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        try:
            yield _first_tab(Tab(reader, writer))
            writer.write(b'{"id": 0, "method": "Browser.close"}\0')
            process.wait(timeout=30)
        finally:
            process.kill()
            process.wait()


def _first_tab(tab: Tab) -> Tab:
    target = tab.call("Target.createTarget", url="about:blank")["targetId"]
    session = tab.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    tab.session = session
    for domain in ("Page", "Runtime", "Log", "Network"):
        tab.call(f"{domain}.enable")
    return tab
