"""Weights that are stored in four or eight bits and computed where they are used."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import Table, documented, judge, tree
from meshwright.checkpoints._internal import Index, LazyArray, Source, as_source
from meshwright.errors import UsageError
from meshwright.lm._tuning._encodings import BLOCK, ENCODINGS
from meshwright.parallel._internal import plain_axes
from meshwright.training._internal import Init, Model, Variables, as_init

Kind = Literal["int8", "nf4"]
"""The encodings of weights: eight bits with a scale for each output, or four with one for each 64."""


@documented
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantised:
    """A weight in few bits. It is a pytree of two arrays, so that it is split and scanned over as others.

    `x @ weight`, `weight[i]`, `weight.T` and the functions of `jax.numpy` compute the weight there, in the
    dtype of the scales. It is not kept.

    Example:
      >>> weight = mw.lm._internal.quantise(jnp.ones((4, 128)), "nf4")
      >>> print((jnp.ones((1, 4)) @ weight)[0, :3], mw.parallel.nbytes(weight))
      [4. 4. 4.] 288
    """

    codes: jax.Array
    """The codes, int8[..., in, out] or uint8[..., in, bytes]."""
    scales: jax.Array
    """The scales, [..., 1, out] or [..., in, blocks]."""
    size: int = field(metadata={"static": True})
    """The last dimension of the weight."""
    kind: Kind = field(metadata={"static": True})
    """The encoding of the weight."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the weight."""
        return (*self.codes.shape[:-1], self.size)

    @property
    def ndim(self) -> int:
        """Return the number of dimensions of the weight."""
        return self.codes.ndim

    @property
    def dtype(self) -> Any:
        """Return the dtype that the weight is computed in, which is that of the scales."""
        return self.scales.dtype

    @property
    def T(self) -> jax.Array:  # noqa: N802 - the name in NumPy
        """Return the transpose of the weight."""
        return self.gathered().T

    def __repr__(self) -> str:
        return f"Quantised({self.kind}, {self.dtype}{list(self.shape)})"

    def dequantised(self) -> jax.Array:
        """Return the weight, computed."""
        return ENCODINGS[self.kind].decode(self.codes, self.scales, self.size).astype(self.dtype)

    def astype(self, dtype: Any) -> Self:
        """Return the weight, to be computed in another dtype."""
        return replace(self, scales=self.scales.astype(dtype))

    def gathered(self) -> jax.Array:
        """Return the weight, computed where it is used: under `fsdp`, its codes are gathered, not its values.

        If the mesh splits products, too, as `tensor` does, the choice is left to XLA.
        """
        sizes = jax.sharding.get_abstract_mesh().shape
        if not sizes or any(size > 1 for axis, size in sizes.items() if axis not in plain_axes()):
            return self.dequantised()
        # XLA would compute the weight first, and then send four times as many bytes, or twice for int8.
        whole = jax.lax.with_sharding_constraint((self.codes, self.scales), P())
        return replace(self, codes=whole[0], scales=whole[1]).dequantised()

    def __jax_array__(self) -> jax.Array:
        return self.gathered()

    # NumPy's arrays then leave `x @ weight` to `__rmatmul__`.
    __array_ufunc__ = None

    def __rmatmul__(self, other: Any) -> jax.Array:
        return other @ self.gathered()

    def __getitem__(self, index: Any) -> jax.Array:
        return self.gathered()[index]

    def __matmul__(self, other: Any) -> jax.Array:
        return self.gathered() @ other


def is_quantised(x: Any) -> bool:
    """Return whether a node of a tree is a quantised weight."""
    return isinstance(x, Quantised)


def computed(weight: Any) -> jax.Array:
    """Return a weight as an array, split as it is."""
    return weight.dequantised() if is_quantised(weight) else jnp.asarray(weight)


def quantise(weight: jax.Array, kind: Kind) -> Quantised:
    """Return a weight in few bits.

    Example:
      >>> float(abs(mw.lm._internal.quantise(jnp.eye(4), "int8").dequantised() - jnp.eye(4)).max())
      0.0
    """
    _check(kind, "the weight", weight.shape, weight.dtype)
    codes, scales = _encode(weight, kind)
    return Quantised(codes, scales, weight.shape[-1], kind)


# One program, as the intermediate arrays are several times as large.
@partial(jax.jit, static_argnums=1)
def _encode(weight: jax.Array, kind: Kind) -> tuple[jax.Array, jax.Array]:
    scales = ENCODINGS[kind].scales_of(weight, jnp)
    return ENCODINGS[kind].codes_of(weight, scales, jnp), scales


def dequantised(params: tree.PyTree) -> tree.PyTree:
    """Return a tree with arrays in place of quantised weights."""
    return jax.tree.map(lambda x: x.dequantised() if is_quantised(x) else x, params, is_leaf=is_quantised)


def quantised_init(init: Init | Model, pattern: str, kind: Kind) -> Init:
    """Return a function of a key that makes the parameters of `init`, some of them in few bits.

    Args:
      init: A function that makes the parameters from a PRNG key.
      pattern: A pattern for the names of the weights, `params/layers/q`.
      kind: As in `quantise`.

    Raises:
      UsageError: When it is called: the pattern matches nothing, or a match is no floating matrix.

    Example:
      >>> init = mw.lm.quantised_init(lambda key: {"w": jnp.ones((256, 64)), "b": jnp.ones(64)}, "w", "int8")
      >>> params = init(mw.training.key_of(0))
      >>> mw.parallel.leaf_names(params), mw.parallel.nbytes(params["w"])
      (['b', 'w/codes', 'w/scales'], 16640)
    """
    table = Table("quantised", (pattern,))

    def make(key: jax.Array) -> Any:
        variables = as_init(init)(key)
        params = variables.params if isinstance(variables, Variables) else variables
        judge({table: tree.leaf_names({"params": params})})

        def stored(name: str, x: jax.Array) -> Any:
            if not table.first(f"params/{name}"):
                return x
            _check(kind, name, x.shape, x.dtype)
            return quantise(x, kind)

        params = tree.map_named(stored, params)
        return replace(variables, params=params) if isinstance(variables, Variables) else params

    return make


def quantised_source(source: Source, pattern: str, kind: Kind) -> Source:
    """Return a source in which some weights are in few bits, lazily: a part that is read is encoded then.

    Args:
      source: The source of the weights.
      pattern: A pattern for the names of the weights in the source.
      kind: As in `quantise`.

    Raises:
      UsageError: The pattern matches nothing, or a match is no floating matrix.

    Example:
      >>> source = mw.checkpoints.as_source({"w": np.ones((256, 64), np.float32)}, "the source")
      >>> quantised = mw.lm.quantised_source(source, "w", "int8")
      >>> {name: array.dtype.name for name, array in quantised.arrays().items()}
      {'w/codes': 'int8', 'w/scales': 'float32'}
    """
    table, arrays = Table("quantised", (pattern,)), source.arrays()
    judge({table: arrays})
    arrays_by_name: dict[str, LazyArray] = {}
    for name, x in arrays.items():
        if table.first(name):
            _check(kind, name, x.shape, x.dtype)
            arrays_by_name |= {f"{name}/codes": _encoded(x, kind, 0), f"{name}/scales": _encoded(x, kind, 1)}
        else:
            arrays_by_name[name] = x
    return as_source(arrays_by_name, str(source))


def _encoded(weight: LazyArray, kind: Kind, part: int) -> LazyArray:
    """Return the codes (part 0) or the scales (part 1) of a weight, lazily."""
    encoding, within = ENCODINGS[kind], _WITHIN[kind, part]
    whole = jax.eval_shape(partial(_encode, kind=kind), jax.ShapeDtypeStruct(weight.shape, weight.dtype))[
        part
    ]

    def read(index: Index) -> np.ndarray:
        full = tuple(
            slice(*part_slice.indices(size)) for part_slice, size in zip(index, whole.shape, strict=True)
        )
        # One matrix at a time, as intermediate arrays are several times as large.
        if len(full) > 2:
            layers = range(full[0].start, full[0].stop)
            parts = [read_matrices((slice(layer, layer + 1), *full[1:])) for layer in layers]
            return np.concatenate(parts) if parts else read_matrices(full)
        return read_matrices(full)

    def read_matrices(index: Index) -> np.ndarray:
        needed, kept_part = within(index, weight.shape)
        values = weight.read(needed)
        scales = encoding.scales_of(values, np)
        return (scales if part else encoding.codes_of(values, scales, np))[kept_part]

    return LazyArray(whole.shape, np.dtype(whole.dtype), read)


PartToRead = tuple[Index, Any]
"""The part of a weight to read for a part of its codes or scales, and the index of that part among these."""


def _whole_columns(index: Index, shape: tuple[int, ...]) -> PartToRead:
    """Int8: the whole columns, as the scale is of all inputs."""
    return (*index[:-2], slice(0, shape[-2]), index[-1]), (..., index[-2], slice(None))


def _whole_blocks(per: int) -> Callable[[Index, tuple[int, ...]], PartToRead]:
    """NF4: the whole blocks around some codes (`per` of them are a block) or scales (1)."""

    def needed(index: Index, shape: tuple[int, ...]) -> PartToRead:
        first, end = index[-1].start // per, -(-index[-1].stop // per)
        part = slice(first * BLOCK, min(end * BLOCK, shape[-1]))
        return (*index[:-1], part), (..., slice(index[-1].start - first * per, index[-1].stop - first * per))

    return needed


_WITHIN: dict[tuple[str, int], Callable[[Index, tuple[int, ...]], PartToRead]] = {
    ("int8", 0): _whole_columns,
    ("int8", 1): _whole_columns,
    ("nf4", 0): _whole_blocks(BLOCK // 2),
    ("nf4", 1): _whole_blocks(1),
}


def _check(kind: str, name: str, shape: tuple[int, ...], dtype: Any) -> None:
    if kind not in get_args(Kind):
        raise UsageError(
            f"weights cannot be stored as {kind!r}; expected one of {', '.join(get_args(Kind))}."
        )
    if len(shape) < 2 or not jnp.issubdtype(dtype, jnp.floating):
        raise UsageError(
            f"{name} is {dtype}{list(shape)}, and cannot be quantised: only floating matrices can. Let the "
            "pattern match weights alone."
        )
