"""What a tuned run writes and scores: with its adapter, beside bases of all kinds."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.lm._checkpoint_models import texts_of_checkpoint
from meshwright.lm._models import decoder, hugging_face
from meshwright.lm._models._with_cache import with_cache
from meshwright.lm._tuning._tune import adapter_of, tuning

pytestmark = pytest.mark.slow
LLAMA = str(Path(__file__).parents[2] / "lm" / "models" / "golden" / "llama")
CFG = hugging_face.config(LLAMA)
PROMPT = [1, 5, 6]
COUNTS = list(range(7, 12))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sentences that count up, which the tuned model then does."""
    file = tmp_path_factory.mktemp("data") / "data.jsonl"
    firsts = np.random.default_rng(0).integers(3, 20, size=60)
    rows = [{"tokens": [1, *range(int(first), int(first) + 8)]} for first in firsts]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture(scope="module", params=[None, "int8", "nf4"])
def tuned(request, data, tmp_path_factory):
    """A run that `meshwright tune` made, and its experiment."""
    run = str(tmp_path_factory.mktemp("tuned") / "run")
    how = {"epochs": 12, "learning_rate": 2e-2, "lora": 8, "held_out": 0.1, "mesh": "fsdp=4,tensor=2"}
    experiment = tuning(LLAMA, data, run, base=request.param, **how)
    mw.run(experiment)
    return experiment


def test_a_tuned_run_writes_with_its_adapter(tuned):
    decoding = mw.lm.Decoding(max_new_tokens=5)
    [row] = [
        piece.tokens for piece in texts_of_checkpoint(tuned, ["1 5 6"], decoding=decoding, every=5).pieces
    ]
    assert row.tolist() == COUNTS


def test_it_writes_and_scores_as_the_whole_merged_model(tuned):
    params = mw.engine._internal.state_of_checkpoint(tuned).params
    merged = adapter_of(CFG, 8, None).merged(jax.tree.map(lambda x: x, params))
    decoding, model = mw.lm.Decoding(max_new_tokens=5), with_cache(CFG)
    [written] = mw.lm.generate(tuned.samples.model, params, [PROMPT], decoding)
    [expected] = mw.lm.generate(model, merged, [PROMPT], decoding)
    assert written.tolist() == expected.tolist()
    [found] = mw.lm.score(tuned.samples.model, params, [COUNTS], [PROMPT])
    [other] = mw.lm.score(model, merged, [COUNTS], [PROMPT])
    np.testing.assert_allclose(found.log_probs, other.log_probs, atol=0.1)  # in bfloat16
    assert found.is_greedy


def test_a_shell_samples_from_a_tuned_run_and_sees_its_perplexity(data, tmp_path, capsys):
    run = str(tmp_path / "run")
    words = [
        "tune",
        LLAMA,
        data,
        f"workdir={run}",
        "epochs=12",
        "learning_rate=2e-2",
        "lora=8",
        "held_out=0.1",
    ]
    assert main([*words, "mesh=data=-1"]) == 0
    capsys.readouterr()
    assert main(["sample", run, "1 5 6 ", "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out.split()[-5:] == [str(token) for token in COUNTS]
    assert main(["eval", run, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores["held_out/perplexity"] == pytest.approx(np.exp(scores["held_out/loss"]))


def test_an_adapter_beside_any_reference_model_writes_texts_in_training(tmp_path):
    cfg = decoder.Config(vocabulary=256, model=16, layers=1, heads=2, feed_forward=16)
    row = np.frombuffer(b"Once upon a time", np.uint8).astype(np.int32)
    whole = mw.Experiment(
        workdir=str(tmp_path),
        model=functools.partial(decoder.init, cfg),
        loss=lambda params, batch: decoder.loss(cfg, params, batch),
        optimizer=optax.adam(1e-2),
        input=mw.Input({"tokens": np.tile(row, (8, 1))}, batch_size=8),
        max_steps=2,
    )
    experiment = mw.lm.adapted(whole, mw.lm.lora("layers/(q|v)", rank=2))
    written = dataclasses.replace(
        experiment.samples, prompts=("1 2",), decoding=mw.lm.Decoding(max_new_tokens=3)
    )
    outcome = mw.run(dataclasses.replace(experiment, samples=written))
    assert outcome.scores == {"samples/tokens": 3.0}
