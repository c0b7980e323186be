"""What a person sees of a run: on a terminal of eighty columns, and in a file."""

import json
import os
import re
import subprocess
import sys

import pytest

from cli.terminal import on_terminal

EXPERIMENT = """
import jax, numpy as np, optax
import meshwright as mw

EXAMPLES = {"x": np.ones((64, 4), np.float32)}


def model(key):
    layer = {"query_projection_of_a_long_name": jax.random.normal(key, (4, 4))}
    return {"encoder": {"layers": [layer] * 3, "output_projection": jax.random.normal(key, (4, 4))}}


def loss(params, batch, key):
    return (batch["x"] @ params["encoder"]["output_projection"] ** 2).mean()


def measure(params, batch):
    return {"loss": (batch["x"] @ params["encoder"]["output_projection"] ** 2).mean(-1)}


def experiment(workdir="runs/a", steps: int = 60, log_every: int = 1000, evaluations: int = 1):
    each = {f"test{i}": mw.Evaluation(measure, EXAMPLES, batch_size=8, when=20) for i in range(evaluations)}
    return mw.Experiment(
        workdir=workdir, model=model, loss=loss, optimizer=optax.sgd(1e-3),
        input=mw.Input(EXAMPLES, batch_size=8), max_steps=steps, logging=mw.Logging(every=log_every),
        evaluations=each, mesh="data=2,fsdp=2",
    )
"""
TRAINER = """
import numpy as np, optax
import meshwright as mw

deployer = mw.Deployer(0, workdir="runs/a")
params = {"w": np.ones((4, 2), np.float32)}
loss = lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean()
trainer = mw.Trainer(deployer, params=params, loss=loss, optimizer=optax.sgd(1e-3))
for _ in range(2):
    rows = {"x": np.ones((64, 4), np.float32)}
    trainer.fit(rows, batch_size=8, max_steps=60, logging=mw.Logging(every=1000))
"""
FIT = """
import jax, jax.numpy as jnp, numpy as np, optax
import meshwright as mw

layout = mw.Layout(mw.make_mesh("data=-1"), ())
loss = lambda params, batch, key: (params["w"] ** 2).mean() + 0 * batch["x"].sum()
tx = optax.sgd(1e-3)
init = lambda key: {"w": jnp.ones(4)}
target = mw.training.abstract_state(init, tx, layout)
step = mw.make_step(loss, tx, layout)
data = mw.batches({"x": np.ones((64, 4), np.float32)}, 8, layout.batch_sharding)
step.compile(target, data.peek())
write = mw.observe.tee(mw.observe.jsonl("metrics.jsonl"), mw.observe.Console(60))
write = mw.observe.with_utilisation(write, mw.observe.count_flops(step.jaxpr), jax.devices())
log = mw.observe.logger(write, mw.engine.every(1000))
mw.fit(step, mw.training.init_state(init, tx, 0, layout), data, max_steps=60, log=log)
data.close()
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "gpt.py").write_text(EXPERIMENT)
    (folder / "trainer.py").write_text(TRAINER)
    (folder / "loop.py").write_text(FIT)
    return folder


def meshwright(*words):
    return [sys.executable, "-m", "meshwright", *words]


@pytest.fixture(scope="module")
def trained(here):
    """The screen of a run on a terminal."""
    words = ("train", "gpt.py:experiment", "--fake-devices", "4", "evaluations=5")
    code, lines = on_terminal(meshwright(*words), columns=80, cwd=here, env=os.environ)
    assert code == 0, "\n".join(lines)
    return lines


def begins(lines):
    """Where the first line of numbers stands."""
    return next(i for i, line in enumerate(lines) if "step=" in line or "━" in line)


@pytest.mark.slow
def test_ten_lines_at_most_come_before_the_first_step(trained):
    first = trained[: begins(trained)]
    assert len(first) <= 10
    said = "\n".join(first)
    assert "run runs/a" in said
    assert "1 process, 4 × cpu · mesh data 2 × fsdp 2" in said
    assert "4 arrays of 64 parameters" in said
    assert "5 evaluations fit: test0, test1" in said
    assert "spec" not in said


def test_evaluations_stay_on_a_terminal(trained):
    evaluated = [line for line in trained if "test0/loss=" in line]
    assert [line.split()[1] for line in evaluated] == ["step=20/60", "step=40/60", "step=60/60"]
    assert any("60/60" in line and "━" in line for line in trained)


@pytest.mark.slow
def test_verbose_shows_a_table_that_fits_and_every_check(here):
    words = (
        "train",
        "gpt:experiment",
        "--fake-devices",
        "4",
        "--verbose",
        "evaluations=5",
        "workdir=runs/verbose",
    )
    code, lines = on_terminal(meshwright(*words), columns=80, cwd=here, env=os.environ)
    assert code == 0, "\n".join(lines)
    head = next(i for i, line in enumerate(lines) if line.startswith("name "))
    end = next(i for i, line in enumerate(lines) if line.startswith("total "))
    assert max(map(len, lines[head : end + 1])) <= 80
    assert "…" in lines[head + 1]
    assert sum("fits: 64 examples" in line for line in lines) == 5


def test_the_log_has_the_details_all_the_same(trained, here):
    log = (here / "runs/a/logs/process-00000.log").read_text()
    assert "params/encoder/layers/{3 alike}/query_projection_of_a_long_name" in log
    assert "evaluation 'test4' fits" in log


@pytest.mark.parametrize(
    ("command", "metrics"),
    [
        (
            meshwright("train", "gpt.py:experiment", "workdir=runs/file", "--fake-devices=4"),
            "runs/file/metrics.jsonl",
        ),
        pytest.param([sys.executable, "trainer.py"], "runs/a/metrics.jsonl", marks=pytest.mark.slow),
        pytest.param([sys.executable, "loop.py"], "metrics.jsonl", marks=pytest.mark.slow),
    ],
    ids=["experiment", "trainer", "fit"],
)
@pytest.mark.slow
def test_in_a_file_the_first_step_is_a_line_and_no_report(here, tmp_path, command, metrics):
    for name in ("gpt.py", "trainer.py", "loop.py"):
        (tmp_path / name).write_text((here / name).read_text())
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stderr.splitlines() if " step=" in line]
    assert lines[0][1] == "step=1/60"
    assert lines[0][2].startswith("loss=")
    assert sum(line[1].startswith("step=1/") for line in lines) == 1
    reports = map(json.loads, (tmp_path / metrics).read_text().splitlines())
    assert 1 not in {report["step"] for report in reports}


@pytest.mark.slow
def test_the_time_is_written_in_one_way(here, tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    done = subprocess.run([sys.executable, "trainer.py"], cwd=tmp_path, capture_output=True, text=True)
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d "
    assert not [line for line in done.stderr.splitlines() if not re.match(stamp, line)]
