"""The real packages, offline, in a process of their own: what they were told is there when read back."""

import json
import os
import subprocess
import sys

import pytest

from meshwright.errors import UsageError
from meshwright.observe import _internal as metrics

PROGRAM = """
import json, math, sqlite3, sys
from pathlib import Path
import clearml, mlflow, numpy as np
from meshwright import observe as metrics

directory, HISTOGRAM = Path(sys.argv[1]), metrics.Histogram.of(np.array([1.1, 3.0]))
REPORTS = [
    (50, {"loss": np.float32(0.5), "activations": HISTOGRAM, "note": "so *far*"}),
    (100, {"loss": math.nan, "held_out/loss": 0.25, "picture": metrics.Image.of(np.zeros((4, 6)))}),
]

def report(opened, *more):
    with opened as write:
        for step, values in [*REPORTS, *more]:
            write(step, values)

clearml.Task.set_offline(True)
report(metrics.clearml(project_name="digits", task_name="first", auto_resource_monitoring=False))
[session] = (directory / "clearml/offline").glob("offline-*[!p]")
events = [event for line in (session / "metrics.jsonl").open() for event in json.loads(line)]
logged = "".join(event["msg"] for line in (session / "log.jsonl").open() for event in json.loads(line))

report(metrics.mlflow(run_name="first"), (100, {"learning_rate/.*": 0.5}))
client = mlflow.MlflowClient()
[run] = client.search_runs([client.get_experiment_by_name("Default").experiment_id])
history = {
    name: [(metric.step, str(metric.value)) for metric in client.get_metric_history(run.info.run_id, name)]
    for name in run.data.metrics
}
[artifacts] = (directory / "mlruns").glob("*/*/artifacts")
pictures = list(artifacts.glob("images/picture*.png"))

report(metrics.trackio(project="digits", name="first", auto_log_cpu=False, auto_log_gpu=False))
rows = sqlite3.connect(directory / "trackio/digits.db").execute("SELECT step, metrics FROM metrics")

print("FOUND", json.dumps({
    "clearml": [sorted((e["iter"], e["metric"], e.get("value")) for e in events), logged],
    "mlflow": [run.info.status, history, (artifacts / "note/50.txt").read_text(), len(pictures)],
    "trackio": [(step, json.loads(values)) for step, values in rows],
}))
"""


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trackers")
    offline = {
        "CLEARML_CACHE_DIR": f"{directory}/clearml",
        "MLFLOW_TRACKING_URI": f"file://{directory}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": f"{directory}/trackio",
    }
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(directory)]
    done = subprocess.run(command, env=os.environ | offline, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("FOUND ")[1].splitlines()[0])


@pytest.mark.slow
def test_clearml_has_numbers_histograms_and_images_and_tells_the_rest(found):
    events, log = found["clearml"]
    assert events == [
        [50, "activations", None],
        [50, "loss", 0.5],
        [100, "held_out/loss", 0.25],
        [100, "picture", None],
    ]
    assert {"step 50, note: so *far*", "step 100, loss: nan"} <= set(log.splitlines())


@pytest.mark.slow
def test_mlflow_has_numbers_texts_and_images(found):
    status, history, note, num_pictures = found["mlflow"]
    assert (status, note, num_pictures) == ("FINISHED", "so *far*", 1)
    numbers = {"loss": [[50, "0.5"], [100, "nan"]], "held_out/loss": [[100, "0.25"]]}
    assert history == numbers | {"learning_rate/._": [[100, "0.5"]]}


@pytest.mark.slow
def test_trackio_has_all_kinds(found):
    (first, early), (second, late) = found["trackio"]
    assert (first, early["loss"], early["note"]["_value"]) == (50, 0.5, "so *far*")
    assert (sum(early["activations"]["values"]), early["activations"]["bins"][-1]) == (2, 3.5)
    assert (second, late["loss"], late["held_out/loss"]) == (100, "NaN", 0.25)
    assert late["picture"]["file_path"].endswith(".png")


@pytest.mark.parametrize("name", ["wandb", "clearml", "mlflow", "trackio"])
def test_where_it_is_not_installed_that_is_said(name, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()  # as its runs may leave behind
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for loaded in [module for module in sys.modules if module.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(
        UsageError, match=rf"not installed.\n  Install it: pip install 'meshwright\[{name}\]'"
    ):
        getattr(metrics, name)().__enter__()
