"""Values that people print: in a line or two, with numbers as numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.base._numbers import human_bytes
from meshwright.errors import UsageError
from meshwright.observe._metrics import Histogram, Mean
from meshwright.observe._values import Packed

LAYOUT = mw.Layout(mw.make_mesh("data=4,fsdp=2"))


def init(key):
    return {"w": jax.random.normal(key, (8, 4)), "b": jnp.zeros(4)}


def loss(params, batch, key):
    return ((batch["x"] @ params["w"] + params["b"]) ** 2).mean(), {"rows": mw.Mean.of(batch["x"])}


def state_of(tx=None):
    return mw.training.init_state(init, tx or optax.adam(1e-2), 0, LAYOUT)


def test_a_mean_prints_as_a_number_and_is_one():
    mean = Mean.of(jnp.array([0.1, 0.2, 0.3]))
    assert repr(mean) == "Mean(0.2, count=3)"
    assert float(mean) == pytest.approx(0.2)
    assert repr(Mean(0.0, 0.0)) == "Mean(nan, count=0)"


def test_the_metrics_of_a_step_print_as_numbers():
    step = mw.make_step(loss, optax.adam(1e-2), LAYOUT)
    _, metrics = step(state_of(), {"x": np.ones((8, 8), np.float32)})
    loss_, norm = float(metrics["loss"]), float(metrics["grad_norm"])
    assert repr(metrics) == f"{{'loss': {loss_:.6g}, 'rows': 1, 'grad_norm': {norm:.6g}}}"
    assert "Array" not in str(metrics)


def test_a_histogram_among_them_is_told_in_a_few_words():
    packed = Packed.of({"loss": Mean.of(2.5), "h": Histogram.of(jnp.array([1.0, 2.0, jnp.nan]))})
    assert repr(packed) == "{'loss': 2.5, 'h': Histogram(2 values from 1 to 2, 1 not finite)}"


def test_inside_jit_they_print_too():
    texts = []

    def f(x):
        metrics = {"loss": Mean.of(x), "h": Histogram.of(x)}
        texts.extend(map(repr, [*metrics.values(), Packed.of(metrics), state]))
        return x

    state = state_of()
    jax.jit(f)(jnp.ones(3))
    assert texts[0].startswith("Mean(total=")
    assert texts[2] == "<metrics loss, h>"
    jax.jit(lambda state: texts.append(repr(state)))(state)
    assert texts[-1].startswith("TrainState(step=?, params: 2 arrays of 144 B, ")


def test_a_state_prints_its_step_its_sizes_and_its_mesh():
    assert repr(state_of()) == (
        "TrainState(step=0, params: 2 arrays of 144 B, opt_state: 5 arrays of 292 B, mesh data=4,fsdp=2)"
    )
    assert repr(mw.training.Variables({"w": np.ones(2, np.float32)}, {"mean": np.float32(1)})) == (
        "Variables(params: 1 array of 8 B, model_state: 1 array of 4 B)"
    )


def test_a_state_of_structs_and_one_that_was_donated_print_too():
    structs = mw.training.abstract_state(init, optax.sgd(0.1), LAYOUT)
    assert repr(structs) == (
        "TrainState(step=?, params: 2 structs of 144 B, opt_state: 0 arrays of 0 B, mesh data=4,fsdp=2)"
    )
    state = state_of()
    jax.tree.map(lambda x: x.delete(), state)
    assert repr(state).startswith("TrainState(step=?, params: 2 arrays of 144 B")
    assert "params: 2 leaves" in repr(jax.tree.map(lambda x: x.sharding, structs))


def test_a_state_is_replaced_in_part():
    state = state_of()
    assert state.replace(step=jnp.int32(5)).step == 5
    assert state.replace(step=jnp.int32(5)).params is state.params
    with pytest.raises(UsageError, match=r"no field 'parms'. Did you mean 'params'\?"):
        state.replace(parms={})


def test_a_layout_prints_in_a_line():
    rules = (mw.parallel.match("w", "tensor"), mw.parallel.fsdp())
    assert repr(mw.Layout(LAYOUT.mesh, rules)) == (
        "Layout(mesh data=4,fsdp=2, rules: match, fsdp, batches over data, fsdp)"
    )
    assert (
        repr(mw.Layout(mw.make_mesh("tensor=8"), ()))
        == "Layout(mesh tensor=8, rules: none, batches over no axis)"
    )


def test_checkpoints_print_where_they_are_and_what_they_hold(tmp_path):
    checkpoints = mw.Checkpoints(tmp_path)
    assert repr(checkpoints) == f"Checkpoints('{tmp_path}', not open for saving)"
    with checkpoints:
        assert repr(checkpoints) == f"Checkpoints('{tmp_path}', open for saving)"
        checkpoints.save(3, state_of())
    source = mw.checkpoints.open_source(tmp_path)
    assert repr(source) == (
        f"<Meshwright checkpoint {tmp_path}/step_00000003: step 3, 9 arrays of 444 B, "
        "saved on mesh data=4,fsdp=2>"
    )
    assert str(source) == f"{tmp_path}/step_00000003"


def test_a_checkpoint_of_another_format_prints_alike(tmp_path):
    np.savez(tmp_path / "weights.npz", w=np.ones((2, 2), np.float32))
    assert repr(mw.checkpoints.open_source(tmp_path / "weights.npz")) == (
        f"<npz checkpoint {tmp_path}/weights.npz: 1 array of 16 B>"
    )


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(1, "1 B"), (1536, "1.5 KiB"), (1004 * 1024, "1004 KiB"), (2**20, "1 MiB"), (250 * 2**30, "250 GiB")],
)
def test_bytes_are_told_in_units_of_their_size(nbytes, text):
    assert human_bytes(nbytes) == text


def test_the_outcome_of_a_run_prints_in_two_lines_at_most():
    outcome = mw.engine.Outcome(step=3, scores={"test/loss": 0.5}, seconds=1.5, state=state_of())
    assert repr(outcome) == (
        "Outcome(step=3, scores={'test/loss': 0.5}, seconds=1.5, state=TrainState(step=0, "
        "params: 2 arrays of 144 B, opt_state: 5 arrays of 292 B, mesh data=4,fsdp=2))"
    )
