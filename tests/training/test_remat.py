import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.ad_checkpoint import checkpoint_name

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.training._remat import remat_policy

LAYOUT = mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), (mw.parallel.match("a|b", "fsdp", "tensor"),))
PARAMS = {name: np.random.default_rng(i).normal(size=(8, 8)).astype("f4") for i, name in enumerate("ab")}
BATCH = {"x": np.random.default_rng(9).normal(size=(16, 8)).astype(np.float32)}
NAMES = ["everything", "nothing", "dots", "dots_no_batch", "save:hidden", "offload:hidden"]


def loss(params, batch, key):
    hidden = checkpoint_name(jnp.sin(batch["x"] @ params["a"]), "hidden")
    return (jnp.sin(hidden @ params["b"]) ** 2).mean(), {"hidden": hidden.mean()}


def trained(loss):
    state = mw.training.state_from(PARAMS, optax.sgd(0.1), 0, LAYOUT)
    return mw.make_step(loss, optax.sgd(0.1), LAYOUT, microbatches=2)(state, BATCH)


@pytest.fixture(scope="module")
def plain():
    return trained(loss)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.daily(3)
def test_no_policy_changes_the_update(name, plain):
    state, metrics = trained(mw.training.remat(loss, name))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), state.params, plain[0].params)
    np.testing.assert_allclose(metrics["hidden"].value, plain[1]["hidden"].value, rtol=1e-5)


def computed(name, loss=loss):
    """How many products and sines a gradient computes."""
    value = lambda params: mw.training.remat(loss, name)(params, BATCH, None)[0]
    jaxpr = str(jax.make_jaxpr(jax.grad(value))(PARAMS))
    return jaxpr.count("= dot_general"), jaxpr.count("= sin ")


def test_what_is_not_kept_is_computed_again():
    dots, sines = computed("everything")
    assert computed("nothing") == (dots + 2, sines + 2)
    assert computed("dots") == computed("dots_no_batch") == (dots, sines + 2)
    assert computed("save:hidden")[0] == dots + 2


def test_products_of_batches_are_kept_with_dots_and_computed_again_with_dots_no_batch():
    def attention(params, batch, key):
        """Of the examples' halves to each other: a product for each of them, as scores of attention are."""
        x = (batch["x"] @ params["a"]).reshape(8, 2, 8)
        return (jnp.sin(jnp.einsum("bqf,bkf->bqk", x, x)) ** 2).mean(), {}

    dots, _ = computed("everything", attention)
    assert computed("dots", attention)[0] == dots
    assert computed("dots_no_batch", attention)[0] == dots + 1


def test_what_is_offloaded_goes_to_the_host():
    value = lambda params: mw.training.remat(loss, "offload:other, hidden")(params, BATCH, None)[0]
    assert "Host" in str(jax.make_jaxpr(jax.grad(value))(PARAMS))


@pytest.mark.parametrize("name", ["dot", "save", "save:", "offload: ,", "everything:a", ""])
def test_a_policy_that_does_not_exist_is_told(name):
    with pytest.raises(UsageError, match=r"no rematerialisation policy .*(.|\n)*everything, nothing, dots"):
        remat_policy(name)
