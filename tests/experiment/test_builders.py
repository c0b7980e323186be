"""Where a run's first state comes from."""

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright import tree
from meshwright.errors import CheckpointError, UsageError
from meshwright.experiment import chain

EXAMPLES = {"x": np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)}


def model(num_classes, key):
    body, head = jax.random.split(key)
    return {"body": jax.random.normal(body, (4, 8)), "head": jax.random.normal(head, (8, num_classes))}


def loss(params, batch, key):
    return ((batch["x"] @ params["body"] @ params["head"]) ** 2).mean()


def experiment(run, num_classes=2, **more):
    given = {"optimizer": optax.adam(0.01), "input": mw.Input(EXAMPLES, batch_size=16), "max_step": 3}
    init = jax.tree_util.Partial(model, num_classes)
    return mw.Experiment(run=str(run), model=init, loss=loss, **given | more)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    run = tmp_path_factory.mktemp("pretrained")
    return f"{run}/checkpoints", mw.run(experiment(run)).state


def first_state(builder, num_classes=2):
    layout = mw.Layout(mw.make_mesh("data=-1"))
    init, tx = jax.tree_util.Partial(model, num_classes), optax.adam(0.01)
    target = mw.abstract_state(init, tx, layout)
    return mw.train.state_around(builder(target), init, tx, 0, layout)


def test_the_whole_state_may_be_taken_step_and_optimizer_too(pretrained):
    path, saved = pretrained
    jax.tree.map(np.testing.assert_array_equal, first_state(mw.from_checkpoint(path, ".*")), saved)


def test_a_changed_head_is_initialised_and_the_rest_is_taken(pretrained):
    path, saved = pretrained
    state = first_state(mw.from_checkpoint(path, "params/(?!head).*"), num_classes=5)
    np.testing.assert_array_equal(state.params["body"], saved.params["body"])
    assert state.params["head"].shape == (8, 5)
    assert int(state.step) == 0


def test_names_may_be_assigned(pretrained):
    path, saved = pretrained
    moments = mw.from_checkpoint(path, "params/body", assign=[("params/body", "opt_state/0/mu/body")])
    np.testing.assert_array_equal(first_state(moments).params["body"], saved.opt_state[0].mu["body"])


def test_of_a_chain_the_last_that_gives_something_decides(pretrained):
    path, saved = pretrained
    ones = {"params/head": np.ones((8, 2), np.float32)}
    state = first_state(chain(mw.from_checkpoint(path), lambda target: ones))
    np.testing.assert_array_equal(state.params["body"], saved.params["body"])
    np.testing.assert_array_equal(state.params["head"], ones["params/head"])


def test_what_the_checkpoint_lacks_is_an_error(pretrained):
    with pytest.raises(CheckpointError, match="params/head"):
        first_state(mw.from_checkpoint(pretrained[0]), num_classes=5)


def test_a_run_starts_from_its_builder_and_continues_without_it(pretrained, tmp_path):
    path, saved = pretrained
    begun = mw.run(experiment(tmp_path, max_step=1, init_state_builder=mw.from_checkpoint(path)))
    moved = np.abs(np.asarray(begun.state.params["body"]) - np.asarray(saved.params["body"])).max()
    assert 0 < moved < 0.02
    assert begun.step == 1

    def never(target):
        raise AssertionError("called")

    assert mw.run(experiment(tmp_path, init_state_builder=never)).step == 3


def test_foreign_names_end_the_run_before_it_starts(tmp_path):
    def builder(target):
        return {f"{name}s": x for name, x in tree.named_leaves(target.params).items()}

    with pytest.raises(UsageError, match=r"(?s)Experiment.init_state_builder: .*bodys"):
        mw.run(experiment(tmp_path, init_state_builder=builder))
