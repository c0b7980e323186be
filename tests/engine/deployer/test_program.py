"""A program written for redco's Deployer runs, with its arguments renamed."""

import json

import numpy as np
import pytest

import meshwright as mw
from engine.deployer.program import main


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Where a run was that nothing interrupted, and its losses."""
    workdir = tmp_path_factory.mktemp("whole")
    with mw.Deployer(seed=42, num_model_shards=2, workdir=workdir, verbose=False) as deployer:
        return workdir, main(deployer)


def test_it_learns_and_leaves_what_its_documents_promise(whole):
    workdir, losses = whole
    assert len(losses) == 3 * (203 // 32)
    assert np.mean(losses[-6:]) < 0.9 * np.mean(losses[:6])
    assert (workdir / "ckpts/last_ckpt.txt").read_text() == "last"
    assert json.loads((workdir / "outputs_train.json").read_text()) == [{"loss": loss} for loss in losses]
    assert [line["loss"] for line in mw.observe.read_jsonl(workdir / "metrics.jsonl")] == losses


def test_its_learning_rate_is_that_of_its_updates_not_of_its_micro_steps(whole):
    assert (
        "linear learning rate over 9 optimizer steps of 64 examples, 0 to warm up"
        in (whole[0] / "log.txt").read_text()
    )


def test_continued_from_its_last_checkpoint_it_ends_with_the_same_losses(whole, make_deployer, tmp_path):
    main(make_deployer(seed=42, num_model_shards=2, workdir=tmp_path), stop_after=1)
    losses = main(make_deployer(seed=7, num_model_shards=2, workdir=tmp_path))
    assert losses == whole[1][6:]
