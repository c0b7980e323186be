"""The table of JAX's primitives. To support a new one, add a line: no other file names primitives.

`infer_rules`, the counting of FLOPs and `plan` read the table. A line states only properties that are not
default:

    dimensions   the correspondence between the dimensions of operands and results, a rule of
                 `_dimensions.py`; by default they stay in place
    memory       the storage of results; by default XLA fuses the operation with others
    algebra      the elements of results as a function of those of operands; by default any function
    product      the name of a matrix product in `Flops`, with `work`, its FLOPs, a formula of `_products.py`
    uncounted    the work is not elementwise, and its FLOPs are not known
    exchange     the collective that it is, inside `shard_map`

A primitive that is missing from the table is treated as elementwise, and `plan` names it if shapes show that
this is wrong. Calls, which hold a jaxpr for all of their operands and results, are inlined and need no line.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from meshwright.program import _dimensions as dims
from meshwright.program import _products as products
from meshwright.program._dimensions import Dimensions, Rule, Shapes
from meshwright.program._jaxprs import Equation
from meshwright.program._products import Work


class Memory(Enum):
    """Storage of an operation's results after XLA has fused operations.

    Example:
      >>> add = mw.program._internal.program_of(jax.make_jaxpr(jnp.add)(1.0, 2.0)).operations[0]
      >>> add.primitive.memory.name
      'FUSED'
    """

    FUSED = "not stored: computed where they are read"
    COSTLY = "as FUSED, but the forward pass stores it for the backward pass, as it takes long to compute"
    COSTLY_NARROW = "as COSTLY if an element has fewer than four bytes, else as FUSED"
    VIEW = "the memory of the operand"
    STORED = "stored; the operations that make its operands may be fused into it"
    REDUCED = "as STORED; results may not overwrite the reduced operands"
    WHOLE = "stored; nothing is fused into the operation"
    IN_PLACE = "as WHOLE, in the memory of its first operand, of which it changes a part by the last"
    OVERWRITTEN = "as IN_PLACE, and the second operand replaces the part"

    @property
    def is_whole(self) -> bool:
        """True if XLA fuses nothing into the operation."""
        return self is Memory.WHOLE or self.is_in_place

    @property
    def is_in_place(self) -> bool:
        return self in (Memory.IN_PLACE, Memory.OVERWRITTEN)


class Algebra(Enum):
    """The elements of results as a function of those of operands."""

    ANY = "any function of elements at one place"
    SAME = "each operand as it is, or rounded"
    CAST = "the operand, of another dtype"
    MOVED = "elements of the first operand, at other places"
    ADDED = "the sum of the operands"
    MULTIPLIED = "the product of two operands"
    DIVIDED = "the quotient of two operands"
    CURVED = "a function f of one operand, with f(a + b) other than f(a) + f(b)"
    SUMMED = "sums of elements"
    PRODUCT = "sums of products of elements"
    EXTREME = "one of several elements, or their product"
    ORDERED = "each element by all others along a dimension"


class Primitive(NamedTuple):
    """Properties of one primitive; see the head of this file."""

    dimensions: Dimensions = dims.elementwise
    """Function that makes the rule of its dimensions."""
    memory: Memory = Memory.FUSED
    """Storage of its results."""
    algebra: Algebra = Algebra.ANY
    """The elements of its results, as a function of those of operands."""
    product: str = ""
    """Kind of matrix product; empty for other work."""
    work: Callable[[Equation, Rule], Work] | None = None
    """Function that counts the FLOPs of a product."""
    uncounted: bool = False
    """True if it does work that is neither elementwise nor counted."""
    exchange: str = ""
    """Kind of collective; empty for other work."""

    @property
    def is_same(self) -> bool:
        """True if each result is an operand, perhaps cast."""
        return self.algebra in (Algebra.SAME, Algebra.CAST)


def _rows(names: str, *columns: Any, **named: Any) -> dict[str, Primitive]:
    return dict.fromkeys(names.split(), Primitive(*columns, **named))


_W, _A = Memory.WHOLE, Algebra
_M, _P = _A.MOVED, _A.PRODUCT
TABLE: dict[str, Primitive] = {
    # Matrix products. Attention is cuDNN's, behind jax.nn.dot_product_attention.
    "dot_general": Primitive(products.dot, _W, _P, "dot", products.every_pair),
    "ragged_dot_general": Primitive(products.ragged_dot, _W, _P, "ragged_dot", products.every_pair),
    "conv_general_dilated": Primitive(products.convolution, _W, _P, "convolution", products.convolution_work),
    **_rows(
        "dot_product_attention_fwd_wrapper dot_product_attention_fp8_fwd_wrapper",
        products.attention, _W, _P, "attention", products.attention_work,
    ),
    **_rows(
        "dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd_wrapper",
        products.attention_gradient, _W, _P, "attention", products.attention_gradient_work,
    ),
    # Other work that is not elementwise.
    **_rows("pallas_call ffi_call scaled_matmul_wrapper", dims.elementwise, _W, uncounted=True),
    **_rows(
        "fft cholesky triangular_solve lu qr geqrf householder_product eig eigh svd schur hessenberg "
        "tridiagonal",
        dims.matrices, _W, uncounted=True,
    ),
    # Bodies.
    **_rows("scan while cond shard_map", memory=_W),
    # Rearranged dimensions.
    "broadcast_in_dim": Primitive(dims.broadcast, algebra=_M),
    "reshape": Primitive(dims.reshape, Memory.VIEW, _M),
    "squeeze": Primitive(dims.squeeze, Memory.VIEW, _M),
    "stack": Primitive(dims.stack),
    "transpose": Primitive(dims.transpose, Memory.VIEW, _M),
    "unstack": Primitive(dims.unstack, algebra=_M),
    # Dimensions that are gone, or of another size.
    **_rows("argmax argmin", dims.arg_reduction, Memory.STORED, _A.EXTREME),
    **_rows("reduce_and reduce_or reduce_xor", dims.reduction, Memory.REDUCED),
    **_rows("reduce_max reduce_min reduce_prod", dims.reduction, Memory.REDUCED, _A.EXTREME),
    "reduce_sum": Primitive(dims.reduction, Memory.REDUCED, _A.SUMMED),
    "concatenate": Primitive(dims.sliced),
    **_rows("dynamic_slice slice split", dims.sliced, algebra=_M),
    **_rows("iota pad", dims.resized),
    **_rows("rev tile", dims.resized, algebra=_M),
    "dynamic_update_slice": Primitive(dims.resized, Memory.OVERWRITTEN),
    **_rows("top_k approx_top_k", dims.resized, _W),
    "reduce": Primitive(),
    "reduce_window": Primitive(memory=_W),
    **_rows("reduce_window_max reduce_window_min reduce_window_sum", memory=Memory.REDUCED),
    **_rows("select_and_gather_add select_and_scatter select_and_scatter_add"),
    # Lookups, and work along a dimension.
    "gather": Primitive(dims.gather, Memory.STORED),
    **_rows("scatter scatter_max scatter_min scatter_mul scatter_sub", dims.scatter, Memory.IN_PLACE),
    "scatter_add": Primitive(dims.scatter, Memory.IN_PLACE, _A.SUMMED),
    "sort": Primitive(dims.along("dimension"), _W, _A.ORDERED),
    **_rows("cumlogsumexp cummax cummin cumprod cumsum", dims.along("axis"), _W, _A.ORDERED),
    # Random numbers.
    "random_bits": Primitive(dims.resized, _W),
    **_rows("random_fold_in random_unwrap random_wrap threefry2x32 random_seed random_split", dims.resized),
    # Costly ones: of activations between two products, XLA for H100s (jax 0.10.2) keeps no other than these.
    "erf": Primitive(memory=Memory.COSTLY, algebra=_A.CURVED),
    "tanh": Primitive(memory=Memory.COSTLY_NARROW, algebra=_A.CURVED),
    "one_minus_square": Primitive(memory=Memory.COSTLY_NARROW),  # of tanh in its derivative, since jax 0.12
    # Elementwise. `jax.checkpoint` puts a reduce_precision where it keeps a value.
    "copy": Primitive(memory=Memory.VIEW, algebra=_A.SAME),
    "optimization_barrier": Primitive(dims.one_by_one, Memory.VIEW, _A.SAME),
    "reduce_precision": Primitive(memory=Memory.REDUCED, algebra=_A.SAME),
    **_rows("sharding_constraint reshard stop_gradient", algebra=_A.SAME),
    "convert_element_type": Primitive(algebra=_A.CAST),
    **_rows("add add_any", algebra=_A.ADDED),
    "mul": Primitive(algebra=_A.MULTIPLIED),
    "div": Primitive(algebra=_A.DIVIDED),
    **_rows(
        "abs acos acosh asin asinh atan atanh cbrt cos cosh digamma erf_inv erfc exp exp2 expm1 integer_pow "
        "lgamma log log1p logistic pow rsqrt sign sin sinh sqrt square tan",
        algebra=_A.CURVED,
    ),
    **_rows(
        "and atan2 bitcast_convert_type ceil clamp clz complex conj device_put empty empty2 eq eq_to "
        "floor ge gt igamma imag is_finite le le_to lt lt_to max min name ne neg nextafter not or "
        "population_count real rem round select_n shift_left shift_right_arithmetic shift_right_logical "
        "sub xor"
    ),
    # What devices send each other.
    **_rows("all_gather all_gather_invariant", memory=_W, exchange="all-gather"),
    "all_to_all": Primitive(memory=_W, exchange="all-to-all"),
    **_rows("pmax pmin", memory=_W, exchange="all-reduce"),
    **_rows("psum psum2 psum_invariant", memory=_W, algebra=_A.SUMMED, exchange="all-reduce"),
    "ppermute": Primitive(memory=_W, exchange="collective-permute"),
    "reduce_scatter": Primitive(memory=_W, exchange="reduce-scatter"),
    **_rows("axis_index pbroadcast pvary pcast"),
}  # fmt: skip
"""Properties of JAX's primitives, by name."""
UNKNOWN = Primitive()


def primitive_of(kind: str) -> Primitive:
    """Return the properties of a primitive, by its name.

    JAX's versions differ in - or _ within names; both find the same line.
    """
    return TABLE.get(kind) or TABLE.get(kind.replace("-", "_"), UNKNOWN)


def rule_of(kind: str, params: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> Rule:
    """Return the correspondence between the dimensions of operands and results of these shapes."""
    dimensions = primitive_of(kind).dimensions
    try:
        key = () if dimensions is dims.elementwise else tuple(params.items())
        return _rule(dimensions, key, inputs, outputs)
    # A parameter has no hash.
    except TypeError:
        return dimensions(params, inputs, outputs)


@lru_cache(1024)
def _rule(dimensions: Dimensions, params: tuple[tuple[str, Any], ...], *shapes: Shapes) -> Rule:
    """Return a rule from a cache, as layers repeat it."""
    return dimensions(dict(params), *shapes)
