"""A run for which the memory is not enough: the end says what held it, the plan's figures, and what helps."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import meshwright as mw
from engine.experiment.exhausted import trainer
from engine.experiment.runs import EXAMPLES, experiment
from flags import QUICK
from meshwright.errors import EXIT_FAILED, OutOfMemoryError, UsageError

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ended(python, tmp_path_factory):
    """The run directory, and the messages and exit codes of a run and of a training.

    In a process with one device: of several, those that have memory would wait for the others.
    """
    run = tmp_path_factory.mktemp("runs") / "a"
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    environ = {**os.environ, "PYTHONPATH": paths, "XLA_FLAGS": QUICK, "JAX_PLATFORMS": "cpu"}
    words = [*python, "-m", "engine.experiment.exhausted", str(run)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return run, json.loads(done.stdout.splitlines()[-1])


def test_what_holds_the_memory_is_listed_by_name_the_largest_first(ended):
    message, _ = ended[1]["run"]
    rows = re.findall(r"^ +([\d.]+) (\w+)  (.+)$", message, re.M)
    assert rows[0] == ("2", "GiB", "the work of a step: activations, gradients and others, as compiled")
    names = [name for *_, name in rows]
    assert {"state: params/w", "state: opt_state/0/mu/w", "state: opt_state/0/nu/w", "batch: x"} <= {*names}
    assert "other arrays of the program: 1 × float32[300, 7]" in names


def test_the_plan_stands_beside_it_with_changes_that_need_less(ended):
    message, _ = ended[1]["run"]
    assert re.search(r"Planned: [\d.]+ GiB of [\d.]+ GiB on a device \(parameters 32 B", message)
    changes = message.partition("Changes that make it fit")[2].splitlines()[1:]
    assert 1 <= len(changes) <= 3
    assert any("microbatches=2" in line for line in changes)


def test_the_run_has_failed_and_its_page_says_why(ended):
    run, told = ended
    assert told["run"][1] == EXIT_FAILED
    assert "the memory of a device is exhausted" in (run / "outcome.json").read_text()
    assert "microbatches=2" in (run / "report.html").read_text()


def test_a_training_without_an_experiment_gets_general_advice(ended):
    message, exit_code = ended[1]["trainer"]
    assert "What helps: a smaller batch, microbatches=2" in message
    assert exit_code == EXIT_FAILED


def refusing(monkeypatch, message):
    def refuse(*_):
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(mw.training.Step, "compile", refuse)


def test_memory_that_is_not_enough_for_compiling_ends_alike(monkeypatch):
    refusing(monkeypatch, "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory")
    with pytest.raises(OutOfMemoryError, match=r"Ran out of memory\n  One device holds, or would hold:\n"):
        trainer().fit(EXAMPLES, batch_size=16, max_steps=1)


def test_other_errors_of_xla_stay_as_they_are(tmp_path, monkeypatch):
    refusing(monkeypatch, "INTERNAL: something else")
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        mw.run(experiment(tmp_path / "run"))


def test_an_fft_that_xla_cannot_compute_on_cpus_says_which_mesh_to_try(tmp_path, monkeypatch):
    refusing(monkeypatch, "INTERNAL: RET_CHECK failure (cpu/runtime/fft_thunk.cc:168) IsMonotonic")
    with pytest.raises(UsageError, match=r"cannot compute this FFT, .*\n.*try a mesh of data and fsdp alone"):
        mw.run(experiment(tmp_path))
