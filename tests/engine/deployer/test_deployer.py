import jax
import pytest

import meshwright as mw
from meshwright.errors import LayoutError, UsageError


def draws(deployer, num_draws):
    return [jax.random.key_data(deployer.gen_rng()).tolist() for _ in range(num_draws)]


def test_randomness_is_a_stream_of_its_seed(make_deployer):
    first = draws(make_deployer(seed=1), 20)
    assert draws(make_deployer(seed=1), 20) == first
    assert len({tuple(key) for key in first}) == 20
    assert not {tuple(key) for key in draws(make_deployer(seed=2), 20)} & {tuple(key) for key in first}


def test_a_step_s_key_is_the_next_of_the_stream(make_deployer):
    one, other = make_deployer(), make_deployer()
    assert jax.random.key_data(one.gen_model_step_rng()).tolist() == draws(other, 1)[0]
    assert draws(one, 1) == draws(other, 1)


@pytest.mark.parametrize(
    ("settings", "mesh"),
    [
        ({}, {"data": 8}),
        ({"num_model_shards": 2}, {"data": 4, "tensor": 2}),
        ({"num_model_shards": 8}, {"data": 1, "tensor": 8}),
        ({"mesh": "fsdp=4,tensor=-1"}, {"fsdp": 4, "tensor": 2}),
    ],
)
def test_the_mesh_is_of_model_shards_or_a_text(make_deployer, settings, mesh):
    assert dict(make_deployer(**settings).mesh.shape) == mesh


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"num_model_shards": 3}, LayoutError, "multiple of 3 devices, this run has 8"),
        (
            {"num_model_shards": 2, "mesh": "fsdp=8"},
            UsageError,
            "num_model_shards=2 and mesh='fsdp=8' are both given",
        ),
        ({"mesh": ""}, LayoutError, "mesh '': cannot read ''"),
        ({"num_processes": 2}, UsageError, "not coordinator .* and process_id"),
        ({"host0_address": "10.0.0.1"}, UsageError, "coordinator .10.0.0.1:11111.*, but not"),
        ({"num_local_devices": 4}, UsageError, "num_local_devices=4, but this process has 8 devices"),
        ({"host0_port": 1234}, UsageError, "host0_port=1234 needs a host0_address"),
        ({"run_tensorboard": True}, UsageError, r"run_tensorboard needs .* Deployer\(workdir=...\)"),
        ({"seed": -1}, UsageError, "seed=-1"),
    ],
)
def test_settings_that_cannot_be_are_refused(make_deployer, settings, error, message):
    with pytest.raises(error, match=message):
        make_deployer(**settings)


def test_a_workdir_that_cannot_be_made_is_an_error_that_names_it(make_deployer, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"workdir .*file/run cannot be made: Not a directory"):
        make_deployer(workdir=tmp_path / "file/run")


def test_a_new_workdir_is_left_empty_until_there_is_something_to_say(tmp_path):
    with mw.Deployer(0, workdir=tmp_path / "a/b", verbose=False) as deployer:
        assert deployer.workdir == tmp_path / "a/b"
    assert not [
        path for path in (tmp_path / "a/b").iterdir() if path.name not in ("log.txt", "metrics.jsonl")
    ]
