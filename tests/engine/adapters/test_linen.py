import jax
import jax.numpy as jnp
import pytest
from flax import linen

import meshwright as mw
from meshwright.engine._adapters._functional import functional
from meshwright.errors import UsageError

KEY = jax.random.key(0)
X = jnp.ones((2, 4))


@pytest.mark.parametrize("partitioning", [linen.with_partitioning, linen.with_logical_partitioning])
def test_names_of_axes_are_kept_and_need_not_be_those_of_the_mesh(mesh, partitioning):
    named = partitioning(linen.initializers.lecun_normal(), ("embed", "mlp"))
    model = functional(linen.Sequential([linen.Dense(8, kernel_init=named), linen.Dense(4)]), X)
    assert model.axes == {"layers_0/kernel": ("embed", "mlp")}
    with jax.set_mesh(mesh):
        params = jax.jit(model.init)(KEY)
    assert {type(leaf) for leaf in mw.base._internal.named_leaves(params).values()} == {type(X)}
    assert model.apply(params, X).shape == (2, 4)


def test_a_kernel_that_flax_reshapes_has_no_names_for_its_further_dimensions():
    named = linen.with_logical_partitioning(linen.initializers.lecun_normal(), ("embed", "kv"))
    model = functional(linen.MultiHeadDotProductAttention(4, kernel_init=named), jnp.ones((2, 3, 16)))
    assert model.axes["query/kernel"] == ("embed", "kv", None)
    layout = mw.Layout(mw.make_mesh("data=2,fsdp=4"), (mw.parallel.logical(model.axes),))
    assert layout.shardings(jax.eval_shape(model.init, KEY))["query"]["kernel"].spec == jax.P("fsdp")


class Counting(linen.Module):
    names: tuple = ("calls", "sums")

    @linen.compact
    def __call__(self, x):
        calls = self.variable("counts", self.names[0], lambda: jnp.zeros(()))
        sums = self.variable("totals", self.names[1], lambda: (jnp.zeros(()), jnp.zeros(())))
        if not self.is_initializing():
            calls.value += 1
            sums.value = (sums.value[0] + x.sum(), sums.value[1])
        return x


def test_all_collections_become_one_state():
    model = functional(Counting(), X)
    variables = model.init(KEY)
    assert mw.parallel.leaf_names(variables.model_state) == ["calls", "sums/0", "sums/1"]
    _, moved = model.apply(variables.params, X, model_state=variables.model_state, train=True)
    assert mw.base._internal.named_leaves(moved) == {"calls": 1, "sums/0": 8, "sums/1": 0}


def test_one_name_in_two_collections_is_refused():
    with pytest.raises(UsageError, match=r"two collections .* the same name: same"):
        functional(Counting(("same", "same")), X)


def test_any_stream_draws_from_the_key():
    class Noise(linen.Module):
        @linen.compact
        def __call__(self, x):
            return x + jax.random.normal(self.make_rng("noise"), x.shape)

    model = functional(Noise(), X)
    one, again, other = (model.apply({}, X, key=jax.random.key(i)) for i in (1, 1, 2))
    assert (one == again).all()
    assert (one != other).all()


class Dropping(linen.Module):
    deterministic: bool = False

    @linen.compact
    def __call__(self, x):
        return linen.Dropout(0.5, deterministic=self.deterministic)(x)


class Holding(linen.Module):
    @linen.compact
    def __call__(self, x):
        return Dropping()(x)


def test_dropout_of_a_module_that_is_made_in_a_method_does_not_stay_on_in_evaluation():
    model = functional(Holding(), X)
    with pytest.raises(
        UsageError, match=r"^Dropping_0/Dropout_0 drops in evaluation.*\n.*deterministic=not train"
    ):
        model.apply({}, X, key=KEY)
    assert (model.apply({}, X, key=KEY, train=True) == 0).any()
