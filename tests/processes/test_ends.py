"""Examples that only end when they are read: they must end after as many batches on all processes."""

import os
import re
import subprocess
import sys

import pytest

from launched import by_process
from meshwright.processes._streams import Streams

PROGRAM = """
import os, sys
import jax, jax.numpy as jnp, numpy as np, optax
import meshwright as mw

me = int(os.environ["JAX_PROCESS_ID"])
asked, *lengths = sys.argv[1:]
length = int(lengths[me])
error = None if len(lengths) == 2 else lengths[2]

def examples(epoch):
    for i in range(length if epoch == 1 else 64):
        yield {"x": np.full(8, i, np.float32)}
    if error and epoch == 1 and me == 1:
        raise OSError(error)

def loss(params, batch):
    return ((batch["x"] @ params["w"]) ** 2).mean()

def by_experiment():
    experiment = mw.Experiment(
        workdir=os.environ["WORKDIR"], model=lambda key: {"w": jnp.ones((8, 4))}, loss=loss,
        optimizer=optax.sgd(1e-9), input=mw.Input(examples, batch_size=8, epochs=2), max_steps=100,
        save=mw.Save(when=100), logging=mw.Logging(every=1))
    return mw.run(experiment).step

def by_trainer():
    deployer = mw.Deployer(seed=0, mesh="data=-1", verbose=False)
    params = {"w": np.ones((8, 4), np.float32)}
    trainer = mw.Trainer(deployer, loss=loss, optimizer=optax.sgd(1e-9), params=params)
    evaluations = {"test": mw.Evaluation("loss", {"x": np.ones((64, 8), np.float32)})}
    trainer.fit(examples, batch_size=8, epochs=2, evaluations=evaluations)
    return int(trainer.state.step)

def by_loop():
    layout, optimizer = mw.Layout(mw.make_mesh("data=-1")), optax.sgd(1e-9)
    state = mw.training.init_state(lambda key: {"w": jnp.ones((8, 4))}, optimizer, 0, layout)
    place = lambda batch: jax.make_array_from_process_local_data(layout.batch_sharding, batch)
    data = ({"x": place(np.ones((4, 8), np.float32))} for _ in range(length // 4))
    return int(mw.fit(mw.make_step(loss, optimizer, layout), state, data, max_steps=100).step)

mw.parallel.start_processes()
kinds = {"experiment": by_experiment, "trainer": by_trainer, "loop": by_loop}
for kind in asked.split(","):
    print(f"reached step {kinds[kind]()} of {kind}")
"""
REACHED = [("experiment", 13), ("trainer", 13), ("loop", 10)]


def launched(python, tmp_path, *arguments, program=PROGRAM):
    """Run the program on two processes; return the exit code and what they printed."""
    command = [sys.executable, "-m", "meshwright", "launch", "local", "-n", "2", "--", *python, "-c", program]
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environ["WORKDIR"] = str(tmp_path / "run")
    done = subprocess.run([*command, *arguments], env=environ, capture_output=True, text=True, timeout=400)
    return done.returncode, by_process(done.stdout) + by_process(done.stderr)


@pytest.mark.slow
def test_examples_that_end_together_end_the_run(python, tmp_path):
    exit_code, out = launched(python, tmp_path, "experiment,trainer,loop", "40", "40")
    assert exit_code == 0, out
    assert [out.count(f"reached step {step} of {kind}") for kind, step in REACHED] == [2, 2, 2]


@pytest.mark.parametrize(
    ("kind", "lengths", "last", "ended", "other"),
    [
        pytest.param("experiment", ("32", "80"), 12, 0, 1, marks=pytest.mark.slow),
        pytest.param("trainer", ("80", "32"), 4, 1, 0, marks=pytest.mark.slow),
        pytest.param("loop", ("32", "80"), 8, 0, 1, marks=pytest.mark.slow),
    ],
)
def test_examples_that_end_early_on_one_process_end_all_with_the_cause(
    python, tmp_path, kind, lengths, last, ended, other
):
    exit_code, out = launched(python, tmp_path, kind, *lengths)
    assert exit_code == 2, out
    assert f"the examples end after batch {last} on process {ended}, and later on process {other}" in out


CAUGHT = """
def broken():
    for i in range(4):
        yield {"x": np.full(8, i, np.float32)}
    if me == 0:
        raise OSError("the disk is gone")

def take_all():
    sharding = mw.Layout(mw.make_mesh("data=-1")).batch_sharding
    with mw.batches(lambda epoch: broken(), 2, sharding, epochs=1) as data:
        return len(list(data))

mw.parallel.start_processes()
try:
    take_all()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
mw.processes._internal.compare("what comes next", lambda: "the same")
print("went on")
"""


def test_an_error_where_the_examples_end_elsewhere_reaches_all(python, tmp_path):
    program = PROGRAM.partition("mw.parallel.start_processes()")[0] + CAUGHT
    exit_code, out = launched(python, tmp_path, "", "4", "4", program=program)
    assert exit_code == 0, out
    assert "[0] OSError: the disk is gone" in out
    assert re.search(r"\[1\] \w+: process 0: OSError: the disk is gone", out)
    assert out.count("went on") == 2


@pytest.fixture
def streams():
    """The streams of process 0, of which one is open."""
    streams = Streams()
    streams.open()
    return streams


def test_epochs_that_end_with_other_examples_in_a_batch_differ(streams):
    assert streams.read(1, 5, (5, 1, 3)) is None
    assert streams.take(1, 2, (5, 1, 4)) == (
        "an epoch of the examples ends in batch 5, which has 4 examples of the next epoch, on process 2, and "
        "in batch 5, which has 3 examples of the next epoch,"
    )


def test_an_epoch_that_has_not_ended_here_is_waited_for(streams):
    assert streams.take(1, 1, (5, 1, 0)) is None
    assert [streams.read(1, count, None) for count in range(1, 5)] == [None] * 4
    assert streams.read(1, 5, (5, 1, 0)) is None


def test_an_epoch_that_goes_on_here_differs(streams):
    streams.take(1, 1, (5, 1, 0))
    assert streams.read(1, 5, None).endswith("on process 1, and later")


def test_an_end_may_be_told_before_the_stream_is_open_here(streams):
    assert streams.take(2, 1, (0,)) is None
    assert streams.open() == 2
    assert streams.read(2, 1, None) == "the examples end after batch 0 on process 1, and later"


def test_ends_of_a_stream_that_is_closed_here_are_passed_over(streams):
    streams.close(1)
    assert streams.take(1, 1, (7,)) is None


def test_an_end_that_is_equal_here_is_compared_once(streams):
    class Counting(list):
        compared = 0

        def __eq__(self, other):
            Counting.compared += 1
            return super().__eq__(other)

        __hash__ = None

    assert streams.take(1, 1, Counting([5, 1, 0])) is None
    streams.read(1, 5, [5, 1, 0])
    times = Counting.compared
    assert [streams.read(1, count, None) for count in range(6, 9)] == [None] * 3
    assert Counting.compared == times > 0
