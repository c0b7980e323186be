"""The user's page is true: its examples run, one after the other."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def init(key):
    layers = {str(i): {"w": jax.random.normal(jax.random.fold_in(key, i), (8, 4))} for i in range(2)}
    return {"layers": layers, "head": {"w": jnp.ones((4, 2))}}


def test_the_examples_of_the_page_run(mesh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layout, tx = mw.Layout(mesh), optax.adam(1e-3)
    target, state = mw.training.abstract_state(init, tx, layout), mw.training.init_state(init, tx, 0, layout)
    half = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16, sharding=x.sharding), target.params
    )
    names = {"init": init, "tx": tx, "layout": layout, "target": target, "state": state}
    names["half_target"] = mw.TrainState(target.step, half, target.opt_state, target.seed)
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(example, names)
    np.testing.assert_array_equal(names["renamed"]["model"]["head"]["w"], np.ones((4, 2)))
    assert names["stacked"](names["source"]).arrays()["params/layers/w"].shape == (2, 8, 4)
    assert np.asarray(names["heads"].arrays()["head"]).shape == (2, 4)
    kernel = np.ones((3, 3, 3, 2), np.float32)
    assert names["inflated"](kernel, jnp.zeros((3, 3, 4, 3, 2)))[0, 0].sum(0).tolist() == [[1, 1]] * 3
    assert (names["gray"](kernel, None) == np.full((3, 3, 1, 2), 3)).all()
