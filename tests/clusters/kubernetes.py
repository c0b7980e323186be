"""A stand-in for Kubernetes's API server, as far as `kubectl` creates a JobSet and shows the output of pods.

A JobSet that is created is played by `clusters.pods`.
"""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from clusters.pods import JobSet

GROUP = "jobset.x-k8s.io/v1alpha2"
VERBS = ["create", "delete", "get", "list"]


def resource(name, singular, kind):
    return {"name": name, "singularName": singular, "namespaced": True, "kind": kind, "verbs": VERBS}


DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "groups": [
            {
                "name": "jobset.x-k8s.io",
                "versions": [{"groupVersion": GROUP, "version": "v1alpha2"}],
                "preferredVersion": {"groupVersion": GROUP, "version": "v1alpha2"},
            }
        ],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [resource("pods", "pod", "Pod"), resource("pods/log", "", "Pod")],
    },
    f"/apis/{GROUP}": {
        "kind": "APIResourceList",
        "groupVersion": GROUP,
        "resources": [resource("jobsets", "jobset", "JobSet")],
    },
    # It says that the server itself checks the fields of a JobSet.
    "/openapi/v3": {"paths": {f"apis/{GROUP}": {"serverRelativeURL": f"/openapi/v3/apis/{GROUP}"}}},
    f"/openapi/v3/apis/{GROUP}": {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "1"},
        "paths": {
            f"/apis/{GROUP}/namespaces/{{namespace}}/jobsets/{{name}}": {
                "patch": {
                    "parameters": [{"name": "fieldValidation", "in": "query"}],
                    "x-kubernetes-group-version-kind": {
                        "group": "jobset.x-k8s.io",
                        "version": "v1alpha2",
                        "kind": "JobSet",
                    },
                    "responses": {},
                }
            }
        },
    },
}


class Kubernetes:
    """A server with one JobSet at most, whose pods write into a folder. As a context, it serves."""

    def __init__(self, folder, environ):
        self.folder, self.environ, self.jobset = folder, environ, None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (_Handler,), {"kubernetes": self}))
        self.config = folder / "config"
        """The file of `kubectl` for this cluster."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        context = {"name": "here", "context": {"cluster": "here", "user": ""}}
        clusters = [{"name": "here", "cluster": {"server": url}}]
        known = {"clusters": clusters, "contexts": [context], "current-context": "here"}
        self.config.write_text(json.dumps(known))

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        if self.jobset:
            self.jobset.delete()
            self._controller.join(60)
            self.jobset.close()
        self._server.shutdown()
        self._server.server_close()

    def create(self, manifest):
        self.jobset, started = JobSet(json.dumps(manifest), self.folder, self.environ), threading.Event()

        def control():  # the pods end with the thread that starts them
            self.jobset.start()
            started.set()
            self.jobset.play()

        self._controller = threading.Thread(target=control, daemon=True)
        self._controller.start()
        started.wait()

    def pods(self):
        """Return the pods of the newest start: the process, the file of its output, and where that begins."""
        start, found = self.jobset.log.count("started") - 1, {}
        for (job, index), process in self.jobset.pods.items():
            host = f"{self.jobset.name}-workers-{job}-{index}"
            begin = self.jobset.begins[job, index]
            found[f"{host}-{start:05}"] = (process, self.folder / f"{host}.out", begin)
        return found


def described_pod(name, process):
    state = "running" if process.poll() is None else "terminated"
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
        "status": {"containerStatuses": [{"name": "main", "state": {state: {}}, "image": "none"}]},
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path in DISCOVERY:
            self._answer(DISCOVERY[path])
        elif path.endswith("/log"):
            with contextlib.suppress(BrokenPipeError):  # it does not follow any longer
                self._stream(path.split("/")[-2])
        elif path.endswith("/pods"):
            pods = [described_pod(name, pod[0]) for name, pod in self.kubernetes.pods().items()]
            self._answer({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})
        else:
            self._answer({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}, 404)

    def do_POST(self):
        manifest = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.kubernetes.create(manifest)
        self._answer(manifest, 201)

    def _answer(self, document, code=200):
        content = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, name):
        """Send the output of a pod until it has ended."""
        process, path, begin = self.kubernetes.pods()[name]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with path.open("rb") as file:
            file.seek(begin)
            while True:
                has_ended = process.poll() is not None
                for line in iter(file.readline, b""):
                    self._chunk(line)
                if has_ended:
                    return self._chunk(b"")
                time.sleep(0.05)

    def _chunk(self, content):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        self.wfile.flush()
