"""Another task for the model of `language_model.py` by LoRA (Hu et al., 2021), which generates as it learns.

    python language_model.py && python language_model_lora.py [WORKDIR]

The weights of the model stay as they are. Checkpoints and the optimizer have the adapter alone.
"""

import sys

import jax
import numpy as np
import optax

import language_model as base
import meshwright as mw

ROMAN = {100: "C", 90: "XC", 50: "L", 40: "XL", 10: "X", 9: "IX", 5: "V", 4: "IV", 1: "I"}
ADAPTER = mw.lm.lora("layers/(q|k|v|o|gate|up|down)", rank=8)


def in_roman(number):
    """Return a number below 400 in Roman numerals."""
    text = ""
    for value, letters in ROMAN.items():
        text += letters * (number // value)
        number %= value
    return text


def predict(params, batch):
    return base.predict(ADAPTER.effective(params), batch)


def main(workdir="runs/language_model"):
    deployer = mw.Deployer(seed=0)
    loaded, _ = deployer.load_ckpt(f"{workdir}/checkpoints", load_opt_state=False)
    numbers = np.random.default_rng(0).permutation(np.arange(1, 400)).tolist()
    examples = [{"prompt": f"Write {n} in Roman:", "answer": in_roman(n)} for n in numbers]
    trainer = mw.Trainer(
        deployer,
        params=ADAPTER.beside(loaded["params"], jax.random.key(0)),
        loss=ADAPTER.loss(base.loss),
        optimizer=optax.adam(optax.cosine_decay_schedule(1e-2, decay_steps=350)),
        trainable="adapter/.*",
        collate=base.collate,
    )
    predictor = mw.Predictor(deployer, predict=predict, output=base.output, collate=base.collate)
    test = mw.Evaluation("loss", examples[350:], when=100, predict=predictor, metric_fn=base.exact)
    scores = trainer.fit(examples[:350], batch_size=32, epochs=35, evaluations={"test": test})
    trained, frozen = (mw.parallel.nbytes(trainer.params[part]) for part in ("adapter", "base"))
    print(f"exact {scores['test/exact']:.4f}, {trained:,} bytes beside {frozen:,}")


if __name__ == "__main__":
    main(*sys.argv[1:])
