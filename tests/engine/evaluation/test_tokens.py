"""The loss per token and per byte, and perplexities, of packed and padded rows."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.engine._evaluation._tokens import perplexity, token_means
from meshwright.errors import UsageError
from meshwright.lm._generation._text import Bytes, count_bytes
from meshwright.lm._models import decoder
from meshwright.lm._models._with_cache import with_cache

CFG = decoder.Config(vocabulary=258, model=16, layers=1, heads=2, feed_forward=16)
COUNTS = count_bytes(Bytes(), 258)
RNG = np.random.default_rng(0)
TOKEN_MEANS = jax.jit(token_means)
TEXTS = [RNG.integers(0, 258, length).astype(np.int32) for length in (5, 9, 2, 14, 3, 6, 11, 4, 7, 5)]


def packed(texts, length, num_rows=0):
    """At least so many rows of whole texts, one after the other, with their segments; 0 is padding."""
    rows = [[[], []]]
    for text in texts:
        if len(rows[-1][0]) + len(text) > length:
            rows.append([[], []])
        number = max(rows[-1][1], default=0) + 1
        rows[-1][0].extend(text)
        rows[-1][1].extend([number] * len(text))
    rows += [[[], []]] * (num_rows - len(rows))
    full = [[part + [0] * (length - len(part)) for part in row] for row in rows]
    return {"tokens": np.array([row[0] for row in full]), "segments": np.array([row[1] for row in full])}


def means(params, batch):
    losses = decoder.losses(CFG, params, batch["tokens"], batch["segments"])
    return token_means(losses, batch["tokens"], batch["segments"], bytes_by_token=COUNTS)


def loss(params, batch):
    return decoder.loss(CFG, params, batch)


def experiment(workdir: str = "runs/packed", batch_size: int = 2, mesh: str = "tensor=-1") -> mw.Experiment:
    rows = packed(TEXTS, 16)
    return mw.Experiment(
        workdir=workdir,
        model=functools.partial(decoder.init, CFG),
        loss=loss,
        optimizer=optax.sgd(0.1),
        input=mw.Input(rows, batch_size=8),
        max_steps=1,
        mesh=mesh,
        evaluations={"held_out": mw.Evaluation(means, rows, batch_size=batch_size, metric_fn=perplexity)},
    )


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=5), st.booleans())
def test_each_token_counts_once_but_padding_and_the_first_of_each_segment(texts, is_first_scored):
    batch = packed(texts, 8, num_rows=5)
    rng = np.random.default_rng(0)
    losses = rng.normal(size=(len(batch["tokens"]), 8)).astype(np.float32)
    sizes = np.array([1, 2, 3, 4])
    given_losses = losses if is_first_scored else losses[:, 1:]
    found = TOKEN_MEANS(given_losses, batch["tokens"], batch["segments"], bytes_by_token=sizes)
    total = count = num_bytes = 0
    for row, (tokens, segments) in enumerate(zip(batch["tokens"], batch["segments"], strict=True)):
        for at, segment in enumerate(segments):
            if segment and (is_first_scored or (at and segments[at - 1] == segment)):
                total, count = total + losses[row, at], count + 1
                num_bytes += sizes[tokens[at]]
    assert float(found["loss"].count.sum()) == count
    assert float(found["loss_per_byte"].count.sum()) == num_bytes
    np.testing.assert_allclose(found["loss"].total.sum(), total, atol=1e-4)


def test_weights_say_how_much_each_token_counts():
    losses, tokens = jnp.array([[1.0, 5.0, jnp.nan]]), jnp.zeros((1, 4), int)
    found = TOKEN_MEANS(losses, tokens, token_weights=jnp.array([[9, 3, 1, 0]]))
    assert float(found["loss"].value[0]) == 2.0


def test_perplexities_are_exponentials_and_never_errors():
    found = perplexity({"loss": 1.0, "loss_per_byte": math.log(4)})
    assert found == pytest.approx({"perplexity": math.e, "byte_perplexity": 4, "bits_per_byte": 2})
    assert perplexity({"loss": 1e9}) == {"perplexity": math.inf}
    with pytest.raises(UsageError, match="needs the mean `loss` in nats per token; found nll"):
        perplexity({"nll": 1.0})
    with pytest.raises(UsageError, match=r"need losses of shape \(2, 3\), or \(2, 4\)"):
        token_means(jnp.zeros((2, 5)), jnp.zeros((2, 4), int))


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "mesh"), [(1, "tensor=8"), (3, "tensor=8"), (8, "data=2,fsdp=4")])
def test_packed_rows_have_the_perplexity_of_each_text_alone(tmp_path, batch_size, mesh):
    asked = experiment(str(tmp_path), batch_size, mesh)
    outcome = mw.run(asked)
    scores = mw.evaluate(asked)
    assert scores == outcome.scores
    rows = mw.lm.score(with_cache(CFG), jax.device_get(outcome.state.params), TEXTS)
    total = sum(row.log_likelihood for row in rows)
    num_tokens = sum(len(text) - 1 for text in TEXTS)
    num_bytes = sum(int((text[1:] < 256).sum()) for text in TEXTS)
    assert scores["held_out/loss"] == pytest.approx(-total / num_tokens, rel=1e-5)
    assert scores["held_out/perplexity"] == pytest.approx(math.exp(-total / num_tokens), rel=1e-5)
    assert scores["held_out/byte_perplexity"] == pytest.approx(math.exp(-total / num_bytes), rel=1e-5)
