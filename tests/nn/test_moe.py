"""Mixtures of experts: each token goes to its experts, on whatever mesh, and none is lost on the way."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.errors import LayoutError, UsageError
from meshwright.nn._hardware import Hardware
from pairs import pairs, slow_first

D, F = 8, 12


def block(weights, rows, dot):
    return dot(jax.nn.silu(dot(rows, weights["gate"])) * dot(rows, weights["up"]), weights["down"])


def arrays(num_experts=8, examples=8, length=6, seed=0):
    random = np.random.default_rng(seed)
    sizes = {"gate": (num_experts, D, F), "up": (num_experts, D, F), "down": (num_experts, F, D)}
    experts = {name: jnp.asarray(random.normal(size=size), jnp.float32) for name, size in sizes.items()}
    x = jnp.asarray(random.normal(size=(examples, length, D)), jnp.float32)
    return experts, x, jnp.asarray(random.normal(size=(examples, length, num_experts)), jnp.float32)


def objective(of, experts, x, logits):
    y, routing = of(block, experts, x, logits)
    wave = jnp.cos(jnp.arange(y.size)).reshape(y.shape)
    return (y * wave).sum() + routing.balance_loss + 0.1 * routing.z_loss, (y, routing)


def gradients(of):
    return jax.jit(jax.grad(partial(objective, of), (0, 1, 2), has_aux=True))


def every_expert(block, experts, x, logits, top_k=2):
    """The definition: all experts compute all tokens."""
    shares = jax.nn.softmax(logits)
    is_chosen = shares >= jnp.sort(shares)[..., -top_k][..., None]
    weights = jnp.where(is_chosen, shares, 0)
    weights /= weights.sum(-1, keepdims=True)
    each = jax.vmap(lambda w: block(w, x, jnp.matmul))(experts)
    load = is_chosen.mean((0, 1)) / top_k
    routing = mw.nn.Routing(
        logits.shape[-1] * (load * shares.mean((0, 1))).sum(),
        jnp.square(jax.nn.logsumexp(logits, axis=-1)).mean(),
        load,
        jnp.zeros(()),
    )
    return jnp.einsum("e...d,...e->...d", each, weights), routing


def same(found, expected):
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5, rtol=1e-5), found, expected)


def check(mesh, of, inputs):
    """Hold a function on a mesh to itself on one device: results and gradients."""
    expected = gradients(of)(*inputs)
    with mw.parallel._internal.in_mesh(mw.make_mesh(mesh)):
        found = gradients(of)(*inputs)
    same(found, expected)


@pytest.mark.slow
def test_the_experts_of_a_token_give_their_weighted_sum():
    same(gradients(partial(mw.nn.moe, top_k=2))(*arrays()), gradients(every_expert)(*arrays()))


@pytest.mark.parametrize(
    ("mesh", "form"),
    [("data=4,expert=2", "ppermute"), pytest.param("expert=8", "all_to_all", marks=pytest.mark.slow)],
)
def test_tokens_are_sent_to_their_experts(mesh, form):
    inputs = arrays()
    expected, _ = every_expert(block, *inputs)
    with mw.parallel._internal.in_mesh(mw.make_mesh(mesh)):
        traced = jax.jit(partial(mw.nn.moe, block, top_k=2)).trace(*inputs)
        found, _ = traced.lower().compile()(*inputs)
    same(found, expected)
    assert form in str(traced.jaxpr)


MESHES = ["expert=8", "data=2,expert=2,tensor=2", "fsdp=2,expert=4", "data=2,fsdp=2,expert=2",
          "expert=4,sequence=2"]  # fmt: skip


@pytest.mark.parametrize(("mesh", "top_k"), pairs(MESHES, [1, 2, 3, 8]))
def test_every_mesh_computes_what_one_device_does(mesh, top_k):
    check(mesh, partial(mw.nn.moe, top_k=top_k), arrays())


@pytest.mark.parametrize("mesh", slow_first(*MESHES))
def test_no_token_is_lost_if_all_go_to_one_expert(mesh):
    experts, x, logits = arrays()
    check(mesh, partial(mw.nn.moe, top_k=2), (experts, x, logits.at[..., 5].add(20)))


def wide_arrays(num_experts):
    """Experts with more elements in a matrix than a product copies for all of its rows at once."""
    keys = iter(jax.random.split(jax.random.key(0), 5))
    normal = lambda *shape: jax.random.normal(next(keys), shape) / shape[-2] ** 0.5
    sizes = {"gate": (128, 512), "up": (128, 512), "down": (512, 128)}
    experts = {name: normal(num_experts, *size) for name, size in sizes.items()}
    return experts, normal(4, 16, 128), normal(4, 16, num_experts)


@pytest.mark.slow
@pytest.mark.parametrize("num_experts", [1, 9])
def test_products_are_computed_in_parts_where_matrices_are_large(num_experts):
    of, inputs = partial(mw.nn.moe, top_k=min(2, num_experts)), wide_arrays(num_experts)
    found = gradients(of)(*inputs)
    expected = gradients(partial(every_expert, top_k=min(2, num_experts)))(*inputs)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4, rtol=1e-4), found, expected)
    assert ("scan" in str(jax.make_jaxpr(partial(of, block))(*inputs))) == (num_experts > 1)


@pytest.mark.parametrize("sizes", [(1, 1, 5), (3, 2, 40), (12, 4, 7)])
def test_however_tokens_choose_each_is_computed_by_its_experts(sizes):
    num_experts, top_k, length = sizes
    experts, x, _ = arrays(num_experts, 1, length)
    of = [jax.jit(partial(each, block, experts, top_k=top_k)) for each in (mw.nn.moe, every_expert)]

    @given(st.lists(st.integers(0, 99), min_size=length * num_experts, max_size=length * num_experts))
    @settings(max_examples=25)
    def for_all(numbers):
        chosen = jnp.asarray(numbers, jnp.float32).reshape(1, length, num_experts)
        logits = chosen + jnp.arange(num_experts) / 100  # no two are equal
        same(of[0](x, logits)[0], of[1](x, logits)[0])

    for_all()


def test_a_device_multiplies_half_more_rows_than_there_are_or_fewer():
    experts, x, logits = arrays(8, 64, 64)
    traced = jax.make_jaxpr(gradients(partial(mw.nn.moe, top_k=2)))(experts, x, logits)
    rows = [
        math.prod(eqn.outvars[0].aval.shape) / F  # of a product with "gate" or "up"
        for eqn in mw.program._internal.jaxprs.equations(traced)
        if eqn.primitive.name == "dot_general"
        and eqn.outvars[0].aval.shape[-1] == F != eqn.outvars[0].aval.shape[-2]
    ]
    assert "ragged_dot" not in str(traced)
    assert 2 * 64 * 64 < max(rows) < 1.5 * 2 * 64 * 64


@pytest.fixture
def on_tpus(monkeypatch):
    monkeypatch.setattr(Hardware, "here", classmethod(lambda _: Hardware("tpu")))


@pytest.mark.slow
@pytest.mark.usefixtures("on_tpus")
def test_tpus_multiply_sorted_rows_by_their_own_kernel():
    of = partial(mw.nn.moe, top_k=2)
    assert "ragged_dot" in str(jax.make_jaxpr(partial(of, block))(*arrays()))
    same(gradients(of)(*arrays()), gradients(every_expert)(*arrays()))


@pytest.mark.nightly
@pytest.mark.usefixtures("on_tpus")
def test_tpus_multiply_blocks_in_a_pipeline():
    same(trained("pipeline=2,expert=2,data=2", microbatches=2), trained("data=1", microbatches=2))


def normed(rows):
    return rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)


def centred(rows):
    return normed(rows - rows.mean(-1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("first", [normed, centred])
def test_rows_that_fill_blocks_give_no_gradient_that_is_not_a_number(first):
    of = lambda _, *given: mw.nn.moe(lambda w, rows, dot: block(w, first(rows), dot), *given, top_k=2)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(gradients(of)(*arrays())))


@pytest.mark.slow
@pytest.mark.parametrize("of_inputs", [arrays, wide_arrays])
def test_it_has_gradients_inside_a_shard_map_of_the_user(of_inputs):
    inputs = of_inputs(8)
    of = lambda experts, x, logits: mw.nn.moe(block, experts, x, logits, top_k=2)[0]
    mesh, rows = mw.make_mesh("rows=2", jax.devices()[:2]), jax.P("rows")
    split = jax.shard_map(of, mesh=mesh, in_specs=(jax.P(), rows, rows), out_specs=rows)
    found, expected = (
        jax.jit(jax.grad(lambda *given, of=of: jnp.square(of(*given)).sum(), (0, 1, 2)))(*inputs)
        for of in (split, of)
    )
    # Sums of values of about 100, which come to 0.
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-3, rtol=1e-4), found, expected)


@pytest.mark.slow
def test_a_mixture_is_exported_for_any_number_of_tokens():
    experts, x, logits = arrays()
    of = jax.jit(lambda *of_tokens: mw.nn.moe(block, experts, *of_tokens, top_k=2)[0])
    sizes = jax.export.symbolic_shape("b, t")
    structs = [jax.ShapeDtypeStruct((*sizes, each.shape[-1]), each.dtype) for each in (x, logits)]
    same(jax.export.export(of)(*structs).call(x, logits), of(x, logits))


@pytest.mark.slow
def test_mapped_over_examples_it_computes_the_same():
    experts, x, logits = arrays()
    of = jax.jit(jax.vmap(lambda *of_tokens: mw.nn.moe(block, experts, *of_tokens, top_k=2)[0]))
    same(of(x, logits), mw.nn.moe(block, experts, x, logits, top_k=2)[0])


@pytest.mark.slow
def test_a_gradient_of_a_gradient_is_that_of_the_definition():
    def steepness(of, *inputs):
        grads, _ = jax.grad(partial(objective, of), (0, 1), has_aux=True)(*inputs)
        return sum(jnp.square(x).sum() for x in jax.tree.leaves(grads))

    inputs = arrays(4, 2, 3)
    found, expected = (
        jax.jit(jax.grad(partial(steepness, of)))(*inputs)
        for of in (partial(mw.nn.moe, top_k=2), every_expert)
    )
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4, rtol=1e-4), found, expected)


@pytest.mark.slow
def test_examples_that_no_axis_divides_are_computed_by_all():
    check("data=2,expert=4", partial(mw.nn.moe, top_k=2), arrays(examples=3))


@pytest.mark.parametrize("mesh", slow_first("data=2,expert=4", "expert=8", "expert=4,sequence=2"))
def test_the_same_tokens_are_dropped_on_every_mesh(mesh):
    experts, x, logits = arrays()
    check(mesh, partial(mw.nn.moe, top_k=2, capacity=1.0), (experts, x, logits.at[..., 5].add(1)))


def routing_of(logits, **asked):
    experts, x, _ = arrays(logits.shape[-1], *logits.shape[:2])
    return jax.jit(partial(mw.nn.moe, block, **asked))(experts, x, logits)


def test_an_expert_takes_the_first_tokens_that_it_has_room_for():
    logits = jnp.broadcast_to(jnp.asarray([3.0, 1, 0, 0]), (2, 6, 4))
    y, routing = routing_of(logits, top_k=1, capacity=2.0)  # 2 × 6 tokens / 4 experts: 3 of each example
    assert [(y != 0).any(-1).sum(-1).tolist(), routing.dropped] == [[3, 3], 0.5]
    assert (y[:, :3] != 0).any(-1).all()


@pytest.mark.parametrize("draw", [jax.random.bernoulli, jax.jit(jax.random.gamma, static_argnums=2)])
def test_a_block_draws_random_numbers_only_where_it_is_called_once(draw):
    def drawing(weights, rows, dot):
        return block(weights, rows, dot) * draw(jax.random.key(0), 0.5, rows.shape)

    for mesh in ("data=8", "expert=8", "sequence=2,tensor=4"):
        with (
            mw.parallel._internal.in_mesh(mw.make_mesh(mesh)),
            pytest.raises(
                UsageError, match=r"the block of mw.nn.moe must not draw(.|\n)* dropout after mw.nn.moe"
            ),
        ):
            mw.nn.moe(drawing, *arrays(), top_k=2)
    y, _ = mw.nn.moe(drawing, *arrays(), top_k=2)
    plain, _ = mw.nn.moe(block, *arrays(), top_k=2)
    assert y.shape == plain.shape
    assert not np.allclose(y, plain)


@pytest.mark.slow
def test_with_room_for_all_it_is_as_without_a_capacity():
    found = gradients(partial(mw.nn.moe, top_k=2, capacity=4.0))(*arrays())
    same(found, gradients(partial(mw.nn.moe, top_k=2))(*arrays()))


def test_an_expert_has_no_more_slots_than_there_are_tokens():
    traced = str(jax.make_jaxpr(partial(mw.nn.moe, block, top_k=2, capacity=1e9))(*arrays()))
    assert f"f32[8,{8 * 6},{F}] = dot_general" in traced


def test_with_a_capacity_each_expert_multiplies_as_many_rows_at_once():
    traced = str(jax.make_jaxpr(partial(mw.nn.moe, block, top_k=2, capacity=2.0))(*arrays()))
    assert f"f32[8,{8 * 3},{F}] = dot_general" in traced  # of 8 examples 2 × 2 × 6 / 8 tokens
    assert "ragged_dot" not in traced


@pytest.mark.slow
def test_a_first_choice_has_room_before_a_second_one():
    logits = jnp.asarray([[[2.0, 3], [2, 3], [3, 2], [3, 2]]])
    y, routing = routing_of(logits, top_k=2, capacity=0.5)  # 0.5 × 2 × 4 / 2: two tokens for each expert
    alone, _ = routing_of(logits, top_k=1)
    shares = jax.nn.softmax(jnp.asarray([3.0, 2]))[0]
    same((y, routing.dropped), (alone * shares, 0.5))


@pytest.mark.slow
def test_a_bias_moves_the_choice_and_not_the_weights():
    logits = jnp.broadcast_to(jnp.asarray([2.0, 1, 0]), (1, 4, 3))
    y, routing = routing_of(logits, top_k=1, normalize=False, bias=jnp.asarray([0.0, 0, 1]))
    assert routing.load.tolist() == [0, 0, 1]
    other, _ = routing_of(logits[..., ::-1], top_k=1, normalize=False)  # its expert 2, with another weight
    same(y, other * jnp.exp(-2.0))


@pytest.mark.slow
def test_an_even_load_costs_1_and_one_expert_of_four_alone_4():
    of_expert = lambda number: 50 * np.eye(4, dtype=np.float32)[number]
    costs = [
        routing_of(of_expert(np.reshape(numbers, (2, 4))), top_k=1)[1].balance_loss
        for numbers in ([0, 1, 2, 3] * 2, [1] * 8)
    ]
    assert costs == pytest.approx([1, 4])


def test_no_scores_are_gathered():
    with mw.parallel._internal.in_mesh(mw.make_mesh("data=8")):
        inputs = [jax.device_put(each, jax.P("data")) for each in arrays(16)[1:]]
        compiled = jax.jit(partial(mw.nn.moe, block, top_k=2)).lower(arrays(16)[0], *inputs).compile()
    assert "all-gather" not in compiled.as_text()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"top_k": 9}, r"top_k=9: expected a number from 1 to 8"),
        ({"top_k": 2, "x": jnp.ones((0, 6, 8)), "logits": jnp.ones((0, 6, 8))}, r"no tokens: .* \(0, 6, 8\)"),
        ({"top_k": 2, "capacity": 0.0}, r"capacity=0.0: expected a number above 0"),
        ({"top_k": 2, "capacity": "1"}, r"capacity='1': expected a number above 0"),
        ({"top_k": 2, "logits": jnp.ones((8, 6, 4))}, r"logits \(8, 6, 4\), and experts down \(8, 12, 8\)"),
        (
            {"top_k": 2, "experts": {"a": jnp.ones((8, 2)), "b": jnp.ones((4, 2))}},
            "must count experts; found",
        ),
    ],
)
def test_what_does_not_fit_is_refused(asked, message):
    given = dict(zip(("experts", "x", "logits"), arrays(), strict=True)) | asked
    with pytest.raises(UsageError, match=message):
        mw.nn.moe(block, **given)


def test_experts_that_the_axis_does_not_divide_are_refused():
    with mw.parallel._internal.in_mesh(mw.make_mesh("expert=8")), pytest.raises(LayoutError) as caught:
        mw.nn.moe(block, *arrays(12), top_k=2)
    assert "mesh axis 'expert' of size 8 does not divide 12 experts" in str(caught.value)


# A user's model: a router and experts in layers, trained by the step.


def init(key):
    e, r, *keys = jax.random.split(key, 5)
    shapes = {"gate": (2, 8, D, F), "up": (2, 8, D, F), "down": (2, 8, F, D)}
    experts = {name: jax.random.normal(k, shapes[name]) / 3 for name, k in zip(shapes, keys, strict=True)}
    router = jax.random.normal(r, (2, D, 8))
    return {"embedding": jax.random.normal(e, (32, D)), "layers": {"router": router, "experts": experts}}


def loss(params, batch):
    def layer(layer, x):
        y, routing = mw.nn.moe(block, layer["experts"], x, x @ layer["router"], top_k=2)
        return x + y, routing

    x, routing = mw.nn.layers(layer, params["layers"], params["embedding"][batch["tokens"]], has_aux=True)
    fit = jnp.square(x @ params["embedding"].T).mean()
    return fit + 0.01 * routing.balance_loss.mean(), {"busiest": routing.load.max()}


def trained(mesh, **more):
    devices = jax.devices()[:1] if mesh == "data=1" else None
    rules = (
        mw.parallel.match("gate|up", "pipeline", "expert", "fsdp", "tensor"),
        mw.parallel.match("down", "pipeline", "expert", "tensor", "fsdp"),
        mw.parallel.stages(),
        mw.parallel.fsdp(min_size=1),
    )
    layout = mw.Layout(mw.make_mesh(mesh, devices), rules)
    state = mw.training.init_state(init, optax.sgd(0.1), 0, layout)
    batch = {"tokens": np.random.default_rng(0).integers(0, 32, (16, 6)).astype(np.int32)}
    state, metrics = mw.make_step(loss, optax.sgd(0.1), layout, **more)(state, batch)
    return jax.tree.map(np.asarray, state.params), float(metrics["loss"].value)


@pytest.mark.parametrize("mesh", slow_first("fsdp=2,expert=2,tensor=2", "data=2,expert=4", "fsdp=2,expert=4"))
def test_a_model_with_experts_trains_as_on_one_device(mesh):
    same(trained(mesh), trained("data=1"))


@pytest.mark.slow
def test_experts_are_in_the_stages_of_a_pipeline():
    mesh = "pipeline=2,expert=2,data=2"
    same(trained(mesh, microbatches=2), trained("data=1", microbatches=2))


@pytest.mark.parametrize("mesh", [pytest.param("data=8", marks=pytest.mark.nightly), "fsdp=2,expert=4"])
def test_rules_are_found_in_a_loss_that_is_traced_on_its_mesh(mesh):
    params, tokens = jax.eval_shape(init, jax.random.key(0)), jax.ShapeDtypeStruct((16, 6), jnp.int32)
    with mw.parallel._internal.in_mesh(mw.make_mesh(mesh)):
        rule = mw.infer_rules(params, loss, {"tokens": tokens})
    layout = mw.Layout(mw.make_mesh("data=2,expert=2,tensor=2"), (rule,))
    specs = {name: layout.spec(name, x) for name, x in mw.base._internal.named_leaves(params).items()}
    columns = jax.P(None, "expert", None, "tensor")
    assert [specs[f"layers/experts/{name}"] for name in ("gate", "up")] == [columns] * 2
    assert specs["layers/experts/down"] == jax.P(None, "expert", "tensor")
