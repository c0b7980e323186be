"""`meshwright sample`: what a run's model writes, as a shell sees it, and texts of an evaluation."""

import dataclasses
import functools
import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.errors import UsageError
from meshwright.lm._checkpoint_models import texts_of_checkpoint
from meshwright.lm._models import decoder

pytestmark = pytest.mark.slow
CFG = decoder.Config(vocabulary=256, model=16, layers=1, heads=2, feed_forward=16)
TEXT = "Once upon a time there was a mesh. "


def loss(cfg, params, batch):
    return decoder.loss(cfg, params, batch)


def experiment(workdir: str = "runs/writes", max_steps: int = 120) -> mw.Experiment:
    row = np.frombuffer((TEXT * 2).encode(), np.uint8).astype(np.int32)
    return mw.Experiment(
        workdir=workdir,
        model=functools.partial(decoder.init, CFG),
        loss=functools.partial(loss, CFG),
        optimizer=optax.adam(2e-2),
        input=mw.Input({"tokens": np.stack([np.roll(row, -i) for i in range(8)])}, batch_size=8),
        max_steps=max_steps,
        samples=mw.lm.Generation(
            mw.lm.with_cache(CFG),
            tokenizer=mw.lm.Bytes(),
            prompts=("Once", "upon"),
            decoding=mw.lm.Decoding(max_new_tokens=12),
            when=60,
        ),
        save=mw.Save(when=60),
    )


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with a run that this module's experiment made; the current directory."""
    folder = tmp_path_factory.mktemp("writes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "writes.py").write_text(Path(__file__).read_text())
        patch.syspath_prepend(str(folder))
        assert main(["train", "writes:experiment"]) == 0
        yield folder
    sys.modules.pop("writes", None)


def test_a_run_writes_after_a_prompt(here, capsys):
    assert main(["sample", "runs/writes", "Once", "--max-new-tokens", "20"]) == 0
    out, err = capsys.readouterr()
    assert out == "Once upon a time there w\n"
    assert "generating by writes:experiment" in err


def test_texts_of_an_evaluation_are_in_files_and_on_the_page(here):
    lines = Path("runs/writes/outputs/samples/step_00000120.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"prompt": "Once", "text": " upon a time", "tokens": 12}
    page = Path("runs/writes/report.html").read_text()
    assert "Samples of the model, step 120" in page
    assert "<pre> upon a time</pre>" in page
    reports = list(mw.observe.read_jsonl("runs/writes/metrics.jsonl"))
    assert [report["step"] for report in reports if "samples/tokens" in report] == [60, 120]


def test_several_prompts_come_as_one_document_with_their_tokens(here, capsys):
    words = ["sample", "runs/writes", "Once", "time", "--stop", "e", "--temperature", "0", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["texts"][0]["text"] == " upon a time"
    assert [row["text"].count("e") for row in found["texts"]] == [1, 1]
    assert found["checkpoint"] == "runs/writes/checkpoints/step_00000120"
    assert bytes(found["texts"][0]["tokens"]).decode() == found["texts"][0]["text"]


@pytest.mark.slow
def test_a_seed_draws_the_same_again_and_another_one_anew(here, capsys):
    def sampled(seed):
        words = ["sample", "runs/writes", "O", "--temperature", "3", "--seed", seed, "--step", "60"]
        assert main(words) == 0
        return capsys.readouterr().out

    assert sampled("1") == sampled("1") != sampled("2")


def test_without_generation_a_reference_model_takes_tokens(here):
    bare = dataclasses.replace(experiment(), samples=None)
    decoding = mw.lm.Decoding(max_new_tokens=5)
    texts = texts_of_checkpoint(bare, ["79 110 99 101"], decoding=decoding)
    assert bytes(np.concatenate([piece.tokens for piece in texts.pieces]).tolist()).decode() == " upon"
    assert texts.step == 120
    other = dataclasses.replace(bare, model=lambda key: decoder.init(CFG, key))
    with pytest.raises(UsageError, match=r"Add to it:\n    samples=mw\.lm\.Generation"):
        texts_of_checkpoint(other, ["1"])


@pytest.mark.slow
def test_a_run_on_a_mesh_writes_the_same(here):
    split = dataclasses.replace(experiment(), mesh="data=2,fsdp=2,tensor=2", rules=decoder.RULES)
    texts = texts_of_checkpoint(split, ["Once"], decoding=mw.lm.Decoding(max_new_tokens=5))
    assert bytes(np.concatenate([piece.tokens for piece in texts.pieces]).tolist()).decode() == " upon"
    assert jax.device_count() == 8


def test_an_option_that_has_no_meaning_is_refused(here, capsys):
    assert main(["sample", "runs/writes", "Once", "--beams", "2", "--top-k", "3"]) == 2
    assert "beams=2 needs temperature=0" in capsys.readouterr().err
