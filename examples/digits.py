"""Handwritten digits, in forty lines: change `mesh` to "data=-1,tensor=2" or "fsdp=4,tensor=2"."""

import sys

import jax
import numpy as np
import optax

import meshwright as mw
from meshwright.demo.digits import digits


def init(key):
    keys = jax.random.split(key, 2)
    return {
        "hidden": {"w": jax.random.normal(keys[0], (64, 128)) * 64**-0.5, "b": np.zeros(128, np.float32)},
        "out": {"w": jax.random.normal(keys[1], (128, 10)) * 128**-0.5, "b": np.zeros(10, np.float32)},
    }


def apply(params, x):
    x = jax.nn.relu(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return x @ params["out"]["w"] + params["out"]["b"]


def loss(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"]).mean()


def predict(model, batch):
    return model(batch["image"]).argmax(-1)


def accuracy(examples, preds):
    return {"accuracy": np.mean(np.equal(preds, examples["label"]))}


train, test = digits()
mesh = sys.argv[1] if len(sys.argv) > 1 else "data=-1"
deployer = mw.Deployer(jax_seed=0, mesh=mesh, workdir=sys.argv[2] if len(sys.argv) > 2 else None)
predictor = mw.Predictor(deployer, predict=predict, model=(init, apply))
trainer = mw.Trainer(deployer, model=(init, apply), loss=loss, optimizer=optax.adamw(3e-3))
scores = trainer.fit(
    train,
    global_batch_size=64,
    n_epochs=5,
    eval_examples=test,
    eval_predictor=predictor,
    eval_metric_fn=accuracy,
)
print(f"loss {scores['loss']:.6f} accuracy {scores['accuracy']:.4f}")
