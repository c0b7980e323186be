"""The same program under all engines."""

import importlib.util

import pytest

from clusters.engines import Local, OnJobSet, OnRay, OnSlurm, finish, ray_cluster
from clusters.slurm import missing
from end_to_end.running import losses

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(bool(missing()), reason=f"machines of their own: {missing()}"),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ray"
    ),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.mark.nightly  # the tests of each engine hold its losses to those of an undisturbed run
def test_one_program_has_the_same_losses_to_the_bit_under_every_engine(slurm, tmp_path):
    with ray_cluster() as cluster:
        found = {}
        for engine, code in (
            (Local(tmp_path / "local", tmp_path / "1"), 0),
            (OnSlurm(slurm, tmp_path / "slurm", tmp_path / "2"), "COMPLETED 0:0"),
            (OnRay(cluster, tmp_path / "ray", tmp_path / "3"), 0),
            (OnJobSet(tmp_path / "jobset", tmp_path / "4"), "Completed"),
        ):
            engine.start()
            try:
                assert finish(engine) == code, engine.said()
            finally:
                engine.close()
            found[engine.name] = losses(engine.run)
    assert len(found["local"]) == 150
    assert found == dict.fromkeys(found, found["local"])
