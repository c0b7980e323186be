"""From a folder and a file of tokens to an adapter or a model, in one call or one command."""

import json
import pkgutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.checkpoints._arrays._source import cast
from meshwright.cli import main
from meshwright.cli._tune import _TARGET
from meshwright.errors import InputError, UsageError
from meshwright.lm._models import decoder, hugging_face
from meshwright.lm._tuning._examples import read_rows, split_rows
from meshwright.lm._tuning._families import rows_score
from meshwright.lm._tuning._merged import merged_source
from meshwright.lm._tuning._peft import read_adapter
from meshwright.lm._tuning._tune import adapter_of, tune, tuning, write_best

LLAMA = str(Path(__file__).parents[2] / "lm" / "models" / "golden" / "llama")
CFG = hugging_face.config(LLAMA)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of sentences that count up, whose first tokens do not count in the loss."""
    file = tmp_path_factory.mktemp("data") / "data.jsonl"
    rng = np.random.default_rng(0)
    with file.open("w") as lines:
        for first in rng.integers(3, 20, size=60):
            tokens = [1, *range(int(first), int(first) + int(rng.integers(4, 8)))]
            lines.write(json.dumps({"tokens": tokens, "weights": [0, 0] + [1] * (len(tokens) - 2)}) + "\n")
    return str(file)


QUICK = {"epochs": 2, "batch_size": 8, "learning_rate": 2e-2, "lora": 4, "held_out": 0.1, "mesh": "data=-1"}


def held_out_loss(params, data):
    _, rows = split_rows(read_rows(data, 2048), 0.1, 0)
    return mean(decoder.loss(CFG, params, rows))


def mean(found):
    return float(found.total.sum() / found.count.sum())


def floats(source):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), mw.checkpoints.load(source))


@pytest.mark.slow
def test_an_adapter_is_tuned_and_its_best_checkpoint_written(data, tmp_path):
    tuned = tune(LLAMA, data, str(tmp_path), **QUICK)
    assert [path.name for path in tuned.files] == ["adapter_model.safetensors", "adapter_config.json"]
    lora, adapter = read_adapter(tmp_path / "adapter", LLAMA)
    assert (lora.rank, lora.alpha) == (4, 8)
    base = hugging_face.open_model(LLAMA)
    before, after = floats(base), lora.effective({"base": floats(base), "adapter": adapter})
    assert held_out_loss(after, data) < held_out_loss(before, data) - 0.2
    np.testing.assert_allclose(held_out_loss(after, data), tuned.outcome.scores["held_out/loss"], rtol=0.02)
    with pytest.raises(UsageError, match="already: choose another directory"):  # it is not written over
        write_best(str(tmp_path), LLAMA, lora=4)


@pytest.mark.slow
def test_the_command_tunes_beside_four_bits_and_writes_a_merged_model(data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [f"{name}={value}" for name, value in (QUICK | {"epochs": 1}).items()]
    assert main(["tune", LLAMA, data, "--base", "nf4", "--merge", "--json", "workdir=run", *settings]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [Path(path).name for path in found["files"]] == ["model.safetensors", "config.json"]
    merged = hugging_face.open_model("run/model").arrays()
    assert {x.dtype.name for x in merged.values()} == {"bfloat16"}
    checkpoint = mw.checkpoints.subtree(mw.checkpoints.open_source("run/checkpoints"), "params/adapter")
    assert "params/base/layers/q/codes" not in mw.checkpoints.open_source("run/checkpoints").arrays()
    assert "layers/gate/lora_a" in checkpoint.arrays()


@pytest.mark.slow
def test_all_parameters_are_tuned_and_written_in_the_dtypes_of_the_files(data, tmp_path):
    tuned = tune(LLAMA, data, str(tmp_path), full=True, **QUICK | {"epochs": 1})
    assert tuned.outcome.state.params["layers"]["q"].dtype == np.float32
    written = hugging_face.open_model(tmp_path / "model").arrays()
    assert {x.dtype.name for x in written.values()} == {"bfloat16"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("gpt2", {}),
        ("t5v1_1", {"base": "nf4"}),
        ("gpt2", {"full": True}),
        ("umt5", {"full": True}),
    ],
    ids=str,
)
def test_models_of_other_families_are_tuned_and_written(name, how, data, tmp_path):
    model, run = LLAMA.replace("llama", name), tmp_path / "run"
    data = pairs(tmp_path / "pairs.jsonl") if "t5" in name else data
    tuned = tune(model, data, str(run), **QUICK | {"epochs": 3} | how)
    history = mw.observe.read_jsonl(run / "metrics.jsonl")
    scores = [each["held_out/loss"] for each in history if "held_out/loss" in each]
    assert min(scores) < scores[0] - 0.1
    base = hugging_face.open_model(model)
    saved = mw.checkpoints.subtree(mw.checkpoints.open_source(run / "checkpoints", step=tuned.step), "params")
    if "full" in how:
        written = hugging_face.open_model(run / "model").arrays()
        assert all(
            np.array_equal(written[each], x.astype(written[each].dtype)) for each, x in saved.arrays().items()
        )
        assert {each: x.dtype for each, x in written.items()} == {
            each: x.dtype for each, x in base.arrays().items()
        }
        return
    lora, adapter = read_adapter(run / "adapter", model)
    again = lora.merged({"base": floats(base), "adapter": adapter})
    lora_of_run = adapter_of(hugging_face.config(model), 4, None)
    expected = merged_source(
        cast(base, [(".*", "float32")]), mw.checkpoints.subtree(saved, "adapter"), lora_of_run
    )
    for each, x in expected.arrays().items():
        np.testing.assert_allclose(
            mw.base._internal.named_leaves(again)[each], np.asarray(x), rtol=1e-4, atol=1e-5
        )


def pairs(file):
    """Write pairs whose targets are their inputs, counted up."""
    rng = np.random.default_rng(0)
    rows = [[int(x) for x in rng.integers(3, 20, 4)] for _ in range(60)]
    lines = [
        json.dumps({"inputs": [*row, 1], "targets": [row[0], row[0] + 1, row[0] + 2, 1]}) for row in rows
    ]
    file.write_text("\n".join(lines))
    return str(file)


def test_the_command_names_the_function():
    assert pkgutil.resolve_name(_TARGET) is tuning


def test_the_loss_is_that_of_the_tokens_that_count():
    params = floats(hugging_face.open_model(LLAMA))
    batch = {
        "tokens": np.array([[1, 5, 6, 7], [1, 9, 0, 0]], np.int32),
        "segments": np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32),
        "weights": np.array([[0, 0, 1, 0.5], [0, 1, 0, 0]], np.float32),
    }

    @jax.jit
    def computed(params, batch):
        scores = rows_score(CFG, params, batch)["loss"]
        return decoder.logits(CFG, params, batch["tokens"]), decoder.loss(CFG, params, batch), scores

    logits, loss, scores = computed(params, batch)
    logits -= np.logaddexp.reduce(logits, -1, keepdims=True)
    wanted = -(logits[0, 1, 6] + 0.5 * logits[0, 2, 7] + logits[1, 0, 9]) / 2.5
    np.testing.assert_allclose([mean(loss), mean(scores)], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "hello"}', "line 2: this line needs a tokenizer: give the folder of the model"),
        ('{"texts": "hello"}', "line 2: expected .*messages.* found the keys texts"),
        ('{"prompt": "hello"}', "line 2: expected .*messages.* found the keys prompt"),
        ('{"tokens": [1]}', "line 2: tokens must be a list of two"),
        ('{"tokens": [1, -2]}', "line 2: tokens must be a list of two"),
        ('{"tokens": [1, 48]}', "line 2 has the token 48, but the model has 48, numbered from 0"),
        ('{"tokens": [1, 2], "weights": [1]}', "line 2: weights must be 2 numbers"),
        ("[1, 2]", "line 2: expected an object"),
        ("{", "line 2: "),
    ],
)
def test_a_line_of_another_form_is_named(line, message, tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text('{"tokens": [1, 2]}\n' + line)
    with pytest.raises(InputError, match=message):
        read_rows(file, 8, vocabulary=48)


def test_rows_are_cut_and_padded(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text('{"tokens": [1, 2, 3]}\n\n{"tokens": [4, 5, 6, 7, 8]}\n')
    rows = read_rows(file, 4)
    assert rows["tokens"].tolist() == [[1, 2, 3, 0], [4, 5, 6, 7]]
    assert rows["segments"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert rows["weights"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_settings_that_make_no_sense_are_refused(data):
    with pytest.raises(UsageError, match="base='nf4' stores weights that are frozen, but full=True"):
        tuning(LLAMA, data, full=True, base="nf4")
    with pytest.raises(UsageError, match=r"held_out=1.5 of 60 examples"):
        tuning(LLAMA, data, held_out=1.5)
    with pytest.raises(UsageError, match=r"57 examples, epochs=1 and batch_size=40 make 1 update"):
        tuning(LLAMA, data, epochs=1, batch_size=40)
