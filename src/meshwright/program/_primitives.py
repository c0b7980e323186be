"""The table of JAX's primitives. To support a new one, add a line: no other file names primitives.

`infer_rules`, the counting of FLOPs and `plan` read the table. A line states only properties that are not
default:

    dimensions   the correspondence between the dimensions of operands and results, a rule of
                 `_dimensions.py`; by default they stay in place
    memory       the storage of results; by default XLA fuses the operation with others
    product      the name of a matrix product in `Flops`, with `work`, its FLOPs, a formula of `_products.py`
    uncounted    the work is not elementwise, and its FLOPs are not known
    exchange     the collective that it is, inside `shard_map`

A primitive that is missing from the table is treated as elementwise, and `plan` names it if shapes show that
this is wrong. Calls, which hold a jaxpr for all of their operands and results, are inlined and need no line.
"""

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from meshwright.program import _dimensions as dims
from meshwright.program import _products as products
from meshwright.program._dimensions import Dimensions, Rule, Shapes
from meshwright.program._products import Work
from meshwright.program._program import Equation, Operation


class Memory(Enum):
    """Storage of an operation's results after XLA has fused operations.

    Example:
      >>> add = mw.program._internal.program_of(jax.make_jaxpr(jnp.add)(1.0, 2.0)).operations[0]
      >>> mw.program._internal.known_of(add).memory.name
      'FUSED'
    """

    FUSED = "not stored: computed where they are read"
    COSTLY = "as FUSED, but the forward pass stores it for the backward pass, as it takes long to compute"
    COSTLY_NARROW = "as COSTLY if an element has fewer than four bytes, else as FUSED"
    VIEW = "the memory of the operand"
    WRITTEN = "stored; the operations that make its operands may be fused into it"
    REDUCED = "as WRITTEN; results may not overwrite the reduced operands"
    WHOLE = "stored; nothing is fused into the operation"
    IN_PLACE = "as WHOLE, in the memory of its first operand"


class Primitive(NamedTuple):
    """Properties of one primitive; see the head of this file."""

    dimensions: Dimensions = dims.elementwise
    """Function that makes the rule of its dimensions."""
    memory: Memory = Memory.FUSED
    """Storage of its results."""
    product: str = ""
    """Kind of matrix product; empty for other work."""
    work: Callable[[Equation, Rule], Work] | None = None
    """Function that counts the FLOPs of a product."""
    uncounted: bool = False
    """True if it does work that is neither elementwise nor counted."""
    exchange: str = ""
    """Kind of collective; empty for other work."""


def _each(names: str, *known: Any, **more: Any) -> dict[str, Primitive]:
    return dict.fromkeys(names.split(), Primitive(*known, **more))


_W = Memory.WHOLE
TABLE: dict[str, Primitive] = {
    # Matrix products. Attention is cuDNN's, behind jax.nn.dot_product_attention.
    "dot_general": Primitive(products.dot, _W, "dot", products.every_pair),
    "ragged_dot_general": Primitive(products.ragged_dot, _W, "ragged_dot", products.every_pair),
    "conv_general_dilated": Primitive(products.convolution, _W, "convolution", products.convolution_work),
    **_each(
        "dot_product_attention_fwd_wrapper dot_product_attention_fp8_fwd_wrapper",
        products.attention, _W, "attention", products.attention_work,
    ),
    **_each(
        "dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd_wrapper",
        products.attention_gradient, _W, "attention", products.attention_gradient_work,
    ),
    # Other work that is not elementwise.
    **_each("pallas_call ffi_call scaled_matmul_wrapper", dims.elementwise, _W, uncounted=True),
    **_each(
        "fft cholesky triangular_solve lu qr geqrf householder_product eig eigh svd schur hessenberg "
        "tridiagonal",
        dims.matrices, _W, uncounted=True,
    ),
    # Bodies.
    **_each("scan while cond shard_map", memory=_W),
    # Rearranged dimensions.
    "broadcast_in_dim": Primitive(dims.broadcast),
    "reshape": Primitive(dims.reshape, Memory.VIEW),
    "squeeze": Primitive(dims.squeeze, Memory.VIEW),
    "stack": Primitive(dims.stack),
    "transpose": Primitive(dims.transpose, Memory.VIEW),
    "unstack": Primitive(dims.unstack),
    # Dimensions that are gone, or of another size.
    **_each("argmax argmin", dims.arg_reduction, Memory.WRITTEN),
    **_each(
        "reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor",
        dims.reduction, Memory.REDUCED,
    ),
    **_each("concatenate dynamic_slice slice split", dims.sliced),
    **_each("iota pad rev tile", dims.resized),
    "dynamic_update_slice": Primitive(dims.resized, Memory.IN_PLACE),
    "top_k": Primitive(dims.resized, _W),
    "reduce": Primitive(),
    "reduce_window": Primitive(memory=_W),
    **_each("reduce_window_max reduce_window_min reduce_window_sum", memory=Memory.REDUCED),
    **_each("select_and_gather_add select_and_scatter select_and_scatter_add"),
    # Lookups, and work along a dimension.
    "gather": Primitive(dims.gather, Memory.WRITTEN),
    **_each("scatter scatter_add", dims.scatter, Memory.IN_PLACE),
    **_each("scatter_max scatter_min scatter_mul scatter_sub", dims.scatter, Memory.IN_PLACE),
    "sort": Primitive(dims.along("dimension"), _W),
    **_each("cumlogsumexp cummax cummin cumprod cumsum", dims.along("axis"), _W),
    # Random numbers.
    "random_bits": Primitive(dims.resized, _W),
    **_each("random_fold_in random_unwrap random_wrap threefry2x32 random_seed random_split", dims.resized),
    # Costly ones: of activations between two products, XLA for H100s (jax 0.10.2) keeps no other than these.
    "erf": Primitive(memory=Memory.COSTLY),
    "tanh": Primitive(memory=Memory.COSTLY_NARROW),
    "one_minus_square": Primitive(memory=Memory.COSTLY_NARROW),  # of tanh in its derivative, since jax 0.12
    # Elementwise. `jax.checkpoint` puts a reduce_precision where it keeps a value.
    "copy": Primitive(memory=Memory.VIEW),
    "optimization_barrier": Primitive(dims.one_by_one, Memory.VIEW),
    "reduce_precision": Primitive(memory=Memory.REDUCED),
    **_each(
        "abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp "
        "clz complex conj convert_element_type cos cosh device_put digamma div empty empty2 eq eq_to "
        "erf_inv erfc exp exp2 expm1 floor ge gt igamma imag integer_pow is_finite le le_to lgamma log "
        "log1p logistic lt lt_to max min mul name ne neg nextafter not or population_count "
        "pow real rem round rsqrt select_n sharding_constraint shift_left shift_right_arithmetic "
        "shift_right_logical sign sin sinh sqrt square stop_gradient sub tan xor"
    ),
    # What devices send each other.
    **_each("all_gather all_gather_invariant", memory=_W, exchange="all-gather"),
    "all_to_all": Primitive(memory=_W, exchange="all-to-all"),
    **_each("pmax pmin psum psum2 psum_invariant", memory=_W, exchange="all-reduce"),
    "ppermute": Primitive(memory=_W, exchange="collective-permute"),
    "reduce_scatter": Primitive(memory=_W, exchange="reduce-scatter"),
    **_each("axis_index pbroadcast pvary pcast"),
}  # fmt: skip
"""Properties of JAX's primitives, by name."""
UNKNOWN = Primitive()


def known_of(operation: Operation) -> Primitive:
    """Return the properties of an operation's primitive.

    JAX's versions differ in - or _ within names; both find the same line.
    """
    return TABLE.get(operation.kind) or TABLE.get(operation.kind.replace("-", "_"), UNKNOWN)


def rule_of(operation: Operation) -> Rule:
    """Return the correspondence between the dimensions of an operation without bodies.

    Example:
      >>> jaxpr = jax.make_jaxpr(jnp.transpose)(jnp.ones((8, 4)))
      >>> rule = mw.program._internal.rule_of(mw.program._internal.program_of(jaxpr).operations[0])
      >>> rule.inputs, rule.outputs
      ([((0,), (1,))], [((1,), (0,))])
    """
    dimensions, params = known_of(operation).dimensions, operation.eqn.params
    shapes = tuple([x.shape for x in operation.inputs]), tuple([x.shape for x in operation.outputs])
    try:
        return _rule(dimensions, () if dimensions is dims.elementwise else tuple(params.items()), *shapes)
    except TypeError:  # a parameter has no hash
        return dimensions(params, *shapes)


@lru_cache(1024)
def _rule(dimensions: Dimensions, params: tuple[tuple[str, Any], ...], *shapes: Shapes) -> Rule:
    """Return a rule from a cache, as layers repeat it."""
    return dimensions(dict(params), *shapes)


def product_flops(operation: Operation) -> tuple[int, str] | None:
    """Return the FLOPs of a matrix product, with recomputation, and its dtype; None for other operations.

    Those of rows that are not used count, too.
    """
    work = known_of(operation).work
    if work is None:
        return None
    return sum(work(operation.eqn, rule_of(operation))), products.dtype_of(operation.eqn)
