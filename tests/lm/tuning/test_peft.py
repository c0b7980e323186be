"""Held to what PEFT and PyTorch made of the same files: see golden/make.py."""

import functools
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.checkpoints._arrays._source import cast
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, UsageError
from meshwright.lm._models import decoder, gpt2, hugging_face, t5
from meshwright.lm._tuning._merged import merged_source
from meshwright.lm._tuning._peft import export_adapter, read_adapter
from pairs import slow_first

GOLDEN = Path(__file__).parent / "golden"
MODELS = Path(__file__).parents[2] / "lm" / "models" / "golden"
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name[0] != "_")
ALIKE = [name for name in NAMES if name != "qwen3"]  # whose scales differ between layers


def base_of(name):
    return cast(hugging_face.open_model(MODELS / name), [(".*", "float32")])


def arrays(path):
    return {name: np.asarray(x) for name, x in open_source(path).arrays().items()}


def logits_of(name, params):
    cfg, given = hugging_face.config(MODELS / name), arrays(MODELS / name / "expected.safetensors")
    if isinstance(cfg, t5.Config):
        return jax.jit(functools.partial(t5.logits, cfg))(
            params, given["input_ids"], given["decoder_input_ids"]
        )
    model = gpt2 if isinstance(cfg, gpt2.Config) else decoder
    return jax.jit(functools.partial(model.logits, cfg))(params, given["input_ids"])


def assert_logits(name, params):
    wanted = arrays(GOLDEN / name / "expected.safetensors")["logits"]
    np.testing.assert_allclose(logits_of(name, params), wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", slow_first(*NAMES))
def test_logits_with_an_adapter_of_peft_are_those_of_pytorch(name):
    lora, adapter = read_adapter(GOLDEN / name, MODELS / name)
    base = mw.checkpoints.load(base_of(name))
    assert_logits(name, lora.effective({"base": base, "adapter": adapter}))


@pytest.mark.parametrize("name", ["llama", "gemma", "gpt2"])
@pytest.mark.daily(1)
def test_logits_of_merged_weights_are_those_of_the_adapter(name):
    lora, adapter = read_adapter(GOLDEN / name, MODELS / name)
    assert_logits(name, mw.checkpoints.load(merged_source(base_of(name), adapter, lora)))
    assert_logits(name, lora.merged({"base": mw.checkpoints.load(base_of(name)), "adapter": adapter}))


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_written_is_what_peft_wrote(name, tmp_path):
    lora, adapter = read_adapter(GOLDEN / name, MODELS / name)
    export_adapter(adapter, tmp_path, lora, MODELS / name)
    theirs, ours = (arrays(place / "adapter_model.safetensors") for place in (GOLDEN / name, tmp_path))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
    theirs, ours = (
        json.loads((place / "adapter_config.json").read_text()) for place in (GOLDEN / name, tmp_path)
    )
    same = ("r", "lora_alpha", "use_dora", "use_rslora", "peft_type", "task_type", "bias", "rank_pattern")
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bias": "all"}, "bias='all', which is not known here"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\], which is not known here"),
        (
            {"init_lora_weights": "pissa_niter_4"},
            "='pissa_niter_4', .* path_initial_model_for_weight_conversion",
        ),
        (
            {"init_lora_weights": "loftq"},
            "init_lora_weights='loftq', .* `merge_and_unload` makes a whole model",
        ),
        ({"use_qalora": True}, "use_qalora=True, which is not known here. In PEFT, `merge_and_unload`"),
        ({"of_next_year": {"rate": 2}}, r"of_next_year=\{'rate': 2\}, which is not known here"),
        ({"peft_type": "IA3"}, "is of a 'IA3' adapter; only LORA"),
        ({"r": "x"}, "has r='x' and lora_alpha=6; expected numbers above 0"),
        ({"use_dora": True}, r"the adapter of layers/.* has no magnitude, but dora=True"),
    ],
)
def test_an_adapter_that_is_not_computed_here_is_refused_by_name(change, message, tmp_path):
    said = json.loads((GOLDEN / "llama" / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(said | change))
    shutil.copy(GOLDEN / "llama" / "adapter_model.safetensors", tmp_path)
    with pytest.raises(CheckpointError, match=message):
        read_adapter(tmp_path, MODELS / "llama")


def test_settings_of_an_adapter_that_change_nothing_are_taken(tmp_path):
    said = json.loads((GOLDEN / "llama" / "adapter_config.json").read_text())
    change = {"init_lora_weights": "gaussian", "target_modules": "all-linear", "of_next_year": None}
    (tmp_path / "adapter_config.json").write_text(json.dumps(said | change))
    shutil.copy(GOLDEN / "llama" / "adapter_model.safetensors", tmp_path)
    assert read_adapter(tmp_path, MODELS / "llama")[0].rank == 2


def changed(place, said, keep=lambda name: True, **arrays_too):
    """Write the adapter of LLaMA with other settings and arrays."""
    place.mkdir()
    config = json.loads((GOLDEN / "llama" / "adapter_config.json").read_text())
    (place / "adapter_config.json").write_text(json.dumps(config | said))
    kept = {
        name: x for name, x in arrays(GOLDEN / "llama" / "adapter_model.safetensors").items() if keep(name)
    }
    export_safetensors(mw.checkpoints.as_source(kept | arrays_too, "changed"), place)
    return (place / "model.safetensors").rename(place / "adapter_model.safetensors").parent


@pytest.mark.parametrize("layer", [0, 1])
def test_an_adapter_of_one_layer_leaves_the_others_as_they_are(layer, tmp_path):
    place = changed(
        tmp_path / "one", {"layers_to_transform": [layer]}, lambda name: f"layers.{layer}." in name
    )
    base = mw.checkpoints.load(base_of("llama"))
    of_all, of_one = (
        lora.merged({"base": base, "adapter": adapter})["layers"]
        for lora, adapter in (read_adapter(path, MODELS / "llama") for path in (GOLDEN / "llama", place))
    )
    for name, x in of_one.items():
        np.testing.assert_array_equal(x[layer], of_all[name][layer])
        np.testing.assert_array_equal(x[1 - layer], base["layers"][name][1 - layer])


@pytest.mark.parametrize("layers", [[0], 0])
def test_a_file_with_a_layer_that_the_config_leaves_out_is_refused(layers, tmp_path):
    place = changed(tmp_path / "both", {"layers_to_transform": layers})
    with pytest.raises(CheckpointError, match=r"is of layer 1, but layers_to_transform is \[0\]"):
        read_adapter(place, MODELS / "llama")


def test_an_adapter_of_a_lower_rank_in_one_layer_is_computed(tmp_path):
    q = "base_model.model.model.layers.1.self_attn.q_proj.lora_"
    rng = np.random.default_rng(0)
    new = {f"{q}A.weight": rng.normal(size=(1, 24)), f"{q}B.weight": rng.normal(size=(32, 1))}
    new = {name: x.astype(np.float32) for name, x in new.items()}
    place = changed(tmp_path / "lower", {"rank_pattern": {"layers.1.self_attn.q_proj": 1}}, **new)
    lora, adapter = read_adapter(place, MODELS / "llama")
    base = mw.checkpoints.load(base_of("llama"))
    added = lora.merged({"base": base, "adapter": adapter})["layers"]["q"][1] - base["layers"]["q"][1]
    wanted = 6 * (new[f"{q}B.weight"] @ new[f"{q}A.weight"]).T  # lora_alpha over the rank of the layer
    np.testing.assert_allclose(added, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("said", "gone", "message"),
    [
        (
            {},
            r"layers\.1\..*q_proj\.lora_B",
            r"not whole: \S*layers\.1\.self_attn\.q_proj\.lora_B\.weight is missing",
        ),
        ({}, r"layers\.1\.", r"layers\.1\.self_attn\.q_proj\.lora_A\.weight is missing"),
        ({"r": 4}, "-", r"layers\.0\.\S*lora_A\.weight has shape \(2, 24\), but its rank is 4"),
        (
            {"use_dora": True, "target_modules": [".*"]},
            r"layers\.1\.",
            "has no magnitude, but here DoRA is of all",
        ),
    ],
)
def test_an_adapter_that_is_not_whole_is_refused(said, gone, message, tmp_path):
    place = changed(tmp_path / "cut", said, lambda name: not re.search(gone, name))
    with pytest.raises(CheckpointError, match=message):
        read_adapter(place, MODELS / "llama")


def test_an_adapter_of_a_model_with_other_sizes_is_refused():
    with pytest.raises(CheckpointError, match=r"the adapter of layers/.* do not fit the weight"):
        read_adapter(GOLDEN / "llama", MODELS / "llama3")


def test_an_adapter_of_attention_is_read_and_written_for_a_mixture(tmp_path):
    lora = mw.lm.lora("layers/(q|v)", rank=2)
    params = lora.beside(mw.checkpoints.load(base_of("mixtral")), jax.random.key(0))
    export_adapter(params["adapter"], tmp_path, lora, MODELS / "mixtral")
    again = read_adapter(tmp_path, MODELS / "mixtral")[1]
    jax.tree.map(np.testing.assert_array_equal, again, params["adapter"])


def test_an_adapter_of_another_family_is_refused():
    with pytest.raises(CheckpointError, match=r"the model has no place for base_model\.model\.transformer"):
        read_adapter(GOLDEN / "gpt2", MODELS / "llama")
    with pytest.raises(CheckpointError, match="which describes the adapter, does not exist"):
        read_adapter(GOLDEN, MODELS / "llama")


def test_what_peft_has_no_name_for_is_not_written(tmp_path):
    adapter = {"embedding": {"lora_a": np.ones((48, 1)), "lora_b": np.ones((1, 24))}}
    with pytest.raises(UsageError, match="no place for the adapter of embedding"):
        export_adapter(adapter, tmp_path, mw.lm.lora("embedding", rank=1), MODELS / "llama")


def test_adapters_of_some_weights_of_one_module_become_one_of_a_larger_rank(tmp_path):
    lora = mw.lm.lora("layers/(q|v)", rank=2, alpha=3, rslora=True)
    rng, base = np.random.default_rng(0), mw.checkpoints.load(base_of("gpt2"))
    params = lora.beside(base, jax.random.key(0))
    params["adapter"] = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params["adapter"])
    export_adapter(params["adapter"], tmp_path, lora, MODELS / "gpt2")
    again, adapter = read_adapter(tmp_path, MODELS / "gpt2")
    assert json.loads((tmp_path / "adapter_config.json").read_text())["rank_pattern"].popitem()[1] == 4
    wanted, found = lora.merged(params), again.merged({"base": base, "adapter": adapter})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)
