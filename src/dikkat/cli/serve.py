"""`dikkat serve`."""

import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dikkat.cli.app import Command, app, option
from dikkat.errors import InputError
from dikkat.extras import require_extra

_LIMITS = "Limits"


@app.command(
    cls=Command,
    epilog="Examples:\n\ndikkat serve my-model\n\ndikkat serve english-french english-german --port 8080 --queue 256",
)
def serve(
    models: Annotated[list[Path], typer.Argument(help="Model folders from `dikkat train`.", show_default=False)],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0: all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535, metavar="N")] = 8000,
    name: Annotated[
        list[str] | None, option("With --host: a host name by which clients reach this machine. Repeatable.", "HOST")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        option("A site whose pages may call the server, such as https://example.org. [default: none]", "ORIGIN"),
    ] = None,
    queue: Annotated[
        int, typer.Option(help="Maximum number of waiting sentences.", min=1, metavar="N", rich_help_panel=_LIMITS)
    ] = 1024,
    seconds: Annotated[
        float, typer.Option(help="Maximum time of a request, in seconds.", metavar="NUMBER", rich_help_panel=_LIMITS)
    ] = 30.0,
) -> None:
    """Serve translators over HTTP, with a page and a JSON API. Press Ctrl-C to stop."""
    with require_extra("serve"):
        from dikkat.serving import Limits, create_app
        from dikkat.serving.server import run
        from dikkat.translation import Search, SettingsError, Translator

    try:
        limits = Limits(queue=queue, seconds=seconds)
    except InputError as error:
        raise InputError(f"--{error}") from None
    for origin in allow_origin or []:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+", origin):  # as browsers send them
            raise InputError(f"--allow-origin: got {origin!r}; expected scheme and host in lower case")
    hosts, folders = _allowed_hosts(host, name or []), _folders_by_name(models)
    address, port = _find_free_address(host, port)
    translators = {name: Translator.load(folder) for name, folder in folders.items()}
    for translator in translators.values():  # compile the kernels before the server listens
        translator.translate("a", search=Search())  # a text without letters would be copied
        with suppress(SettingsError):  # the model or the processor does not support int8
            translator.translate("a", search=Search(precision="int8"))
    application = create_app(translators, limits=limits, hosts=hosts, origins=allow_origin or [])
    run(application, address, port, seconds=seconds)


def _allowed_hosts(host: str, names: list[str]) -> list[str]:
    """Return the allowed values of the Host header; any, for a server on all addresses without names."""
    if host in ("0.0.0.0", "::") and not names:
        return ["*"]
    hosts = [f"[{name}]" if ":" in name and name[0] != "[" else name for name in (host, *names)]
    if wildcards := [name for name in hosts if "*" in name]:
        raise InputError(f"--name: got {wildcards[0]}; expected the name of a host")
    return list(dict.fromkeys(["localhost", "127.0.0.1", "[::1]", *hosts]))


def _folders_by_name(models: list[Path]) -> dict[str, str]:
    folders: dict[str, str] = {}
    for folder in models:
        name = folder.resolve().name
        if name in folders:
            raise InputError(f"models: got two folders named {name}; expected different names: rename a folder")
        folders[name] = str(folder)
    return folders


def _find_free_address(host: str, port: int) -> tuple[str, int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as server:
            address, port = server.getsockname()[:2]
            return address, port
    except OSError as error:
        raise InputError(f"{host}:{port}: {error.strerror or error}; choose another --port or --host") from None
