"""Where a run's first state comes from."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.base import _tree as tree
from meshwright.cli import main
from meshwright.engine._experiment._builders import chain
from meshwright.errors import CheckpointError, UsageError
from meshwright.report._run import read_run
from meshwright.report._summary import summary

EXAMPLES = {"x": np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)}


def model(num_classes, key):
    body, head = jax.random.split(key)
    return {"body": jax.random.normal(body, (4, 8)), "head": jax.random.normal(head, (8, num_classes))}


def loss(params, batch, key):
    return ((batch["x"] @ params["body"] @ params["head"]) ** 2).mean()


def experiment(run, num_classes=2, **more):
    given = {
        "model": jax.tree_util.Partial(model, num_classes),
        "loss": loss,
        "optimizer": optax.adam(0.01),
        "input": mw.Input(EXAMPLES, batch_size=16),
        "max_steps": 3,
    }
    return mw.Experiment(workdir=str(run), **given | more)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    run = tmp_path_factory.mktemp("pretrained")
    return f"{run}/checkpoints", mw.run(experiment(run)).state


def first_state(builder, num_classes=2):
    layout = mw.Layout(mw.make_mesh("data=-1"))
    init, tx = jax.tree_util.Partial(model, num_classes), optax.adam(0.01)
    target = mw.training.abstract_state(init, tx, layout)
    return mw.training.state_around(builder(target), init, tx, 0, layout)


@pytest.mark.slow
def test_the_whole_state_may_be_taken_step_and_optimizer_too(pretrained):
    path, saved = pretrained
    jax.tree.map(np.testing.assert_array_equal, first_state(mw.engine.from_checkpoint(path, ".*")), saved)


def test_a_changed_head_is_initialised_and_the_rest_is_taken(pretrained):
    path, saved = pretrained
    state = first_state(mw.engine.from_checkpoint(path, "params/(?!head).*"), num_classes=5)
    np.testing.assert_array_equal(state.params["body"], saved.params["body"])
    scratch = first_state(lambda target: {}, num_classes=5)
    np.testing.assert_array_equal(state.params["head"], scratch.params["head"])
    assert int(state.step) == 0


def test_names_may_be_assigned(pretrained):
    path, saved = pretrained
    moments = mw.engine.from_checkpoint(path, "params/body", assign=[("params/body", "opt_state/0/mu/body")])
    np.testing.assert_array_equal(first_state(moments).params["body"], saved.opt_state[0].mu["body"])


def parts_taken(path, params, **more):
    """What a builder gives, by name, for parameters of other names than the checkpoint has."""
    target = mw.training.abstract_state(
        lambda key: params, optax.sgd(0.1), mw.Layout(mw.make_mesh("data=-1"))
    )
    return mw.engine.from_checkpoint(path, **more)(target)


BODY, HEAD = np.zeros((4, 8), np.float32), np.zeros((8, 2), np.float32)


# Parameters, how they are asked for, and which saved array each is that is given.
SCOPES = {
    "whole": (
        {"body": BODY, "head": HEAD},
        {},
        {"params/body": "params/body", "params/head": "params/head"},
    ),
    "some": ({"body": BODY, "other": HEAD}, {"only": "params/body"}, {"params/body": "params/body"}),
    "renamed": (
        {"trunk": BODY},
        {"assign": [("params/trunk", "params/body")]},
        {"params/trunk": "params/body"},
    ),
    "into a part": (
        {"part": {"body": BODY, "head": HEAD}, "other": BODY},
        {"only": "params/part/.*", "assign": [(r"params/part/(.*)", r"params/\1")]},
        {"params/part/body": "params/body", "params/part/head": "params/head"},
    ),
    "into many": (
        {"a": {"body": BODY}, "b": {"body": BODY}},
        {"assign": [(r"params/[ab]/(.*)", r"params/\1")]},
        {"params/a/body": "params/body", "params/b/body": "params/body"},
    ),
    "a leaf": (
        {"body": BODY, "mu": BODY},
        {"only": "params/mu", "assign": [("params/mu", "opt_state/0/mu/body")]},
        {"params/mu": "opt_state/0/mu/body"},
    ),
}


@pytest.mark.parametrize(("params", "asked", "origins"), SCOPES.values(), ids=SCOPES)
def test_models_and_parts_go_into_other_models(pretrained, params, asked, origins):
    path, saved = pretrained
    taken = parts_taken(path, params, **asked)
    leaves = tree.named_leaves(saved)
    jax.tree.map(np.testing.assert_array_equal, taken, {name: leaves[x] for name, x in origins.items()})


def test_one_saved_array_in_two_places_is_trained_in_both(pretrained, tmp_path):
    path, saved = pretrained
    assign = [("params/.*", "params/body")]
    begun = mw.run(
        experiment(
            tmp_path,
            model=lambda key: {"left": jnp.zeros((4, 8)), "right": jnp.zeros((4, 8))},
            loss=lambda params, batch, key: (params["left"] - 2 * params["right"]).sum(),
            optimizer=optax.sgd(1.0),
            max_steps=1,
            init_state_builder=mw.engine.from_checkpoint(path, assign=assign),
        )
    )
    np.testing.assert_allclose(begun.state.params["left"], saved.params["body"] - 1, rtol=1e-6)
    np.testing.assert_allclose(begun.state.params["right"], saved.params["body"] + 2, rtol=1e-6)


def test_of_a_directory_a_step_may_be_named(pretrained, tmp_path):
    for step in (1, 2):
        with mw.Checkpoints(tmp_path, keep=mw.checkpoints.everything) as checkpoints:
            checkpoints.save(step, {"params": {"body": np.full((4, 8), step, np.float32)}})
    for more, value in (({}, 2), ({"step": 1}, 1)):
        taken = parts_taken(f"{tmp_path}/", {"body": BODY}, **more)
        assert (np.asarray(taken["params/body"]) == value).all()
    with pytest.raises(CheckpointError, match="step_00000003"):
        parts_taken(str(tmp_path), {"body": BODY}, step=3)
    with pytest.raises(UsageError, match="says which step"):
        mw.engine.from_checkpoint(f"{tmp_path}/step_00000001", step=1)


def test_a_pattern_that_is_none_or_matches_nothing_is_an_error():
    with pytest.raises(UsageError, match="not a regular expression"):
        mw.engine.from_checkpoint("there", "params/(")
    with pytest.raises(UsageError, match=r"^only: 'bodi' matches no name; the nearest is params/body"):
        parts_taken("there", {"body": BODY}, only="bodi")


def test_any_source_will_do():
    source = mw.checkpoints.as_source({"params/body": BODY + 1}, "made by hand")
    taken = parts_taken("nowhere", {"body": BODY}, open_with=lambda path: source)
    assert (np.asarray(taken["params/body"]) == 1).all()


def test_of_a_chain_the_last_that_gives_something_decides(pretrained):
    path, saved = pretrained
    ones = {"params/head": np.ones((8, 2), np.float32)}
    state = first_state(chain(mw.engine.from_checkpoint(path), lambda target: ones))
    np.testing.assert_array_equal(state.params["body"], saved.params["body"])
    np.testing.assert_array_equal(state.params["head"], ones["params/head"])


def test_what_the_checkpoint_lacks_is_an_error(pretrained):
    with pytest.raises(CheckpointError, match="params/head"):
        first_state(mw.engine.from_checkpoint(pretrained[0]), num_classes=5)


def test_a_run_starts_from_its_builder_and_continues_without_it(pretrained, tmp_path):
    path, saved = pretrained
    begun = mw.run(experiment(tmp_path, max_steps=1, init_state_builder=mw.engine.from_checkpoint(path)))
    moved = np.abs(np.asarray(begun.state.params["body"]) - np.asarray(saved.params["body"])).max()
    assert 0 < moved < 0.02
    assert begun.step == 1

    def never(target):
        raise AssertionError("called")

    assert mw.run(experiment(tmp_path, init_state_builder=never)).step == 3


def without_body(name):
    return None if name.endswith("/body") else f"mine/{name}"


def test_what_a_run_does_not_save_comes_from_its_builder_each_time(pretrained, tmp_path):
    path, _ = pretrained
    asked = []

    def builder(target):
        asked.append(1)
        return mw.engine.from_checkpoint(path, "params/body")(target)

    how = {
        "init_state_builder": builder,
        "optimizer": mw.training.Trainable("head", optax.sgd(0.1)),
        "save": mw.Save(names=without_body),
    }
    begun = mw.run(experiment(tmp_path, max_steps=2, **how))
    assert "mine/params/head" in mw.checkpoints.open_source(f"{tmp_path}/checkpoints").arrays()
    assert "mine/params/body" not in mw.checkpoints.open_source(f"{tmp_path}/checkpoints").arrays()
    again = mw.run(experiment(tmp_path, max_steps=2, **how))
    jax.tree.map(np.testing.assert_array_equal, again.state, begun.state)
    assert (again.step, len(asked)) == (2, 2)


def test_without_its_step_no_run_could_go_on(tmp_path):
    save = mw.Save(names=lambda name: None if name == "step" else name)
    with pytest.raises(UsageError, match=r"save\.names: it leaves out 'step', which"):
        mw.run(experiment(tmp_path, save=save))


def test_arrays_that_came_from_elsewhere_are_let_go_of(tmp_path):
    given, is_held = [], []

    def builder(target):
        body = jax.device_put(jnp.ones((4, 8)), jax.devices()[0])
        given.append(weakref.ref(body))
        return {"params/body": body}

    def look(step):
        is_held.append(given[0]() is not None)
        return False

    mw.run(experiment(tmp_path, init_state_builder=builder, save=mw.Save(when=look), max_steps=3))
    assert is_held == [False, False, False]  # before the first step, and after the next two


def test_foreign_names_end_the_run_before_it_starts(tmp_path):
    def builder(target):
        return {f"{name}s": x for name, x in tree.named_leaves(target.params).items()}

    with pytest.raises(UsageError, match=r"(?s)Experiment.init_state_builder: .*bodys"):
        mw.run(experiment(tmp_path, init_state_builder=builder))


def test_a_run_says_what_it_began_from_and_which_parameters_are_frozen(pretrained, tmp_path, capsys):
    path, _ = pretrained
    given = {
        "init_state_builder": chain(mw.engine.from_checkpoint(path, "body")),
        "optimizer": mw.training.Trainable("head", optax.adam(0.01)),
    }
    mw.run(experiment(tmp_path, 5, **given))
    source = f"{path}/step_00000003 (1 of "
    assert f"↳ begins from {source}" in capsys.readouterr().err
    mw.run(experiment(tmp_path, 5, max_steps=4, **given))
    found = read_run(tmp_path)
    assert [each.startswith(source) for each in found.began_from] == [True]
    assert f"began from {source}" in summary(found)
    assert f"began from {source}" in (tmp_path / "report.html").read_text()
    assert main(["inspect", str(tmp_path)]) == 0
    assert f"began_from  {source}" in capsys.readouterr().out
    rows = {line.split()[0]: line.split()[-1] for line in found.parameters.splitlines()}
    assert (rows["params/body"], rows["params/head"]) == ("frozen", "yes")
