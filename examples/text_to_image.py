"""Images from text by diffusion (Ho et al., 2020; Song et al., 2021): write "seven", and it draws a seven.

    python text_to_image.py [MESH]

The score of an evaluation is the share of drawings whose nearest training image has the digit asked for. The
page of the run, runs/text_to_image/report.html, shows what the model draws.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw
from meshwright.cli.demo.digits import digits

STEPS, SIZE, LETTERS = 50, 256, 6
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SIGNAL = (
    jnp.cos(jnp.linspace(0.0, 1.0, STEPS + 1) * jnp.pi / 2) ** 2
)  # what is left of the image at each step


def init(key):
    keys = iter(jax.random.split(key, 6))
    normal = lambda *shape: jax.random.normal(next(keys), shape) / shape[0] ** 0.5  # noqa: E731
    return {
        "letters": normal(LETTERS * 128, SIZE) * 8,
        "times": normal(STEPS + 1, SIZE) * 4,
        "image": normal(64, SIZE),
        "hidden": [normal(SIZE, SIZE) for _ in range(2)],
        "out": normal(SIZE, 64),
    }


def clean(params, noisy, step, text):
    """Return the image [B, 64] that is expected under the noise, given the text int[B, LETTERS]."""
    places = jnp.arange(LETTERS) * 128
    told = params["letters"][text + places].sum(-2) + params["times"][step]
    x = jax.nn.silu(noisy @ params["image"] + told)
    for weights in params["hidden"]:
        x = x + jax.nn.silu(x @ weights + told)
    return x @ params["out"]


def loss(params, batch, key):
    steps, noise = jax.random.split(key)
    step = jax.random.randint(steps, len(batch["image"]), 1, STEPS + 1)
    kept = SIGNAL[step][:, None]
    noise = jax.random.normal(noise, batch["image"].shape)
    noisy = kept**0.5 * batch["image"] + (1 - kept) ** 0.5 * noise
    return ((clean(params, noisy, step, batch["text"]) - batch["image"]) ** 2).mean()


def predict(params, batch, key):
    """Return drawings [B, 64]: noise, from which every step takes a little."""

    def denoised(x, step):
        kept, next_kept = SIGNAL[step], SIGNAL[step - 1]
        image = clean(params, x, jnp.full(len(x), step), batch["text"]).clip(-1, 1)
        noise = (x - kept**0.5 * image) / (1 - kept) ** 0.5
        return next_kept**0.5 * image + (1 - next_kept) ** 0.5 * noise, None

    x = jax.random.normal(key, (len(batch["text"]), 64))
    return jax.lax.scan(denoised, x, jnp.arange(STEPS, 0, -1))[0]


def collate(examples):
    texts = [example["text"].encode().ljust(LETTERS) for example in examples]
    batch = {"text": np.array([list(text) for text in texts])}
    if "image" in examples[0]:
        batch["image"] = np.stack([example["image"] for example in examples])
    return batch


def is_drawn(examples, preds):
    drawn = np.stack(preds)
    nearest = ((drawn[:, None] - images[None]) ** 2).sum(-1).argmin(-1)
    return {
        "drawn": np.mean(
            [WORDS[labels[n]] == each["text"] for n, each in zip(nearest, examples, strict=True)]
        )
    }


def drawings(params, key):
    """Return pictures for the page of the run: what the model draws of three words."""
    words = ("zero", "three", "seven")
    images = predict(params, collate([{"text": word} for word in words]), key)
    large = [np.kron((np.asarray(image).reshape(8, 8) + 1) / 2, np.ones((8, 8))) for image in images]
    return [{"word": word, "drawing": mw.observe.Image.of(x)} for word, x in zip(words, large, strict=True)]


def shown(image):
    """Return a drawing as text."""
    rows = np.clip((image.reshape(8, 8) + 1) * 2.5, 0, 4).astype(int)
    return ["".join(" .:*#"[pixel] * 2 for pixel in row) for row in rows]


train, _ = digits()
images, labels = train["image"].reshape(-1, 64) * 2 - 1, train["label"]
examples = [{"text": WORDS[label], "image": image} for label, image in zip(labels, images, strict=True)]
deployer = mw.Deployer(seed=0, mesh=sys.argv[1] if sys.argv[1:] else "data=-1", workdir="runs/text_to_image")
params = init(deployer.gen_rng())
optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, decay_steps=880))
trainer = mw.Trainer(deployer, loss=loss, params=params, optimizer=optimizer, collate=collate)
predictor = mw.Predictor(deployer, predict=predict, output=list, collate=collate)
asked = [{"text": WORDS[number % 10]} for number in range(200)]
evaluations = {"asked": mw.Evaluation(None, asked, when=440, predict=predictor, metric_fn=is_drawn)}
samples = mw.engine.Samples(drawings, when=440)
scores = trainer.fit(examples, batch_size=64, epochs=40, evaluations=evaluations, samples=samples)
drawings = predictor.predict([{"text": word} for word in ("zero", "three", "seven")], 3, trainer.params)
print("\n".join("   ".join(rows) for rows in zip(*map(shown, drawings), strict=True)))
print(f"drawn {scores['asked/drawn']:.4f}")
