"""Costs of small steps, by hand; and of a transformer, against what XLA compiles."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.plan import traced_costs
from meshwright.sharding import grouped_mesh

F32 = 4


def costs(function, state, batch, mesh):
    """The costs of one step of `function`, of a state `{name: (shape, spec)}`, on devices not there."""
    count = functools.reduce(lambda n, size: n * size, mesh.values(), 1)
    layout = mw.Layout(grouped_mesh(mesh, 1, count))
    place = functools.partial(NamedSharding, layout.mesh)
    state = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place(spec))
        for name, (shape, spec) in state.items()
    }
    step = mw.train.Step(lambda state, x: (state, {"y": function(state, x)}), layout)
    return traced_costs(step.trace(state, jax.ShapeDtypeStruct(batch, jnp.float32)).jaxpr, state, layout)


def sent(costs):
    """Bytes that a device sends, by kind and axes; without scalars."""
    found = Counter()
    for each in costs.collectives:
        if each.nbytes > 8:
            found[each.kind, each.axes] += each.times * each.sent_nbytes
    return found


def test_weights_split_as_the_batch_is_are_gathered():
    found = costs(
        lambda s, x: jnp.tanh(x @ s["w"]).sum(), {"w": ((32, 64), P("fsdp"))}, (128, 32), {"fsdp": 4}
    )
    assert sent(found) == {("all-gather", ("fsdp",)): 32 * 64 * F32 * 3 // 4}


def test_products_over_a_split_dimension_are_summed():
    weights = {"in": ((32, 64), P(None, "tensor")), "out": ((64, 32), P("tensor"))}
    found = costs(lambda s, x: jnp.tanh(x @ s["in"] @ s["out"]).sum(), weights, (8, 32), {"tensor": 4})
    assert sent(found) == {("all-reduce", ("tensor",)): 2 * 8 * 32 * F32 * 3 // 4}
