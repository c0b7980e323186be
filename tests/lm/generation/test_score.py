"""`mw.lm.score`: how likely rows of tokens are, whatever the mesh, the batch and the other rows."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.lm._generation._model import counting, without_cache
from meshwright.lm._generation._text import Bytes, count_bytes
from meshwright.lm._models import decoder, gpt2, t5
from meshwright.lm._models._with_cache import with_cache

SMALL = {"vocabulary": 24, "model": 16, "heads": 4, "feed_forward": 24, "layers": 2}
CFG = decoder.Config(**SMALL, key_heads=2, windows=(6, None))
RNG = np.random.default_rng(0)
ROWS = [RNG.integers(0, 24, length) for length in RNG.integers(2, 90, 9)]
PROMPTS = [RNG.integers(0, 24, length) for length in RNG.integers(1, 9, 9)]
TABLE = jnp.asarray(RNG.normal(size=(24, 24)), jnp.float32)
PAIRS = without_cache(lambda params, tokens: params[tokens])  # the next token depends on the last one only


@pytest.fixture(scope="module")
def params():
    return jax.jit(functools.partial(decoder.init, CFG))(jax.random.key(0))


def by_hand(row, prompt=()):
    """Log-probabilities by the table of pairs in NumPy."""
    whole = np.concatenate([prompt, row]).astype(int)
    table = np.asarray(TABLE, np.float64)
    table = table - np.log(np.exp(table).sum(1, keepdims=True))
    begin = max(len(prompt), 1)
    return table[whole[begin - 1 : -1], whole[begin:]]


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=2e-5)
        assert one.is_greedy == other.is_greedy


@pytest.mark.parametrize("has_prompts", [False, True])
def test_scores_are_the_log_probabilities_of_each_token(has_prompts):
    prompts = PROMPTS if has_prompts else None
    found = mw.lm.score(PAIRS, TABLE, ROWS, prompts, batch_size=4)
    for i, one in enumerate(found):
        log_probs = by_hand(ROWS[i], PROMPTS[i] if has_prompts else ())
        np.testing.assert_allclose(one.log_probs, log_probs, atol=1e-5)
        assert one.log_likelihood == pytest.approx(log_probs.sum(), abs=1e-4)
        assert not one.is_greedy


def test_a_row_is_greedy_if_each_token_is_the_most_likely():
    row = [int(jnp.argmax(TABLE[3]))]
    while len(row) < 20:
        row.append(int(jnp.argmax(TABLE[row[-1]])))
    other = row.copy()
    other[7] = (other[7] + 1) % 24
    [first, second] = mw.lm.score(PAIRS, TABLE, [row, other], [[3], [3]], batch_size=4)
    assert (first.is_greedy, second.is_greedy) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_the_batch_size_changes_no_figure(params, batch_size):
    model = with_cache(CFG)
    same(mw.lm.score(model, params, ROWS, batch_size=batch_size), mw.lm.score(model, params, ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["data=8", "data=2,fsdp=2,tensor=2"])
def test_any_mesh_gives_what_one_device_gives(params, text):
    placed = jax.device_put(params, mw.Layout(mw.make_mesh(text), decoder.RULES).shardings(params))
    found = mw.lm.score(with_cache(CFG), placed, ROWS, PROMPTS, batch_size=3)
    same(found, mw.lm.score(with_cache(CFG), params, ROWS, PROMPTS))


@pytest.mark.slow
def test_models_of_every_kind_score_as_their_logits_say(params):
    def of_logits(logits, labels):
        return np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), labels[:, None], 1)[:, 0]

    gpt2_cfg = gpt2.Config(**SMALL, positions=70)
    t5_cfg = t5.Config(**SMALL, head=4, decoder_layers=2)
    row, inputs = RNG.integers(0, 24, 71), RNG.integers(0, 24, 5)
    for module, cfg in ((decoder, CFG), (gpt2, gpt2_cfg)):
        weights = params if module is decoder else module.init(cfg, jax.random.key(1))
        [found] = mw.lm.score(with_cache(cfg), weights, [row])
        logits = module.logits(cfg, weights, row[None, :-1])[0]
        np.testing.assert_allclose(found.log_probs, of_logits(logits, row[1:]), atol=2e-5)
    weights = t5.init(t5_cfg, jax.random.key(1))
    [found] = mw.lm.score(with_cache(t5_cfg), weights, [row], [inputs])
    begun = np.concatenate([[0], row[:-1]])
    logits = t5.logits(t5_cfg, weights, inputs[None], begun[None])[0]
    np.testing.assert_allclose(found.log_probs, of_logits(logits, row), atol=2e-5)


@pytest.mark.slow
def test_a_model_that_counts_its_positions_scores_rows_of_any_length():
    def init_cache(params, length):
        return jnp.zeros((), jnp.int32)

    model = counting(init_cache, lambda params, tokens, cache: (params[tokens], cache + 1))
    same(mw.lm.score(model, TABLE, ROWS, batch_size=4), mw.lm.score(PAIRS, TABLE, ROWS))


@pytest.mark.parametrize(
    ("rows", "prompts", "said"),
    [
        ([[1]], None, "row 0 has one token and no prompt"),
        ([[1, 2], []], None, "row 1 must be a sequence of tokens"),
        ([[1, 2], [1, 99]], None, "row 1 has the token 99, but the model has"),
        ([[1, 2]], [[]], "prompt 0 must be"),
        ([[0.5, 2]], None, "row 0 must be"),
        ([[1, 2]], [[1], [2]], "1 rows need as many prompts; found 2"),
    ],
)
def test_rows_that_cannot_be_scored_are_named(rows, prompts, said):
    with pytest.raises(UsageError, match=said):
        mw.lm.score(PAIRS, TABLE, rows, prompts)


def test_a_row_that_is_longer_than_the_model_is_named():
    model = with_cache(gpt2.Config(**SMALL, positions=8))
    with pytest.raises(UsageError, match="have 10 tokens; the model has 8 positions, enough for 9 tokens"):
        mw.lm.score(model, {}, [[1] * 10])


TEXTS = ["Ein Käfer über 3 €, 漢字 and 🙂!\n", "def f(x):\n\treturn x  # naïve", " leading and  double "]


def byte_level():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    )
    made.train_from_iterator(TEXTS * 3, trainer)
    return made


def sentence_piece():
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<unk>", "▁", "▁a", "nd", "▁leading", "ä", *(f"<0x{i:02X}>" for i in range(256))]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    made.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    steps = tokenizers.decoders
    made.decoder = steps.Sequence([steps.Replace("▁", " "), steps.ByteFallback(), steps.Fuse()])
    made.add_special_tokens(["<unk>"])
    return made


@pytest.mark.parametrize("make", [Bytes, byte_level, sentence_piece])
@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_the_tokens_of_a_text_are_its_bytes(make, text):
    tokenizer = make()
    counts = count_bytes(tokenizer, 400)
    tokens = mw.lm.tokenizer_of(tokenizer).encode(text)
    assert counts[tokens].sum() == len(text.encode())


def test_special_tokens_are_no_text():
    tokenizer = byte_level()
    assert count_bytes(tokenizer, 400)[tokenizer.token_to_id("<end>")] == 0


def test_a_tokenizer_that_loses_bytes_is_refused():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.decoder = tokenizers.decoders.WordPiece()
    with pytest.raises(UsageError, match="WordPiece, which does not keep all bytes"):
        count_bytes(made, 8)
    with pytest.raises(UsageError, match="Numbers"):
        count_bytes(None, 8)
    with pytest.raises(UsageError, match="vocabulary has 8 tokens"):
        count_bytes(byte_level(), 8)


def test_a_tokenizer_read_from_a_file_counts_too(tmp_path):
    made = byte_level()
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(made.to_str())))
    np.testing.assert_array_equal(count_bytes(tmp_path, 400), count_bytes(made, 400))
