"""Federated averaging: eight clients, each with its own digits, train one model and exchange only parameters.

    python examples/federated.py [WORKDIR]

In each round a client begins with the server's parameters, trains on its own examples, mostly two of the ten
digits, and returns its parameters. The server takes their mean. One `Trainer` serves all clients: its state
is set for each, and its step is compiled once. With a WORKDIR, a killed program continues in the round that
was interrupted.
"""

import dataclasses
import sys

import jax
import numpy as np
import optax

import meshwright as mw
from meshwright.cli.demo.digits import digits

NUM_CLIENTS, NUM_ROUNDS = 8, 20


def init(key):
    hidden, out = jax.random.split(key)
    weights = {"hidden": jax.random.normal(hidden, (64, 64)) / 8, "out": jax.random.normal(out, (64, 10)) / 8}
    return weights | {"bias": np.zeros(64, np.float32)}


def apply(params, x):
    return jax.nn.relu(x @ params["hidden"] + params["bias"]) @ params["out"]


def loss(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"]).mean()


def clients_of(examples):
    """Return the examples of each client, sorted by digit, so that no client has all digits."""
    order = np.argsort(examples["label"], kind="stable")
    return [
        jax.tree.map(lambda x, part=part: x[part], examples) for part in np.array_split(order, NUM_CLIENTS)
    ]


def main(workdir=None):
    train, test = digits()
    clients = clients_of(train)
    deployer = mw.Deployer(0, verbose=False, workdir=workdir)
    trainer = mw.Trainer(deployer, model=(init, apply), loss=loss, optimizer=optax.sgd(0.3))
    begun = jax.tree.map(np.asarray, trainer.params)
    rounds = deployer.rounds(NUM_ROUNDS, carry=begun)
    for each in rounds:
        sent = []
        for examples in clients:
            state = dataclasses.replace(trainer.state, params=each.carry)
            trainer.state = mw.parallel.copy_to(state, jax.tree.map(lambda x: x.sharding, trainer.state))
            trainer.fit(examples, batch_size=32, epochs=1)
            sent.append(jax.tree.map(np.asarray, trainer.params))
        each.carry = jax.tree.map(lambda *all_sent: np.mean(all_sent, axis=0), *sent)
    logits = np.asarray(apply(rounds.carry, test["image"]))
    accuracy = (logits.argmax(-1) == test["label"]).mean()
    print(f"accuracy {accuracy:.3f}, logits {float(logits.sum())!r} in all")


if __name__ == "__main__":
    main(*sys.argv[1:2])
