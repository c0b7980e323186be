"""Attention over rows that the mesh axis `sequence` splits: keys and values go round a ring.

Each device holds a part of the queries and, first, the keys and values of the same positions. It sends those
on to the next device while it attends to them (Liu et al., arXiv:2310.01889), and joins the results by the
logarithms of the sums. In the gradient keys and values go round once more, and their gradients with them.

A causal mask leaves the first device little to do and the last one much. So each device gets two chunks of
rows of 2n chunks, the i-th and the i-th from the end (Brandon et al., arXiv:2311.09431):

    n = 4      device 0   device 1   device 2   device 3
    given      0 1        2 3        4 5        6 7
    computed   0 7        1 6        2 5        3 4

From the second turn on, all devices then compute two pairs of chunks, and each pair is whole: the later chunk
of queries with the earlier chunk of keys, and one of the other two pairs that come from the earlier device.

Shapes: B rows, T queries and S keys on one device, in c chunks; N heads, H features, K heads of keys.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree
from meshwright.nn._blockwise import BLOCK, Starts, part, part_gradients
from meshwright.nn._inputs import AttentionInputs, Bias
from meshwright.parallel._internal import SEQUENCE, microbatch_axes

_SPLIT = P(None, SEQUENCE)
_LSE = P(None, None, SEQUENCE)


@dataclass(frozen=True)
class _Static:
    """The settings that a program is traced for, besides shapes and dtypes."""

    causal: bool
    window: int | None
    softcap: float | None
    scale: float
    bias: Any
    """The function of a `Bias`."""
    ways: int
    """The number of devices of the ring."""
    turns: int
    """The number of times that keys and values are sent on."""
    num_chunks: int
    """2 if rows are exchanged so that causal work is balanced, otherwise 1."""
    block: int
    axes: frozenset[str]
    """The mesh axes of the ring's `shard_map`."""


class _Pair(NamedTuple):
    """A chunk of queries and one of keys, by their numbers on the device."""

    t: Any
    s: Any
    causal: bool
    offset: int | None
    """As in `Starts`."""


def ring(inputs: AttentionInputs, ways: int, block: int = BLOCK) -> tuple[jax.Array, jax.Array]:
    """Return the attention, [B, T, N, H], and the logarithms of the sums, [B, N, T]."""
    window = inputs.window if isinstance(inputs.window, int) else None
    is_zigzag = is_balanced(inputs, ways)
    static = _Static(
        inputs.causal,
        window,
        inputs.softcap,
        float(inputs.scale),
        inputs.bias.function if isinstance(inputs.bias, Bias) else None,
        ways,
        num_turns(inputs, ways),
        2 if is_zigzag else 1,
        block,
        frozenset({SEQUENCE, *microbatch_axes()}),
    )
    exchange = _exchanged(_to_zigzag, static) if is_zigzag else lambda x: x
    back = _exchanged(_from_zigzag, static) if is_zigzag else lambda x: x
    q, k, v = (exchange(x) for x in (inputs.q, inputs.k, inputs.v))
    marks: PyTree = {"window": None if window is not None else inputs.window, "segments": None}
    if inputs.segments is not None:
        marks["segments"] = tuple(exchange(x) for x in inputs.segments)
    bias = inputs.bias.operand if isinstance(inputs.bias, Bias) else inputs.bias
    out, lse = _attend(static, q, k, v, bias, marks)
    return back(out), back(lse.swapaxes(1, 2)).swapaxes(1, 2)


def is_balanced(inputs: AttentionInputs, ways: int) -> bool:
    """Return whether rows are exchanged: where the mask is causal, and no window hides most of the keys."""
    length = inputs.q.shape[1]
    has_array = inputs.bias is not None and not isinstance(inputs.bias, Bias)
    if not inputs.causal or length != inputs.k.shape[1] or has_array:
        return False
    return not isinstance(inputs.window, int) or inputs.window + length // ways > length // 2


def num_turns(inputs: AttentionInputs, ways: int) -> int:
    """Return how often keys and values are sent on: until the window of a causal mask has been seen."""
    window, length = inputs.window, inputs.q.shape[1]
    is_limited = inputs.causal and length == inputs.k.shape[1] and not is_balanced(inputs, ways)
    if not isinstance(window, int) or not is_limited:
        return ways - 1
    return max(1, min(ways - 1, -(-(window - 1) // (length // ways))))


def _mapped(
    function: Callable[..., Any], in_specs: Any, out_specs: Any, static: _Static
) -> Callable[..., Any]:
    """Return a function of whole rows that runs `function(static, ...)` on each part of them."""
    return jax.shard_map(
        partial(function, static),
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=static.axes,
        check_vma=False,
    )


def _exchanged(function: Callable[..., jax.Array], static: _Static) -> Callable[[jax.Array], jax.Array]:
    """Return a function of whole rows that exchanges their chunks.

    Whether a device is an even one is an operand: XLA may move the exchange of segments, the same for each
    layer, out of loops, and does not know `axis_index` there.
    """
    is_even = jnp.arange(static.ways) % 2 == 0
    return partial(_mapped(function, (P(SEQUENCE), _SPLIT), _SPLIT, static), is_even)


def _to_zigzag(static: _Static, is_even: jax.Array, x: jax.Array) -> jax.Array:
    """Return the chunks i and 2n - 1 - i of device i, [B, T, ...], given the chunks 2i and 2i + 1."""
    ways = static.ways
    first, second = jnp.split(x, 2, axis=1)
    homes = [min(chunk, 2 * ways - 1 - chunk) for chunk in range(2 * ways)]
    sent = [_permuted(half, enumerate(homes[i::2])) for i, half in enumerate((first, second))]
    # An even device's early chunk has an even number.
    early, late = (jnp.where(is_even[0], sent[i], sent[1 - i]) for i in (0, 1))
    return jnp.concatenate([early, late], axis=1)


def _from_zigzag(static: _Static, is_even: jax.Array, x: jax.Array) -> jax.Array:
    """Undo `_to_zigzag`."""
    ways = static.ways
    early, late = jnp.split(x, 2, axis=1)
    homes = [min(chunk, 2 * ways - 1 - chunk) for chunk in range(2 * ways)]
    halves = jnp.where(is_even[0], early, late), jnp.where(is_even[0], late, early)
    back = [[(home, i) for i, home in enumerate(homes[half::2])] for half in (0, 1)]
    return jnp.concatenate([_permuted(half, pairs) for half, pairs in zip(halves, back, strict=True)], axis=1)


def _permuted(x: jax.Array, pairs: Any) -> jax.Array:
    return jax.lax.ppermute(x, SEQUENCE, list(pairs))


def _sent(x: PyTree, ways: int, distance: int = 1) -> PyTree:
    """Return the arrays of the device `distance` places before in the ring."""
    return jax.tree.map(lambda part: _permuted(part, ((i, (i + distance) % ways) for i in range(ways))), x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    static: _Static, q: jax.Array, k: jax.Array, v: jax.Array, bias: PyTree, marks: PyTree
) -> tuple[jax.Array, jax.Array]:
    specs = _specs(static, bias, marks)
    return _mapped(_forward, specs, (_SPLIT, _LSE), static)(q, k, v, bias, marks)


def _specs(static: _Static, bias: PyTree, marks: PyTree) -> tuple[Any, ...]:
    """Return the split of the arguments of `_attend`: an array of a bias is split by its queries."""
    of_bias = jax.tree.map(lambda _: P() if static.bias is not None else _LSE, bias)
    of_marks = {"window": P(), "segments": (_SPLIT, _SPLIT)}
    return (
        _SPLIT,
        _SPLIT,
        _SPLIT,
        of_bias,
        {name: of_marks[name] if marks[name] is not None else None for name in marks},
    )


def _attend_forward(static: _Static, *inputs: Any) -> tuple[Any, Any]:
    out, lse = _attend(static, *inputs)
    return (out, lse), (inputs, out, lse)


def _attend_backward(static: _Static, residuals: Any, changes: Any) -> tuple[Any, ...]:
    (q, k, v, bias, marks), out, lse = residuals
    specs = _specs(static, bias, marks)
    results = (_SPLIT, _LSE)
    mapped = _mapped(_backward, (specs, results, results), specs[:4], static)
    return (*mapped((q, k, v, bias, marks), (out, lse), changes), None)


_attend.defvjp(_attend_forward, _attend_backward)


class _Ring:
    """One device's index in the ring, and its queries and keys in chunks [c, B, T / c, ...]."""

    def __init__(
        self, static: _Static, q: jax.Array, k: jax.Array, v: jax.Array, bias: PyTree, marks: PyTree
    ):
        self.static, self.marks, self.bias = static, marks, bias
        self.device = jax.lax.axis_index(SEQUENCE)
        segments = (None, None) if marks["segments"] is None else marks["segments"]
        self.q, self.segments = self.chunks((q, segments[0]))
        # One array for both: it is sent as one.
        self.keys = self.chunks((jnp.stack([k, v], axis=2), segments[1]))
        self.shape = k.shape

    def chunks(self, x: PyTree) -> PyTree:
        """Return [c, B, T / c, ...] of [B, T, ...]."""
        num = self.static.num_chunks
        return jax.tree.map(lambda x: jnp.moveaxis(x.reshape(x.shape[0], num, -1, *x.shape[2:]), 1, 0), x)

    def pairs(self, turn: Any) -> Iterator[_Pair]:
        """Yield the pairs of chunks that this device computes in a turn."""
        static = self.static
        source = self.source(turn)
        if static.num_chunks == 2:
            yield _Pair(1, 0, False, None)
            if isinstance(turn, int) and turn == 0:
                yield from (_Pair(0, 0, True, 0), _Pair(1, 1, True, 0))
            else:
                chunk = jnp.where(source < self.device, 0, 1)
                yield _Pair(chunk, chunk, False, None)
            return
        is_known = isinstance(turn, int) and static.causal and self.q.shape[2] == self.keys[0].shape[2]
        is_known = is_known and (turn == 0 or static.window is not None)
        yield _Pair(0, 0, static.causal, turn * self.q.shape[2] if is_known else None)

    def source(self, turn: Any) -> jax.Array:
        """Return the number of the device whose keys are here in a turn."""
        return (self.device - turn) % self.static.ways

    def starts(self, pair: _Pair, turn: Any) -> Starts:
        t = self.start(self.device, pair.t, self.q.shape[2])
        return Starts(t, self.start(self.source(turn), pair.s, self.keys[0].shape[2]), pair.offset)

    def start(self, device: jax.Array, chunk: Any, length: int) -> jax.Array:
        last = 2 * self.static.ways - 1
        number = jnp.where(chunk == 0, device, last - device) if self.static.num_chunks == 2 else device
        return number * length

    def inputs(self, pair: _Pair, starts: Starts, keys: PyTree) -> AttentionInputs:
        """Return the arguments of attention for one pair of chunks."""
        static, (kv, segments) = self.static, keys
        kv = _get(kv, pair.s)
        pair_segments = None if segments is None else (_get(self.segments, pair.t), _get(segments, pair.s))
        window = static.window if static.window is not None else self.marks["window"]
        bias = self.bias
        if static.bias is not None:
            bias = Bias(static.bias, bias)
        elif bias is not None:
            bias = jax.lax.dynamic_slice_in_dim(bias, starts.s, kv.shape[1], axis=3)
        return AttentionInputs(
            _get(self.q, pair.t),
            kv[:, :, 0],
            kv[:, :, 1],
            pair.causal,
            pair_segments,
            window,
            static.softcap,
            static.scale,
            bias,
            True,
        )


def _forward(static: _Static, *inputs: Any) -> tuple[jax.Array, jax.Array]:
    """Return the results of one device, [B, T, N, H] and [B, N, T]."""
    device = _Ring(static, *inputs)
    c, B, T, N, _ = device.q.shape
    dtype = jnp.promote_types(device.q.dtype, jnp.float32)
    sums = jnp.zeros(device.q.shape, dtype), jnp.full((c, B, N, T), -jnp.inf, dtype)

    def attended(turn: Any, keys: PyTree, sums: PyTree) -> PyTree:
        for pair in device.pairs(turn):
            starts = device.starts(pair, turn)
            result = part(device.inputs(pair, starts, keys), starts, static.block)
            joined = _joined(tuple(_get(x, pair.t) for x in sums), result)
            sums = tuple(_put(x, new, pair.t) for x, new in zip(sums, joined, strict=True))
        return sums

    out, lse = _turned(static, device.keys, sums, attended)
    out = jnp.moveaxis(out, 0, 1).reshape(B, c * T, *out.shape[3:])
    return out.astype(inputs[2].dtype), jnp.moveaxis(lse, 0, 2).reshape(B, N, c * T)


def _turned(static: _Static, keys: PyTree, sums: PyTree, attended: Callable[..., PyTree]) -> PyTree:
    """Return the sums of all turns. Keys are sent on while they are computed with."""

    def turn(carry: PyTree, number: jax.Array) -> tuple[PyTree, None]:
        keys, sums = carry
        return (_sent(keys, static.ways), attended(number, keys, sums)), None

    carry = _sent(keys, static.ways), attended(0, keys, sums)
    if static.turns > 1:
        carry, _ = jax.lax.scan(turn, carry, jnp.arange(1, static.turns))
    return attended(static.turns, *carry)


def _joined(a: PyTree, b: PyTree) -> tuple[jax.Array, jax.Array]:
    """Return the result over two sets of keys, given those over each, [B, T, N, H] and [B, N, T]."""
    largest = jnp.maximum(a[1], b[1])
    finite = jnp.where(jnp.isfinite(largest), largest, 0)
    weights = [jnp.exp(lse - finite) for _, lse in (a, b)]
    total = weights[0] + weights[1]
    is_empty = total == 0
    safe = jnp.where(is_empty, 1, total)
    shares = [jnp.moveaxis(weight / safe, 1, 2)[..., None] for weight in weights]
    return a[0] * shares[0] + b[0] * shares[1], jnp.where(is_empty, -jnp.inf, finite + jnp.log(safe))


def _backward(static: _Static, inputs: Any, results: Any, changes: Any) -> tuple[Any, ...]:
    """Return the gradients of one device's queries, keys and values, and of the bias."""
    device = _Ring(static, *inputs)
    q, k, v, bias, _ = inputs
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    by_chunk = [
        (device.chunks(out), device.chunks(lse.swapaxes(1, 2)).swapaxes(2, 3))
        for out, lse in (results, changes)
    ]

    def attended(turn: Any, keys: PyTree, sums: PyTree) -> PyTree:
        d_keys = jnp.zeros(keys[0].shape, dtype)
        d_q, d_bias = sums["q"], sums["bias"]
        for pair in device.pairs(turn):
            starts = device.starts(pair, turn)
            outputs, changed = ([_get(x, pair.t) for x in arrays] for arrays in by_chunk)
            gradients = part_gradients(
                device.inputs(pair, starts, keys), starts, outputs, changed, static.block
            )
            d_q = _put(d_q, _get(d_q, pair.t) + gradients["q"], pair.t)
            d_kv = jnp.stack([gradients["k"], gradients["v"]], axis=2)
            d_keys = _put(d_keys, _get(d_keys, pair.s) + d_kv, pair.s)
            d_bias = _with_bias(static, d_bias, gradients["bias"], starts)
        new = {"q": d_q, "bias": d_bias}
        if isinstance(turn, int) and turn == 0:
            return new | {"own": d_keys, "keys": jnp.zeros_like(d_keys) if static.turns > 1 else None}
        # What was summed before is sent on beside the products, and not after them.
        previous = sums["keys"]
        return new | {
            "own": sums["own"],
            "keys": d_keys if previous is None else _sent(previous, static.ways) + d_keys,
        }

    wide = partial(jnp.zeros_like, dtype=dtype)
    sums = _turned(static, device.keys, {"q": wide(device.q), "bias": jax.tree.map(wide, bias)}, attended)
    d_keys = sums["own"] + _sent(sums["keys"], static.ways, -static.turns)
    d_q, d_keys = (jnp.moveaxis(x, 0, 1) for x in (sums["q"], d_keys))
    d_k, d_v = (d_keys[:, :, :, i].reshape(k.shape).astype(k.dtype) for i in (0, 1))
    d_bias = sums["bias"]
    if static.bias is not None:
        d_bias = jax.lax.psum(d_bias, SEQUENCE)
    d_bias = jax.tree.map(lambda like, x: x.astype(like.dtype), bias, d_bias)
    return d_q.reshape(q.shape).astype(q.dtype), d_k, d_v.astype(v.dtype), d_bias


def _with_bias(static: _Static, d_bias: PyTree, change: PyTree, starts: Starts) -> PyTree:
    """Return the gradient of the bias with that of one pair of chunks added."""
    if d_bias is None or static.bias is not None:
        return jax.tree.map(jnp.add, d_bias, change)
    size = change.shape[3]
    previous = jax.lax.dynamic_slice_in_dim(d_bias, starts.s, size, axis=3)
    return jax.lax.dynamic_update_slice_in_dim(d_bias, previous + change, starts.s, axis=3)


def _get(x: jax.Array, i: Any) -> jax.Array:
    return x[i] if isinstance(i, int) else jax.lax.dynamic_index_in_dim(x, i, keepdims=False)


def _put(x: jax.Array, new: jax.Array, i: Any) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(x, new.astype(x.dtype), i, axis=0)
