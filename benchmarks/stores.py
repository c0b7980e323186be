"""How fast checkpoints are saved into a store and restored from it: an S3 server on loopback, in memory.

The server is as small as can be, in a process of its own, so that the client is what is measured. With
`--against DIRECTORY` a second source tree takes turns with this one, round by round.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import socketserver
import statistics
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

MEASURE = """
import json, sys, time
import jax, numpy as np
jax.config.update("jax_platforms", "cpu"); jax.config.update("jax_num_cpu_devices", 8)
from jax.sharding import NamedSharding, PartitionSpec as P
import meshwright as mw
run, num, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
mesh = jax.make_mesh((8,), ("x",))
made = np.random.default_rng(0)
rows_split, columns_split = (NamedSharding(mesh, spec) for spec in (P("x"), P(None, "x")))
arrays = {f"w{i}": made.standard_normal((rows, 1024), np.float32) for i in range(num)}
state = {name: jax.device_put(array, rows_split) for name, array in arrays.items()}
for split in (rows_split, columns_split):
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=split), state)
    if split is rows_split:
        started = time.perf_counter()
        with mw.Checkpoints(run) as checkpoints:
            opened = time.perf_counter()
            checkpoints.save(1, state)
        saved = time.perf_counter()
    began = time.perf_counter()
    restored = jax.block_until_ready(mw.restore(mw.checkpoints.open_source(run), target))
    ended = time.perf_counter()
    assert all(np.array_equal(restored[name], state[name]) for name in ("w0", f"w{num - 1}"))
    if split is rows_split:
        found = {"open": opened - started, "save": saved - opened, "restore, same mesh": ended - began}
    else:
        found["restore, other axis"] = ended - began
    del restored
print(json.dumps(found))
"""
CASES = {"0.5 GB in 8 arrays": (8, 16384), "33 MB in 1,000 arrays": (1000, 8)}
TINY = {"64 kB in 2 arrays": (2, 8)}


class Store:
    """Objects by path, and uploads in parts."""

    def __init__(self):
        self.objects, self.uploads, self.lock = {}, {}, threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    store = Store()

    def log_message(self, *_):
        pass

    def handle_expect_100(self):
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def answer(self):
        address = urlsplit(self.path)
        key = unquote(address.path).partition("/bucket")[2].lstrip("/")
        query = {name: values[-1] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        act = {"GET": self.get, "HEAD": self.get, "PUT": self.put, "POST": self.post, "DELETE": self.delete}
        status, headers, content = act[self.command](key, query, body)
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def get(self, key, query, _):
        if not key:
            return self.list(query)
        if (found := self.store.objects.get(key)) is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        headers = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(wanted[1]), min(int(wanted[2]), len(found) - 1)
            if first >= len(found):
                return 416, {}, b""
            span = {"Content-Range": f"bytes {first}-{last}/{len(found)}"}
            return 206, headers | span, memoryview(found)[first : last + 1]
        return 200, headers, found

    def list(self, query):
        prefix, cut = query.get("prefix", ""), query.get("delimiter", "")
        found, folders = "", set()
        for key in sorted(key for key in self.store.objects if key.startswith(prefix)):
            rest = key[len(prefix) :]
            if cut and cut in rest:
                folders.add(prefix + rest.partition(cut)[0] + cut)
            else:
                found += (
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(self.store.objects[key])}</Size>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>1</ETag></Contents>"
                )
        found += "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        )
        return (
            200,
            {},
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode(),
        )

    def put(self, key, query, body):
        if "uploadId" in query:
            self.store.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, {"ETag": '"1"'}, b""
        with self.store.lock:
            if self.headers.get("If-None-Match") and key in self.store.objects:
                return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
            self.store.objects[key] = body
        return 200, {"ETag": '"1"'}, b""

    def post(self, key, query, body):
        if "delete" in query:
            doomed = re.findall(rb"<Key>.*?</Key>", body)
            for each in doomed:
                self.store.objects.pop(unescape(each[5:-6].decode()), None)
            return (
                200,
                {},
                b"<DeleteResult>%b</DeleteResult>"
                % b"".join(b"<Deleted>%b</Deleted>" % each for each in doomed),
            )
        if "uploads" in query:
            upload = hashlib.md5(key.encode()).hexdigest()
            self.store.uploads[upload] = {}
            return (
                200,
                {},
                f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode(),
            )
        parts = self.store.uploads.pop(query["uploadId"])
        self.store.objects[key] = b"".join(parts[number] for number in sorted(parts))
        return 200, {}, _xml("CompleteMultipartUploadResult", "<ETag>1</ETag>")

    def delete(self, key, *_):
        self.store.objects.pop(key, None)
        return 204, {}, b""

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - called so by the base class


def _xml(tag, content):
    return f"<{tag}>{content}</{tag}>".encode()


class Server(socketserver.ThreadingTCPServer):
    daemon_threads, allow_reuse_address, request_queue_size = True, True, 128


def serve(port) -> None:
    with Server(("127.0.0.1", 0), Handler) as server:
        port.put(server.server_address[1])
        server.serve_forever()


def measure(source: Path, case: tuple[int, int]) -> dict[str, float]:
    """Return what a process takes that has a store, and its source tree, to itself."""
    port = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(port,), daemon=True)
    server.start()
    environ = os.environ | {
        "PYTHONPATH": str(source),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port.get()}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    command = [sys.executable, "-c", MEASURE, "s3://bucket/run", *map(str, case)]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    finally:
        server.terminate()
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another source tree, `src` of a checkout")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    if options.tiny:
        options.rounds = 1
    trees = {"this": Path(__file__).parents[1] / "src"} | (
        {"other": options.against} if options.against else {}
    )
    for title, case in (TINY if options.tiny else CASES).items():
        found = {name: [] for name in trees}
        for turn in range(options.rounds):
            for name in trees if turn % 2 else reversed(trees):
                found[name].append(measure(trees[name], case))
        print(title)
        for what in found["this"][0]:
            times = {name: [each[what] for each in rounds] for name, rounds in found.items()}
            line = "".join(f"  {name} {statistics.median(each):.3f} s" for name, each in times.items())
            if "other" in times:
                ratio = statistics.median(a / b for a, b in zip(times["this"], times["other"], strict=True))
                line += f"  this is {ratio:.2f} × other"
            print(f"  {what:24}{line}")


if __name__ == "__main__":
    main()
