import contextlib
import gzip
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import UsageError

work = jax.jit(lambda x: x @ x + 1)


def run(trace, steps, start=0, before=lambda step: None):
    """The loop, with a step that works a little."""

    def step(state, batch):
        before(batch)
        return mw.TrainState(state.step + 1, work(state.params), (), state.seed), {}

    state = mw.TrainState(jnp.int32(start), jnp.eye(64), (), jnp.uint32(0))
    return mw.fit(step, state, iter(range(start + 1, 1000)), max_steps=steps, trace=trace)


def traced(directory):
    """The steps in each profile, by the name of its folder."""
    files = sorted(directory.glob("plugins/profile/*/*.trace.json.gz"))
    assert all(list(file.parent.glob("*.xplane.pb")) for file in files)
    return {file.parent.name: sorted(_steps(file)) for file in files}


def _steps(file):
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return {int(event["args"]["step_num"]) for event in events if event.get("name") == "train"}


@contextlib.contextmanager
def profiler_free_afterwards():
    """After the block somebody else can trace: nothing was left running."""
    try:
        yield
    finally:
        with pytest.raises(RuntimeError, match="No profile started"):
            jax.profiler.stop_trace()


def test_a_window_has_its_steps_and_no_others(tmp_path):
    with profiler_free_afterwards(), mw.observe.tracer(tmp_path, (2,), num_steps=3) as trace:
        run(trace, steps=6)
    assert traced(tmp_path) == {"step_2": [2, 3, 4]}


def test_starts_exactly_a_window_apart_both_run(tmp_path):
    with profiler_free_afterwards(), mw.observe.tracer(tmp_path, (1, 3), num_steps=2) as trace:
        run(trace, steps=5)
    assert traced(tmp_path) == {"step_1": [1, 2], "step_3": [3, 4]}


def test_a_start_in_an_open_window_is_skipped_and_said(tmp_path, caplog):
    with profiler_free_afterwards(), mw.observe.tracer(tmp_path, (2, 3), num_steps=2) as trace:
        run(trace, steps=5)
    assert traced(tmp_path) == {"step_2": [2, 3]}
    assert "no profile from step 3 on: that from step 2 is still open" in caplog.text


def test_the_end_of_the_run_ends_the_window(tmp_path):
    with profiler_free_afterwards(), mw.observe.tracer(tmp_path, (4,)) as trace:
        run(trace, steps=4)
    assert traced(tmp_path) == {"step_4": [4]}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_whatever_ends_the_run_ends_the_window(tmp_path, error):
    def fail(step):
        if step == 2:
            raise error

    with profiler_free_afterwards(), pytest.raises(error), mw.observe.tracer(tmp_path, (1,)) as trace:
        run(trace, steps=4, before=fail)
    assert traced(tmp_path).keys() == {"step_1"}


def test_a_run_that_continues_inside_a_window_does_not_trace_its_rest(tmp_path):
    with mw.observe.tracer(tmp_path, (2,)) as trace:
        run(trace, start=2, steps=4)
    assert not list(tmp_path.iterdir())


def test_other_processes_trace_nothing(tmp_path):
    with mw.observe.tracer(tmp_path, (1,), processes=(1, 2)) as trace:
        run(trace, steps=2)
    assert not list(tmp_path.iterdir())


def test_all_processes_trace_when_asked(tmp_path):
    with mw.observe.tracer(tmp_path, (1,), num_steps=1, processes="all") as trace:
        run(trace, steps=2)
    assert traced(tmp_path) == {"step_1": [1]}


def test_a_window_ends_when_its_last_step_is_done(tmp_path, monkeypatch):
    """Counts the arrays of the run that are not there yet when the profiler is stopped."""
    unready, stop = [], jax.profiler.stop_trace
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, y: jnp.tanh(y @ y), x))
    x = slow(jnp.ones((300, 300))).block_until_ready()

    def stopping():
        unready.append(sum(not array.is_ready() for array in jax.live_arrays()))
        stop()

    monkeypatch.setattr(jax.profiler, "stop_trace", stopping)
    outputs = []
    with mw.observe.tracer(tmp_path, (1,), num_steps=1) as trace:
        run(trace, steps=1, before=lambda step: outputs.append(slow(x)))
    assert unready == [0]


def test_a_window_that_ends_while_a_save_is_written_ends_no_run(tmp_path):
    init = lambda key: {f"w{i}": jax.random.normal(jax.random.fold_in(key, i), (4, 2)) for i in range(20)}
    loss = lambda params, batch, key: sum(((batch["x"] @ w) ** 2).mean() for w in params.values())
    experiment = mw.Experiment(
        workdir=str(tmp_path),
        model=init,
        loss=loss,
        optimizer=optax.sgd(0.01),
        max_steps=12,
        input=mw.Input({"x": np.ones((64, 4), np.float32)}, batch_size=16),
        save=mw.Save(when=1),
        profile=mw.Profile(steps=(2, 4, 6, 8, 10), num_steps=1),
    )
    assert mw.run(experiment).step == 12
    assert len(traced(tmp_path)) == 5


def test_somebody_elses_profile_is_left_alone_and_the_run_goes_on(tmp_path, caplog):
    with jax.profiler.trace(tmp_path / "theirs"), mw.observe.tracer(tmp_path / "ours", (1,)) as trace:
        assert int(run(trace, steps=4).step) == 4
    assert "no profile from step 1 on" in caplog.text
    assert traced(tmp_path / "theirs")
    assert not traced(tmp_path / "ours")


def test_a_profile_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "file").touch()
    with profiler_free_afterwards(), mw.observe.tracer(tmp_path / "file", (1,), num_steps=1) as trace:
        assert int(run(trace, steps=2).step) == 2
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(
    "wrong",
    [{"start_steps": (0,)}, {"start_steps": (1,), "num_steps": 0}, {"start_steps": (1,), "processes": "0"}],
)
def test_numbers_that_cannot_be_are_refused_at_once(tmp_path, wrong):
    with pytest.raises(UsageError, match="tracer"), mw.observe.tracer(tmp_path, **wrong):
        pass
