"""A web server on this machine that cuts connections, changes its mind and tells lies, as a test says."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Behaviour:
    """What the server does, changed by a test while it runs. cuts: bytes after which successive answers are cut.
    off_by: where partial answers begin, from what was asked for. headers: beside or in place of its own."""

    files: dict[str, bytes] = field(default_factory=dict)
    etag: str = '"one"'
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    honours_if_range: bool = True
    says_length: bool = True
    off_by: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    after_cut: object = None
    asked: list[dict[str, str]] = field(default_factory=list)


class Server(ThreadingHTTPServer):
    behaviour: Behaviour


class Handler(BaseHTTPRequestHandler):
    """A web server that does as `Behaviour` says."""

    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        how = self.server.behaviour
        how.asked.append({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
        if how.statuses and (status := how.statuses.pop(0)) != 200:
            self.send_response(status)
            self.send_header("Retry-After", how.headers.get("Retry-After", "0"))
            self.end_headers()
        elif self.path in how.redirects:
            self.send_response(302)
            self.send_header("Location", how.redirects[self.path])
            self.end_headers()
        elif self.path not in how.files:
            self.send_error(404)
        else:
            self._give(how, how.files[self.path])

    def _give(self, how: Behaviour, body: bytes) -> None:
        first = 0
        ranged = self.headers.get("Range")
        if ranged and how.ranges and (not how.honours_if_range or self.headers.get("If-Range", how.etag) == how.etag):
            first = int(ranged.removeprefix("bytes=").removesuffix("-")) + how.off_by
        if first >= len(body) > 0:
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        if how.etag:
            self.send_header("ETag", how.etag)
        if how.says_length:
            self.send_header("Content-Length", str(len(body) - first))
        for name, value in how.headers.items():
            self.send_header(name, value)
        self.end_headers()
        rest = body[first:]
        cut = how.cuts.pop(0) if how.cuts else len(rest)
        self.wfile.write(rest[:cut])
        self.wfile.flush()
        if cut < len(rest):
            self.close_connection = True
            if callable(how.after_cut):
                how.after_cut(how)


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """The address of a server that behaves so."""
    made = Server(("127.0.0.1", 0), Handler)
    made.behaviour = behaviour
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}"
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def zipped(contents: dict[str, bytes], around: str = "") -> bytes:
    """A zip to give. around: the folder that its files lie in."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, body in contents.items():
            packed.writestr(around + name, body)
    return made.getvalue()
