"""`dikkat serve`."""

import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dikkat.cli.app import Command, app, option
from dikkat.errors import InputError
from dikkat.extras import needing

_LIMITS = "Limits"


@app.command(
    cls=Command,
    epilog="Examples:\n\ndikkat serve my-model\n\ndikkat serve english-french english-german --port 8080 --queue 256",
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
    queue: Annotated[
        int, typer.Option(help="Most sentences that may wait.", min=1, metavar="N", rich_help_panel=_LIMITS)
    ] = 1024,
    seconds: Annotated[
        float, typer.Option(help="Longest time for a request, in seconds.", metavar="NUMBER", rich_help_panel=_LIMITS)
    ] = 30.0,
) -> None:
    """Serve translators over HTTP: a page for people, a JSON API for programs. Ctrl-C ends it."""
    with needing("serve"):
        from dikkat.serving import Limits, create_app
        from dikkat.serving.server import run
        from dikkat.translation import Search, SettingsError, Translator

    try:
        limits = Limits(queue=queue, seconds=seconds)
    except InputError as error:
        raise InputError(f"--{error}") from None
    for each in allow_origin or []:
        if each != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+", each):  # as browsers write them
            raise InputError(f"--allow-origin: got {each!r}; expected scheme and host in small letters")
    hosts, folders = _hosts(host, name or []), _by_name(models)
    address, port = _free_address(host, port)
    translators = {name: Translator.load(folder) for name, folder in folders.items()}
    for translator in translators.values():  # compiles kernels, or reads their cache, before the server listens
        translator.translate("a", search=Search())  # a text without letters would be copied
        with suppress(SettingsError):  # the model or the processor has no int8
            translator.translate("a", search=Search(precision="int8"))
    application = create_app(translators, limits=limits, hosts=hosts, origins=allow_origin or [])
    run(application, address, port, seconds=seconds)


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


def _free_address(host: str, port: int) -> tuple[str, int]:
    """The IP address of a host and a port that is free there, found before models are loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listening:
            address, port = listening.getsockname()[:2]
            return address, port
    except OSError as error:
        raise InputError(f"{host}:{port}: {error.strerror or error}; choose another --port or --host") from None
