import jax
import jax.numpy as jnp
import optax

import meshwright as mw
from meshwright.program._hlo._collectives import collectives


def test_the_norm_of_gradients_gathers_nothing(mesh):
    shardings = mw.Layout(
        mesh, (mw.parallel.match("columns", None, "tensor"), mw.parallel.match("rows", "tensor", "fsdp"))
    )
    gradients = shardings.place({"columns": jnp.ones((256, 512)), "rows": jnp.ones((512, 256))})
    exchanged = collectives(jax.jit(optax.tree.norm).lower(gradients).compile().as_text(), mesh)
    assert {each.kind for each in exchanged} == {"all-reduce"}
    assert sum(each.nbytes for each in exchanged) < 100
