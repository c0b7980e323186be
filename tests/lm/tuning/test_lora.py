"""Adapters of any tree: what they compute, what they train, what they refuse."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.base import _tree as tree
from meshwright.errors import CheckpointError, UsageError
from meshwright.lm._tuning._quantised import quantise

X = {"x": np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)}


def init(key):
    one, two = jax.random.split(key)
    return {"layers": [{"w": jax.random.normal(one, (6, 4))}, {"w": jax.random.normal(two, (4, 3))}]}


def loss(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["layers"][0]["w"])
    return ((hidden @ params["layers"][1]["w"] - 1) ** 2).mean()


def moved(adapter, init=init):
    """Parameters whose adapter is not zero."""
    params = jax.jit(adapter.init(init))(jax.random.key(0))
    rng = np.random.default_rng(0)
    noise = lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32)
    return params | {"adapter": jax.tree.map(noise, params["adapter"])}


def both(adapter, params, loss=loss):
    """The losses with the adapter and with merged weights."""
    computed = lambda params: (
        adapter.loss(loss)(params, X, jax.random.key(1)),
        loss(adapter.merged(params), X),
    )
    return jax.jit(computed)(params)


def test_an_adapter_begins_as_the_model():
    adapter = mw.lm.lora("w", rank=2, dora=True)
    params = jax.jit(adapter.init(init))(jax.random.key(0))
    given, base = jax.jit(lambda p: (adapter.loss(loss)(p, X, jax.random.key(1)), loss(p["base"], X)))(params)
    np.testing.assert_allclose(given, base, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"alpha": 8}, {"alpha": 8, "rslora": True}, {"dora": True}])
@pytest.mark.daily(2)
def test_the_products_are_those_with_merged_weights(options):
    adapter = mw.lm.lora("w", rank=2, **options)
    params = moved(adapter)
    np.testing.assert_allclose(*both(adapter, params), rtol=2e-5)


def test_both_forms_have_the_same_gradients():
    grads = []
    for form in ("factored", "merged"):
        adapter = mw.lm.lora("w", rank=2, dora=True, form=form)
        params = moved(adapter)
        of_adapter = lambda a: adapter.loss(loss)(params | {"adapter": a}, X, jax.random.key(1))  # noqa: B023
        grads.append(jax.jit(jax.grad(of_adapter))(params["adapter"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *grads)


def test_rslora_scales_by_the_root_of_the_rank():
    assert mw.lm.lora("w", rank=16, alpha=8).scale == 0.5
    assert mw.lm.lora("w", rank=16, alpha=8, rslora=True).scale == 2


def test_magnitudes_of_dora_are_norms_of_outputs_and_set_them():
    adapter = mw.lm.lora("w", rank=2, dora=True)
    params = moved(adapter)
    first = params["adapter"]["layers"]["0"]["w"]["magnitude"]
    norms = np.linalg.norm(jax.jit(adapter.merged)(params)["layers"][0]["w"], axis=0)
    np.testing.assert_allclose(norms, abs(first), rtol=1e-5)


def test_only_the_adapter_is_trained_and_is_in_the_optimizer():
    adapter, layout = mw.lm.lora("w", rank=2), mw.Layout(mw.make_mesh("data=-1"))
    optimizer = adapter.optimizer(optax.adam(0.1))
    state = mw.training.init_state(adapter.init(init), optimizer, 0, layout)
    before = tree.named_leaves(jax.tree.map(np.asarray, state.params))
    assert all("base" not in name for name in tree.leaf_names(state.opt_state))
    state, _ = mw.make_step(adapter.loss(loss), optimizer, layout)(state, X)
    after = tree.named_leaves(state.params)
    assert all(np.array_equal(before[n], after[n]) for n in before if n.startswith("base"))
    assert not np.array_equal(after["adapter/layers/0/w/lora_b"], before["adapter/layers/0/w/lora_b"])


def test_dropout_is_of_the_adapter_s_inputs_and_of_training_alone():
    adapter = mw.lm.lora("w", rank=2, dropout=0.5)
    params = moved(adapter)
    of_key = jax.jit(lambda key: adapter.loss(loss)(params, X, key))
    assert len({float(of_key(jax.random.key(i))) for i in range(4)}) == 4
    without = jax.jit(lambda params: (loss(adapter.effective(params), X), loss(adapter.merged(params), X)))
    np.testing.assert_allclose(*without(params), rtol=2e-5)


def test_dropout_keeps_the_mean():
    x, w = jnp.ones((1, 6)), jnp.zeros((6, 1))
    adapter = mw.lm.lora("w", rank=1, dropout=0.25)
    params = {"base": {"w": w}, "adapter": {"w": {"lora_a": jnp.ones((6, 1)), "lora_b": jnp.ones((1, 1))}}}
    one = lambda key: (x @ adapter.effective(params, key)["w"])[0, 0]
    assert abs(float(jax.vmap(one)(jax.random.split(jax.random.key(0), 2000)).mean()) - 6) < 0.15


def test_a_stack_of_layers_is_scanned_over_with_its_adapters():
    stack = {"w": np.random.default_rng(1).normal(size=(5, 4, 4)).astype(np.float32) / 2}

    def stacked(params, batch):
        x, _ = jax.lax.scan(lambda x, layer: (jnp.tanh(x @ layer["w"]), None), batch["x"][:, :4], params)
        return (x**2).mean()

    adapter = mw.lm.lora("w", rank=2, dropout=0.1)
    params = moved(adapter, lambda key: stack)
    assert params["adapter"]["w"]["lora_a"].shape == (5, 4, 2)
    no_dropout = dataclasses.replace(adapter, dropout=0.0)
    np.testing.assert_allclose(*both(no_dropout, params, stacked), rtol=2e-5)
    assert np.isfinite(jax.jit(adapter.loss(stacked))(params, X, jax.random.key(3)))


def test_weights_of_heads_are_matrices_by_their_letters():
    weights = {"query": np.ones((6, 2, 4)), "out": np.ones((2, 4, 6)), "torch": np.ones((5, 6))}
    dims = [("query", "ioo"), ("out", "iio"), ("torch", "oi")]
    adapter = mw.lm.lora("query|out|torch", rank=1, dims=dims, form="merged", dora=True)
    params = jax.jit(adapter.beside)(weights, jax.random.key(0))
    shapes = jax.tree.map(jnp.shape, params["adapter"], is_leaf=lambda x: not isinstance(x, dict))
    assert shapes["query"] == {"lora_a": (6, 1), "lora_b": (1, 8), "magnitude": (8,)}
    assert shapes["out"] == {"lora_a": (8, 1), "lora_b": (1, 6), "magnitude": (6,)}
    assert shapes["torch"] == {"lora_a": (6, 1), "lora_b": (1, 5), "magnitude": (5,)}
    merged = jax.jit(adapter.merged)(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), merged, weights)
    part = params["adapter"]["out"] | {"lora_b": jnp.arange(6.0)[None]}
    params["adapter"]["out"] = part | {"magnitude": jnp.full(6, 2.0)}
    moved = np.asarray(jax.jit(adapter.merged)(params)["out"])
    assert moved.shape == (2, 4, 6)
    np.testing.assert_allclose(np.sqrt((moved**2).sum((0, 1))), 2, rtol=1e-5)


def test_merged_weights_have_the_dtype_of_the_base():
    adapter = mw.lm.lora("w", rank=2)
    base = {"w": jnp.ones((64, 4), jnp.bfloat16), "n": jnp.ones(3, jnp.float16), "i": jnp.ones(2, jnp.int32)}
    params = adapter.beside(base, jax.random.key(0))
    merged = jax.eval_shape(adapter.merged, params)
    assert jax.tree.map(lambda x: x.dtype, merged) == jax.tree.map(lambda x: x.dtype, base)
    params["base"]["w"] = quantise(base["w"], "int8")
    assert jax.eval_shape(adapter.merged, params)["w"].dtype == jnp.bfloat16


def test_narrow_activations_stay_narrow_beside_a_wide_adapter():
    params = mw.lm.lora("w").beside({"w": jnp.ones((4, 3), jnp.bfloat16)}, jax.random.key(0))
    product = lambda params: jnp.ones((2, 4), jnp.bfloat16) @ mw.lm.lora("w").effective(params)["w"]
    assert jax.eval_shape(product, params).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "use",
    [
        lambda w, x: jnp.einsum("bi,io->bo", x, w),
        lambda w, x: jnp.dot(x, w),
        lambda w, x: x @ w.T.T,
        lambda w, x: jax.lax.dot(x, w),
        lambda w, x: x @ w[:],
        lambda w, x: x @ (w + 1),
    ],
)
def test_a_model_that_does_otherwise_than_multiply_is_told_of_the_other_form(use):
    adapter = mw.lm.lora("w", rank=2)
    params = adapter.beside({"w": jnp.ones((6, 4))}, jax.random.key(0))
    loss = adapter.loss(lambda params, batch: use(params["w"], batch["x"]).mean())
    with pytest.raises(UsageError, match=r'otherwise than as x @ w.*\n.*form="merged"'):
        loss(params, X, jax.random.key(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank is 0; it must be at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0; it must be at least 0 and below 1"),
        ({"dropout": 0.1, "form": "merged"}, "nothing to drop"),
        ({"dims": [("w", "ixo")]}, "expected one letter for each dimension"),
        ({"form": "merge"}, "form is 'merge'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        mw.lm.lora("w", **options)


def test_what_cannot_be_adapted_is_named():
    with pytest.raises(UsageError, match="lora: 'layers/q' matches no name"):
        mw.lm.lora("layers/q").beside({"layers": {"w": jnp.ones((2, 2))}}, jax.random.key(0))
    with pytest.raises(UsageError, match=r"b has shape \(2,\): an adapter needs a matrix"):
        mw.lm.lora("b").beside({"b": jnp.ones(2)}, jax.random.key(0))
    with pytest.raises(UsageError, match="the optimizer is a Trainable already"):
        mw.lm.lora("w").optimizer(mw.training.Trainable("w", optax.sgd(1)))
    with pytest.raises(UsageError, match=r"has the parameters \{'base': …, 'adapter': …\}; found \['w'\]"):
        mw.lm.lora("w").merged({"w": jnp.ones((2, 2))})


@pytest.mark.parametrize("form", ["factored", "merged"])
def test_an_adapter_of_fewer_layers_is_not_spread_over_all(form):
    lora = mw.lm.lora("w", rank=1, form=form)
    params = lora.beside({"w": jnp.ones((3, 4, 2))}, jax.random.key(0))
    params["adapter"] = jax.tree.map(lambda x: x[:1], params["adapter"])
    with pytest.raises(CheckpointError, match=r"lora_a \(1, 4, 1\) and lora_b \(1, 1, 2\), which do not fit"):
        lora.effective(params)
