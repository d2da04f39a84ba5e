"""The page of a model, packed once: some megabytes, which a browser fetches once as well."""

import gzip
import hashlib

from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import Headers

from dikkat.serving.guards import PAGE_POLICY


class Page:
    """A page as it goes over a network.

    Args:
        text: The page.
    """

    def __init__(self, text: str) -> None:
        self._whole = text.encode()
        self._packed = gzip.compress(self._whole, mtime=0)
        # Weak, since both forms have it.
        tag = f'W/"{hashlib.sha256(self._whole).hexdigest()[:32]}"'
        # An answer of 304 has all of them too: a browser puts them in the place of those that it kept.
        self._headers = {
            "Cache-Control": "no-cache",  # keep it, and ask whether it is still the same
            "Content-Security-Policy": PAGE_POLICY,
            "ETag": tag,
            "Vary": "Accept-Encoding",
        }
        self._tag = tag.removeprefix("W/")

    def answer(self, asked: Headers) -> Response:
        """The page, gzipped where the reader takes that; nothing where the reader has it.

        Args:
            asked: The request's headers.
        """
        known = {each.strip().removeprefix("W/") for each in asked.get("if-none-match", "").split(",")}
        if known & {self._tag, "*"}:
            return Response(status_code=304, headers=self._headers)
        if _takes_gzip(asked.get("accept-encoding", "")):
            return HTMLResponse(self._packed, headers=self._headers | {"Content-Encoding": "gzip"})
        return HTMLResponse(self._whole, headers=self._headers)


def _takes_gzip(accepted: str) -> bool:
    """RFC 9110, section 12.5.3: names of codings, each with a weight; 0: not that one."""
    weights = {}
    for each in accepted.lower().split(","):
        name, _, weight = each.partition(";")
        weights[name.strip()] = weight.replace(" ", "").removeprefix("q=")
    given = weights.get("gzip", weights.get("*", "0"))
    return given.strip("0.") != "" or given == ""
