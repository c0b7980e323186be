"""A program as users write it. `test_types.py` has type checkers read it, whole and with mistakes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import meshwright as mw

Arrays = dict[str, jax.Array]
TX = optax.adamw(1e-3)


def init(key: jax.Array) -> Arrays:
    return {"w": jax.random.normal(key, (8, 2))}


def loss(params: Arrays, batch: Arrays) -> jax.Array:
    return jnp.square(batch["x"] @ params["w"]).mean()


def measure(params: Arrays, batch: Arrays) -> Arrays:
    return {"loss": jnp.square(batch["x"] @ params["w"]).mean(-1)}


def described(run: str, examples: dict[str, np.ndarray]) -> float:
    experiment = mw.Experiment(
        workdir=run,
        model=init,
        loss=loss,
        optimizer=TX,
        input=mw.Input(examples, batch_size=16),
        max_steps=4,
        evaluations={"test": mw.Evaluation(measure, examples, when=2)},
        save=mw.Save(when=2, keep=mw.checkpoints.best("test/loss", "min")),
    )
    outcome = mw.run(experiment)
    return outcome.scores["test/loss"] + outcome.seconds


def restored(path: str, layout: mw.Layout) -> jax.Array:
    state = mw.restore(mw.checkpoints.open_source(path), mw.training.abstract_state(init, TX, layout))
    params = mw.restore(
        mw.checkpoints.open_source(path), {"params": {"w": jax.ShapeDtypeStruct((8, 2), jnp.float32)}}
    )
    return state.params["w"].sum() + params["params"]["w"].sum()


def looped(layout: mw.Layout, examples: dict[str, np.ndarray]) -> mw.TrainState[Arrays]:
    state, step = mw.training.init_state(init, TX, 0, layout), mw.make_step(loss, TX, layout)
    with mw.batches(examples, 16, layout.batch_sharding) as data:
        state, metrics = step(state, next(data))
        print(state.params["w"].shape, float(metrics["loss"]))
        return mw.fit(
            step, state.replace(step=state.step), data, max_steps=3, stop=lambda tick: tick.step > 2
        )


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.dense = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.dense(x)


def trained(examples: dict[str, np.ndarray]) -> list[np.ndarray]:
    deployer, net = mw.Deployer(seed=0, mesh="data=-1"), Net(nnx.Rngs(0))
    trainer = mw.Trainer(deployer, model=net, loss=lambda model, batch: model(batch["x"]).sum(), optimizer=TX)
    evaluations = {"test": mw.Evaluation("loss", examples)}
    scores = trainer.fit(examples, batch_size=16, epochs=1, evaluations=evaluations)
    print(scores["test/loss"] + 1, trainer.params, trainer.state.step.dtype)
    predictor = mw.Predictor(deployer, model=net, predict=lambda model, batch: model(batch["x"]))
    return predictor.predict(examples, 4, trainer.params)


def continued(deployer: mw.Deployer, params: Arrays) -> jax.Array:
    trainer = mw.Trainer(deployer, params=params, loss=loss, optimizer=TX, compute_dtype="bfloat16")
    return trainer.params["w"] + trainer.best("test/loss", "min").params["w"]
