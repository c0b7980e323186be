"""What a trace makes of the ways in which models are written: each small model with the specs it must get."""

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.lm._models import decoder

D, H, K, F, V = 64, 8, 8, 256, 8192  # width, heads, head size, feed-forward, vocabulary
TOKENS = jax.ShapeDtypeStruct((8, 16), jnp.int32)
COLUMNS, ROWS, WHOLE = P(None, "tensor"), P("tensor"), P()


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def specs(params, function, *arguments, mesh="data=2,tensor=4"):
    rule = mw.infer_rules(params, function, *arguments)
    placed = mw.Layout(mw.make_mesh(mesh), (rule,)).shardings(params)
    return {name: sharding.spec for name, sharding in mw.base._internal.named_leaves(placed).items()}


def split_heads(x, num_heads=H):
    return x.reshape(*x.shape[:2], num_heads, -1)


def attend(q, k, v):
    return jax.nn.dot_product_attention(q, k, v).reshape(*q.shape[:2], -1)


def in_a_model(mix):
    """A language model of one block around `mix(params, x)`."""

    def loss(params, tokens):
        x = params["embed"][tokens]
        x = x + mix(params, x)
        x = x + jax.nn.relu(x @ params["up"]) @ params["down"]
        return jax.nn.log_softmax(x @ params["head"]).sum()

    return loss


def mixer_specs(mix, **params):
    """The specs of `params` in a model, whose other specs must be as ever."""
    around = {"embed": struct(V, D), "up": struct(D, F), "down": struct(F, D), "head": struct(D, V)}
    found = specs({**around, **params}, in_a_model(mix), TOKENS)
    assert [found.pop(name) for name in around] == [ROWS, COLUMNS, ROWS, COLUMNS]
    return found


def projections(p, x, num_kv_heads=H):
    kv = (split_heads(x @ p[name], num_kv_heads) for name in ("k", "v"))
    return attend(split_heads(x @ p["q"]), *kv) @ p["o"]


SQUARE = struct(D, D)


@pytest.mark.parametrize(("num_kv_heads", "kv"), [(8, COLUMNS), (4, COLUMNS), (2, WHOLE), (1, WHOLE)])
def test_keys_are_split_only_between_heads(num_kv_heads, kv):
    narrow = struct(D, num_kv_heads * K)
    found = mixer_specs(lambda p, x: projections(p, x, num_kv_heads), q=SQUARE, k=narrow, v=narrow, o=SQUARE)
    assert found == {"q": COLUMNS, "k": kv, "v": kv, "o": ROWS}


def test_repeated_keys_are_known_as_the_same_heads():
    def mix(p, x):
        k, v = (jnp.repeat(split_heads(x @ p[name], 2), 4, axis=2) for name in ("k", "v"))
        return attend(split_heads(x @ p["q"]), k, v) @ p["o"]

    found = mixer_specs(mix, q=SQUARE, k=struct(D, 2 * K), v=struct(D, 2 * K), o=SQUARE)
    assert found == {"q": COLUMNS, "k": WHOLE, "v": WHOLE, "o": ROWS}


def test_heads_that_do_not_divide_stay_whole():
    def mix(p, x):
        return attend(*(split_heads(x @ p[name], 2) for name in "qkv")) @ p["o"]

    found = mixer_specs(mix, **dict.fromkeys("qkvo", SQUARE))
    assert set(found.values()) == {WHOLE}


def test_kernels_with_a_dimension_of_heads():
    def mix(p, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[name]) + p["bias"] for name in "qkv")
        return jnp.einsum("bthk,hkd->btd", jax.nn.dot_product_attention(q, k, v), p["o"])

    found = mixer_specs(mix, **dict.fromkeys("qkv", struct(D, H, K)), o=struct(H, K, D), bias=struct(H, K))
    assert found == {"q": COLUMNS, "k": COLUMNS, "v": COLUMNS, "o": ROWS, "bias": ROWS}


def test_keys_and_values_stacked_in_one_kernel():
    def mix(p, x):
        q = jnp.einsum("btd,hdk->bthk", x, p["q"])
        k, v = jnp.einsum("btd,chdk->cbthk", x, p["kv"])
        return jnp.einsum("bthk,hkd->btd", jax.nn.dot_product_attention(q, k, v), p["o"])

    found = mixer_specs(mix, q=struct(H, D, K), kv=struct(2, 4, D, K), o=struct(H, K, D))
    assert found == {"q": ROWS, "kv": P(None, "tensor"), "o": ROWS}


def test_kernels_that_are_stacked_where_they_are_used():
    def mix(p, x):
        q, k, v = jnp.einsum("btd,cdf->cbtf", x, jnp.stack([p[name] for name in "qkv"]))
        return attend(*map(split_heads, (q, k, v))) @ p["o"]

    found = mixer_specs(mix, **dict.fromkeys("qkvo", SQUARE))
    assert found == {"q": COLUMNS, "k": COLUMNS, "v": COLUMNS, "o": ROWS}


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "is_split"), [(8, 8, True), (8, 4, True), (2, 2, False)]
)
def test_heads_are_known_in_the_attention_of_cudnn(num_heads, num_kv_heads, is_split):
    fused = Primitive("dot_product_attention_fwd_wrapper")
    fused.def_abstract_eval(lambda q, *_, layout: q)

    def mix(p, x):
        counts = {"q": num_heads, "k": num_kv_heads, "v": num_kv_heads}
        q, k, v = (split_heads(x @ p[name], count) for name, count in counts.items())
        return fused.bind(q, k, v, layout=0).reshape(x.shape) @ p["o"]

    narrow = struct(D, D // num_heads * num_kv_heads)
    found = mixer_specs(mix, q=SQUARE, k=narrow, v=narrow, o=SQUARE)
    assert [found[name] for name in "qkvo"] == ([COLUMNS] * 3 + [ROWS] if is_split else [WHOLE] * 4)


def test_queries_keys_and_values_behind_one_another():
    def mix(p, x):
        return attend(*map(split_heads, jnp.split(x @ p["qkv"], 3, axis=-1))) @ p["o"]

    assert mixer_specs(mix, qkv=struct(D, 3 * D), o=SQUARE) == {"qkv": COLUMNS, "o": ROWS}


def test_one_head_of_keys_behind_the_queries_keeps_all_whole():
    angles = decoder.Rope().frequencies(K)

    def mix(p, x):
        q, k, v = jnp.split(x @ p["qkv"], [D, D + K], axis=-1)
        q, k = (decoder.rotate(x, angles) for x in (split_heads(q), k[:, :, None]))
        return attend(q, k, v[:, :, None]) @ p["o"]

    assert mixer_specs(mix, qkv=struct(D, D + 2 * K), o=SQUARE) == {"qkv": WHOLE, "o": ROWS}


def test_queries_keys_and_values_of_each_head_together():
    def mix(p, x):
        return attend(*jnp.split(split_heads(x @ p["qkv"]), 3, axis=-1)) @ p["o"]

    assert mixer_specs(mix, qkv=struct(D, 3 * D), o=SQUARE) == {"qkv": COLUMNS, "o": ROWS}


def test_three_kinds_times_heads_in_one_dimension_do_not_divide_well():
    def mix(p, x):
        qkv = (x @ p["qkv"]).reshape(*x.shape[:2], 3, H, K)
        return attend(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]) @ p["o"]

    assert mixer_specs(mix, qkv=struct(D, 3 * D), o=SQUARE) == {"qkv": WHOLE, "o": ROWS}


def test_low_rank_keys_and_values():
    """DeepSeek's: a narrow latent that all heads read, and rotary features beside it."""

    def mix(p, x):
        latent, shared = jnp.split(x @ p["down_kv"], [16], axis=-1)
        k, v = jnp.split(split_heads(latent @ p["up_kv"]), 2, axis=-1)
        k = jnp.concatenate([k, jnp.broadcast_to(shared[:, :, None], (*k.shape[:3], 4))], axis=-1)
        weights = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", split_heads(x @ p["q"]), k))
        return jnp.einsum("bhts,bshk->bthk", weights, v).reshape(*x.shape[:2], -1) @ p["o"]

    found = mixer_specs(
        mix, down_kv=struct(D, 16 + 4), up_kv=struct(16, 2 * H * K), q=struct(D, H * (K + 4)), o=SQUARE
    )
    assert found == {"down_kv": WHOLE, "up_kv": COLUMNS, "q": COLUMNS, "o": ROWS}


def test_an_adapter_is_split_as_what_it_adapts():
    def mix(p, x):
        q = split_heads(x @ p["q"] + (x @ p["a"]) @ p["b"])
        return attend(q, split_heads(x @ p["k"]), split_heads(x @ p["v"])) @ p["o"]

    found = mixer_specs(mix, **dict.fromkeys("qkvo", SQUARE), a=struct(D, 4), b=struct(4, D))
    assert (found["a"], found["b"]) == (WHOLE, COLUMNS)


@pytest.mark.parametrize(("num_heads", "split"), [(8, "tensor"), (2, None)])
def test_scanned_layers_rematerialised_and_with_rotary_positions(num_heads, split):
    cfg = decoder.Config(vocabulary=V, model=D, heads=num_heads, feed_forward=F, layers=3)
    params = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0)))
    found = specs(params, jax.checkpoint(lambda params, tokens: decoder.logits(cfg, params, tokens)), TOKENS)
    assert (found["layers/up"], found["layers/down"]) == (P(None, None, "tensor"), P(None, "tensor"))
    assert {found[f"layers/{name}"] for name in "qkv"} == {P(None, None, split) if split else P()}
    assert found["layers/o"] == (P(None, split) if split else P())


def test_layers_taken_by_number_in_a_loop():
    def loss(params, tokens):
        def body(i, x):
            return x + jax.nn.relu(x @ params["up"][i]) @ params["down"][i]

        return jax.lax.fori_loop(0, 3, body, params["embed"][tokens]).sum()

    params = {"embed": struct(V, D), "up": struct(3, D, F), "down": struct(3, F, D)}
    assert specs(params, loss, TOKENS) == {
        "embed": ROWS, "up": P(None, None, "tensor"), "down": P(None, "tensor"),
    }  # fmt: skip


def dispatched(p, x):
    """GShard's: tokens go to their experts and come back by one-hot products."""
    chosen = jax.nn.one_hot((x @ p["router"]).argmax(-1), 4)
    dispatch = chosen[..., None] * jax.nn.one_hot(jnp.arange(x.shape[1]), x.shape[1])[:, None]
    hidden = jnp.einsum("becd,edf->becf", jnp.einsum("btec,btd->becd", dispatch, x), p["wi"])
    out = jnp.einsum("becf,efd->becd", jax.nn.relu(hidden), p["wo"])
    return jnp.einsum("becd,btec->btd", out, dispatch)


def all_computed(p, x):
    weights = jax.nn.softmax(x @ p["router"])
    hidden = jax.nn.relu(jnp.einsum("btd,edf->btef", x, p["wi"])) * weights[..., None]
    return jnp.einsum("btef,efd->btd", hidden, p["wo"])


def ragged(p, x):
    rows, sizes = x.reshape(-1, D), jnp.full(4, 32)
    hidden = jax.nn.relu(jax.lax.ragged_dot(rows, p["wi"], sizes)) * (rows @ p["router"]).max()
    return jax.lax.ragged_dot(hidden, p["wo"], sizes).reshape(x.shape)


def looked_up(p, x):
    """The matrices of the expert of each token, by number."""
    chosen = (x @ p["router"]).argmax(-1)
    hidden = jax.nn.relu(jnp.einsum("btd,btdf->btf", x, p["wi"][chosen].astype(jnp.bfloat16)))
    return jnp.einsum("btf,btfd->btd", hidden, p["wo"][chosen])


def groups(params, function, *arguments):
    """The group of each dimension of the parameters."""
    known = mw.infer_rules(params, function, *arguments).structure.dims
    return {name: [dim.group for dim in dims] for name, dims in known.items()}


def test_tokens_that_are_written_to_their_experts_keep_their_features():
    def loss(params, tokens, expert, place):
        x = params["embed"][tokens.reshape(-1)]
        rows = jnp.zeros((4, 64, D)).at[expert, place].set(x)
        return jnp.einsum("ecd,edf->ecf", rows, params["wi"]).sum()

    ids = jax.ShapeDtypeStruct((TOKENS.size,), jnp.int32)
    found = groups({"embed": struct(V, D), "wi": struct(4, D, F)}, loss, TOKENS, ids, ids)
    assert found["wi"][1] == found["embed"][1] is not None


def test_a_lookup_in_each_of_several_tables_keeps_them_apart():
    def loss(params, ids):
        each = jax.vmap(lambda table, ids: table[ids])(params["tables"], ids)
        return jnp.einsum("hnk,hkd->nd", each, params["out"]).sum()

    params = {"tables": struct(H, V, K), "out": struct(H, K, D)}
    rule = mw.infer_rules(params, loss, jax.ShapeDtypeStruct((H, 16), jnp.int32))
    first = [rule.structure.dims[name][0].kind for name in params]
    assert first == ["experts", "experts"]


@pytest.mark.parametrize("mix", [dispatched, all_computed, ragged, looked_up])
def test_experts_are_recognised(mix):
    params = {"embed": struct(V, D), "router": struct(D, 4), "wi": struct(4, D, F), "wo": struct(4, F, D)}

    def loss(params, tokens):
        x = params["embed"][tokens]
        return (x + mix(params, x)).sum()

    found = specs(params, loss, TOKENS, mesh="expert=2,tensor=4")
    assert found == {
        "embed": ROWS, "router": WHOLE, "wi": P("expert", None, "tensor"), "wo": P("expert", "tensor"),
    }  # fmt: skip


def test_a_chain_of_equal_layers_alternates():
    def loss(layers, x):
        for kernel in layers:
            x = jax.nn.relu(x @ kernel)
        return x.sum()

    params = {"b": struct(784, 512), **dict.fromkeys("cde", struct(512, 512)), "a": struct(512, 10)}
    found = specs(params, lambda params, x: loss([params[name] for name in "bcdea"], x), struct(8, 784))
    assert [found[name] for name in "bcdea"] == [COLUMNS, ROWS, COLUMNS, ROWS, WHOLE]


def test_what_feeds_itself_is_left_whole():
    def loss(params, tokens):
        def cell(h, x):
            h = jnp.tanh(x @ params["in"] + h @ params["again"])
            return h, h

        x = jnp.moveaxis(params["embed"][tokens], 1, 0)
        _, states = jax.lax.scan(cell, jnp.zeros((8, 128)), x)
        return jax.nn.log_softmax(states @ params["head"]).sum()

    params = {"embed": struct(V, D), "in": struct(D, 128), "again": struct(128, 128), "head": struct(128, V)}
    found = specs(params, loss, TOKENS)
    assert (found["again"], found["head"]) == (WHOLE, COLUMNS)


def convolve(x, kernel):
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def test_a_residual_of_convolutions_is_split_where_bottlenecks_are_narrow():
    def loss(params, x):
        x = convolve(x, params["first"])
        for block in params["blocks"]:
            x = x + convolve(jax.nn.relu(convolve(x, block["narrow"])), block["wide"])
        return (x.mean((1, 2)) @ params["head"]).sum()

    block = {"narrow": struct(1, 1, 256, 64), "wide": struct(3, 3, 64, 256)}
    params = {"first": struct(7, 7, 3, 256), "blocks": [block, block], "head": struct(256, 10)}
    found = specs(params, loss, struct(8, 16, 16, 3))
    assert found["blocks/0/narrow"] == P(None, None, "tensor")
    assert found["blocks/0/wide"] == found["first"] == P(None, None, None, "tensor")
    assert found["head"] == ROWS


def test_a_padded_vocabulary_is_split_in_its_full_length():
    def loss(params, tokens):
        x = params["embed"][tokens]
        x = x + jax.nn.relu(x @ params["up"]) @ params["down"]
        return jax.nn.log_softmax((x @ params["embed"].T)[..., : V - 3]).sum()

    params = {"embed": struct(V, D), "up": struct(D, F), "down": struct(F, D)}
    assert specs(params, loss, TOKENS)["embed"] == ROWS


def test_tables_of_positions_are_left_whole():
    def loss(params, tokens, positions):
        x = params["embed"][tokens] + params["positions"][positions]
        return (jax.nn.relu(x @ params["up"]) @ params["down"]).sum()

    params = {"embed": struct(V, D), "positions": struct(1024, D), "up": struct(D, F), "down": struct(F, D)}
    found = specs(params, loss, TOKENS, TOKENS)
    assert (found["embed"], found["positions"]) == (ROWS, WHOLE)


def test_any_function_of_jax_can_be_traced():
    def loss(params, x):
        outer = jnp.einsum("i,j->ij", params["v"], x[:, 0])
        image = jnp.fft.rfft(x).real @ jax.scipy.linalg.expm(params["m"][:5, :5])
        values, _ = jnp.linalg.eigh(params["m"] @ params["m"].T)
        chosen = jax.lax.cond(x.sum() > 0, lambda m: m @ m, lambda m: m + m.T, params["m"])
        spread = jnp.zeros((8, 8)).at[jnp.argsort(x[:, 0])].add(params["m"])
        found = jax.lax.associative_scan(jnp.add, outer) @ jnp.linalg.solve(chosen + jnp.eye(8), spread)
        return found.sum() + image.sum() + values.sum() + jnp.sort(params["v"])[::2].sum()

    params = {"v": struct(8), "m": struct(8, 8)}
    assert specs(params, jax.grad(loss), struct(8, 8)).keys() == params.keys()


def test_what_the_function_does_not_use_is_left_to_fsdp():
    params = {"used": struct(D, F), "unused": struct(512, 512)}
    found = specs(params, lambda params, x: (x @ params["used"]).sum(), struct(8, D), mesh="fsdp=2,tensor=4")
    assert found["unused"] == P("fsdp")


GATED = {"embed": ROWS, "head": COLUMNS}


@pytest.mark.parametrize(
    ("mesh", "gates", "bias"), [("data=2,tensor=4", COLUMNS, ROWS), ("tensor=8", WHOLE, WHOLE)]
)
def test_gates_of_a_recurrent_network_are_split_where_their_gradient_is_summed_at_each_step(
    mesh, gates, bias
):
    """XLA sums a whole weight's gradient over the batch's devices in the loop: a split weight's is a part."""

    def loss(params, tokens):
        def one(state, x):
            c, h = state
            i, f, g, o = jnp.split(x @ params["input"] + h @ params["hidden"] + params["bias"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (c, jax.nn.sigmoid(o) * jnp.tanh(c)), jnp.tanh(c)

        first = (jnp.zeros((8, D)), jnp.zeros((8, D)))
        out = jax.lax.scan(one, first, params["embed"][tokens].swapaxes(0, 1))[1]
        return jax.nn.log_softmax(out @ params["head"]).sum()

    wide, around = struct(D, 4 * D), {"embed": struct(V, D), "head": struct(D, V)}
    params = {"input": wide, "hidden": wide, "bias": struct(4 * D), **around}
    split = {"input": gates, "hidden": gates, "bias": bias}
    assert specs(params, loss, TOKENS, mesh=mesh) == split | GATED
