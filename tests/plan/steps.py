"""Small steps, and what the estimate says that they take."""

import functools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

import meshwright as mw
from meshwright.lm._models import decoder
from meshwright.parallel._mesh import grouped_mesh
from meshwright.plan._estimate._traced import traced_costs
from meshwright.training._step import Step

F32 = 4


def abstract(shapes, layout):
    """Structs of `{name: (shape, spec)}`."""
    return {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(layout.mesh, spec))
        for name, (shape, spec) in shapes.items()
    }


def layout_of(mesh):
    return mw.Layout(grouped_mesh(mesh, 1, math.prod(mesh.values())))


def costs(function, shapes, batch, mesh):
    """What one evaluation of a scalar function takes, on devices that are not there."""
    layout = layout_of(mesh)
    step = Step(lambda state, x: (state, {"y": function(state, x)}), layout)
    return traced(step, abstract(shapes, layout), batch, layout)


def descent(loss, shapes, batch, mesh, how=None, **settings):
    """What one step of gradient descent takes; `how` it is estimated."""
    layout = layout_of(mesh)
    tx = optax.sgd(0.1)
    params = abstract(shapes, layout)
    state = mw.TrainState(
        jax.ShapeDtypeStruct((), jnp.int32, sharding=layout.replicated),
        params,
        jax.eval_shape(tx.init, params),
        jax.ShapeDtypeStruct((), jnp.uint32, sharding=layout.replicated),
    )
    step = mw.make_step(lambda params, x, key: loss(params, x), tx, layout, **settings)
    return traced(step, state, batch, layout, **(how or {}))


def traced(step, state, batch, layout, **how):
    batch = jax.ShapeDtypeStruct(batch, jnp.float32)
    return traced_costs(step.trace(state, batch).jaxpr, state, layout, **how)


def sent(found):
    """Bytes that a device sends, by kind and axes; but of scalars."""
    return +Counter(
        {
            key: sum(x.times * x.sent_nbytes for x in found if (x.kind, x.axes) == key and x.nbytes > 8)
            for key in {(x.kind, x.axes) for x in found}
        }
    )


def layers(state, x):
    """The mean of sin(... sin(x w[0]) ... w[L - 1])."""
    return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, state["w"])[0].mean()


def decoder_costs(mesh, batch_size, remat):
    """Of LLaMA 7B on sequences of 2,048 tokens."""
    cfg, layout = decoder.config("llama-7b"), mw.Layout(layout_of(mesh).mesh, rules=decoder.RULES)
    loss = lambda params, batch, key: decoder.loss(cfg, params, batch, remat=remat)
    tx = optax.adamw(1e-3)
    step = mw.make_step(loss, tx, layout, compute_dtype="bfloat16")
    state = mw.training.abstract_state(functools.partial(decoder.init, cfg), tx, layout)
    batch = {"tokens": jax.ShapeDtypeStruct((batch_size, 2049), jnp.int32)}
    return traced_costs(step.trace(state, batch).jaxpr, state, layout)


GIB = 2**30
