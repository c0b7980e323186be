"""Rows of a table that the first batch looks up, and that the table does not have."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.errors import UsageError
from meshwright.program._lookups import check_lookups

ROWS = 10
IDS = {"ids": np.array([[0, 3], [1, 2], [2, 9], [3, 9]] * 4, np.int32)}


def in_columns(table, ids, offsets):
    return jax.lax.scan(lambda total, x: (total + table[x[0] + x[1]].sum(), None), 0.0, (ids.T, offsets))[0]


def masked_row(table, ids):
    return jnp.where((ids < 9) & (ids != 2), table[ids + 1, 0], 0)


def weighted(table, labels):
    return jnp.where(labels != -100, table[labels].sum(-1), 0).sum() / (labels != -100).sum()


REFUSED = {
    "indexed": lambda table, ids: table[ids + 1],
    "taken": lambda table, ids: jnp.take(table, ids + 1, axis=0),
    "taken from a transposed table": lambda table, ids: jnp.take(table.T, ids + 1, axis=1),
    "mapped": lambda table, ids: jax.vmap(jax.vmap(lambda i: table[i]))(ids + 1),
    "by far too low": lambda table, ids: table[ids - 100],
    "in a loop": lambda table, ids: jax.lax.map(lambda row: table[row + 1], ids),
    "in a loop with constants": lambda table, ids: in_columns(table, ids, np.array([0, 1])),
    "that the batch multiplies": lambda table, ids: table[(ids != 9) * 5 + ids + 1],
    "masked elsewhere": lambda table, ids: jnp.where((ids != 3)[..., None], table[ids + 1], 0),
    "replaced where they are there": lambda table, ids: jnp.where((ids == 9)[..., None], table[ids + 1], 0),
    "inside of other functions": lambda table, ids: jax.checkpoint(jax.jit(lambda t: t[ids + 1]))(table * 2),
}
FINE = {
    "there": lambda table, ids: table[ids],
    "from the end": lambda table, ids: table[ids - ROWS],
    "clipped": lambda table, ids: table[jnp.clip(ids + 1, 0, ROWS - 1)],
    "replaced": lambda table, ids: table[jnp.where(ids < ROWS - 1, ids + 1, 0)],
    "with a mode": lambda table, ids: table.at[ids + 1].get(mode="clip"),
    "with a filling": lambda table, ids: table.at[ids + 1].get(mode="fill", fill_value=0),
    "masked": lambda table, ids: jnp.where((ids < 9)[..., None], jnp.take(table, ids + 1, axis=0), 0),
    "masked by a product": lambda table, ids: table[ids + 1] * (ids < 9)[..., None],
    "masked in the mean": lambda table, ids: (table[ids + 1].sum(-1) * (ids < 9)).sum() / (ids < 9).sum(),
    "masked with more": lambda table, ids: jax.vmap(masked_row, (None, 0))(table, ids),
    "masked by another array": lambda table, ids: (
        table[0] + jnp.where(ids == 9, table[0, 0], table[ids + 1, 0])[..., None]
    ),
    "filled and masked": lambda table, ids: jnp.where(
        (ids == 9)[..., None], 0, table.at[ids + 1].get(mode="fill")
    ),
    "masked by a contraction": lambda table, ids: jnp.einsum("btd,bt->d", table[ids + 1], 1.0 * (ids < 9)),
    "labels of -100": lambda table, ids: weighted(table, jnp.where(ids == 9, -100, ids)),
    "mapped and clipped": lambda table, ids: jax.vmap(jax.vmap(lambda i: table[jnp.clip(i, 0, 9)]))(ids + 1),
    "in a loop with constants": lambda table, ids: in_columns(table, ids, np.array([1, 0])),
    "weighted by constants": lambda table, ids: np.arange(8.0) * ids[..., None] * table[ids],
    "of a column": lambda table, ids: table[ids[:, 0] + 6],
    "labels that are masked": lambda table, ids: jnp.where(
        ids < 9, optax.softmax_cross_entropy_with_integer_labels(table[ids][..., :4], ids * 50), 0
    ),
}


def check(look_up, mesh="data=4,fsdp=2", microbatches=2):
    layout, optimizer = mw.Layout(mw.make_mesh(mesh), (mw.parallel.match("table", "fsdp"),)), optax.sgd(0.1)
    target = mw.training.abstract_state(lambda key: {"table": jnp.ones((ROWS, 8))}, optimizer, layout)
    loss = lambda params, batch: (look_up(params["table"], batch["ids"]) ** 2).mean()
    step = mw.make_step(loss, optimizer, layout, microbatches=microbatches)
    batch = mw.base._internal.abstract(IDS)
    step.trace(target, batch)
    check_lookups(step.jaxpr, target, batch, IDS)


@pytest.mark.parametrize("look_up", REFUSED)
def test_an_index_that_a_table_does_not_have_is_refused_with_its_table(look_up):
    with pytest.raises(UsageError, match=r"looks up row -?\d+ of params/table, which has 10"):
        check(REFUSED[look_up])


@pytest.mark.parametrize("look_up", FINE)
def test_an_index_that_the_loss_bounds_or_that_is_no_row_of_a_table_is_fine(look_up):
    check(FINE[look_up])


def test_rows_that_the_batch_weighs_with_0_are_fine():
    table, batch = {"table": jnp.ones((9, 8))}, {**IDS, "weights": np.float32(IDS["ids"] < 9)}
    loss = lambda params, batch: (params["table"][batch["ids"]].sum(-1) * batch["weights"]).sum()
    check_lookups(jax.make_jaxpr(jax.grad(loss))(table, batch), table, batch, batch)
    with pytest.raises(UsageError, match="looks up row 9 of table, which has 9"):
        check_lookups(
            jax.make_jaxpr(loss)(table, batch), table, batch, {**batch, "weights": batch["weights"] + 1}
        )


def test_an_index_that_cannot_be_computed_ends_no_run(monkeypatch):
    monkeypatch.setattr("meshwright.program._lookups.bind", lambda *_: [][0])
    check(REFUSED["indexed"])


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
        trainer.fit(train, batch_size=8, epochs=1, evaluations={"test": mw.Evaluation("loss", held_out)})
