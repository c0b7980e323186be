import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import UsageError

LAYOUT = mw.Layout(mw.make_mesh("data=8"))
BATCH = {"x": np.linspace(0, 1, 32, dtype=np.float32).reshape(8, 4)}
PARAMS = {
    "wide": jnp.ones(4),
    "half": jnp.ones(4, jnp.float16),
    "narrow": jnp.ones(4, jnp.float8_e4m3fn),
    "count": jnp.arange(4),
}


def dtypes(tree):
    return {name: str(x.dtype) for name, x in tree.items()}


def test_wider_parameters_are_cast_for_the_loss_and_kept_as_they_are():
    seen = []

    def loss(params, batch, key):
        seen.append(dtypes(params | batch))
        return (batch["x"] @ params["wide"].astype(jnp.float32)).mean()

    told = optax.stateless(lambda updates, params: seen.append(dtypes({"wide": updates["wide"]})) or updates)
    tx = mw.training.Trainable("wide", optax.chain(told, optax.adam(0.1)))
    state = mw.training.state_from(PARAMS, tx, 0, LAYOUT)
    state, _ = mw.make_step(loss, tx, LAYOUT, compute_dtype="bfloat16")(state, BATCH)
    narrowed = {"wide": "bfloat16", "half": "float16", "narrow": "float8_e4m3fn", "count": "int32"}
    assert seen == [narrowed | {"x": "float32"}, {"wide": "float32"}]
    assert dtypes(state.params) == dtypes(PARAMS)


def test_gradients_through_the_cast_train_as_those_without_it():
    def trained(dtype):
        tx = optax.sgd(0.1)
        state = mw.training.state_from({"w": np.ones(4, np.float32)}, tx, 0, LAYOUT)
        loss = lambda params, batch, key: ((batch["x"] @ params["w"]) ** 2).mean()
        return mw.make_step(loss, tx, LAYOUT, microbatches=1, compute_dtype=dtype)(state, BATCH)[0]

    exact, cast = trained(None).params["w"], trained(jnp.bfloat16).params["w"]
    np.testing.assert_allclose(cast, exact, rtol=0.01)
    assert cast.dtype == jnp.float32


def test_an_evaluation_computes_in_it_too():
    def measure(params, batch):
        return {"bytes": jnp.full(8, params["w"].dtype.itemsize)}

    state = mw.training.state_from({"w": np.ones(4, np.float32)}, optax.sgd(1.0), 0, LAYOUT)
    data = lambda: mw.data.padded_batches(BATCH, 8, LAYOUT.batch_sharding)
    evaluate = mw.engine.Evaluator(measure, data, LAYOUT, mw.engine.never, compute_dtype=jnp.float16)
    assert evaluate(mw.engine.Tick(1, last=True), state) == {"bytes": 2}


def test_a_table_gives_each_parameter_its_own_and_the_first_match_stands():
    table = [("params/half", "float32"), ("wide", None), (".*", "bfloat16")]
    narrow = mw.training._internal.narrowing(table)
    found = narrow({"dense": {"wide": jnp.ones(4), "b": jnp.ones(4)}, "half": jnp.ones(4)})
    assert dtypes(mw.base._internal.named_leaves(found)) == {
        "dense/b": "bfloat16",
        "dense/wide": "float32",
        "half": "float32",
    }


@pytest.mark.parametrize("dtype", ["int8", "bf16", jax.numpy.complex64, [("w", "int8")]])
def test_a_dtype_that_is_not_floating_is_refused(dtype):
    with pytest.raises(UsageError, match=r"compute_dtype=.* is not a floating dtype"):
        mw.make_step(lambda params, batch, key: 0.0, optax.sgd(1.0), LAYOUT, compute_dtype=dtype)
