"""Google's storage, as much of its XML API as obstore speaks, in this process: for tests.

With preconditions, ranges, listing and uploads in parts; and with what goes wrong between a client and a
store: latency, and requests that fail with 500, before or after they have taken effect.
"""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class FakeGcs:
    """A server with one bucket, on loopback while it is open."""

    def __init__(self, bucket="bucket"):
        self.bucket, self.objects, self.lock = bucket, {}, threading.Lock()
        self._uploads = {}
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

    def answer(self, method, path, query, headers, body):
        """Return status, headers and body."""
        _, bucket, *rest = unquote(path).split("/", 2)
        if bucket != self.bucket:
            return 404, {}, b"<Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>"
        name = rest[0] if rest else ""
        with self.lock:
            if "uploadId" in query or "uploads" in query:
                return self._upload(method, name, query, body)
            if method == "PUT":
                return self._write(name, headers.get("x-goog-if-generation-match"), body)
            if method == "DELETE":
                return (204 if self.objects.pop(name, None) else 404), {}, b""
            return self._read(name) if name else self._list(query)

    def _write(self, name, wanted, body):
        if wanted is not None and int(wanted) != self.objects.get(name, (None, 0))[1]:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        self._generation += 1
        self.objects[name] = body, self._generation
        return 200, self._headers(name), b""

    def _upload(self, method, name, query, body):
        """Begin an upload in parts, take one of them, or put them together."""
        upload = query.get("uploadId", str(len(self._uploads)))
        parts = self._uploads.setdefault(upload, {})
        if method == "PUT":
            parts[int(query["partNumber"])] = body
            return 200, {"ETag": f'"{query["partNumber"]}"'}, b""
        if "uploads" in query:
            return 200, {}, _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        self._write(name, None, b"".join(parts[number] for number in sorted(parts)))
        return 200, self._headers(name), _xml("CompleteMultipartUploadResult", "<ETag>whole</ETag>")

    def _headers(self, name):
        generation = str(self.objects[name][1])
        return {"ETag": f'"{generation}"', "x-goog-generation": generation, "Last-Modified": _MODIFIED}

    def _read(self, name):
        if name not in self.objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        return 200, self._headers(name), self.objects[name][0]

    def _list(self, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        names = sorted(name for name in self.objects if name.startswith(prefix))
        below = [name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "") for name in names]
        folders = sorted({prefix + first + delimiter for first, cut, _ in below if cut})
        found = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        )
        for name, (_, cut, _) in zip(names, below, strict=True):
            if not cut:
                size, generation = len(self.objects[name][0]), self.objects[name][1]
                found += (
                    f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>{generation}</ETag>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                )
        return 200, {}, _xml("ListBucketResult", found)


_MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"


def _xml(tag, content):
    return f'<?xml version="1.0" encoding="UTF-8"?><{tag}>{content}</{tag}>'.encode()


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
        query = {key: values[-1] for key, values in parse_qs(address.query, keep_blank_values=True).items()}
        status, headers, content = 500, {}, b"injected"
        if failure != "before":
            answer = gcs.answer(self.command, address.path, query, self.headers, body)
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
        self.wfile.write(content if self.command != "HEAD" else b"")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - called so by the base class
