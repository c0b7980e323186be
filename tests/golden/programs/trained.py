"""The same network trained by a `Trainer`: python trained.py WORKDIR STEPS."""

import sys

import numpy as np
import small

import meshwright as mw


def loss(params, batch, rng, model_state, train):
    """Return what `small.loss` does, and in evaluation the state as it was."""
    value, metrics, moved = small.loss(params, batch, rng, model_state)
    return value, metrics, moved if train else model_state


def predict(params, batch, model_state):
    """Return whether the label was guessed."""
    return small.measure(params, batch, model_state)["accuracy"]


def guessed(examples, preds):
    """Return how many labels were guessed, of all."""
    return {"guessed": np.mean(preds)}


def train(workdir: str, steps: int) -> dict[str, float]:
    """Train up to so many steps, going on where the workdir's newest checkpoint stands."""
    deployer = mw.Deployer(seed=0, mesh="data=2,fsdp=2,tensor=2", workdir=workdir)
    variables = small.init(mw.train.key_of(0))
    arrays = {"params": variables.params, "model_state": variables.model_state}
    trainer = mw.Trainer(deployer, loss=loss, optimizer=small.optimizer(), **arrays)
    return trainer.fit(
        small.TRAIN,
        batch_size=16,
        max_steps=steps,
        eval_examples=small.TEST,
        eval_predictor=mw.Predictor(deployer, predict=predict),
        eval_metric_fn=guessed,
        eval_when=4,
        save_when=4,
        best={"guessed": "max"},
        logging=mw.Logging(every=1),
    )


if __name__ == "__main__":
    print(train(sys.argv[1], int(sys.argv[2])))
