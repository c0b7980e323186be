"""Google's storage, as much of its JSON API as TensorStore speaks, in this process: for tests.

With generations, preconditions, ranges and listing; and with what goes wrong between a client and a
store: latency, and requests that fail with 500, before or after they have taken effect.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class FakeGcs:
    """A server with one bucket, on loopback while it is open."""

    def __init__(self, bucket="bucket"):
        self.bucket, self.objects, self.lock = bucket, {}, threading.Lock()
        self.latency_seconds, self.fails, self.requests = 0, lambda number: None, 0
        """`fails` says of a request's number: None, "before" or "after" it takes effect."""
        self._generation = 1000
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"gcs": self}))
        self._server.daemon_threads = True
        self.url = "http://{}:{}".format(*self._server.server_address)

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method, path, query, body):
        """Return status, headers and body."""
        _, _, bucket, *rest = path.removeprefix("/upload").removeprefix("/storage/v1").split("/", 3)
        if unquote(bucket) != self.bucket:
            return 404, {}, b'{"error": {"code": 404, "message": "The specified bucket does not exist."}}'
        name = unquote(rest[0].removeprefix("o").removeprefix("/")) if rest else ""
        with self.lock:
            if method == "POST":
                return self._write(query["name"], query, body)
            if method == "DELETE":
                return self._delete(name, query)
            return self._read(name, query) if name else self._list(query)

    def _generation_of(self, name):
        return self.objects.get(name, (None, 0))[1]

    def _refused(self, name, query):
        wanted = query.get("ifGenerationMatch")
        return wanted is not None and int(wanted) != self._generation_of(name)

    def _write(self, name, query, body):
        if self._refused(name, query):
            return 412, {}, b"{}"
        self._generation += 1
        self.objects[name] = body, self._generation
        return 200, {}, json.dumps({"name": name, "generation": str(self._generation)}).encode()

    def _delete(self, name, query):
        if name not in self.objects or self._refused(name, query):
            return 404 if name not in self.objects else 412, {}, b"{}"
        del self.objects[name]
        return 204, {}, b""

    def _read(self, name, query):
        if name not in self.objects:
            return 404, {}, b"{}"
        if query.get("ifGenerationNotMatch") == str(self._generation_of(name)):
            return 304, {}, b""
        content, generation = self.objects[name]
        return 200, {"x-goog-generation": str(generation)}, content

    def _list(self, query):
        first, end, prefix = (query.get(key, "") for key in ("startOffset", "endOffset", "prefix"))
        names = sorted(
            name
            for name in self.objects
            if name.startswith(prefix) and name >= first and (not end or name < end)
        )
        return 200, {}, json.dumps({"items": [{"name": name} for name in names]}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet, or each answer takes a delayed acknowledgement
    gcs = None

    def log_message(self, *_):
        pass

    def _serve(self):
        gcs, address = self.gcs, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(gcs.latency_seconds)
        with gcs.lock:
            gcs.requests += 1
            failure = gcs.fails(gcs.requests)
        query = {key: values[-1] for key, values in parse_qs(address.query).items()}
        status, headers, content = 500, {}, b"injected"
        if failure != "before":
            answer = gcs.answer(self.command, address.path, query, body)
            status, headers, content = (500, {}, b"injected") if failure else answer
        self._send(status, headers, content)

    def _send(self, status, headers, content):
        wanted = self.headers.get("Range")
        if status == 200 and wanted:
            first, last = wanted.removeprefix("bytes=").split("-")
            first, size = int(first), len(content)
            last = min(int(last) if last else size - 1, size - 1)
            if first >= size:
                status, content = 416, b""
            else:
                status, content = 206, content[first : last + 1]
                headers = {**headers, "Content-Range": f"bytes {first}-{last}/{size}"}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - called so by the base class
