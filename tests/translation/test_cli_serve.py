"""`dikkat serve` as a process, and clients that come and go."""

import asyncio
import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from command import command_line
from dikkat.errors import InputError
from dikkat.serving import server
from dikkat.translation import SettingsError, Translator


@pytest.fixture(scope="module")
def folder(tmp_path_factory, translator):
    path = tmp_path_factory.mktemp("models") / "small"
    translator.save(path)
    return path


@pytest.fixture
def dikkat(monkeypatch, capsys):
    return command_line(monkeypatch, capsys, "serve")


@contextlib.contextmanager
def served(*arguments, descriptors):
    """A server of its own, which may open so many files, and its address."""
    command = [sys.executable, "-m", "dikkat", "serve", *map(str, arguments), "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
    )  # fmt: skip
    try:
        for line in process.stderr:
            if found := re.search(r"Serving at (http://\S+)", line):
                break
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def test_silent_connections_do_not_stop_answers_and_a_signal_waits_for_the_last_one(folder):
    with served(folder, descriptors=64) as (process, address), contextlib.ExitStack() as stack:
        assert address.startswith("http://127.0.0.1:")
        answer = httpx.post(f"{address}/api/translate", json={"text": "I lost."}, timeout=60).json()
        assert answer["translations"][0]["target"] == "J'ai perdu."
        (model,) = httpx.get(f"{address}/api/models").json()
        whole, bare = httpx.get(address, timeout=60), httpx.head(address)
        assert (bare.status_code, bare.headers["ETag"], bare.content) == (200, whole.headers["ETag"], b"")
        assert bare.headers["Content-Length"] == whole.headers["Content-Length"]
        assert model["name"] == "small"

        host, port = address.removeprefix("http://").split(":")
        for _ in range(99):  # connections that say nothing, more than the server may have files
            stack.enter_context(socket.create_connection((host, int(port)), 60))
        with socket.create_connection((host, int(port))) as left:  # a client that leaves in the middle of its request
            left.sendall(b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        deadline = time.monotonic() + 60
        metrics = f"{address}/metrics"
        while 'status="499"' not in (counted := httpx.get(metrics, timeout=60).text) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert 'dikkat_requests_total{path="/api/translate",status="499"} 1.0' in counted
        assert httpx.post(f"{address}/api/translate", json={"text": "Go."}, timeout=60).status_code == 200

        client = stack.enter_context(socket.create_connection((host, int(port)), 60))
        head = b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head + b'Content-Length: 19\r\n\r\n{"text": ')
        assert httpx.get(f"{address}/api/health", timeout=60).status_code == 200  # accepted after the client above
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        client.sendall(b'"I lost."}')
        assert client.recv(12) == b"HTTP/1.1 200"
        assert process.wait(60) == 0


class Idle:
    """A server that listens nowhere, until it is stopped."""

    def __init__(self, stopped):
        self.stopped = stopped

    async def serve(self):
        while not self.stopped:
            await asyncio.sleep(0.01)

    def stop(self):
        self.stopped = True


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_a_server_that_stops_before_it_listens_ends(monkeypatch, number):
    before = signal.getsignal(signal.SIGTERM)
    # As on Windows, where the event loop has no signal handlers.
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", asyncio.AbstractEventLoop.add_signal_handler)

    async def served():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            if number is not None:
                asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), number)
            serving = server._serve(Idle(stopped=number is None), *free.getsockname(), 1.0)
            await asyncio.wait_for(serving, 60)

    asyncio.run(served())
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_model_that_cannot_translate_is_no_server(dikkat, folder, monkeypatch):
    monkeypatch.setattr(server, "run", lambda *_, **__: None)
    monkeypatch.setattr(Translator, "translate", lambda self, text, search: fail(search.precision))

    def fail(precision):
        raise failures[precision] if precision in failures else AssertionError(precision)

    failures = {"float32": InputError("weights: got infinite ones")}
    status, _, err = dikkat(folder)
    assert (status, "weights: got infinite ones" in err) == (2, True)
    monkeypatch.setattr(Translator, "translate", lambda self, text, search: search.precision == "int8" and fail("int8"))
    failures = {"int8": SettingsError("precision: got 'int8'")}
    assert dikkat(folder)[0] == 0
    failures = {"int8": InputError("W_q: got infinite weights")}
    assert dikkat(folder)[0] == 2


def test_a_port_in_use(dikkat, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = dikkat(folder, "--port", port)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert f"127.0.0.1:{port}" in err
    assert "in use" in err


def test_models_that_cannot_be_served(dikkat, folder, tmp_path):
    status, _, err = dikkat(tmp_path / "nothing")
    assert status == 2
    assert err.count("\n") == 1
    (tmp_path / "small").mkdir()
    status, _, err = dikkat(folder, tmp_path / "small")
    assert (status, "two folders named small" in err) == (2, True)
    origins = [("--allow-origin", each) for each in ("example.org", "https://example.org/", "https://Example.org")]
    for option, value in [("--seconds", "0"), *origins]:
        status, _, err = dikkat(folder, option, value)
        assert (status, err.count("\n")) == (2, 1)
        assert f" {option}: got " in err
