"""Reinforcement learning: a policy and a baseline, trained in rounds on the actions of the policy itself.

    python examples/policy_gradient.py [WORKDIR]

Each state is four numbers, and one of three actions is rewarded. The policy draws actions with a `Predictor`.
The critic learns the value of a state, and the policy learns from rewards above that value. With a WORKDIR, a
killed program continues in the round that was interrupted, and ends with the same bits.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

NUM_ROUNDS, NUM_STATES = 30, 256
REWARDED = np.random.default_rng(7).normal(size=(4, 3)).astype(np.float32)


def draw(params, batch, key):
    return jax.random.categorical(key, batch["state"] @ params["w"])


def policy_loss(params, batch):
    log_p = jax.nn.log_softmax(batch["state"] @ params["w"])
    chosen = jnp.take_along_axis(log_p, batch["action"][:, None], axis=-1)[:, 0]
    return -(chosen * batch["advantage"]).mean()


def critic_loss(params, batch):
    return ((batch["state"] @ params["w"] + params["b"] - batch["reward"]) ** 2).mean()


def main(workdir=None):
    deployer = mw.Deployer(0, verbose=False, workdir=workdir)
    zeros = lambda *shape: np.zeros(shape, np.float32)  # noqa: E731
    actor = mw.Trainer(
        deployer, name="actor", params={"w": zeros(4, 3)}, loss=policy_loss, optimizer=optax.adam(0.1)
    )
    critic = mw.Trainer(
        deployer,
        name="critic",
        params={"w": zeros(4), "b": zeros()},
        loss=critic_loss,
        optimizer=optax.adam(0.05),
    )
    sampler = mw.Predictor(deployer, predict=draw)
    rounds = deployer.rounds(NUM_ROUNDS, carry={"rewards": zeros(NUM_ROUNDS)})
    for each in rounds:
        states = np.asarray(jax.random.normal(deployer.gen_rng(), (NUM_STATES, 4)))
        actions = np.asarray(sampler.predict({"state": states}, 32, actor.params, seed=each.number))
        rewards = (actions == (states @ REWARDED).argmax(-1)).astype(np.float32)
        tried = {"state": states, "action": actions, "reward": rewards}
        critic.fit(tried, batch_size=NUM_STATES, epochs=4)
        worth = states @ np.asarray(critic.params["w"]) + np.asarray(critic.params["b"])
        actor.fit(tried | {"advantage": rewards - worth}, batch_size=NUM_STATES, epochs=4)
        each.carry["rewards"][each.number - 1] = rewards.mean()
    rewards = rounds.carry["rewards"]
    print(
        f"reward {rewards[0]:.3f} in the first round, {rewards[-1]:.3f} in the last, {rewards.sum()!r} in all"
    )


if __name__ == "__main__":
    main(*sys.argv[1:2])
