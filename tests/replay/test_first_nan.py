"""The first NaN of a run is traced to its operation, line, layer, examples and devices."""

import pytest
from benchmarks.planted import nans

import meshwright as mw
from meshwright.errors import DivergedError

QUICK = ("masked_row", "gradient_of_sqrt", "layer")
"""The faults that `make test` tries; `make test-slow` tries all."""


@pytest.mark.parametrize(
    "fault", [f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in nans.EXPECTED]
)
def test_a_planted_nan_is_named(tmp_path, fault):
    experiment = nans.experiment(str(tmp_path / "run"), fault)
    with pytest.raises(DivergedError):
        mw.run(experiment)
    before = {path: path.read_bytes() for path in (tmp_path / "run/checkpoints").rglob("*") if path.is_file()}
    found = mw.replay.first_nan(experiment)
    expected = nans.EXPECTED[fault]
    assert found.step == nans.BAD_STEP
    assert found.chain[0].operation == expected["operation"]
    assert found.chain[0].part == expected["part"]
    assert expected.get("loops", "") in "".join(found.chain[0].loops)
    if "rows" in expected:
        assert found.rows == expected["rows"]
        assert found.examples == [(nans.BAD_STEP - 1) * nans.BATCH + nans.BAD_ROW]
        assert found.devices == {f"cpu:{nans.BAD_ROW}": [nans.BAD_ROW]}
    if expected["part"] != "input":
        assert "nans.py" in found.chain[0].line
    assert before.items() <= {path: path.read_bytes() for path in before}.items()
