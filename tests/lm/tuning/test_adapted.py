"""Runs that train an adapter: what they begin from, what they save, and what becomes of them."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.base import _tree as tree
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, UsageError
from meshwright.lm._models import decoder, hugging_face
from meshwright.lm._tuning._experiment import adapted
from meshwright.lm._tuning._merged import merged_source
from meshwright.lm._tuning._peft import export_adapter
from meshwright.lm._tuning._quantised import Quantised, quantised_init, quantised_source

pytestmark = pytest.mark.slow
MODELS = Path(__file__).parents[2] / "lm" / "models" / "golden"
LLAMA = MODELS / "llama"
CFG = hugging_face.config(LLAMA)
ROWS = {"tokens": np.random.default_rng(0).integers(0, 48, size=(32, 10))}
WEIGHTS = "layers/(q|k|v|o|gate|up|down)"
LORA = mw.lm.lora("layers/(q|v|down)", rank=2)


def measure(params, batch):
    return {"nll": decoder.losses(CFG, params, batch["tokens"])}


def experiment(workdir, kind=None, lora=LORA, base=LLAMA, dtype="bfloat16", **more):
    init, opened = functools.partial(decoder.init, CFG, dtype=dtype), hugging_face.open_model
    if kind:
        init = quantised_init(init, WEIGHTS, kind)
        opened = lambda path: quantised_source(hugging_face.open_model(path), WEIGHTS, kind)
    whole = mw.Experiment(
        workdir=str(workdir),
        model=init,
        loss=lambda params, batch: decoder.loss(CFG, params, batch, remat="nothing"),
        optimizer=optax.adam(1e-2),
        rules=decoder.RULES,
        init_state_builder=mw.engine.from_checkpoint(
            str(base),
            assign=[("params/(.*)", r"\1")],
            casts=[] if dtype == "bfloat16" else [(".*", dtype)],
            open_with=opened,
        ),
        **{"max_steps": 2, "mesh": "data=2,fsdp=2,tensor=2", "input": mw.Input(ROWS, batch_size=8)} | more,
    )
    return adapted(whole, lora)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A run of two steps, with an evaluation and a checkpoint at each."""
    run = tmp_path_factory.mktemp("tuned")
    evaluations = {"test": mw.Evaluation(measure, ROWS, when=1)}
    return run, mw.run(experiment(run, evaluations=evaluations, save=mw.Save(when=1)))


def test_a_run_of_an_adapter_begins_from_its_base_and_leaves_it_as_it_is(tuned):
    _, outcome = tuned
    base = tree.named_leaves(outcome.state.params["base"])
    saved = hugging_face.open_model(LLAMA).arrays()
    assert base.keys() == saved.keys()
    assert all(np.array_equal(np.asarray(base[name]), np.asarray(saved[name])) for name in base)
    assert outcome.scores["test/nll"] < 5


def test_a_checkpoint_refers_to_the_base_and_does_not_copy_it(tuned):
    run, _ = tuned
    names = set(open_source(run / "checkpoints").arrays())
    assert not [name for name in names if "/base/" in name]
    assert {"params/adapter/layers/q/lora_a", "params/adapter/layers/down/lora_b"} < names
    assert str(LLAMA) in (run / "began_from.txt").read_text()


def test_a_run_of_an_adapter_continues_to_the_bit(tuned, tmp_path):
    _, whole = tuned
    mw.run(experiment(tmp_path, max_steps=1))
    then = mw.run(experiment(tmp_path)).state
    assert then.step == 2
    jax.tree.map(np.testing.assert_array_equal, then.params, whole.state.params)
    jax.tree.map(np.testing.assert_array_equal, then.opt_state, whole.state.opt_state)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_a_quantised_base_is_read_part_by_part_onto_a_mesh(kind, tmp_path, mesh):
    lora = mw.lm.lora("layers/(q|v|down)", rank=2, dora=True)
    run = experiment(tmp_path, kind, lora)
    target = mw.training.abstract_state(run.model, run.optimizer, mw.Layout(mesh, run.rules))
    given = run.init_state_builder(target)
    saved = quantised_source(hugging_face.open_model(LLAMA), WEIGHTS, kind).arrays()
    codes, scales = (given[f"params/base/layers/down/{part}"] for part in ("codes", "scales"))
    assert codes.sharding.spec == jax.sharding.PartitionSpec(None, "tensor", "fsdp")
    assert scales.dtype == jnp.bfloat16
    np.testing.assert_array_equal(codes, np.asarray(saved["layers/down/codes"]))
    np.testing.assert_array_equal(scales, np.asarray(saved["layers/down/scales"]))
    weight = np.asarray(Quantised(codes, scales, 24, kind).dequantised(), np.float32)
    magnitude = given["params/adapter/layers/down/magnitude"]
    np.testing.assert_allclose(magnitude, np.linalg.norm(weight, axis=-2), rtol=1e-5)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_an_adapter_learns_beside_a_quantised_base_on_a_mesh(kind, tmp_path):
    examples = {"tokens": np.tile(np.arange(3, 13), (32, 1))}
    lora = mw.lm.lora("layers/(q|v|down)", rank=2, dora=True, dropout=0.1)
    more = {"input": mw.Input(examples, batch_size=8), "max_steps": 30}
    evaluations = {"test": mw.Evaluation(measure, examples, when=30)}
    outcome = mw.run(experiment(tmp_path, kind, lora, **more, evaluations=evaluations))
    assert outcome.scores["test/nll"] < 2.5


def test_merged_weights_are_those_of_the_state_and_load_as_a_model(tuned, tmp_path):
    run, outcome = tuned
    adapter = mw.checkpoints.subtree(open_source(run / "checkpoints"), "params/adapter")
    merged = merged_source(hugging_face.open_model(LLAMA), adapter, LORA)
    hugging_face.export_model(merged, tmp_path, LLAMA)
    of_state = tree.named_leaves(LORA.merged(outcome.state.params))
    found = hugging_face.open_model(tmp_path).arrays()
    assert all(x.dtype == jnp.bfloat16 for x in found.values())
    # Both are the float32 sums, rounded once; a sum on the edge may be rounded to either side.
    for name, x in of_state.items():
        np.testing.assert_allclose(np.float32(x), np.asarray(found[name], np.float32), rtol=2**-7)
    assert (tmp_path / "config.json").read_bytes() == (LLAMA / "config.json").read_bytes()


# EasyDeL's issue 259 has three faults: an adapter that does not say what it is for, a merge that fails on
# several hosts (test_several_processes.py), and merged weights of another dtype (above).
def test_an_adapter_says_which_base_it_is_for(tuned, tmp_path):
    _, outcome = tuned
    for number, (given, said) in enumerate([({}, str(LLAMA)), ({"base": "org/Llama"}, "org/Llama")]):
        place = tmp_path / str(number)
        export_adapter(outcome.state.params["adapter"], place, LORA, LLAMA, **given)
        config = json.loads((place / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == said
    with pytest.raises(UsageError, match="must say which model it is for"):
        export_adapter(outcome.state.params["adapter"], tmp_path / "2", LORA, LLAMA, base="")


def test_an_adapter_does_not_overwrite_another(tuned, tmp_path):
    _, outcome = tuned
    export_adapter(outcome.state.params["adapter"], tmp_path, LORA, LLAMA)
    with pytest.raises(UsageError, match=r"adapter_model.safetensors, adapter_config.json already"):
        export_adapter(outcome.state.params["adapter"], tmp_path, LORA, LLAMA)


def test_an_adapter_of_another_model_is_refused(tuned):
    _, outcome = tuned
    source = mw.checkpoints.as_source({"layers/down": np.ones((2, 8, 24), np.float32)}, "another model")
    with pytest.raises(CheckpointError, match="the adapter of layers"):
        merged_source(source, outcome.state.params["adapter"], LORA)


def test_without_a_builder_the_base_is_saved(tmp_path):
    whole = dataclasses.replace(experiment(tmp_path), init_state_builder=None)
    assert whole.save.names is not None
    plain = mw.Experiment(
        workdir=str(tmp_path),
        model=functools.partial(decoder.init, CFG),
        loss=lambda params, batch: decoder.loss(CFG, params, batch),
        optimizer=optax.sgd(1e-2),
        input=mw.Input(ROWS, batch_size=8),
        max_steps=1,
    )
    assert adapted(plain, LORA).save.names is None
