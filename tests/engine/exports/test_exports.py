"""Exported programs: what they compute without Meshwright, what they take, and what is refused."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.engine._exports._file import packed, read
from meshwright.errors import InputError, UsageError
from meshwright.lm._models import decoder, gpt2, t5

CFG = decoder.Config(vocabulary=32, model=8, layers=1, heads=2, feed_forward=8)
PARAMS = decoder.init(CFG, mw.training.key_of(0))
TOKENS = np.arange(12, dtype=np.int32).reshape(2, 6)
ROW = "int32[batch, length]"
BLOCKED = "import sys; sys.modules['meshwright'] = None\n"  # any import of it is an error

INSIDE = """
import sys
import jax, numpy as np
program = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
np.save(sys.argv[2], program.call(np.load(sys.argv[3])))
"""
BESIDE = """
import json, sys
import jax, numpy as np
program = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
raw = open(sys.argv[1].replace(".jaxexport", ".safetensors"), "rb").read()
start = 8 + int.from_bytes(raw[:8], "little")
weights, dtypes = {}, {"F32": "float32", "BF16": "bfloat16"}
for name, x in json.loads(raw[8:start]).items():
    if name != "__metadata__":
        first, last = x["data_offsets"]
        values = np.frombuffer(raw[start + first : start + last], jax.numpy.dtype(dtypes[x["dtype"]]))
        weights[name] = values.reshape(x["shape"])
np.save(sys.argv[2], program.call(weights, np.load(sys.argv[3])))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The path of a decoder's logits, exported with the weights inside."""
    function = mw.lm.logits_of(mw.lm.with_cache(CFG))
    return mw.engine.export(function, PARAMS, ROW, tmp_path_factory.mktemp("exported") / "model.jaxexport")


def by_a_program(script, path, inputs):
    """Return what a program without Meshwright computes."""
    np.save(path.with_suffix(".in.npy"), inputs)
    found = path.with_suffix(".out.npy")
    words = [str(path), str(found), str(path.with_suffix(".in.npy"))]
    subprocess.run([sys.executable, "-c", BLOCKED + script, *words], check=True, cwd="/")
    return np.load(found)


@pytest.mark.parametrize("script", [INSIDE, BESIDE])
def test_the_program_without_meshwright_has_about_ten_lines(script):
    assert len(script.strip().splitlines()) <= 12


@pytest.mark.slow
def test_a_program_runs_where_meshwright_cannot_be_imported(model):
    found = by_a_program(INSIDE, model, TOKENS)
    np.testing.assert_allclose(found, decoder.logits(CFG, PARAMS, TOKENS), atol=1e-5)


@pytest.mark.slow
def test_weights_beside_a_program_are_given_to_it(tmp_path):
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.ndim > 2 else x, PARAMS)
    function = mw.lm.logits_of(mw.lm.with_cache(CFG))
    path = mw.engine.export(
        function, narrow, ROW, tmp_path / "m.jaxexport", arrays="beside", platforms=["cpu"]
    )
    assert path.stat().st_size < 40_000
    found = by_a_program(BESIDE, path, TOKENS)
    np.testing.assert_array_equal(found, mw.engine.load_program(path)(TOKENS))
    np.testing.assert_allclose(found, function(narrow, TOKENS), atol=1e-5)


@pytest.mark.slow
def test_a_program_takes_any_batch_and_length(model):
    program = mw.engine.load_program(model)
    assert (program.inputs, program.outputs) == (ROW, "float32[batch, length, 32]")
    for shape in ((1, 1), (3, 17), (5, 2)):
        tokens = np.arange(np.prod(shape), dtype=np.int32).reshape(shape) % 32
        np.testing.assert_allclose(program(tokens), decoder.logits(CFG, PARAMS, tokens), atol=1e-5)


def test_sizes_with_names_are_any_numbers(tmp_path):
    path = mw.engine.export(
        lambda w, x: x @ w, np.eye(3, dtype=np.float32), "float32[n, 3]", tmp_path / "x.jaxexport"
    )
    program = mw.engine.load_program(path)
    assert (program.inputs, program.outputs) == ("float32[n, 3]", "float32[n, 3]")
    for n in (1, 5):
        np.testing.assert_array_equal(program(np.ones((n, 3), np.float32)), np.ones((n, 3)))


def test_a_program_is_lowered_for_platforms_that_are_not_here(model):
    program = mw.engine.load_program(model).program
    assert program.platforms == ("cpu", "cuda", "tpu")


@pytest.mark.slow
def test_the_length_of_a_model_with_positions_is_bounded(tmp_path):
    cfg = gpt2.Config(vocabulary=32, model=8, layers=1, heads=2, positions=8)
    params = gpt2.init(cfg, mw.training.key_of(0))
    function = mw.lm.logits_of(mw.lm.with_cache(cfg))
    path = mw.engine.export(function, params, ROW, tmp_path / "g.jaxexport", constraints=["length <= 8"])
    program = mw.engine.load_program(path)
    np.testing.assert_allclose(program(TOKENS), gpt2.logits(cfg, params, TOKENS), atol=1e-5)
    with pytest.raises(UsageError, match=r"where length <= 8; found \"int32\[1, 9\]\""):
        program(np.zeros((1, 9), np.int32))


@pytest.mark.slow
def test_an_encoder_decoder_is_exported(tmp_path):
    cfg = t5.Config(vocabulary=32, model=8, layers=1, decoder_layers=1, heads=2, head=4, feed_forward=8)
    params = t5.init(cfg, mw.training.key_of(0))
    inputs = {"inputs": "int32[batch, inputs]", "lengths": "int32[batch]", "targets": ROW}
    function = mw.lm.logits_of(mw.lm.with_cache(cfg))
    program = mw.engine.load_program(mw.engine.export(function, params, inputs, tmp_path / "t5.jaxexport"))
    given = {"inputs": TOKENS, "lengths": np.array([6, 3], np.int32), "targets": TOKENS[:, :4]}
    np.testing.assert_allclose(program(given), function(params, given), atol=1e-5)


def test_a_model_that_reads_a_token_at_a_time_is_exported(tmp_path):
    def apply(params, tokens, cache):
        return params[tokens] + cache, cache + 1.0

    model = mw.lm.counting(lambda params, length: jnp.zeros(()), apply)
    function, table = mw.lm.logits_of(model), jnp.eye(16)
    found = mw.engine.load_program(mw.engine.export(function, table, ROW, tmp_path / "c.jaxexport"))(TOKENS)
    np.testing.assert_array_equal(found, np.eye(16)[TOKENS] + np.arange(6)[None, :, None])


@pytest.mark.parametrize("where", ["the program", "the description", "the end"])
def test_a_damaged_file_is_named(model, tmp_path, where):
    content = bytearray(model.read_bytes())
    content[{"the program": 5000, "the description": -60, "the end": -15}[where]] ^= 1
    (tmp_path / "bad.jaxexport").write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.jaxexport is damaged: its \d+ bytes do not have the checks"):
        mw.engine.load_program(tmp_path / "bad.jaxexport")


@given(size=st.integers(0, 200), cut=st.floats(0, 0.999))
def test_any_cut_or_foreign_file_is_refused(model, size, cut):
    content = model.read_bytes()
    for number, wrong in enumerate([content[: int(cut * len(content))], bytes(size), b"MWEXPRT1"]):
        path = model.with_name(f"wrong{number}.jaxexport")
        path.write_bytes(wrong)
        with pytest.raises(InputError, match="is not a file of `meshwright export`, or its end is missing"):
            mw.engine.load_program(path)


def test_damaged_or_missing_weights_are_named(tmp_path):
    path = mw.engine.export(
        lambda w, x: w * x, jnp.ones(3), "float32[3]", tmp_path / "a.jaxexport", arrays="beside"
    )
    beside = path.with_suffix(".safetensors")
    content = bytearray(beside.read_bytes())
    content[-1] ^= 1
    beside.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.safetensors is damaged, or is not of .*a\.jaxexport"):
        mw.engine.load_program(path)
    beside.unlink()
    with pytest.raises(InputError, match=r"the weights of .* are in .*a\.safetensors, which cannot be read"):
        mw.engine.load_program(path)


@pytest.mark.parametrize("arrays", [{}, {"file": 1}, {"file": "../a"}, {"file": "a\0b"}])
def test_a_description_that_names_no_file_of_weights_is_refused(model, arrays):
    program, about = read(model)
    path = model.with_name("named.jaxexport")
    path.write_bytes(b"".join(packed(bytes(program), {**about, "arrays": arrays})))
    with pytest.raises(InputError, match=r"the description in .* is not one"):
        mw.engine.load_program(path)


def test_inputs_that_do_not_fit_are_told(model):
    program = mw.engine.load_program(model)
    with pytest.raises(UsageError, match=r'takes "int32\[batch, length\]"; found "float32\[2, 6\]"'):
        program(TOKENS.astype(np.float32))


def test_a_program_for_other_devices_says_so(tmp_path):
    path = mw.engine.export(
        lambda w, x: w * x, 2.0, "float32[n]", tmp_path / "t.jaxexport", platforms=["tpu"]
    )
    with pytest.raises(UsageError, match=r"is for tpu, and the devices here are of cpu"):
        mw.engine.load_program(path)(np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"platforms": ["cpu", "abacus"]}, "platforms: 'abacus' is not among cpu, cuda, rocm, tpu"),
        ({"platforms": "cpu"}, "give a list of these"),
        ({"arrays": "under"}, "arrays='under': expected 'inside' or 'beside'"),
        ({"inputs": "float32(4)"}, "which is not a dtype and sizes"),
        ({"inputs": "float33[4]"}, "which is not a dtype and sizes"),
        ({"constraints": ["length"]}, "constraints="),
        ({"to": "model.bin"}, "the name of the file must end with .jaxexport"),
        ({"to": "there.jaxexport"}, "exists already"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("there.jaxexport").write_text("")
    given = {"inputs": "float32[n]", "to": "new.jaxexport", **options}
    with pytest.raises(UsageError, match=said):
        mw.engine.export(lambda w, x: w * x, 2.0, **given)
    assert [path.name for path in tmp_path.iterdir()] == ["there.jaxexport"]


def test_a_function_that_needs_a_size_is_told_how_to_give_it(tmp_path):
    with pytest.raises(Exception, match="requires a constant") as raised:
        mw.engine.export(
            lambda w, x: x.reshape(int(x.shape[0]) // 2, 2), 1.0, "float32[n]", tmp_path / "a.jaxexport"
        )
    assert "give a number in place of its name" in raised.value.__notes__[-1]


def test_weights_of_a_mesh_are_exported_whole(tmp_path):
    mesh = mw.make_mesh("fsdp=8")
    w = jax.device_put(np.arange(16, dtype=np.float32), jax.NamedSharding(mesh, jax.P("fsdp")))
    program = mw.engine.load_program(
        mw.engine.export(lambda w, x: w + x, w, "float32[]", tmp_path / "a.jaxexport")
    )
    np.testing.assert_array_equal(program(np.float32(1)), np.arange(16) + 1)
