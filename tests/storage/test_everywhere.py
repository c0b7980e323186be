"""What takes a path writes to an address, too, or refuses it; there is never a folder called `gs:`."""

import importlib
import inspect
from pathlib import Path

import jax.numpy as jnp
import pytest

import meshwright as mw
from meshwright import arrays, checkpoint, events, formats, launch, metrics, profile, report, train
from meshwright.cli._settings import read_settings
from meshwright.errors import UsageError
from meshwright.models import hugging_face
from storage.stores import put

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
    "launch.launch_hosts": lambda place: launch.launch_hosts(
        ["true"], 1, at="127.0.0.1:1", hosts=1, logs=place
    ),
    "corpus.tokenized": lambda place: mw.corpus.tokenized(__file__, mw.generation.Bytes(), store=place),
    "tuning.export_adapter": lambda place: mw.tuning.export_adapter({}, place, mw.lora("w", 1), "."),
    "tuning.read_pair_rows": lambda place: mw.tuning.read_pair_rows(place, 8),
    "tuning.read_rows": lambda place: mw.tuning.read_rows(place, 8),
    "tuning.read_adapter": lambda place: mw.tuning.read_adapter(place, "."),
    "tuning.with_reference": lambda place: mw.tuning.with_reference(PAIRS, None, {}, None, kept=place),
    "launch.launch_local": lambda place: launch.launch_local(["true"], 1, logs=place),
    "launch.launch_ray": lambda place: launch.launch_ray(["true"], 1, logs=place),
    "arrays.local": lambda place: arrays.local(place),
    "metrics.jsonl": lambda place: metrics.jsonl(place),
    "metrics.read_jsonl": lambda place: metrics.read_jsonl(place),
    "metrics.newest_step": lambda place: metrics.newest_step(place),
    "metrics.salvage_jsonl": lambda place: list(metrics.salvage_jsonl(place, print)),
    "metrics.sync_jsonl": lambda place: metrics.sync_jsonl(place),
    "metrics.tensorboard": lambda place: metrics.tensorboard(place).__enter__(),
    "metrics.TensorBoard": lambda place: metrics.TensorBoard(place),
    "events.read_scalars": lambda place: events.read_scalars(place, "loss"),
    "checkpoint.best": lambda place: checkpoint.best("loss", "min", events=place),
    "experiment.export_checkpoint": lambda place: mw.experiment.export_checkpoint(None, place),
    "exports.export": lambda place: mw.export(None, {}, "int32[]", place),
    "exports.export_params": lambda place: mw.exports.export_params({}, place),
    "exports.load_program": lambda place: mw.exports.load_program(place),
    "formats.export_npz": lambda place: formats.export_npz(TREE, place),
    "formats.export_safetensors": lambda place: formats.export_safetensors(TREE, place),
    "formats.export_t5x": lambda place: formats.export_t5x(TREE, place, step=0),
    "models.hugging_face.copy_companions": lambda place: hugging_face.copy_companions(".", place),
    "models.hugging_face.config": lambda place: hugging_face.config(place),
    "profile.find_profiles": lambda place: profile.find_profiles(place),
    "profile.summarize": lambda place: profile.summarize(place),
    "report.list_runs": lambda place: report.list_runs(place),
    "report.read_run": lambda place: report.read_run(place),
    "tokens.chat": lambda place: mw.chat(place),
    "tokens.end_tokens": lambda place: mw.tokens.end_tokens(place),
    "tokens.train_tokenizer": lambda place: mw.train_tokenizer(["text"], place, vocab_size=300),
    "train.compile_cache": lambda place: train.compile_cache(place),
    "deployer.Deployer": lambda place: mw.Deployer(0, workdir=place),
}
TAKE = {  # what takes addresses, as tests elsewhere show
    "corpus.documents",
    "formats.flat_tokens",
    "input.text",
    "corpus.files_of",
    "launch.run_pod",
    "storage.is_address",
    "storage.join",
    "storage.local_copy",
    "storage.local_path",
    "storage.put_at",
    "storage.put_file_at",
    "storage.read_text",
    "deployer.load_ckpt",
    "deployer.load_params_shape",
    "deployer.save_ckpt",
    "models.hugging_face.export_model",
    "models.hugging_face.open_model",
    "predictor.predict",
    "hlo.save_hlo",
    "profile.tracer",
    "report.write_comparison",
    "report.write_page",
    "replay.first_nan",
    "experiment.evaluate",
    "experiment.evaluate_checkpoint",
    "experiment.served_of_checkpoint",
    "experiment.state_of_checkpoint",
    "experiment.texts_of_checkpoint",
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
    """Yield what the rooms offer of their own, by name."""
    rooms = (path.stem for path in Path(mw.__file__).parent.iterdir() if not path.name.startswith("_"))
    for room in set(rooms) - {"demo", "cli", "py"}:
        door = importlib.import_module(f"meshwright.{room}")
        yield from ((f"{room}.{name}", vars(door).get(name)) for name in getattr(door, "__all__", vars(door)))
    yield from ((f"models.hugging_face.{name}", one) for name, one in vars(hugging_face).items())
    yield from ((f"deployer.{name}", one) for name, one in inspect.getmembers(mw.Deployer))
    yield "predictor.predict", mw.Predictor.predict


def test_nothing_that_takes_a_path_is_forgotten_here():
    found = {
        name
        for name, one in public()
        if callable(one)
        and not name.rpartition(".")[2].startswith("_")
        and f"{one.__module__}.".startswith(f"meshwright.{name.rpartition('.')[0]}.")
        and takes_path(one)
    }
    assert found == REFUSE.keys() | TAKE
