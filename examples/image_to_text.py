"""Captions of images, by a model of one's own with an encoder and a cache (Vinyals et al., 2015).

    python image_to_text.py [MESH]

The image becomes the first state of a recurrent network, which writes the caption letter by letter.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw
from meshwright.cli.demo.digits import digits

END, START, VOCABULARY, SIZE = 0, 1, 128, 128
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def init(key):
    keys = iter(jax.random.split(key, 5))
    normal = lambda *shape: jax.random.normal(next(keys), shape) / shape[0] ** 0.5  # noqa: E731
    return {
        "image": normal(64, SIZE),
        "state": normal(SIZE, SIZE),
        "embedding": normal(VOCABULARY, SIZE),
        "gates": normal(2 * SIZE, 3 * SIZE),
        "head": normal(SIZE, VOCABULARY),
    }


def first_state(params, pixels):
    """Return the state [B, H] after the image, given its pixels [B, 64] from 0 to 16."""
    return jnp.tanh(jax.nn.relu(pixels / 16 @ params["image"]) @ params["state"])


def read(params, state, token):
    """Return the state and the logits after one more token of each row: a gated recurrent unit."""
    inputs = params["embedding"][token]
    update, reset, _ = jnp.split(jnp.concatenate([inputs, state], -1) @ params["gates"], 3, -1)
    update, reset = jax.nn.sigmoid(update), jax.nn.sigmoid(reset)
    both = jnp.concatenate([inputs, reset * state], -1) @ params["gates"][:, 2 * SIZE :]
    state = (1 - update) * state + update * jnp.tanh(both)
    return state, state @ params["head"]


def apply(params, tokens, state, starts):
    state, logits = jax.lax.scan(lambda state, token: read(params, state, token), state, tokens.T)
    return logits.swapaxes(0, 1), state


MODEL = mw.lm.Model(
    init_cache=lambda params, batch, length: jnp.zeros((batch, SIZE)),
    apply=apply,
    encode=lambda params, pixels, is_pixel, cache: first_state(params, pixels),
    start=START,
    prefill=1,
)


def collate(examples):
    texts = [[*example["caption"].encode(), END] for example in examples]
    captions = np.array([text + [END] * (16 - len(text)) for text in texts])
    is_letter = np.arange(16) < np.array([len(text) for text in texts])[:, None]
    pixels = np.stack([example["pixels"] for example in examples])
    return {"pixels": pixels, "caption": captions, "is_letter": is_letter}


def loss(params, batch):
    before = jnp.pad(batch["caption"][:, :-1], ((0, 0), (1, 0)), constant_values=START)
    logits, _ = apply(params, before, first_state(params, batch["pixels"]), None)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["caption"])
    return (losses * batch["is_letter"]).sum() / batch["is_letter"].sum()


def predict(params, batch):
    decoding, pixels = mw.lm.Decoding(max_new_tokens=16, stop=(END,)), batch["pixels"]
    return mw.lm.generate_batch(MODEL, params, pixels, jnp.full(len(pixels), 64), decoding)


def output(found):
    return [bytes(row[: n - 1].tolist()).decode() for row, n in zip(found.tokens, found.lengths, strict=True)]


def exact(examples, preds):
    return {
        "exact": np.mean([example["caption"] == pred for example, pred in zip(examples, preds, strict=True)])
    }


def captioned(part):
    """Return each image of the digits with a caption."""
    pixels = np.rint(part["image"].reshape(-1, 64) * 16).astype(np.int32)
    captions = [f"an {'odd' if label % 2 else 'even'} {WORDS[label]}" for label in part["label"]]
    return [{"pixels": row, "caption": caption} for row, caption in zip(pixels, captions, strict=True)]


train, test = map(captioned, digits())
deployer = mw.Deployer(seed=0, mesh=sys.argv[1] if sys.argv[1:] else "data=-1")
params = init(deployer.gen_rng())
trainer = mw.Trainer(deployer, loss=loss, params=params, optimizer=optax.adam(3e-3), collate=collate)
predictor = mw.Predictor(deployer, predict=predict, output=output, collate=collate)
evaluation = mw.Evaluation("loss", test, when=220, predict=predictor, metric_fn=exact)
scores = trainer.fit(train, batch_size=64, epochs=20, evaluations={"test": evaluation})
print(predictor.predict(test[:4], 4, trainer.params))
print(f"exact {scores['test/exact']:.4f}")
