"""Firefox without a window, driven by its own protocol: JSON over a socket, each message with its length in front.

https://firefox-source-docs.mozilla.org/testing/marionette/Protocol.html
"""

import json
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_PREFERENCES = {
    "marionette.port": 0,  # any that is free; which, it writes into its profile
    "network.proxy.type": 1,  # what is asked of a network goes nowhere
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "app.update.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "intl.accept_languages": "en",
}
_SECONDS = 120  # a busy machine takes its time


class Firefox:
    """A browser with one window, until it is left.

    Args:
        program: Its program.
        profile: An empty folder.
    """

    def __init__(self, program: str, profile: Path) -> None:
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in _PREFERENCES.items()]
        (profile / "user.js").write_text("\n".join(lines), encoding="utf-8")
        command = [program, "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._count = 0
        try:
            self._socket = socket.create_connection(("127.0.0.1", self._port(profile)), timeout=_SECONDS)
            self._file = self._socket.makefile("rb")
            self._read()  # it says who it is
            self.ask("WebDriver:NewSession")
            self.ask("WebDriver:SetTimeouts", script=1000 * _SECONDS, pageLoad=1000 * _SECONDS)
        except BaseException:
            self._process.kill()
            raise

    def _port(self, profile: Path) -> int:
        there, end = profile / "MarionetteActivePort", time.monotonic() + _SECONDS
        while not (there.exists() and there.read_text().strip()):
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("Firefox does not start")
            time.sleep(0.05)
        return int(there.read_text())

    def __enter__(self) -> "Firefox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()

    def _read(self) -> Any:
        length = b""
        while (digit := self._file.read(1)) != b":":
            if not digit:
                raise RuntimeError("Firefox has gone")
            length += digit
        return json.loads(self._file.read(int(length)))

    def ask(self, command: str, **parameters: Any) -> Any:
        """What a command answers."""
        self._count += 1
        message = json.dumps([0, self._count, command, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._read()
        if error:
            raise RuntimeError(f"{command}: {error['error']}: {error['message']}")
        return result

    def go(self, address: str) -> None:
        """Open a page."""
        self.ask("WebDriver:Navigate", url=address)

    def until(self, condition: str) -> Any:
        """The value of an expression of JavaScript, once it is true."""
        script = f"""
            const done = arguments[arguments.length - 1];
            const look = () => {{ const found = {condition}; found ? done(found) : setTimeout(look, 20); }};
            look();"""
        return self.ask("WebDriver:ExecuteAsyncScript", script=script, args=[])["value"]

    def keys(self, text: str) -> None:
        """Press keys, one after the other; those without a letter are numbered as WebDriver has them."""
        pressed = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self.ask("WebDriver:PerformActions", actions=[{"type": "key", "id": "keyboard", "actions": pressed}])
