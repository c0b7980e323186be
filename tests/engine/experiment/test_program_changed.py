"""A run that is continued with another program of its step says so."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import experiment, loss

DIFFERS = "the program of the training step differs from the one that trained up to step 4"
DIGEST = """
import jax, jax.numpy as jnp, numpy as np, optax
import meshwright as mw

layout = mw.Layout(mw.make_mesh("data=-1"))
optimizer = mw.training.update_rules([("frozen", "none")], optax.adam(0.1))
params = {name: jnp.ones(3) for name in ("frozen", "a", "b")}
target = mw.training.abstract_state(lambda key: params, optimizer, layout)
table = np.arange(3, dtype=np.float32)

@jax.custom_vjp
def mine(x):
    return x * table

mine.defvjp(lambda x: (mine(x), None), lambda _, g: (g,))

def loss(params, batch, key):
    used = {name: params[name] for name in {"a", "b", "frozen"}}
    return sum(mine(used[name]) @ batch["x"].mean(0) for name in sorted(used)) * jax.random.normal(key)

step = mw.make_step(loss, optimizer, layout)
step.compile(target, {"x": jax.ShapeDtypeStruct((8, 3), np.float32)})
print(step.digest)
"""


def with_decay(params, batch, key):
    return loss(params, batch, key) + 0.1 * (params["w"] ** 2).sum()


def said(run, capsys, **more):
    capsys.readouterr()
    mw.run(experiment(run, **more))
    return [
        line for line in capsys.readouterr().err.splitlines() if "the program of the training step" in line
    ]


def test_another_loss_of_the_same_name_is_told_and_the_run_goes_on(tmp_path, capsys):
    with_decay.__name__ = with_decay.__qualname__ = "loss"
    with_decay.__module__ = loss.__module__
    assert said(tmp_path, capsys, max_steps=4) == []
    [line] = said(tmp_path, capsys, max_steps=8, loss=with_decay)
    assert DIFFERS in line
    assert said(tmp_path, capsys, max_steps=12, loss=with_decay) == []


@pytest.mark.parametrize(
    "more",
    [{}, {"input": mw.Input({"x": np.ones((64, 4), np.float32)}, batch_size=8)}, {"mesh": "data=2,fsdp=4"}],
    ids=["nothing", "another batch", "another mesh"],
)
@pytest.mark.daily(1)
def test_the_same_code_is_not_told_whatever_it_trains_on(tmp_path, capsys, more):
    assert said(tmp_path, capsys, max_steps=4) == []
    assert said(tmp_path, capsys, max_steps=8, **more) == []


@pytest.mark.parametrize("content", ["", "[1]", '{"a": [[[]]], "b": 3}', None])
@pytest.mark.daily(2)
def test_a_record_that_is_missing_or_damaged_says_nothing(tmp_path, capsys, content):
    said(tmp_path, capsys, max_steps=4)
    record = tmp_path / "programs.json"
    record.unlink() if content is None else record.write_text(content)
    assert said(tmp_path, capsys, max_steps=8, loss=with_decay) == []
    assert len(json.loads(record.read_text())) >= 1


def test_a_trainer_tells_of_another_loss_too(tmp_path, capsys):
    for power, epochs in ((2, 1), (2, 1), (4, 3)):
        trainer = mw.Trainer(
            mw.Deployer(0, workdir=tmp_path),
            params={"w": jnp.zeros(1)},
            loss=lambda params, batch, power=power: ((params["w"] - batch["x"]) ** power).mean(),
            optimizer=optax.sgd(0.1),
        )
        trainer.fit({"x": np.ones(8, np.float32)}, batch_size=8, epochs=epochs)
    assert capsys.readouterr().err.count("the program of the training step differs") == 1


@pytest.mark.slow
def test_the_digest_of_a_program_is_the_same_in_every_process():
    found = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 16
