"""redco's checkpoints, of which nothing is unpickled."""

import json
import os
import shutil
import time

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from checkpoints.formats.readers import redco, written
from checkpoints.formats.readers.real import FIXTURES, Expected, assert_same, restored, wanted_of
from meshwright.base import _tree as tree
from meshwright.errors import CheckpointError, DamagedError

WORKDIR = "redco/ckpt_dp_adamw_orbax0.12"
REAL = FIXTURES / WORKDIR
PARAMS = {
    "Dense_0": {"kernel": np.arange(32, dtype=np.float32).reshape(8, 4), "bias": np.ones(4, np.float32)}
}
COPIED = 5_000_000_000  # seconds since 1970, long after anything was saved
INFO = {"step": 6, "epoch_idx": 1, "rng": [1775173478, 1498807459], "note": "mine"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A work directory with one checkpoint, which is not to be changed, and what it holds by name."""
    workdir, opt_state = tmp_path_factory.mktemp("redco"), optax.adamw(1e-3).init(PARAMS)
    redco.write(workdir, "last", PARAMS, opt_state, **INFO)
    state = tree.named_leaves({"params": PARAMS, "opt_state": opt_state})
    return workdir, {name: np.asarray(x) for name, x in state.items()}


@pytest.fixture
def copied(made, tmp_path):
    """A checkpoint of one's own to damage."""
    return shutil.copytree(made[0], tmp_path / "run") / "ckpts/last"


@pytest.mark.others
@pytest.mark.parametrize("where", ["", "ckpts", "ckpts/last"])
def test_a_real_work_directory_is_opened_at_each_of_its_levels(where):
    source = mw.checkpoints.open_source(REAL / where)
    assert source.arrays().keys() == wanted_of(WORKDIR).keys()
    assert (source.step, source.format) == (6, "redco")


@pytest.mark.others
def test_a_deployer_draws_the_orders_that_redco_drew_and_comes_to_its_randomness():
    trace = json.loads((REAL / "trace.json").read_text())
    deployer = mw.Deployer(trace["config"]["jax_seed"], verbose=False)
    for order in trace["shuffle_orders_per_epoch"]:
        assert jax.random.permutation(deployer.gen_rng(), 200)[: len(order)].tolist() == order
        for _ in range(6):  # three steps, a batch of evaluation and two of predictions
            deployer.gen_model_step_rng()
    assert jax.random.key_data(deployer.key).tolist() == trace["info"]["rng"]


@pytest.mark.others
def test_a_deployer_loads_a_real_checkpoint_and_goes_on_with_its_randomness():
    deployer = mw.Deployer(0, verbose=False)
    optimizer = optax.adamw(optax.linear_schedule(1e-2, 0, 6))
    loaded, info = deployer.load_ckpt(REAL / "ckpts/last", optimizer=optimizer, update_key=True)
    found = {name: Expected.of(np.asarray(x)) for name, x in tree.named_leaves(loaded).items()}
    assert found == wanted_of(WORKDIR)
    assert (info["step"], info["epoch_idx"]) == (6, 1)
    assert jax.random.key_data(deployer.key).tolist() == [1775173478, 1498807459]


def test_a_checkpoint_is_read_by_the_names_of_our_own_and_no_pickle_is_opened(made):
    workdir, arrays = made
    source = mw.checkpoints.open_source(workdir)
    assert_same(restored(source), arrays)
    assert (source.step, source.extra) == (6, {"info": INFO})


@pytest.mark.parametrize("version", ["0.5.20", "0.12.8"])
def test_trees_of_both_generations_of_orbax_are_read(version, golden, copied):
    for part in ("params", "opt_state"):
        shutil.rmtree(copied / part)
        shutil.copytree(golden / version / "tree_ocdbt", copied / part)
    found = restored(mw.checkpoints.open_source(copied))
    assert found.keys() == {f"{part}/{name}" for part in ("params", "opt_state") for name in written.ORBAX}
    assert all(np.array_equal(found[f"params/{name}"], x) for name, x in written.ORBAX.items())


def test_a_work_directory_of_redco_is_gone_on_with_by_a_deployer(made, copied):
    deployer = mw.Deployer(0, verbose=False, workdir=copied.parents[1])
    loaded, info = deployer.load_last_ckpt(optimizer=optax.adamw(1e-3))
    assert_same(tree.named_leaves(loaded), made[1])
    assert info["note"] == "mine"
    assert jax.random.key_data(deployer.key).tolist() == INFO["rng"]


def test_without_the_optimizer_s_state_the_parameters_come_alone(copied):
    shutil.rmtree(copied / "opt_state")
    assert {name.partition("/")[0] for name in mw.checkpoints.open_source(copied).arrays()} == {"params"}


@pytest.mark.parametrize("where", ["", "ckpts"])
def test_a_last_checkpoint_that_is_not_there_is_named(where, copied):
    shutil.rmtree(copied)
    with pytest.raises(CheckpointError, match=r"ckpts/last does not exist, but last_ckpt\.txt names it"):
        mw.checkpoints.open_source(copied.parents[1] / where)


@pytest.mark.parametrize("lost", ["params", "info.json"])
def test_a_save_that_was_killed_is_refused(lost, copied):
    shutil.rmtree(copied / lost) if lost == "params" else (copied / lost).unlink()
    with pytest.raises(CheckpointError, match=rf"has no {lost}: redco was killed while it saved"):
        mw.checkpoints.open_source(copied)


def test_a_first_save_that_was_killed_is_refused(copied):
    for file in (copied / "info.json", copied / "params_shape.pkl", copied.parent / "last_ckpt.txt"):
        file.unlink()
    shutil.rmtree(copied / "opt_state")
    with pytest.raises(CheckpointError, match=r"has no info\.json"):
        mw.checkpoints.open_source(copied)


def saved_again(checkpoint, *, parts):
    """Do a part of another save, an hour after that of `checkpoint`."""
    an_hour_ago = time.time() - 3600
    os.utime(checkpoint / "info.json", (an_hour_ago, an_hour_ago))
    opt_state = checkpoint / "opt_state"
    saves = [
        lambda: redco.write_tree(checkpoint / "params", PARAMS),
        lambda: shutil.rmtree(opt_state),
        lambda: (checkpoint / "opt_state.orbax-checkpoint-tmp").mkdir(),
        lambda: (checkpoint / "opt_state.orbax-checkpoint-tmp").rmdir(),
        lambda: redco.write_tree(opt_state, optax.adamw(1e-3).init(PARAMS)),
        lambda: (checkpoint / "params_shape.pkl").touch(),
        lambda: (checkpoint / "info.json").write_text(json.dumps(INFO)),
    ]
    for save in saves[:parts]:
        save()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (1, "has params of a later save than opt_state: redco was killed"),
        (2, r"has params of a later save than info\.json: redco was killed"),
        (3, "has an unfinished opt_state.orbax-checkpoint-tmp and no opt_state: redco was killed"),
        (4, r"has params of a later save than info\.json"),
        (5, r"has opt_state of a later save than info\.json"),
        (6, r"has opt_state of a later save than info\.json"),
    ],
)
def test_a_save_over_another_that_was_killed_is_refused(parts, said, copied):
    saved_again(copied, parts=parts)
    with pytest.raises(CheckpointError, match=said):
        mw.checkpoints.open_source(copied)


def test_a_save_over_another_that_came_to_its_end_is_opened(copied):
    saved_again(copied, parts=7)
    assert mw.checkpoints.open_source(copied).step == 6


@pytest.mark.parametrize("changed", [(0, 0, 0), (COPIED, COPIED + 99, COPIED + 99), (COPIED, 0, 0)])
def test_a_copy_whose_files_have_other_times_is_opened(changed, copied):
    files = ("info.json", "params/_CHECKPOINT_METADATA", "opt_state/_CHECKPOINT_METADATA")
    for file, seconds in zip(files, changed, strict=True):
        os.utime(copied / file, (seconds, seconds))
    assert mw.checkpoints.open_source(copied).step == 6


def test_information_that_is_cut_off_is_refused(copied):
    (copied / "info.json").write_text('{"step": 6, ')
    with pytest.raises(DamagedError, match=r"info\.json is damaged"):
        mw.checkpoints.open_source(copied)
