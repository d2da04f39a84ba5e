"""A file server on this machine whose connections break, stall or refuse as a test asks."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Files:
    """What is served, how each answer in turn goes wrong, and what was asked for.

    Attributes:
        content: the files by path.
        faults: of the next answers, in order: None, a status, ("cut", bytes) or ("stall", bytes).
        ranges: whether ranges are known.
        asked: (path, Range header) of each request.
    """

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.faults: list[object] = []
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []
        self.go_on = threading.Event()
        self.address = ""


@contextmanager
def serving() -> Iterator[Files]:
    files = Files()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            files.asked.append((self.path, asked))
            fault = files.faults.pop(0) if files.faults else None
            content = files.content.get(self.path)
            self.close_connection = True
            if isinstance(fault, int) or content is None:
                self.send_error(fault if isinstance(fault, int) else 404)
                return
            first = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and files.ranges else 0
            if first >= len(content) and first:
                self.send_error(416)
                return
            self.send_response(206 if asked and files.ranges else 200)
            if asked and files.ranges:
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            kind, count = fault if isinstance(fault, tuple) else (None, len(content))
            self.wfile.write(content[first : first + count])
            self.wfile.flush()
            if kind == "stall":
                files.go_on.wait(10)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield files
    finally:
        files.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
