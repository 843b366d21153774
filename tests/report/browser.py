"""A headless Chromium spoken to over a pair of pipes: open a page at a width, press keys, ask what it shows."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

from tests.processes import PATIENCE

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """The browser's program, or None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class BrowserError(RuntimeError):
    """The browser is gone or hangs."""


class Browser:
    """One page of a headless Chromium.

    Attributes:
        complaints: Everything the page wrote to its console as an error or warning, and every request but the page.
    """

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the browser runs
        commands_out, self._commands = os.pipe()
        self._answers_fd, answers_in = os.pipe()
        # above the numbers 3 and 4, where Chromium looks for its pipes
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands_out, answers_in)]

        def place_pipes() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(3, 4),
            preexec_fn=place_pipes,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
        )
        for end in (commands_out, answers_in, *ends):
            os.close(end)
        self._answers = os.fdopen(self._answers_fd, "rb")
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        try:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.ask(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        try:
            os.write(self._commands, json.dumps(message).encode() + b"\0")
        except BrokenPipeError as error:
            raise BrowserError(f"the browser has ended; it said: {self._last_words()}") from error
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, page: Path, width: int, height: int, *, dark: bool = False) -> None:
        """Show a file at a size, and forget earlier complaints."""
        self.complaints = []
        phone = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while self._read_event() != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and let go of a key, wherever the focus is."""
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        os.close(self._commands)
        self._profile.cleanup()
        self._said.close()

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers_fd], [], [], PATIENCE)
            part = os.read(self._answers_fd, 1 << 20) if ready else b""
            if not part:
                how = "has ended" if ready else "does not answer"
                raise BrowserError(f"the browser {how}; it said: {self._last_words()}")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _last_words(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")[-4000:]

    def _read_event(self) -> str:
        event = self._read()
        self._note(event)
        return event.get("method", "")

    def _note(self, event: dict[str, Any]) -> None:
        method, found = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(found["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(found["args"]))
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.complaints.append(found["entry"]["text"])
        elif method == "Network.requestWillBeSent" and found["request"]["url"].split(":")[0] not in ("file", "data"):
            self.complaints.append(f"request for {found['request']['url']}")
