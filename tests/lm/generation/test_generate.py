"""Rows in slots: what comes out depends on prompts, settings and seed only."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.lm._generation._decoding import Decoding
from meshwright.lm._generation._generate import generate_batch, stream
from meshwright.lm._generation._model import Model, counting, without_cache
from meshwright.lm._models import decoder, gpt2, t5
from meshwright.lm._models._with_cache import with_cache
from pairs import pairs

CFG = decoder.Config(
    vocabulary=24, model=16, layers=2, heads=4, key_heads=2, feed_forward=24, windows=(6, None)
)
DRAWN = Decoding(max_new_tokens=12, temperature=1.0, top_p=0.9, repetition_penalty=1.2, stop=(3, (4, 5)))
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, 24, length) for length in RNG.integers(1, 15, 10)]


@pytest.fixture(scope="module")
def params():
    return jax.jit(lambda key: jax.tree.map(lambda x: 2 * x, decoder.init(CFG, key)))(jax.random.key(0))


def lists(rows):
    return [row.tolist() for row in rows]


@pytest.fixture(scope="module")
def drawn(params):
    return lists(mw.lm.generate(with_cache(CFG), params, PROMPTS, DRAWN, seed=1, slots=len(PROMPTS)))


@pytest.mark.slow
def test_a_bound_that_is_no_multiple_of_the_pieces_of_a_prompt_changes_nothing(params):
    prompts = [RNG.integers(0, 24, length) for length in (1, 63, 64, 65, 90)]
    rows = [
        lists(mw.lm.generate(with_cache(CFG), params, prompts, Decoding(9), length=length, slots=8))
        for length in (99, 128)
    ]
    assert rows[0] == rows[1]


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 4])
def test_the_number_of_slots_changes_no_token(params, drawn, slots):
    assert lists(mw.lm.generate(with_cache(CFG), params, PROMPTS, DRAWN, seed=1, slots=slots)) == drawn


@pytest.mark.slow
def test_prompts_from_an_iterator_are_read_as_slots_become_free(params, drawn):
    read = []
    prompts = (read.append(number) or prompt for number, prompt in enumerate(PROMPTS))
    pieces = stream(with_cache(CFG), params, prompts, DRAWN, seed=1, slots=2, length=64, every=1)
    first = next(pieces)
    assert (first.number, first.tokens.tolist(), read) == (0, drawn[0][:1], [0, 1])
    found = {0: first.tokens.tolist()}
    for piece in pieces:
        found[piece.number] = found.get(piece.number, []) + piece.tokens.tolist()
    assert [found[number] for number in range(len(PROMPTS))] == drawn


@pytest.mark.slow
@pytest.mark.parametrize("text", ["data=8", "data=2,fsdp=2,tensor=2"])
def test_any_mesh_gives_what_one_device_gives(params, drawn, text):
    placed = jax.device_put(params, mw.Layout(mw.make_mesh(text), decoder.RULES).shardings(params))
    assert lists(mw.lm.generate(with_cache(CFG), placed, PROMPTS, DRAWN, seed=1, slots=4)) == drawn


@pytest.mark.slow
def test_another_seed_draws_other_tokens(params, drawn):
    assert lists(mw.lm.generate(with_cache(CFG), params, PROMPTS, DRAWN, seed=2, slots=len(PROMPTS))) != drawn


@pytest.mark.slow
def test_a_model_without_a_cache_gives_what_one_with_a_cache_gives(params, drawn):
    model = without_cache(functools.partial(decoder.logits, CFG))
    assert lists(mw.lm.generate(model, params, PROMPTS, DRAWN, seed=1, slots=len(PROMPTS))) == drawn


@pytest.mark.slow
def test_one_program_serves_all_lengths_up_to_the_bound(params):
    traced, counts, cached = [], [], with_cache(CFG)

    def apply(params, tokens, cache, starts):
        traced.append(tokens.shape)
        return cached.apply(params, tokens, cache, starts)

    model = Model(cached.init_cache, apply)
    for length, new in ((1, 5), (20, 9), (100, 20)):
        prompts = [RNG.integers(0, 24, length)] * 3
        mw.lm.generate(model, params, prompts, Decoding(max_new_tokens=new), length=128, slots=2)
        counts.append(len(traced))
    assert len({*counts}) == 1


def cached_logits(model, params, tokens, sizes, inputs=None):
    """The logits of tokens that the model gets in pieces of these sizes."""
    cache = model.init_cache(params, len(tokens), 32)
    if inputs is not None:
        cache = model.encode(params, inputs, jnp.ones(inputs.shape, bool), cache)
    found, start = [], 0
    for size in sizes:
        starts = jnp.full(len(tokens), start, jnp.int32)
        logits, cache = jax.jit(model.apply)(params, tokens[:, start : start + size], cache, starts)
        found.append(logits)
        start += size
    return jnp.concatenate(found, axis=1)


SMALL = {"vocabulary": 24, "model": 16, "heads": 4, "feed_forward": 24, "layers": 2}
MODELS = {
    "decoder": (decoder, CFG),
    "gpt2": (gpt2, gpt2.Config(**SMALL, positions=32)),
    "t5": (t5, t5.Config(**SMALL, head=4, decoder_layers=2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_cached_logits_are_those_of_the_whole_row(name):
    module, cfg = MODELS[name]
    params = module.init(cfg, jax.random.key(1))
    tokens = jnp.asarray(RNG.integers(0, 24, (2, 20)))
    inputs = (jnp.asarray(RNG.integers(0, 24, (2, 7))),) if name == "t5" else ()
    whole = module.logits(cfg, params, *inputs, tokens)
    found = cached_logits(with_cache(cfg), params, tokens, (9, 1, 1, 8, 1), *inputs)
    np.testing.assert_allclose(found, whole, atol=1e-5)


UNIGRAM = Model(
    init_cache=lambda params, batch, length: jnp.zeros((batch, 1)),
    apply=lambda params, tokens, cache, starts: (jnp.broadcast_to(params, (*tokens.shape, 8)), cache),
)


@pytest.mark.parametrize(
    ("decoding", "kept"),
    [
        (Decoding(4000, temperature=1.0), 8),
        (Decoding(4000, temperature=0.5), 8),
        (Decoding(4000, temperature=1.0, top_k=3), 3),
        (Decoding(4000, temperature=2.0, top_p=0.7), None),
        (Decoding(4000, temperature=1.0, min_p=0.2), None),
    ],
)
@pytest.mark.daily(2)
def test_tokens_are_drawn_as_often_as_their_probability_says(decoding, kept):
    logits = np.array([1.0, 0.2, -0.5, 2.0, 0.0, 1.5, -1.0, 0.7], np.float32)
    wanted = np.exp(logits / decoding.temperature) / np.exp(logits / decoding.temperature).sum()
    order = np.argsort(-wanted)
    if decoding.top_p:
        kept = 1 + np.searchsorted(np.cumsum(wanted[order]), decoding.top_p)
    if decoding.min_p:
        kept = (wanted >= decoding.min_p * wanted.max()).sum()
    wanted[order[kept:]] = 0
    wanted /= wanted.sum()
    prompts = np.zeros((8, 1), np.int32)
    made = jax.jit(functools.partial(generate_batch, UNIGRAM), static_argnums=3)
    drawn = made(jnp.asarray(logits), prompts, np.ones(8), decoding, jax.random.key(0)).tokens
    counts = np.bincount(np.ravel(drawn), minlength=8)
    assert counts[wanted == 0].sum() == 0
    expected = counts.sum() * wanted[wanted > 0]
    distance = ((counts[wanted > 0] - expected) ** 2 / expected).sum()
    assert distance < {2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 7: 24.3}[max(2, (wanted > 0).sum() - 1)]  # 0.1 %


def test_a_stop_sequence_ends_a_row_and_its_result():
    following = jnp.full((6, 6), -9.0).at[jnp.arange(6), (jnp.arange(6) + 1) % 6].set(9.0)
    model = Model(lambda p, b, n: jnp.zeros((b, 1)), lambda p, tokens, cache, starts: (p[tokens], cache))
    decoding = Decoding(max_new_tokens=9, stop=((2, 3), (5,)))
    assert lists(mw.lm.generate(model, following, [[0], [1, 2], [2], [4]], decoding)) == [
        [1, 2, 3],
        [3, 4, 5],  # the prompt's 2 is no part of a stop sequence
        [3, 4, 5],
        [5],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
def test_the_result_is_a_choice_and_by_beams_the_most_likely_one(params, beams):
    choices = ((1, 2, 3), (1, 2, 4, 5), (7,))
    found = lists(mw.lm.generate(with_cache(CFG), params, PROMPTS, Decoding(beams=beams, choices=choices)))
    assert {tuple(row) for row in found} <= {*choices}
    if beams > 1:
        assert found[0] == list(max(choices, key=functools.partial(mean_log_probability, params, PROMPTS[0])))


@jax.jit
def log_probabilities(params, row):
    return jax.nn.log_softmax(decoder.logits(CFG, params, row[None])[0])


def mean_log_probability(params, prompt, choice):
    row = np.concatenate([prompt, choice])
    log_probs = log_probabilities(params, np.pad(row, (0, 32 - len(row))))
    return float(sum(log_probs[len(prompt) - 1 + i, token] for i, token in enumerate(choice))) / len(choice)


@pytest.mark.slow
def test_four_beams_find_rows_at_least_as_likely_as_greedy_s(params):
    greedy, beams = (
        mw.lm.generate(with_cache(CFG), params, PROMPTS, Decoding(8, beams=beams)) for beams in (1, 4)
    )
    score = functools.partial(mean_log_probability, params)
    pairs = [(score(p, b), score(p, g)) for p, b, g in zip(PROMPTS[:3], beams, greedy, strict=False)]
    assert all(found >= known - 1e-5 for found, known in pairs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 5}, "top_k=5 has no effect with temperature=0"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p=1.5: expected above 0, up to 1"),
        ({"temperature": 1.0, "beams": 2}, "beams=2 needs temperature=0"),
        ({"length_penalty": 2.0}, "length_penalty has no effect without beams"),
        ({"stop": "\n"}, "must be a list of tokens"),
        ({"stop": ((),)}, "empty sequence"),
        ({"choices": ((1,), (1, 2))}, "the beginning of the second"),
        ({"num_beams": 2}, "Write beams="),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Decoding(**settings)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[1], []], {}, "prompt 1 must be a sequence of tokens, at least one"),
        ([[1], [2, 1000]], {}, "prompt 1 has the token 1000, but the model has"),
        ([[-1]], {}, "prompt 0 has the token -1, but the model has"),
        (["text"], {}, "Encode texts with the tokenizer"),
        ([[1] * 20], {"length": 64}, "there is room for 4"),
        (iter([[1]]), {}, "needs the bound of their length"),
        ([[1]], {"slots": 0}, "slots=0"),
        ([[1]], {"length": 60}, "length=60 leaves no room for a prompt"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(params, prompts, options, message):
    with pytest.raises(UsageError, match=message):
        mw.lm.generate(with_cache(CFG), params, prompts, Decoding(max_new_tokens=60), **options)


@pytest.mark.parametrize("settings", [{"stop": [(1, 2), 1000]}, {"choices": [(1, 1000), (2,)]}])
def test_a_decoding_with_tokens_of_another_model_is_refused(params, settings):
    with pytest.raises(UsageError, match=r"decoding\.(stop|choices) has the token 1000, but the model has"):
        mw.lm.generate(with_cache(CFG), params, [[1]], Decoding(**settings))


def test_a_row_longer_than_the_positions_of_a_model_is_refused():
    cfg = MODELS["gpt2"][1]
    with pytest.raises(UsageError, match="the model has 32 positions"):
        mw.lm.generate(with_cache(cfg), {}, [[1] * 30], Decoding(max_new_tokens=8))


class Linen(linen.Module):
    """A layer of attention as Flax has it, with a cache that counts its positions."""

    is_cached: bool = False

    @linen.compact
    def __call__(self, tokens):
        x = linen.Embed(24, 8)(tokens)
        mask = None if self.is_cached else linen.make_causal_mask(tokens)
        x = x + linen.MultiHeadDotProductAttention(2, decode=self.is_cached)(x, mask=mask)
        return linen.Dense(24)(x)


@pytest.mark.slow
def test_a_module_of_linen_that_counts_positions_gives_what_its_whole_rows_give():
    whole, cached = Linen(), Linen(is_cached=True)
    params = whole.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]

    def init_cache(params, length):
        made = jax.eval_shape(cached.init, jax.random.key(0), jnp.zeros((1, length), jnp.int32))["cache"]
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), made)

    def apply(params, tokens, cache):
        logits, changed = cached.apply({"params": params, "cache": cache}, tokens, mutable=["cache"])
        return logits, changed["cache"]

    model = counting(init_cache, apply)
    slow = without_cache(lambda params, tokens: whole.apply({"params": params}, tokens))
    found = mw.lm.generate(model, params, PROMPTS, Decoding(10), slots=4)
    assert lists(found) == lists(mw.lm.generate(slow, params, PROMPTS, Decoding(10)))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_inside_jit_gets_what_prompts_in_slots_get(name):
    module, cfg = MODELS[name]
    model, params = with_cache(cfg), module.init(cfg, jax.random.key(2))
    prompts = [prompt[:9] for prompt in PROMPTS]
    padded = np.stack([np.pad(prompt, (0, 9 - len(prompt))) for prompt in prompts])
    lengths = np.array([len(prompt) for prompt in prompts])
    for decoding in (Decoding(8, stop=(3,)), Decoding(8, stop=(3,), beams=3)):
        found = jax.jit(lambda params: generate_batch(model, params, padded, lengths, decoding))(params)  # noqa: B023
        rows = [row[:n].tolist() for row, n in zip(np.asarray(found.tokens), found.lengths, strict=True)]
        assert rows == lists(mw.lm.generate(model, params, prompts, decoding, length=17, slots=4))


@pytest.mark.parametrize(("name", "text"), pairs([*MODELS], ["data=8", "fsdp=4,tensor=2", "data=2,tensor=4"]))
def test_each_family_gives_the_same_on_each_mesh(name, text):
    module, cfg = MODELS[name]
    params = jax.tree.map(lambda x: 2 * x, module.init(cfg, jax.random.key(3)))
    placed = jax.device_put(params, mw.Layout(mw.make_mesh(text), module.RULES).shardings(params))
    prompts = [prompt[:9] for prompt in PROMPTS]
    for decoding in (Decoding(8, temperature=1.0, top_k=7), Decoding(8, beams=3, stop=(3,))):
        one, split = (
            lists(mw.lm.generate(with_cache(cfg), each, prompts, decoding, slots=4, length=24))
            for each in (params, placed)
        )
        assert one == split
