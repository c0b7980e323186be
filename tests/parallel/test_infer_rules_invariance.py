"""What must not matter: names, the order of a tree, what it is made of, how layers are stored."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from benchmarks.models import losses
from benchmarks.models.trees import ZOO, bert, llama, mixture, t5_v1_1
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw

MESHES = ["tensor=2,data=4", "tensor=4,fsdp=2", "tensor=2,fsdp=2,expert=2"]


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def specs(params, rule, mesh):
    placed = mw.Layout(mw.make_mesh(mesh), (rule,)).shardings(params)
    return [sharding.spec for sharding in jax.tree.leaves(placed)]


def by_leaf(params, rule, mesh):
    """The specs by the arrays themselves, whatever they are called."""
    placed = specs(params, rule, mesh)
    return {id(x): spec for x, spec in zip(jax.tree.leaves(params), placed, strict=True)}


def distinct(tree):
    """A copy in which no two leaves are one object."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def renumbered(tree, numbers):
    """The tree with a number before each key that is not an array's own name, so that it sorts otherwise."""
    if not isinstance(tree, dict):
        return tree
    is_layer = not any(isinstance(part, dict) for part in tree.values())
    return {
        key if is_layer else f"{next(numbers):03d}_{key}": renumbered(part, numbers)
        for key, part in tree.items()
    }


@given(st.sampled_from(sorted(ZOO)), st.sampled_from(MESHES), st.randoms(use_true_random=False))
def test_another_order_of_the_tree_changes_no_spec(model, mesh, random):
    params = distinct(ZOO[model]())
    numbers = list(range(999))
    random.shuffle(numbers)
    other = renumbered(params, iter(numbers))
    assert by_leaf(params, mw.infer_rules(params), mesh) == by_leaf(other, mw.infer_rules(other), mesh)


SMALL = {
    "llama": (llama(D=64, F=192, V=8192, kv=32), functools.partial(losses.llama, head_size=16)),
    "mixture": (
        mixture(D=64, F=192, V=8192, kv=32, experts=4),
        functools.partial(losses.mixture, head_size=16),
    ),
    "t5": (t5_v1_1(D=64, F=192, V=8192, heads=4), losses.t5),
    "bert": (bert(D=64, F=192, V=8192), functools.partial(losses.bert, head_size=16)),
}
TOKENS = jax.ShapeDtypeStruct((8, 12), jnp.int32)
BATCH = {
    "tokens": TOKENS,
    "labels": TOKENS,
    "types": TOKENS,
    "follows": jax.ShapeDtypeStruct((8,), jnp.int32),
}


@settings(max_examples=12)
@given(st.sampled_from(sorted(SMALL)), st.sampled_from(MESHES), st.randoms(use_true_random=False))
def test_a_trace_needs_no_names_at_all(model, mesh, random):
    params, loss = SMALL[model]
    params = distinct(params)
    leaves, structure = jax.tree.flatten(params)
    names = [f"{number:03d}" for number in range(len(leaves))]
    random.shuffle(names)
    nameless = dict(zip(names, leaves, strict=True))

    def nameless_loss(nameless, batch):
        return loss(jax.tree.unflatten(structure, [nameless[name] for name in names]), batch)

    found = by_leaf(nameless, mw.infer_rules(nameless, nameless_loss, BATCH, min_size=1), mesh)
    assert found == by_leaf(params, mw.infer_rules(params, loss, BATCH, min_size=1), mesh)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Linear:
    weight: jax.ShapeDtypeStruct


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Block:
    query: Linear
    key: Linear
    value: Linear
    out: Linear
    mlp: tuple


def block(linear):
    return {name: linear(512, 512) for name in ("query", "key", "value", "out")} | {
        "mlp": (linear(512, 2048), linear(2048, 512))
    }


def test_dicts_lists_tuples_and_dataclasses_are_one():
    as_dicts = {"layers": {str(i): block(lambda *shape: {"kernel": struct(*shape)}) for i in range(2)}}
    as_arrays = {"layers": [block(struct) for _ in range(2)]}
    as_nnx_has_them = {i: block(lambda *shape: {"kernel": {"value": struct(*shape)}}) for i in range(2)}
    as_lists = [block(lambda *shape: {"w": struct(*shape)}) for _ in range(2)]
    as_dataclasses = [Block(**block(lambda *shape: Linear(struct(*shape)))) for _ in range(2)]

    def found(params):
        return sorted(map(str, specs(params, mw.infer_rules(params), "data=2,tensor=4")))

    assert found(as_dicts) == found(as_arrays) == found(as_nnx_has_them)
    assert found(as_dicts) == found(as_lists) == found(as_dataclasses)
    assert found(as_dicts).count("P('tensor',)") == 4  # two outputs and two second layers


def test_matrices_may_lie_either_way():
    usual = {
        "up": {"weight": struct(512, 2048), "bias": struct(2048)},
        **block(lambda *s: {"weight": struct(*s)}),
    }
    turned = jax.tree.map(lambda x: struct(*x.shape[::-1]), usual)
    found = mw.infer_rules(usual), mw.infer_rules(turned)
    mesh = mw.make_mesh("data=2,tensor=4")
    for name, x in mw.base._internal.named_leaves(usual).items():
        one, other = found[0](name, x, mesh), found[1](name, struct(*x.shape[::-1]), mesh)
        assert tuple(other or ())[::-1] == tuple(one or ()), name


def stacked(layers):
    return jax.tree.map(lambda *xs: struct(len(xs), *xs[0].shape), *layers.values())


def test_stacked_layers_are_split_as_single_ones():
    params = llama(D=1024, F=4096, V=32000)
    layers = params["model"]["layers"]
    scanned = {**params, "model": {**params["model"], "layers": stacked(layers)}}
    one, all_at_once = mw.infer_rules(params), mw.infer_rules(scanned)
    mesh = mw.make_mesh("fsdp=2,tensor=4")
    for name, x in mw.base._internal.named_leaves(layers["0"]).items():
        single = one(f"model/layers/0/{name}", x, mesh)
        both = all_at_once(f"model/layers/{name}", struct(2, *x.shape), mesh)
        assert both == (single and jax.sharding.PartitionSpec(None, *single)), name


WORDS = "q key v out qkv attn in_proj c_attn moe gate up kernel w value bias embed 0 1 mlp"
words = st.sampled_from(WORDS.split())
shapes = st.lists(st.integers(1, 6).map(lambda n: 2**n) | st.integers(1, 65), max_size=4).map(tuple)
trees = st.recursive(shapes.map(lambda s: struct(*s)), lambda part: st.dictionaries(words, part, max_size=4))


@given(trees, st.sampled_from(MESHES))
def test_any_tree_gets_specs_that_fit(tree, mesh):
    rule = mw.infer_rules({"params": tree}, min_size=1)
    mw.Layout(mw.make_mesh(mesh), (rule,)).shardings({"params": tree})  # raises where one does not fit
