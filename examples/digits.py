"""Handwritten digits. To split the model over devices, give a mesh: python digits.py fsdp=4,tensor=2."""

import sys

import jax
import numpy as np
import optax

import meshwright as mw
from meshwright.cli.demo.digits import digits


def init(key):
    def layer(key, rows, columns):
        return {"w": jax.random.normal(key, (rows, columns)) / rows**0.5, "b": np.zeros(columns, np.float32)}

    hidden, out = jax.random.split(key)
    return {"hidden": layer(hidden, 64, 128), "out": layer(out, 128, 10)}


def apply(params, x):
    x = jax.nn.relu(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return x @ params["out"]["w"] + params["out"]["b"]


def loss(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"]).mean()


def predict(model, batch):
    return model(batch["image"]).argmax(-1)


def accuracy(examples, preds):
    return {"accuracy": np.mean(examples["label"] == preds)}


train, test = digits()
mesh = sys.argv[1] if sys.argv[1:] else "data=-1"
deployer = mw.Deployer(seed=0, mesh=mesh, workdir=f"runs/digits-{mesh}")
predictor = mw.Predictor(deployer, model=(init, apply), predict=predict)
trainer = mw.Trainer(deployer, model=(init, apply), loss=loss, optimizer=optax.adamw(3e-3))
evaluations = {"test": mw.Evaluation("loss", test, predict=predictor, metric_fn=accuracy)}
save = mw.Save(keep=mw.checkpoints.best("test/accuracy", "max"))
scores = trainer.fit(train, batch_size=64, epochs=5, evaluations=evaluations, save=save)
print(f"loss {scores['test/loss']:.6f} accuracy {scores['test/accuracy']:.4f}")
