"""Rows of a table that the first batch looks up, and that the table does not have."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from experiment.runs import experiment
from meshwright.errors import UsageError
from meshwright.program import check_lookups

ROWS = 10
IDS = {"ids": np.array([[0, 3], [1, 2], [2, 9], [3, 9]] * 4, np.int32)}
REFUSED = {
    "indexed": lambda table, ids: table[ids + 1],
    "taken": lambda table, ids: jnp.take(table, ids + 1, axis=0),
    "taken from a transposed table": lambda table, ids: jnp.take(table.T, ids + 1, axis=1),
    "mapped": lambda table, ids: jax.vmap(jax.vmap(lambda i: table[i]))(ids + 1),
    "by far too low": lambda table, ids: table[ids - 100],
    "in a loop": lambda table, ids: jax.lax.map(lambda row: table[row + 1], ids),
    "inside of other functions": lambda table, ids: jax.checkpoint(jax.jit(lambda t: t[ids + 1]))(table * 2),
}
FINE = {
    "there": lambda table, ids: table[ids],
    "from the end": lambda table, ids: table[ids - ROWS],
    "clipped": lambda table, ids: table[jnp.clip(ids + 1, 0, ROWS - 1)],
    "replaced": lambda table, ids: table[jnp.where(ids < ROWS - 1, ids + 1, 0)],
    "with a mode": lambda table, ids: table.at[ids + 1].get(mode="clip"),
    "with a filling": lambda table, ids: table.at[ids + 1].get(mode="fill", fill_value=0),
    "of a column": lambda table, ids: table[ids[:, 0] + 6],
    "labels that are masked": lambda table, ids: jnp.where(
        ids < 9, optax.softmax_cross_entropy_with_integer_labels(table[ids][..., :4], ids * 50), 0
    ),
}


def check(look_up, mesh="data=4,fsdp=2", microbatches=2):
    layout, optimizer = mw.Layout(mw.make_mesh(mesh), (mw.match("table", "fsdp"),)), optax.sgd(0.1)
    target = mw.train.abstract_state(lambda key: {"table": jnp.ones((ROWS, 8))}, optimizer, layout)
    loss = lambda params, batch: (look_up(params["table"], batch["ids"]) ** 2).mean()
    step = mw.make_step(loss, optimizer, layout, microbatches=microbatches)
    batch = mw.tree.abstract(IDS)
    step.trace(target, batch)
    check_lookups(step.jaxpr, target, batch, IDS)


@pytest.mark.parametrize("look_up", REFUSED)
def test_an_index_that_a_table_does_not_have_is_refused_with_its_table(look_up):
    with pytest.raises(UsageError, match=r"looks up row -?\d+ of params/table, which has 10"):
        check(REFUSED[look_up])


@pytest.mark.parametrize("look_up", FINE)
def test_an_index_that_the_loss_bounds_or_that_is_no_row_of_a_table_is_fine(look_up):
    check(FINE[look_up])


def test_tokens_of_another_model_end_a_run_before_its_first_step(tmp_path):
    table = lambda key: {"table": jnp.ones((9, 8))}
    loss = lambda params, batch: (params["table"][batch["ids"]] ** 2).mean()
    tokens = mw.Input({"ids": np.tile(IDS["ids"], (4, 1))}, batch_size=8, shuffle=False)
    with pytest.raises(UsageError, match="row 9 of params/table, which has 9"):
        mw.run(experiment(tmp_path, model=table, loss=loss, input=tokens))


def test_examples_to_evaluate_on_are_looked_up_before_the_first_step_too(tmp_path):
    table = lambda key: {"table": jnp.ones((9, 8))}
    train, held_out = {"ids": np.zeros((16, 2), np.int32)}, {"ids": IDS["ids"][::-1]}
    loss = lambda params, batch: (params["table"][batch["ids"]] ** 2).mean()
    measure = lambda params, batch: {"loss": (params["table"][batch["ids"]] ** 2).mean((1, 2))}
    evaluations = {"held_out": mw.Evaluation(measure, held_out, when=100, batch_size=8)}
    with pytest.raises(UsageError, match=r"evaluations.held_out.measure: .* row 9 of params/table"):
        mw.run(
            experiment(
                tmp_path, model=table, loss=loss, input=mw.Input(train, batch_size=8), evaluations=evaluations
            )
        )
    trainer = mw.Trainer(
        mw.Deployer(0, verbose=False), params=table(None), loss=loss, optimizer=optax.sgd(0.1)
    )
    with pytest.raises(UsageError, match="row 9 of params/table"):
        trainer.fit(train, batch_size=8, epochs=1, eval_examples=held_out)
