"""Reports as metrics of OpenTelemetry, read back by its own reader, and by a receiver on loopback."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import meshwright as mw
from experiment.runs import experiment

REPORT = {
    "loss": 0.5,
    "test/accuracy": 0.25,
    "step_seconds": 0.1,
    "sample": "Once upon",
    "ledger/step": 90.0,
    "ledger/input": 10.0,
    "machine/busy/cpu": 0.75,
    "machine/errors/ecc_corrected": 2.0,
}
EXPECTED = {
    ("meshwright.loss", "1", None): 0.5,
    ("meshwright.test.accuracy", "1", None): 0.25,
    ("meshwright.step_seconds", "s", None): 0.1,
    ("meshwright.step", "1", None): 7.0,
    ("meshwright.run.time", "s", "step"): 90.0,
    ("meshwright.run.time", "s", "input"): 10.0,
    ("system.cpu.utilization", "1", None): 0.75,
    ("hw.errors", "{error}", "ecc_corrected"): 2.0,
}


def test_each_number_is_a_gauge_and_machines_have_the_standard_names():
    reader = InMemoryMetricReader()
    with mw.metrics.opentelemetry(attributes={"run": "a"}, reader=reader) as write:
        write(6, {"loss": 3.0})
        write(7, REPORT)
        [resource] = reader.get_metrics_data().resource_metrics
    found = {}
    for metric in resource.scope_metrics[0].metrics:
        for point in metric.data.data_points:
            own = {name: value for name, value in point.attributes.items() if name != "run"}
            assert point.attributes["run"] == "a"
            found[metric.name, metric.unit, next(iter(own.values()), None)] = point.value
    assert found == EXPECTED


@pytest.fixture
def received(monkeypatch):
    """What a collector on loopback has received."""
    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield bodies
    server.shutdown()
    server.server_close()


def test_a_run_sends_its_numbers_and_the_seconds_of_its_ledger_to_a_collector(received, tmp_path):
    mw.run(experiment(tmp_path / "run", logging=mw.Logging(every=5, trackers=(mw.metrics.opentelemetry,))))
    [(path, body)] = received
    metrics = ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0].metrics
    named = {each.name: each.gauge.data_points for each in metrics}
    assert path == "/v1/metrics"
    assert named["meshwright.step"][0].as_double == 10
    parts = {point.attributes[0].value.string_value for point in named["meshwright.run.time"]}
    assert {"step", "compile", "start"} <= parts
    assert "ledger/step" not in mw.metrics.read_jsonl(tmp_path / "run/metrics.jsonl")[-1]
