"""Handwritten digits with Equinox, whose modules take one example: `model(images)` maps them over a batch."""

import sys

import equinox as eqx
import jax
import numpy as np
import optax

import meshwright as mw
from meshwright.cli.demo.digits import digits


class Mlp(eqx.Module):
    hidden: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, key):
        hidden, out = jax.random.split(key)
        self.hidden = eqx.nn.Linear(64, 128, key=hidden)
        self.out = eqx.nn.Linear(128, 10, key=out)

    def __call__(self, x):
        return self.out(jax.nn.relu(self.hidden(x)))


def loss(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"]).mean()


def predict(model, batch):
    return model(batch["image"]).argmax(-1)


def accuracy(examples, preds):
    return {"accuracy": np.mean(examples["label"] == preds)}


train, test = digits()
mesh = sys.argv[1] if sys.argv[1:] else "data=-1"
deployer = mw.Deployer(seed=0, mesh=mesh, workdir=f"runs/digits_equinox-{mesh}")
predictor = mw.Predictor(deployer, model=Mlp, predict=predict)
trainer = mw.Trainer(deployer, model=Mlp, loss=loss, optimizer=optax.adamw(3e-3))
evaluations = {"test": mw.Evaluation("loss", test, predict=predictor, metric_fn=accuracy)}
save = mw.Save(keep=mw.checkpoints.best("test/accuracy", "max"))
scores = trainer.fit(train, batch_size=64, epochs=5, evaluations=evaluations, save=save)
print(f"loss {scores['test/loss']:.6f} accuracy {scores['test/accuracy']:.4f}")
