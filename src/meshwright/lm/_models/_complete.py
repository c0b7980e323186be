"""Whether a source has all parameters of a reference model, and nothing else."""

from collections.abc import Callable
from typing import Any

import jax

from meshwright.base._internal import tree
from meshwright.checkpoints._internal import Source, restore_lazily
from meshwright.lm._models import decoder, gpt2, t5
from meshwright.training._internal import key_of

_INITS: dict[type, Callable[[Any, jax.Array], tree.PyTree]] = {
    decoder.Config: decoder.init,
    gpt2.Config: gpt2.init,
    t5.Config: t5.init,
}


def check_complete(source: Source, cfg: decoder.Config | gpt2.Config | t5.Config) -> None:
    """Check names and shapes, as loaders fill missing parameters with random numbers. Dtypes may differ."""
    saved = source.arrays()
    expected = tree.named_leaves(jax.eval_shape(lambda: _INITS[type(cfg)](cfg, key_of(0))))
    structs = {
        name: jax.ShapeDtypeStruct(x.shape, saved[name].dtype if name in saved else x.dtype)
        for name, x in expected.items()
    }
    restore_lazily(source, tree.nested(structs))
