"""Handwritten digits with Flax Linen, whose modules are initialised for example inputs."""

import sys

import numpy as np
import optax
from flax import linen as nn

import meshwright as mw
from meshwright.cli.demo.digits import digits


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(128)(x)))


def loss(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"]).mean()


def predict(model, batch):
    return model(batch["image"]).argmax(-1)


def accuracy(examples, preds):
    return {"accuracy": np.mean(examples["label"] == preds)}


train, test = digits()
model = mw.functional(Mlp(), train["image"])
mesh = sys.argv[1] if sys.argv[1:] else "data=-1"
deployer = mw.Deployer(seed=0, mesh=mesh, workdir=f"runs/digits_linen-{mesh}")
predictor = mw.Predictor(deployer, model=model, predict=predict)
trainer = mw.Trainer(deployer, model=model, loss=loss, optimizer=optax.adamw(3e-3))
evaluations = {"test": mw.Evaluation("loss", test, predict=predictor, metric_fn=accuracy)}
save = mw.Save(keep=mw.checkpoints.best("test/accuracy", "max"))
scores = trainer.fit(train, batch_size=64, epochs=5, evaluations=evaluations, save=save)
print(f"loss {scores['test/loss']:.6f} accuracy {scores['test/accuracy']:.4f}")
