"""Handwritten digits with Flax NNX, on one device or on many: python digits_nnx.py fsdp=4,tensor=2."""

import sys

import numpy as np
import optax
from flax import nnx

import meshwright as mw
from meshwright.cli.demo.digits import digits


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.out = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


def loss(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"]).mean()


def predict(model, batch):
    return model(batch["image"]).argmax(-1)


def accuracy(examples, preds):
    return {"accuracy": np.mean(examples["label"] == preds)}


train, test = digits()
mesh = sys.argv[1] if sys.argv[1:] else "data=-1"
deployer = mw.Deployer(seed=0, mesh=mesh, workdir=f"runs/digits_nnx-{mesh}")
predictor = mw.Predictor(deployer, model=Mlp, predict=predict)
trainer = mw.Trainer(deployer, model=Mlp, loss=loss, optimizer=optax.adamw(3e-3))
evaluations = {"test": mw.Evaluation("loss", test, predict=predictor, metric_fn=accuracy)}
save = mw.Save(keep=mw.checkpoints.best("test/accuracy", "max"))
scores = trainer.fit(train, batch_size=64, epochs=5, evaluations=evaluations, save=save)
print(f"loss {scores['test/loss']:.6f} accuracy {scores['test/accuracy']:.4f}")
