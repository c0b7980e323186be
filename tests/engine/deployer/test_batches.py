import itertools

import jax
import numpy as np
import pytest

from meshwright.engine._deployer._batches import parts_read_by
from meshwright.errors import ExamplesError, LayoutError, UsageError

POWERS = [1, 2, 4, 8, 16]
TOPOLOGIES = [
    (devices, processes, shards)
    for devices, processes, shards in itertools.product(POWERS, POWERS, POWERS)
    if processes <= devices and shards <= devices
]


@pytest.mark.parametrize(("devices", "processes", "shards"), TOPOLOGIES)
def test_processes_read_equal_shares_of_a_batch_and_all_of_it(devices, processes, shards):
    holders = np.repeat(np.arange(processes), devices // processes).reshape(devices // shards, shards)
    parts = [parts_read_by(process, holders) for process in range(processes)]
    whole = devices // shards
    assert parts == [max(1, whole // processes)] * processes
    assert sum(parts) == whole * (1 if whole >= processes else processes // whole)


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
@pytest.mark.parametrize("per_device", [1, 5])
def test_a_micro_batch_has_so_many_examples_for_each_copy_of_the_model(make_deployer, shards, per_device):
    deployer = make_deployer(num_model_shards=shards)
    whole = per_device * 8 // shards
    assert deployer.get_local_global_micro_batch_size(per_device_batch_size=per_device) == (whole, whole)
    for accumulate in (1, 3):
        assert deployer.get_accumulate_grad_batches(whole * accumulate, per_device) == accumulate


@pytest.mark.parametrize(
    ("mesh", "whole"), [("fsdp=8", 16), ("data=2,fsdp=2,tensor=2", 8), ("data=2,sequence=4", 4)]
)
def test_the_axes_that_split_a_batch_count_and_no_others(make_deployer, mesh, whole):
    assert make_deployer(mesh=mesh).get_local_global_micro_batch_size(2) == (whole, whole)


@pytest.mark.parametrize("whole", [24, 0, -32])
def test_a_batch_that_is_no_whole_number_of_micro_batches_is_refused_in_numbers(make_deployer, whole):
    deployer = make_deployer(num_model_shards=2)
    with pytest.raises(LayoutError, match=rf"batch_size={whole} must be .* of 16: .* 4 × 4 examples"):
        deployer.get_accumulate_grad_batches(batch_size=whole, per_device_batch_size=4)
    with pytest.raises(UsageError, match="per_device_batch_size=0"):
        deployer.get_local_global_micro_batch_size(0)


def collate(examples):
    return {"x": np.stack([x for x, _ in examples]), "label": [label for _, label in examples]}


EXAMPLES = [(np.full(3, i, np.float64), i) for i in range(19)]


def labels(batches):
    return [np.asarray(batch["label"]).tolist() for batch in batches]


def test_batches_are_consecutive_and_what_fills_none_is_left_out(make_deployer):
    deployer = make_deployer(num_model_shards=4)
    found = deployer.get_model_input_batches(EXAMPLES, 4, collate, False, None, "Evaluating")
    assert labels(found) == [list(range(8)), list(range(8, 16))]


def test_batches_lie_on_the_mesh_in_the_types_of_jax(make_deployer):
    deployer = make_deployer(num_model_shards=4)
    batch = next(deployer.get_model_input_batches(EXAMPLES, 1, collate, False, None, None))
    assert batch["x"].sharding == deployer.layout().batch_sharding
    assert [x.shape for x in jax.tree.leaves(batch)] == [(2,), (2, 3)]
    assert [x.dtype for x in jax.tree.leaves(batch)] == [np.int32, np.float32]


def test_the_order_is_that_of_the_shuffle_key(make_deployer):
    def read(rng):
        return labels(make_deployer().get_model_input_batches(EXAMPLES, 2, collate, True, rng, "Training"))

    [first] = read(jax.random.key(1))
    assert read(jax.random.PRNGKey(1)) == [first]
    assert read(jax.random.key(2)) != [first]
    assert len(set(first)) == 16
    assert first != sorted(first)


def test_examples_may_be_what_batches_takes_and_collate_may_call_them_otherwise(make_deployer):
    arrays = {"x": np.arange(16)}
    found = make_deployer().get_model_input_batches(
        arrays, 2, lambda rows: rows[0]["x"] + np.arange(16), False, None, ""
    )
    assert [batch.tolist() for batch in found] == [list(range(16))]
    found = make_deployer().get_model_input_batches(lambda: iter(range(40)), 2, np.stack, False, None, "")
    assert [batch[0] for batch in found] == [0, 16]


def test_fewer_examples_than_a_batch_give_none_and_are_told_of(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path)
    assert not list(deployer.get_model_input_batches(EXAMPLES, 4, collate, False, None, "Evaluating"))
    assert "Evaluating: 19 examples do not fill one batch of 32" in (tmp_path / "log.txt").read_text()


def test_what_cannot_be_read_is_an_error_before_anything_is_read(make_deployer):
    deployer = make_deployer()
    with pytest.raises(UsageError, match="needs a shuffle_key"):
        deployer.get_model_input_batches(EXAMPLES, 1, collate, True, None, "Training")
    with pytest.raises(ExamplesError, match="there are no examples"):
        deployer.get_model_input_batches([], 1, collate, False, None, "Training")


def test_a_batch_of_texts_is_an_error_that_names_it(make_deployer):
    found = make_deployer().get_model_input_batches(
        ["a"] * 8, 1, lambda examples: {"text": examples}, False, None, ""
    )
    with pytest.raises(ExamplesError, match="text is text"):
        next(found)
