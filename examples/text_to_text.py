"""Text to text with T5 and beam search: dates as people write them become dates as machines do.

    python text_to_text.py [MESH]

The score of an evaluation is the share of dates that beam search writes right to the letter.
"""

import datetime
import sys

import numpy as np
import optax

import meshwright as mw
from meshwright.lm._models import t5

END, LENGTH = 1, 20
CONFIG = t5.Config(vocabulary=128, model=64, layers=2, decoder_layers=2, heads=4, head=16, feed_forward=128)
FORMATS = ("%d %B %Y", "%B %d, %Y", "%d.%m.%Y", "%a %d %b %Y")


def examples(first, last):
    """Return a date of each day from `first` to `last`, in one of the formats."""
    days = [datetime.date.fromordinal(day) for day in range(first, last)]
    dates = [(day.strftime(FORMATS[number % 4]), day.isoformat()) for number, day in enumerate(days)]
    return [{"written": written, "iso": iso} for written, iso in dates]


def padded(text):
    tokens = [*text.encode(), END]
    return np.pad(tokens, (0, LENGTH - len(tokens))), np.arange(LENGTH) < len(tokens)


def collate(examples):
    inputs, is_input = zip(*(padded(example["written"]) for example in examples), strict=True)
    targets, is_target = zip(*(padded(example["iso"]) for example in examples), strict=True)
    arrays = {"inputs": inputs, "is_input": is_input, "targets": targets, "is_target": is_target}
    return {name: np.stack(rows) for name, rows in arrays.items()}


def loss(params, batch):
    return t5.loss(CONFIG, params, batch)


def predict(params, batch):
    decoding = mw.lm.Decoding(beams=4, max_new_tokens=LENGTH, stop=(END,))
    lengths = batch["is_input"].sum(-1)
    return mw.lm.generate_batch(model, params, batch["inputs"], lengths, decoding)


def output(found):
    return [bytes(row[: n - 1].tolist()).decode() for row, n in zip(found.tokens, found.lengths, strict=True)]


def exact(examples, preds):
    return {"exact": np.mean([example["iso"] == pred for example, pred in zip(examples, preds, strict=True)])}


model = mw.lm.with_cache(CONFIG)
train, test = examples(730_400, 740_000), examples(740_000, 740_256)
deployer = mw.Deployer(seed=0, mesh=sys.argv[1] if sys.argv[1:] else "data=-1")
params = t5.init(CONFIG, deployer.gen_rng())
optimizer = optax.adam(3e-3)
trainer = mw.Trainer(deployer, loss=loss, params=params, optimizer=optimizer, collate=collate)
predictor = mw.Predictor(deployer, predict=predict, output=output, collate=collate)
evaluations = {"test": mw.Evaluation("loss", test, predict=predictor, metric_fn=exact)}
scores = trainer.fit(train, batch_size=64, epochs=2, evaluations=evaluations)
for example, pred in zip(test[:4], predictor.predict(test[:4], 4, trainer.params), strict=True):
    print(f"{example['written']:>20}  {pred}")
print(f"exact {scores['test/exact']:.4f}")
