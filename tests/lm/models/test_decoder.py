import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from lm.models import random_params
from meshwright.lm._models import decoder
from meshwright.lm._models.decoder import Config, Rope
from pairs import slow_first

PLAIN = Config(vocabulary=14, model=16, layers=3, heads=4, key_heads=2, head=8, feed_forward=24)
EVERYTHING = dataclasses.replace(
    PLAIN,
    activation="gelu",
    norm_offset=1.0,
    post_norms=True,
    windows=(3, None),
    ropes=(Rope(), Rope(1e6, factor=8)),
    tied=True,
    query_bias=True,
    query_norm=True,
    embedding_scale=4.0,
    attention_cap=2.0,
    logit_cap=3.0,
)
MIXTURE = dataclasses.replace(PLAIN, experts=4, feed_forward=8)
CONFIGS = {"plain": PLAIN, "everything": EVERYTHING}
TOKENS = np.random.default_rng(0).integers(0, 14, (8, 12))


params_of = functools.partial(random_params.params_of, decoder)


@functools.cache
def compiled(function, cfg):
    return jax.jit(functools.partial(function, cfg))


logits_of = functools.partial(compiled, decoder.logits)
losses_of = functools.partial(compiled, decoder.losses)


@pytest.fixture(params=CONFIGS)
def cfg(request):
    return CONFIGS[request.param]


@pytest.mark.slow
def test_logits_are_wide_whatever_the_parameters_are():
    params = params_of(EVERYTHING)
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    found, expected = logits_of(EVERYTHING)(narrow, TOKENS), logits_of(EVERYTHING)(params, TOKENS)
    assert (found.shape, found.dtype) == ((8, 12, 14), jnp.float32)
    assert np.abs(found - expected).mean() < 0.05 * np.abs(expected).mean()


def test_no_position_sees_what_follows_it(cfg):
    changed = np.concatenate([TOKENS[:, :7], 13 - TOKENS[:, 7:]], axis=1)
    found, expected = logits_of(cfg)(params_of(cfg), changed), logits_of(cfg)(params_of(cfg), TOKENS)
    np.testing.assert_array_equal(found[:, :7], expected[:, :7])
    assert (np.abs(found[:, 7:] - expected[:, 7:]).max((1, 2)) > 1e-3).all()


def test_scanning_over_layers_is_the_same_as_one_after_the_other(cfg):
    @jax.jit
    def unrolled(params):
        x, windows = params["embedding"][TOKENS] * cfg.embedding_scale, cfg.layer_windows()
        for i, frequencies in enumerate(cfg.layer_frequencies()):
            layer = jax.tree.map(lambda x, i=i: x[i], params["layers"])
            x = decoder.block(cfg, layer, x, frequencies, None if windows is None else windows[i])
        return decoder.scores(cfg, params, decoder.rms_norm(cfg, x, params["norm"]))

    params = params_of(cfg)
    np.testing.assert_allclose(logits_of(cfg)(params, TOKENS), unrolled(params), rtol=1e-4, atol=1e-4)


def test_packed_sequences_are_as_if_each_were_alone():
    segments = np.array([[1] * 6 + [2] * 6] * 8)
    packed = logits_of(EVERYTHING)(params_of(EVERYTHING), TOKENS, segments)
    for start in (0, 6):  # alone at the start of a row, as no position sees what follows it
        alone = logits_of(EVERYTHING)(params_of(EVERYTHING), np.roll(TOKENS, -start, axis=1))
        np.testing.assert_allclose(packed[:, start : start + 6], alone[:, :6], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_losses_of_more_positions_than_at_once_are_the_cross_entropy_of_the_logits():
    tokens = np.random.default_rng(1).integers(0, 14, (2, 301))
    logits = logits_of(EVERYTHING)(params_of(EVERYTHING), tokens)[:, :-1]
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    found = losses_of(EVERYTHING)(params_of(EVERYTHING), tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_padding_and_the_first_tokens_of_segments_are_not_counted():
    segments = np.array([[1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0]] * 8)
    batch = {"tokens": TOKENS, "segments": segments}
    both = jax.jit(lambda p: (decoder.loss(PLAIN, p, batch), decoder.losses(PLAIN, p, TOKENS, segments)))
    found, losses = both(params_of(PLAIN))
    assert found.count == 8 * (3 + 2)
    assert found.total == pytest.approx(float(losses[:, :3].sum() + losses[:, 4:6].sum()), rel=1e-5)


def test_tokens_that_are_said_to_be_padding_are_not_counted():
    is_token = np.arange(12) < np.full((8, 1), 9)
    losses = losses_of(PLAIN)(params_of(PLAIN), TOKENS)
    found = jax.jit(functools.partial(decoder.loss, PLAIN))(
        params_of(PLAIN), {"tokens": TOKENS, "is_token": is_token}
    )
    assert (found.count, float(found)) == (64, pytest.approx(float(losses[:, :8].mean()), rel=1e-5))


def test_each_token_counts_by_its_weight_in_the_loss_and_in_the_evaluation():
    segments = np.array([[1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0]] * 8)
    weights = np.random.default_rng(1).uniform(0, 2, (8, 12)).astype(np.float32)
    batch = {"tokens": TOKENS, "segments": segments, "weights": weights}
    both = jax.jit(lambda p: (decoder.loss(PLAIN, p, batch), decoder.losses(PLAIN, p, TOKENS, segments)))
    found, losses = both(params_of(PLAIN))
    counted = weights[:, 1:] * np.isin(np.arange(11), [0, 1, 2, 4, 5])
    assert float(found) == pytest.approx(float(np.average(losses, weights=counted)), rel=1e-5)
    scores = mw.engine.token_means(losses, TOKENS, segments, weights)
    assert float(found) == pytest.approx(
        float(scores["loss"].total.sum() / scores["loss"].count.sum()), rel=1e-5
    )


@pytest.mark.slow
def test_what_is_kept_for_the_gradient_does_not_change_it():
    @functools.partial(jax.jit, static_argnames="remat")
    def gradient(params, remat):
        return jax.grad(lambda p: jnp.sum(decoder.features(PLAIN, p, TOKENS, remat=remat) ** 2))(params)

    kept, computed_twice = (gradient(params_of(PLAIN), remat) for remat in ("everything", "nothing"))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), kept, computed_twice)


def test_heads_that_share_keys_are_as_heads_with_keys_of_their_own():
    own = dataclasses.replace(PLAIN, key_heads=4)
    shared = params_of(PLAIN)

    def repeated(name):
        x = shared["layers"][name].reshape(3, 16, 2, 8)
        return jnp.repeat(x, 2, axis=2).reshape(3, 16, 32)

    params = {**shared, "layers": {**shared["layers"], "k": repeated("k"), "v": repeated("v")}}
    np.testing.assert_allclose(logits_of(own)(params, TOKENS), logits_of(PLAIN)(shared, TOKENS), atol=1e-5)


def test_rotated_positions_know_only_their_distance():
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
    frequencies = Rope().frequencies(8)
    q, k = (decoder.rotate(jnp.tile(x, (1, 20, 1, 1)), frequencies)[0, :, 0] for x in (q, k))
    scores = np.asarray(q @ k.T)
    for distance in range(1, 4):
        np.testing.assert_allclose(np.diagonal(scores, distance), scores[0, distance], rtol=1e-4)
    assert abs(scores[0, 1] - scores[0, 3]) > 1e-3


def test_a_longer_context_slows_the_slow_turns_and_leaves_the_fast():
    before, after = Rope(5e5).frequencies(64), Rope(5e5, factor=8, length=8192).frequencies(64)
    ratio = after / before
    np.testing.assert_allclose(ratio[[0, -1]], [1, 1 / 8], rtol=1e-6)
    assert (np.diff(ratio) <= 1e-6).all()
    assert ((ratio > 0.126) & (ratio < 0.999)).any()
    np.testing.assert_allclose(Rope(1e6, factor=8).frequencies(64), Rope(1e6).frequencies(64) / 8)


def test_a_window_hides_what_lies_before_it():
    cfg = dataclasses.replace(PLAIN, windows=(3,), layers=1)
    changed = np.concatenate([13 - TOKENS[:, :2], TOKENS[:, 2:]], axis=1)
    params = params_of(cfg)
    found, expected = logits_of(cfg)(params, changed), logits_of(cfg)(params, TOKENS)
    np.testing.assert_allclose(found[:, 4:], expected[:, 4:], atol=1e-5)
    assert np.abs(found[:, 3] - expected[:, 3]).max() > 1e-3


def test_a_tied_head_is_the_embedding():
    tied = dataclasses.replace(PLAIN, tied=True)
    params = params_of(tied)
    assert "head" not in params
    untied = {**params, "head": params["embedding"].T}
    np.testing.assert_allclose(logits_of(tied)(params, TOKENS), logits_of(PLAIN)(untied, TOKENS), atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_split_over_a_mesh_it_computes_the_same(name, mesh):
    cfg = CONFIGS[name]
    layout, params = mw.Layout(mesh, decoder.RULES), params_of(cfg)
    placed = jax.device_put(params, layout.shardings(params))
    tokens = jax.device_put(TOKENS, layout.batch_sharding)
    assert placed["layers"]["q"].sharding.spec == jax.P(None, "fsdp", "tensor")
    with jax.set_mesh(mesh):
        found = jax.jit(functools.partial(decoder.logits, cfg))(placed, tokens)
    np.testing.assert_allclose(found, logits_of(cfg)(params, TOKENS), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_devices_exchange_weights_and_no_activations():
    cfg, length = dataclasses.replace(PLAIN, vocabulary=32), 23
    layout = mw.Layout(mw.make_mesh("fsdp=8"), decoder.RULES)
    params = layout.place(jax.eval_shape(functools.partial(decoder.init, cfg), jax.random.key(0)))
    batch = {"tokens": jax.ShapeDtypeStruct((16, length + 1), np.int32, sharding=layout.batch_sharding)}
    with jax.set_mesh(layout.mesh):
        gradient = jax.jit(jax.grad(lambda params, batch: decoder.loss(cfg, params, batch).value))
        text = gradient.lower(params, batch).compile().as_text()
    exchanged = re.findall(r"= (.*?) (?:all-\w+|reduce-scatter|collective-permute)\(", text)
    assert any("f32[16,24]" in shapes for shapes in exchanged)  # a layer's gate, gathered
    assert not [shapes for shapes in exchanged if re.search(rf"f32\[.*\b{length}\b", shapes)]


PUBLISHED = {
    "llama-7b": 6_738_415_616,
    "llama-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen-2-0.5b": 494_032_768,
    "qwen-3-0.6b": 596_049_920,
    "qwen-3-30b-a3b": 30_532_122_624,
    "gemma-2b": 2_506_172_416,
    "gemma-2-2b": 2_614_341_888,
    "gemma-3-1b": 999_885_952,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_size_has_as_many_parameters_as_published(name):
    init = functools.partial(decoder.init, decoder.config(name))
    assert mw.training.num_params(jax.eval_shape(init, jax.random.key(0))) == PUBLISHED[name]


def test_a_size_that_there_is_not_is_answered_with_the_nearest():
    with pytest.raises(mw.errors.UsageError, match="Did you mean 'llama-7b'"):
        decoder.config("lama-7b")


def test_heads_of_keys_and_the_size_of_one_follow_from_the_other_sizes():
    cfg = Config(model=64, heads=8)
    assert (cfg.num_key_heads, cfg.head_size) == (8, 8)
    assert dataclasses.replace(cfg, heads=4).head_size == 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("key_heads", 3), ("key_heads", 0), ("head", 7), ("head", 0), ("activation", "relu")),
        *(("windows", ()), ("windows", (0,)), ("layers", 0), ("heads", "4"), ("vocabulary", -1)),
    ],
)
def test_sizes_that_do_not_go_together_are_refused_by_name(field, value):
    with pytest.raises(mw.errors.UsageError, match=f"Config.*{field}"):
        dataclasses.replace(PLAIN, **{field: value})


def test_heads_that_do_not_divide_the_model_need_a_size():
    with pytest.raises(mw.errors.UsageError, match=r"Config\.heads is 3.*model=16.*the size of a head"):
        Config(model=16, heads=3)
    assert Config(model=16, heads=3, head=8).head_size == 8


def test_rows_of_one_token_leave_nothing_to_predict():
    with pytest.raises(mw.errors.UsageError, match="rows of 1 token"):
        decoder.losses(PLAIN, params_of(PLAIN), TOKENS[:, :1])


def test_segments_of_other_shapes_than_the_tokens_are_refused():
    batch = {"tokens": TOKENS, "segments": np.ones((8, 11), int)}
    with pytest.raises(mw.errors.UsageError, match=r"segments .*\(8, 11\).*\(8, 12\)"):
        decoder.loss(PLAIN, params_of(PLAIN), batch)


@pytest.mark.slow
def test_what_layers_keep_is_split_by_position_over_tensor():
    cfg = Config(vocabulary=16, model=64, layers=32, heads=4, feed_forward=64)
    layout = mw.Layout(mw.make_mesh("data=2,tensor=4"), decoder.RULES)
    state = mw.training.abstract_state(lambda key: decoder.init(cfg, key), optax.sgd(0.1), layout)
    loss = lambda params, batch: decoder.loss(cfg, params, batch, remat="nothing")
    step = mw.make_step(loss, optax.sgd(0.1), layout)
    text = step.compile(state, {"tokens": jax.ShapeDtypeStruct((8, 513), jnp.int32)}).as_text()
    assert "f32[32,4,128,64]" in text  # layers, rows of a device, its positions, features
    assert "f32[32,4,512,64]" not in text


@pytest.mark.slow
def test_a_mixture_of_equal_experts_is_a_dense_layer_and_the_loss_adds_its_balance():
    cfg, params = MIXTURE, params_of(PLAIN := dataclasses.replace(MIXTURE, experts=None))
    dense = params["layers"]
    experts = {name: jnp.repeat(dense[name][:, None], 4, 1) for name in ("gate", "up", "down")}
    router = jnp.asarray(np.random.default_rng(2).normal(size=(3, 16, 4)), jnp.float32)
    rest = {name: x for name, x in dense.items() if name not in experts}
    params |= {"layers": rest | {"router": router, "experts": experts}}
    of_experts = jax.jit(functools.partial(decoder.loss_and_routing, cfg))
    found, routing = of_experts(params, {"tokens": TOKENS})
    expected = jax.jit(functools.partial(decoder.loss, PLAIN))(
        {**params, "layers": dense}, {"tokens": TOKENS}
    )
    assert float(found) == pytest.approx(
        float(expected) + 0.01 * float(routing.balance_loss.mean()), rel=1e-5
    )
    assert (routing.load.shape, routing.dropped.shape) == ((3, 4), (3,))


@pytest.mark.parametrize("shape", slow_first("fsdp=2,expert=2,tensor=2", "data=2,expert=4"))
def test_tokens_of_a_mixture_are_sent_to_their_experts(shape):
    params, batch = params_of(MIXTURE), {"tokens": TOKENS}
    gradient = jax.jit(jax.value_and_grad(lambda p, b: decoder.loss(MIXTURE, p, b).value))
    expected = gradient(params, batch)
    layout = mw.Layout(mw.make_mesh(shape), decoder.RULES)
    with mw.parallel._internal.in_mesh(layout.mesh):
        placed = jax.device_put(params, layout.shardings(params))
        found = gradient(placed, jax.device_put(batch, layout.batch_sharding))
    assert placed["layers"]["experts"]["up"].sharding.spec[1] == "expert"
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), found, expected)


@pytest.mark.slow
def test_experts_without_room_for_all_drop_tokens_in_a_loss_and_none_in_generation():
    params, tight = params_of(MIXTURE), dataclasses.replace(MIXTURE, expert_capacity=0.5)
    _, routing = jax.jit(functools.partial(decoder.loss_and_routing, tight))(params, {"tokens": TOKENS})
    assert (routing.dropped > 0.4).all()
    prompts, asked = [TOKENS[0, :9]], mw.lm.Decoding(max_new_tokens=3)
    found, expected = (
        mw.lm.generate(mw.lm.with_cache(cfg), params, prompts, asked)[0].tolist() for cfg in (tight, MIXTURE)
    )
    assert found == expected


@pytest.mark.parametrize("capacity", [0, -1, float("nan"), "1.25"])
def test_a_capacity_of_experts_that_is_none_is_refused(capacity):
    with pytest.raises(mw.errors.UsageError, match=rf"expert_capacity is {capacity!r}; it must be a number"):
        dataclasses.replace(MIXTURE, expert_capacity=capacity)


def test_a_capacity_without_experts_is_refused():
    with pytest.raises(mw.errors.UsageError, match=r"expert_capacity is 1.25, but the model has no experts"):
        dataclasses.replace(PLAIN, expert_capacity=1.25)


def test_more_experts_of_a_token_than_there_are_are_refused():
    with pytest.raises(mw.errors.UsageError, match="experts_per_token is 5, but there are 4 experts"):
        dataclasses.replace(MIXTURE, experts_per_token=5)
