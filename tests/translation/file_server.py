"""A file server on this machine whose connections break, stall or refuse as a test asks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Files:
    """What is served, how each answer in turn goes wrong, and what was asked for.

    Attributes:
        content: the files by path.
        faults: of the next answers, in order: None, a status, ("cut", bytes) or ("stall", bytes).
        asked: the path of each request.
    """

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.faults: list[object] = []
        self.asked: list[str] = []
        self.go_on = threading.Event()
        self.address = ""


@contextmanager
def serving() -> Iterator[Files]:
    files = Files()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            files.asked.append(self.path)
            fault = files.faults.pop(0) if files.faults else None
            content = files.content.get(self.path)
            self.close_connection = True
            if isinstance(fault, int) or content is None:
                self.send_error(fault if isinstance(fault, int) else 404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            kind, count = fault if isinstance(fault, tuple) else (None, len(content))
            self.wfile.write(content[:count])
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
