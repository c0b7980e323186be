"""How what is inferred goes together with meshes, rules and each other; and what is said of it."""

import jax
import jax.numpy as jnp
import pytest
from benchmarks.models.trees import ZOO, mixture
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import LayoutError


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def specs(params, rule, mesh):
    return {
        name: sharding.spec
        for name, sharding in mw.base._internal.named_leaves(
            mw.Layout(mw.make_mesh(mesh), (rule,)).shardings(params)
        ).items()
    }


def test_heads_are_told_from_head_size_where_kernels_have_both():
    maker, mlp = (
        {"kernel": struct(64, 8, 8), "bias": struct(8, 8)},
        {"up": struct(64, 256), "down": struct(256, 64)},
    )
    attention = dict.fromkeys(("query", "key", "value"), maker) | {"out": {"kernel": struct(8, 8, 64)}}
    params = {"attention": attention, "mlp": mlp}
    found = specs(params, mw.infer_rules(params), "data=2,tensor=4")
    assert found["attention/query/kernel"] == found["mlp/up"] == P(None, "tensor")
    assert found["attention/query/bias"] == found["attention/out/kernel"] == found["mlp/down"] == P("tensor")


def attention(width, *, kv=None, memory=None):
    """Queries of `width`, keys and values of `kv` from a `memory` of another width."""
    kv, memory = kv or width, memory or width
    return {
        "q": struct(width, width),
        "k": struct(memory, kv),
        "v": struct(memory, kv),
        "o": struct(width, width),
    }


@pytest.mark.parametrize(
    ("params", "split"),
    [
        (attention(512), "qkvo"),  # 8 heads of 64
        (attention(768), ""),  # 12 of 64
        (attention(4096), "qkvo"),  # 32 of 128
        (attention(2560), ""),  # 20 of 128, and not 40 of 64
        (attention(4096, kv=2048), "qkvo"),  # at least 8 of 256 or less
        (attention(4096, kv=1024), "qkvo"),  # 8 of 128, as Llama 3 has, and not 4 of 256
        (attention(2048, kv=256), "qo"),  # one of 256, as Gemma has, or 2 of 128
        (attention(512, memory=768), "qkvo"),
    ],
)
def test_heads_are_assumed_large_where_shapes_do_not_tell(params, split):
    found = specs(params, mw.infer_rules(params), "tensor=8")
    assert "".join(name for name in "qkvo" if found[name] != P()) == split
    assert found["o"] in (P("tensor"), P())


def test_fsdp_does_not_split_stacked_layers():
    params = {"layers": {"up": struct(128, 64, 96), "down": struct(128, 96, 64), "norm": struct(128, 64)}}
    assert specs(params, mw.infer_rules(params), "fsdp=8")["layers/up"] == P(None, None, "fsdp")


def test_what_tensor_leaves_fsdp_takes():
    params = {"up": struct(1024, 4096), "down": struct(4096, 1024), "norm": struct(1024)}
    found = specs(params, mw.infer_rules(params), "fsdp=2,tensor=4")
    assert found == {"up": P("fsdp", "tensor"), "down": P("tensor", "fsdp"), "norm": P()}


def test_tensor_and_fsdp_share_a_dimension_where_no_other_divides():
    params = {"hidden": {"kernel": struct(63, 4096)}, "out": {"kernel": struct(4096, 10)}}
    found = specs(params, mw.infer_rules(params, min_size=1), "fsdp=4,tensor=2")
    assert found["hidden/kernel"] == P(None, ("tensor", "fsdp"))
    assert found["out/kernel"] == P(("tensor", "fsdp"))


def test_experts_are_split_over_their_axis_and_their_features_over_tensor():
    params = mixture()
    found = specs(params, mw.infer_rules(params), "expert=2,fsdp=2,tensor=2")
    assert found["model/layers/0/moe/wi_0"] == P("expert", "fsdp", "tensor")
    assert found["model/layers/0/moe/wo"] == P("expert", "tensor", "fsdp")
    assert found["model/layers/0/moe/gate/kernel"] == P()


def test_data_splits_no_parameter_and_sequence_splits_them_as_fsdp_does():
    params = ZOO["llama"]()
    rule = mw.infer_rules(params)
    assert set(specs(params, rule, "data=8").values()) == {P()}
    by_sequence, by_fsdp = (specs(params, rule, f"{axis}=4,tensor=2") for axis in ("sequence", "fsdp"))
    assert str(by_sequence).replace("sequence", "fsdp") == str(by_fsdp)


def test_the_users_rules_come_first():
    params = ZOO["llama"]()
    rules = mw.parallel.match("o_proj/kernel"), mw.infer_rules(params)
    layout = mw.Layout(mw.make_mesh("data=4,tensor=2"), rules)
    placed = mw.base._internal.named_leaves(layout.shardings({"params": params}))
    assert placed["params/model/layers/0/self_attn/o_proj/kernel"].spec == P()
    assert placed["params/model/layers/0/self_attn/q_proj/kernel"].spec == P(None, "tensor")


def test_the_table_says_why_and_warns_of_what_is_large_and_whole():
    params = ZOO["gpt2"]()
    table = mw.Layout(mw.make_mesh("data=2,tensor=4"), (mw.infer_rules(params),)).explain(params)
    row = next(line for line in table.splitlines() if "attn/c_attn/kernel" in line)
    assert "12 heads (of 64, assumed)" in row
    assert table.splitlines()[-1] == (
        "  transformer/wte/embedding 50257 × 768 (147 MiB) stays whole on every device: "
        "50257 rows do not divide by 4 (tensor); pad them to 50260"
    )


def vocabulary(size, width):
    """Parameters by which tokens are looked up and scored, and a loss of them."""
    params = {"embedding": struct(size, width), "head": struct(width, size), "up": struct(width, 4 * width)}
    params |= {"down": struct(4 * width, width)}

    def loss(params, tokens):
        x = params["embedding"][tokens]
        x = x + jax.nn.gelu(x @ params["up"]) @ params["down"]
        return jax.nn.logsumexp(x @ params["head"], axis=-1).mean()

    return params, loss, jax.ShapeDtypeStruct((8, 16), jnp.int32)


@pytest.mark.parametrize("traced", [True, False])
def test_a_vocabulary_that_does_not_divide_is_split_by_its_width_if_that_is_wide(traced):
    def found(size, width, mesh):
        params, *used = vocabulary(size, width)
        rule = mw.infer_rules(params, *used) if traced else mw.infer_rules(params)
        placed = specs(params, rule, mesh)
        return placed["embedding"], placed["head"]

    assert found(32000, 1024, "data=2,tensor=4") == (P("tensor"), P(None, "tensor"))
    assert found(32001, 1024, "data=2,tensor=4") == (P(None, "tensor"), P("tensor"))
    assert found(32001, 512, "data=2,tensor=4") == (P(), P())
    assert found(32001, 1024, "fsdp=2,tensor=4") == (
        P(None, "fsdp"),
        P("fsdp"),
    )  # which shares it out already


def test_nothing_is_warned_of_where_no_axis_splits_parameters():
    params = ZOO["gpt2"]()
    assert "whole" not in mw.Layout(mw.make_mesh("data=8"), (mw.infer_rules(params),)).explain(params)


def test_a_head_size_beside_a_function_is_an_error():
    with pytest.raises(LayoutError, match="head_size=64 and a function are both given"):
        mw.infer_rules({"w": struct(4, 4)}, lambda params: params["w"].sum(), head_size=64)
