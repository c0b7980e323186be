"""What takes a path writes to an address, too, or refuses it; there is never a folder called `gs:`."""

import importlib
import inspect
from pathlib import Path

import jax.numpy as jnp
import pytest

import meshwright as mw
from base.storage.stores import put
from layers import PACKAGES
from meshwright.checkpoints import _internal as arrays
from meshwright.checkpoints import _internal as checkpoint
from meshwright.checkpoints import _internal as formats
from meshwright.cli._settings import read_settings
from meshwright.errors import UsageError
from meshwright.launch import _internal as launch
from meshwright.lm._models import hugging_face
from meshwright.observe import _internal as metrics
from meshwright.observe import _internal as profile
from meshwright.observe import _tensorboard as events
from meshwright.report import _internal as report
from meshwright.training import _internal as train

GS = "gs://bucket/run"
TREE = {"w": jnp.ones(3)}


def predict(deployer, to):
    predictor = mw.Predictor(deployer, predict=lambda params, batch: batch["x"] * params["w"])
    return predictor.predict([{"x": 1.0}] * 8, 1, {"w": jnp.ones(())}, to=to)


@pytest.fixture(scope="module")
def deployer():
    with mw.Deployer(0, verbose=False) as made:
        yield made


PAIRS = {"chosen": [], "rejected": []}

REFUSE = {
    "launch_hosts": lambda place: launch.launch_hosts(
        ["true"], 1, address="127.0.0.1:1", hosts=1, logs=place
    ),
    "tokenized": lambda place: mw.data._internal.tokenized(__file__, mw.lm.Bytes(), store=place),
    "export_adapter": lambda place: mw.lm.export_adapter({}, place, mw.lm.lora("w", 1), "."),
    "read_pair_rows": lambda place: mw.lm._internal.read_pair_rows(place, 8),
    "read_rows": lambda place: mw.lm._internal.read_rows(place, 8),
    "read_adapter": lambda place: mw.lm.read_adapter(place, "."),
    "with_reference": lambda place: mw.lm.with_reference(PAIRS, None, {}, None, path=place),
    "launch_local": lambda place: launch.launch_local(["true"], 1, logs=place),
    "launch_ray": lambda place: launch.launch_ray(["true"], 1, logs=place),
    "local": lambda place: arrays.local(place),
    "jsonl": lambda place: metrics.jsonl(place),
    "read_jsonl": lambda place: metrics.read_jsonl(place),
    "newest_step": lambda place: metrics.newest_step(place),
    "salvage_jsonl": lambda place: list(metrics.salvage_jsonl(place, print)),
    "sync_jsonl": lambda place: metrics.sync_jsonl(place),
    "tensorboard": lambda place: metrics.tensorboard(place).__enter__(),
    "TensorBoard": lambda place: metrics.TensorBoard(place),
    "read_scalars": lambda place: events.read_scalars(place, "loss"),
    "best": lambda place: checkpoint.best("loss", "min", events=place),
    "export_checkpoint": lambda place: mw.lm._internal.export_checkpoint(None, place),
    "export": lambda place: mw.engine.export(None, {}, "int32[]", place),
    "export_params": lambda place: mw.engine._internal.export_params({}, place),
    "load_program": lambda place: mw.engine.load_program(place),
    "export_npz": lambda place: formats.export_npz(TREE, place),
    "export_safetensors": lambda place: formats.export_safetensors(TREE, place),
    "export_t5x": lambda place: formats.export_t5x(TREE, place, step=0),
    "copy_companions": lambda place: hugging_face.copy_companions(".", place),
    "config": lambda place: hugging_face.config(place),
    "find_profiles": lambda place: profile.find_profiles(place),
    "summarize": lambda place: profile.summarize(place),
    "list_runs": lambda place: report.list_runs(place),
    "read_run": lambda place: report.read_run(place),
    "chat": lambda place: mw.data.chat(place),
    "end_tokens": lambda place: mw.data._internal.end_tokens(place),
    "train_tokenizer": lambda place: mw.data.train_tokenizer(["text"], place, vocab_size=300),
    "compile_cache": lambda place: train.compile_cache(place),
    "Deployer": lambda place: mw.Deployer(0, workdir=place),
}
TAKE = {  # what takes addresses, as tests elsewhere show
    "documents",
    "flat_tokens",
    "text",
    "files_of",
    "run_pod",
    "is_address",
    "join",
    "local_copy",
    "local_path",
    "put_at",
    "put_file_at",
    "read_text",
    "load_ckpt",
    "load_params_shape",
    "save_ckpt",
    "export_model",
    "open_model",
    "predict",
    "save_hlo",
    "tracer",
    "write_comparison",
    "write_page",
    "first_nan",
    "evaluate",
    "evaluate_checkpoint",
    "served_of_checkpoint",
    "state_of_checkpoint",
    "texts_of_checkpoint",
}


PLACES = (GS, "s3://bucket/x.npz", "abfs://bucket/run", Path(GS), "gs:/bucket/run")


@pytest.mark.parametrize("name", REFUSE)
def test_what_takes_no_address_refuses_it_and_makes_no_folder_of_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in PLACES:
        with pytest.raises(UsageError, match=r"is a URL of a store, but|was a URL before it was made a Path"):
            REFUSE[name](place)
    assert not list(tmp_path.iterdir())


def test_predictions_are_refused_before_they_are_made(deployer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"gs://bucket/x\.jsonl is a URL of a store"):
        predict(deployer, "gs://bucket/x.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_profile_whose_address_was_made_a_path_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"as a string, gs://…"), profile.tracer(Path(GS), (1,)):
        pass
    assert not list(tmp_path.iterdir())


def test_settings_are_read_from_an_address(memory, at):
    put(f"{at}/s.yaml", b"max_steps: 3\n")
    assert read_settings(f"{at}/s.yaml") == {"max_steps": "3"}


def takes_path(function):
    """Whether an argument may be a path, and not that of a checkpoint, which may be anywhere (`location`)."""
    try:
        given = [str(each.annotation) for each in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return False
    return any("str | " in text and "Path" in text and "ObjectPath" not in text for text in given)


def public():
    """Yield the functions of all doors, those for other packages too, by name."""
    yield from ((name, getattr(mw, name)) for name in mw.__all__)
    for package in set(PACKAGES) - {"cli"}:
        for door in (f"meshwright.{package}", f"meshwright.{package}._internal"):
            module = importlib.import_module(door)
            yield from ((name, getattr(module, name)) for name in dir(module))
    yield from vars(hugging_face).items()
    yield from inspect.getmembers(mw.Deployer)
    yield "predict", mw.Predictor.predict


def test_nothing_that_takes_a_path_is_forgotten_here():
    found = {
        name
        for name, one in public()
        if callable(one)
        and not name.rpartition(".")[2].startswith("_")
        and getattr(one, "__module__", "").startswith("meshwright.")
        and takes_path(one)
    }
    assert found == REFUSE.keys() | TAKE
