"""`dikkat serve`."""

import json
import logging
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from dikkat.cli.app import Command, app, option
from dikkat.errors import InputError
from dikkat.extras import needing

_LIMITS = "Limits"
_SETTINGS = "DIKKAT_SERVE"
"""The environment variable that tells the processes of several workers what to serve."""


@app.command(
    cls=Command,
    epilog="Examples:\n\ndikkat serve my-model\n\n"
    "dikkat serve english-french english-german --port 8080 --rate 20/second",
)
def serve(
    models: Annotated[list[Path], typer.Argument(help="Model folders that `dikkat train` made.", show_default=False)],
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0: all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.", min=0, max=65535, metavar="N")] = 8000,
    name: Annotated[
        list[str] | None,
        option("A name by which others reach this machine; for use with --host. May be given several times.", "HOST"),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        option("A site whose pages may use the server, such as https://example.org. [default: none]", "ORIGIN"),
    ] = None,
    rate: Annotated[
        str | None,
        option("Most requests of one address, such as 20/second. [default: any number]", "RATE", panel=_LIMITS),
    ] = None,
    queue: Annotated[
        int, typer.Option(help="Most sentences that may wait.", min=1, metavar="N", rich_help_panel=_LIMITS)
    ] = 1024,
    seconds: Annotated[
        float,
        typer.Option(help="Longest time for a request, in seconds.", metavar="NUMBER", rich_help_panel=_LIMITS),
    ] = 30.0,
    workers: Annotated[
        int, typer.Option(help="Processes, each with the models and a queue of its own.", min=1, metavar="N")
    ] = 1,
) -> None:
    """Serve translators over HTTP: a page for people, a JSON API for programs. Ctrl-C ends it."""
    with needing("serve"):
        import uvicorn

        from dikkat.serving import Limits
        from dikkat.serving.connections import bounded
        from dikkat.translation import Translator

    limits = {"rate": rate, "queue": queue, "seconds": seconds}
    try:
        Limits(**limits)  # type: ignore[arg-type]  # a fault is said here, and not by a worker
    except InputError as error:
        raise InputError(f"--{error}") from None
    for each in allow_origin or []:
        if each != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+", each):  # as browsers write them
            raise InputError(f"--allow-origin: got {each!r}; expected scheme and host in small letters")
    hosts, folders = _hosts(host, name or []), _by_name(models)
    _check_free(host, port)
    settings = {"models": folders, "limits": limits, "hosts": hosts, "origins": allow_origin or []}
    target: Any = "dikkat.cli.serve:application"
    if workers == 1:
        target = _made(settings)
    else:
        for folder in models:  # a fault of one is said here, and not by every worker
            Translator.load(folder)
        os.environ[_SETTINGS] = json.dumps(settings)
    uvicorn.run(
        target, host=host, port=port, workers=workers, factory=workers > 1, log_level="info", access_log=False,
        server_header=False, proxy_headers=False, timeout_graceful_shutdown=int(seconds) + 1,
        timeout_worker_healthcheck=120, **bounded(seconds),
    )  # fmt: skip


def _hosts(host: str, names: list[str]) -> list[str]:
    """The names by which the server may be addressed; where it listens everywhere without names, any."""
    if host in ("0.0.0.0", "::") and not names:
        return ["*"]
    own = [f"[{each}]" if ":" in each and each[0] != "[" else each for each in (host, *names)]
    if odd := [each for each in own if "*" in each]:
        raise InputError(f"--name: got {odd[0]}; expected the name of a host")
    return list(dict.fromkeys(["localhost", "127.0.0.1", "[::1]", *own]))


def _by_name(models: list[Path]) -> dict[str, str]:
    """The folders of models by the names that requests call them."""
    folders: dict[str, str] = {}
    for folder in models:
        name = folder.resolve().name
        if name in folders:
            raise InputError(f"models: got two of the name {name}; expected names that differ: rename a folder")
        folders[name] = str(folder)
    return folders


def _check_free(host: str, port: int) -> None:
    """A check that the port is free, before models are loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise InputError(f"{host}:{port}: {error.strerror or error}; choose another --port or --host") from None


def application() -> Any:
    """The ASGI application that the environment describes: one for each worker."""
    return _made(json.loads(os.environ[_SETTINGS]))


def _made(settings: dict[str, Any]) -> Any:
    from dikkat.serving import Limits, create_app
    from dikkat.serving.connections import Few
    from dikkat.translation import Search, Translator

    for logger in ("asyncio", "dikkat", "uvicorn.error"):
        logging.getLogger(logger).addFilter(Few())
    translators = {name: Translator.load(folder) for name, folder in settings["models"].items()}
    for translator in translators.values():  # what is compiled, or read from its cache, is there before it listens
        for precision in ("float32", "int8"):
            with suppress(InputError):  # a model, or a processor, that has no int8
                translator.translate(".", search=Search(precision=precision))
    limits = Limits(**settings["limits"])
    return create_app(translators, limits=limits, hosts=settings["hosts"], origins=settings["origins"])
