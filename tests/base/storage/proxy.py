"""What goes wrong between a client and a store, done to requests on their way to a real server: for tests."""

import socket
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    """A request, of which `number - 1` went before it."""

    number: int
    method: str
    path: str


class FaultyProxy:
    """A proxy on loopback, while it is open."""

    def __init__(self, url):
        self.latency_seconds, self.requests, self.lock = 0, 0, threading.Lock()
        self.fault = lambda request: None
        """Says what befalls a `Request`: nothing (None), a status such as 503, "drop" (no answer, and the
        connection closed), "cut" (half of the answer), or "hang" (no answer). "after 503" and "after drop":
        the same, when the server has done what was asked."""
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self.server_url, self.url = url, "http://{}:{}".format(*self._server.server_address)

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def next_fault(self, method, path):
        """Return whether the next request takes effect, and what befalls it."""
        with self.lock:
            self.requests += 1
            fault = self.fault(Request(self.requests, method, path))
        late = isinstance(fault, str) and fault.startswith(("after ", "cut"))
        return fault is None or late, str(fault or "").removeprefix("after ")

    def forward(self, method, path, headers, body):
        """Return status, headers and body of the server's answer."""
        headers = {"Content-Type": "application/octet-stream", **headers}  # or urllib calls it a form
        request = urllib.request.Request(self.server_url + path, body, headers, method=method)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, answer.headers, answer.read()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet, or each answer takes a delayed acknowledgement
    proxy = None

    def log_message(self, *_):
        pass

    def handle_expect_100(self):
        goes_on = super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return goes_on

    def _serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
        time.sleep(self.proxy.latency_seconds)
        effective, fault = self.proxy.next_fault(self.command, self.path)
        answer = effective and self.proxy.forward(self.command, self.path, dict(self.headers), body)
        if fault == "hang":
            self.proxy.closing.wait()
        if fault in ("hang", "drop"):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self._send(*(answer if fault in ("", "cut") else (int(fault), {}, b"injected")), cut=fault == "cut")

    def _send(self, status, headers, content, *, cut=False):
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "date", "server", "transfer-encoding"):
                self.send_header(name, value)
        nbytes = headers.get("Content-Length", 0) if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(nbytes))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - called so by the base class
