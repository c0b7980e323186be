"""Directories of other systems' checkpoints, where they lie: steps, pins, and reading all of them."""

import json

import flax.serialization
import numpy as np
import optax
import pytest

import meshwright as mw
from checkpoints.formats.readers import redco, tensorflow
from checkpoints.formats.readers.test_laws import put
from meshwright.checkpoints._formats._export_seqax import export_seqax
from meshwright.checkpoints._formats._export_t5x import export_t5x
from meshwright.checkpoints._formats._inspect import contents, is_pinned, pin, unpin, verify, verify_all
from meshwright.checkpoints._formats._open import find_step, open_source
from meshwright.cli import main
from meshwright.errors import CheckpointError, UsageError


def weights(step):
    return {"params": {"w": np.full((4, 2), step, np.float32)}}


def msgpack(place):
    place.mkdir()
    for step in (1, 2, 10):
        (place / f"checkpoint_{step}").write_bytes(flax.serialization.to_bytes(weights(step)))


def exported(export):
    def write(place):
        for step in (1, 2, 10):
            export(weights(step), place, step=step)

    return write


def tensorflow_bundles(place):
    for step in (1, 2, 10):
        tensorflow.write(place / f"model.ckpt-{step}", {"shared/embedding": weights(step)["params"]["w"]})


def redco_workdir(place):
    for name, step in (("last", 10), ("best", 2), ("epoch_0", 1)):
        redco.write_tree(place / "ckpts" / name / "params", weights(step)["params"])
        (place / "ckpts" / name / "info.json").write_text(json.dumps({"step": step}))
        (place / "ckpts" / name / "params_shape.pkl").touch()
    (place / "ckpts/last_ckpt.txt").write_text("last")


def orbax(place):
    for step in (1, 2, 10):
        redco.write_tree(place / str(step) / "default", weights(step))


WRITERS = {
    "t5x": exported(export_t5x),
    "seqax": exported(export_seqax),
    "msgpack": msgpack,
    "tensorflow": tensorflow_bundles,
    "orbax": orbax,
    "redco": redco_workdir,
}
NAMES = {"t5x": "target/w", "tensorflow": "target/token_embedder/embedding"}


@pytest.fixture(params=WRITERS)
def place(request, tmp_path):
    """Return a directory with steps 1, 2 and 10 of each format."""
    WRITERS[request.param](tmp_path / request.param)
    return tmp_path / request.param


@pytest.fixture
def t5x(tmp_path):
    WRITERS["t5x"](tmp_path / "t5x")
    return tmp_path / "t5x"


def w(source):
    name = next(each for each in source.arrays() if each in {*NAMES.values(), "params/w"})
    return float(np.asarray(source.arrays()[name])[0, 0])


def test_a_step_may_be_chosen_and_is_the_newest_otherwise(place):
    assert [w(open_source(place, step=step)) for step in (None, 1, 2, 10)] == [10, 1, 2, 10]
    with pytest.raises(
        CheckpointError, match=r"step 3 of .* is not a complete checkpoint; there are 1, 2, 10"
    ):
        open_source(place, step=3)
    with pytest.raises(UsageError, match="is a single checkpoint: leave out step=2"):
        open_source(find_step(place, 2), step=2)


def test_a_run_starts_from_the_step_that_is_chosen(place, mesh):
    target = mw.training.abstract_state(lambda key: weights(0)["params"], optax.sgd(0.1), mw.Layout(mesh))
    assign = [("params/w", NAMES.get(place.name, "params/w"))]
    for step in (1, 10):
        given = mw.engine.from_checkpoint(str(place), step=step, assign=assign)(target)
        assert (np.asarray(given["params/w"]) == step).all()


def test_contents_and_inspect_list_the_steps(place, capsys):
    found = contents(place)
    assert [each.step for each in found.checkpoints] == [1, 2, 10]
    assert all(each.nbytes >= 32 and not each.pinned for each in found.checkpoints)
    assert not found.is_ours
    assert main(["inspect", str(place)]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  step {step} " in shown for step in (1, 2, 10))
    assert main(["inspect", str(place), "--step", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2


def test_convert_and_diff_take_a_step(place, tmp_path, capsys):
    assert main(["convert", str(place), str(tmp_path / "ours"), "--step", "2"]) == 0
    assert w(open_source(tmp_path / "ours")) == 2
    assert main(["diff", str(place), str(tmp_path / "ours"), "--step", "2"]) == 0
    assert main(["diff", str(place), str(tmp_path / "ours")]) == 1
    assert main(["diff", str(place), str(tmp_path / "ours"), "--step", "1"]) == 3
    assert "step_00000001 is not a complete checkpoint; there are 2" in capsys.readouterr().err


def test_verify_reads_all_and_claims_no_more(place, capsys):
    assert [each.damage for each in verify_all(place)] == [(), (), ()]
    assert verify(place).format == open_source(place).format
    assert main(["verify", str(place)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("can be read: ") == 3
    assert shown.endswith("3 can be read, 0 damaged\n")
    assert "intact" not in shown


def test_verify_names_each_array_that_cannot_be_read(t5x, capsys):
    (t5x / "checkpoint_2/target.w/0.0").unlink()
    (t5x / "checkpoint_10/checkpoint").write_bytes(b"\x82\xa7version")
    found = list(verify_all(t5x))
    assert [len(each.damage) for each in found] == [0, 1, 1]
    assert found[1].damage[0].piece == "target/w"
    assert main(["verify", str(t5x)]) == 3
    assert "target/w: the chunk" in capsys.readouterr().out


def test_a_checkpoint_of_t5x_is_pinned_as_t5x_does(t5x, capsys):
    assert main(["pin", str(t5x), "2", "--note", "mine"]) == 0
    assert (t5x / "checkpoint_2/PINNED").read_text() == "mine\n"
    assert open_source(t5x, step=2).extra["pinned"]
    assert [each.pinned for each in contents(t5x).checkpoints] == [False, True, False]
    assert main(["unpin", str(t5x), "2"]) == 0
    assert not is_pinned(t5x / "checkpoint_2")
    unpin(t5x / "checkpoint_2")


def test_what_would_not_be_kept_by_a_pin_cannot_be_pinned(tmp_path, t5x):
    WRITERS["seqax"](tmp_path / "seqax")
    with pytest.raises(CheckpointError, match="a checkpoint of seqax, which has no pins"):
        pin(find_step(tmp_path / "seqax", 2))
    with pytest.raises(CheckpointError, match="is not a complete checkpoint"):
        pin(t5x)
    (t5x / "checkpoint_2/checkpoint").unlink()
    with pytest.raises(CheckpointError, match="has arrays of T5X, but its file checkpoint"):
        pin(t5x / "checkpoint_2")


def test_steps_in_a_store_are_found_too(t5x):
    at = put(t5x, "memory://foreign_steps")
    assert w(open_source(at, step=2)) == 2
    assert [each.step for each in contents(at).checkpoints] == [1, 2, 10]
