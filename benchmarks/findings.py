"""Faults that were once silent: what a small program of each printed then, what it prints now, and its test.

The programs run one after another, each in an empty folder. The bar: none prints what it printed before, and
each test exists. `--tiny` runs one program of each kind; words choose those whose kind or number has them.
"""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import json
import logging
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import threading
import time
import unittest.mock
import warnings
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers
from flax import linen

import meshwright as mw
from meshwright.base._storage import _settings
from meshwright.checkpoints._formats.readers import _file, _zarr2
from meshwright.cli import _commands, _guess, _overrides
from meshwright.cli import _internal as cli
from meshwright.engine._errors import errors_naming
from meshwright.engine._evaluation._parts import EvaluationContext, evaluation_parts
from meshwright.engine._spikes import Rule
from meshwright.launch._local import free_port
from meshwright.launch._members import End
from meshwright.launch._outcome import summary
from meshwright.launch._output import Lines, Output
from meshwright.lm._models import decoder
from meshwright.processes import _peers, _rendezvous, _sockets
from meshwright.report._ledger import Ledger, saving_advice

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Finding:
    """A fault: its kind and number, what its program printed, the program, and the test that tries it now."""

    kind: str
    number: str
    before: str
    test: str
    program: Callable[[], object]

    def now(self) -> str:
        """Run the program, and return its result or the first line of its error."""
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    return str(self.program())
            except Exception as error:
                return f"{type(error).__name__}: {str(error).splitlines()[0]}"

    def has_test(self) -> bool:
        """Return whether the test is in its file."""
        path, _, name = self.test.partition("::")
        return f"def {name}(" in (ROOT / path).read_text()


FINDINGS: list[Finding] = []


def finding(
    kind: str, number: str, *, before: str, test: str
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Add a program to the findings."""

    def add(program: Callable[[], object]) -> Callable[[], object]:
        FINDINGS.append(Finding(kind, number, before, test, program))
        return program

    return add


@contextlib.contextmanager
def lines_logged(word: str):
    """Collect the lines of the log that have a word in a list."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.extend(filter(lambda line: word in line, [record.getMessage()]))
    log = logging.getLogger("meshwright")
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)


def squares(params, batch):
    return ((batch["x"] @ params["w"]) ** 2).mean()


def measure_squares(params, batch):
    return {"loss": (batch["x"] @ params["w"]) ** 2}


X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)


def run(**settings):
    """Run an experiment, which is of one step where the settings do not say otherwise."""
    usual = {
        "workdir": "run",
        "model": lambda key: {"w": jnp.ones(4)},
        "loss": squares,
        "optimizer": optax.sgd(0.01),
        "max_steps": 1,
        "input": mw.Input({"x": X}, batch_size=16),
    }
    return mw.run(mw.Experiment(**{**usual, **settings}))


# --- wishes that were dropped


@finding(
    "wish",
    "publicbugs 1",
    before="saved: [1. 1. 1.]",
    test="tests/checkpoints/test_checkpoints.py::test_another_state_of_a_step_that_exists_is_refused",
)
def another_state_of_a_saved_step():
    with mw.Checkpoints("run") as checkpoints:
        checkpoints.save(5, {"a": jnp.ones(3)})
        checkpoints.save(5, {"a": jnp.zeros(3)})
    return f"saved: {np.asarray(mw.checkpoints.open_source('run').arrays()['a'])}"


@finding(
    "wish",
    "publicbugs 1: a second training beside the first",
    before="the second ended with w = 1.0, saved is 0.0",
    test="tests/checkpoints/test_checkpoints.py"
    "::test_a_training_that_begins_anew_beside_later_checkpoints_is_refused_at_its_first_step",
)
def a_second_training_without_resume():
    for w in (0.0, 1.0):
        with mw.Checkpoints("run") as checkpoints:
            save = checkpoints.saver(mw.engine.every(2))
            for step in range(1, 5):
                save(mw.engine.Tick(step), {"w": w}, None, None)
    saved = np.asarray(mw.checkpoints.open_source("run").arrays()["w"])
    return f"the second ended with w = 1.0, saved is {saved}"


@finding(
    "wish",
    "publicbugs 1: scores that come after the save",
    before="scores: {}",
    test="tests/checkpoints/test_checkpoints.py"
    "::test_the_same_state_of_a_step_gets_the_scores_of_later_evaluations",
)
def scores_after_the_save():
    with mw.Checkpoints("run") as checkpoints:
        for scores in ({}, {"test/loss": 0.5}):
            checkpoints.save(5, {"a": jnp.ones(3)}, {"scores": scores})
        return f"scores: {checkpoints.scores()}"


@finding(
    "wish",
    "publicbugs2 4",
    before="begun again at step 0",
    test="tests/checkpoints/test_resume.py::test_a_run_whose_manifests_are_all_lost_does_not_begin_again",
)
def a_run_without_its_manifests():
    with mw.Checkpoints("run") as checkpoints:
        checkpoints.save(5, {"a": jnp.ones(3)})
    Path("run/step_00000005/manifest.json").unlink()
    with mw.Checkpoints("run") as checkpoints:
        checkpoints.resume({"a": jnp.zeros(3)}, None, otherwise=lambda: None)
    return f"begun again at step {checkpoints.resumed or 0}"


@finding(
    "wish",
    "publicbugs2 5",
    before="round 1 is saved, and the restart ends with a CheckpointError",
    test="tests/engine/trainer/test_rounds.py"
    "::test_a_carry_that_a_restart_could_not_restore_is_refused_when_it_is_first_saved",
)
def a_carry_that_cannot_be_restored():
    for start in range(2):
        rounds = mw.Deployer(seed=0, workdir="run", verbose=False).rounds(1 + start, carry=jnp.zeros(0))
        try:
            for each in rounds:
                each.carry = jnp.append(each.carry, 1.0)
        except mw.errors.CheckpointError as error:
            return f"round 1 is saved, and the restart ends with a {type(error).__name__}"
    return "continued"


@finding(
    "wish",
    "own, wishes after the end of a run",
    before="[]",
    test="tests/engine/experiment/test_unscored.py::test_what_is_asked_for_after_the_end_of_a_run_is_a_warning",
)
def wishes_after_the_end():
    with lines_logged("the run ends") as lines:
        run(
            evaluations={"test": mw.Evaluation(measure_squares, {"x": X}, when=500, at_end=False)},
            profile=mw.Profile(steps=(100,)),
        )
    return lines


@finding(
    "wish",
    "own, spikes that are never found",
    before="a loss of 1e9 is a spike: False",
    test="tests/engine/experiment/test_spikes.py::test_a_window_that_never_holds_enough_values_is_refused",
)
def spikes_that_are_never_found():
    rule = Rule(mw.engine.Spikes(window=16, metrics=("loss",)))
    for step in range(100):
        rule.judge(step, {"loss": 1.0})
    return f"a loss of 1e9 is a spike: {rule.judge(100, {'loss': 1e9}) is not None}"


@finding(
    "wish",
    "publicbugs2 1",
    before="4 of 8 batches are trained",
    test="tests/training/test_loop.py::test_an_update_that_does_not_count_each_batch_once_is_refused",
)
def an_update_that_counts_twice():
    def update(state, batch):
        return dataclasses.replace(state, step=state.step + 2), {"loss": batch["x"].mean()}

    layout = mw.Layout(mw.make_mesh("data=-1"))
    state = mw.training.init_state(lambda key: {"w": jnp.ones(4)}, optax.sgd(0.1), 0, layout)
    batches: list[int] = []
    for max_steps in (4, 8):  # a run, and its restart
        data = ({"x": X} for _ in range(8 - len(batches)))
        on_step = lambda tick: batches.append(tick.step)  # noqa: E731
        state = mw.fit(mw.training.Step(update, layout), state, data, max_steps=max_steps, on_step=on_step)
    return f"{len(batches)} of 8 batches are trained"


@finding(
    "wish",
    "publicbugs 3",
    before="6 calls of fit train on 64 of 70 examples",
    test="tests/engine/trainer/test_calls.py::test_each_call_has_an_order_and_random_numbers_of_its_own",
)
def calls_of_fit_in_one_order():
    def loss(params, batch):
        named = {f"id/{i}": batch["id"][i] for i in range(16)}
        return (params["w"] - batch["id"].mean()) ** 2, named

    met: set[float] = set()
    track = lambda step, metrics: met.update(x for name, x in metrics.items() if "id/" in name)  # noqa: E731
    deployer = mw.Deployer(seed=0, verbose=False, trackers=[track])
    trainer = mw.Trainer(deployer, params={"w": jnp.zeros(())}, loss=loss, optimizer=optax.sgd(0.1))
    for _ in range(6):
        examples = {"id": np.arange(70, dtype=np.float32)}
        trainer.fit(examples, batch_size=16, epochs=1, logging=mw.Logging(every=1))
    return f"6 calls of fit train on {len(met)} of 70 examples"


@finding(
    "wish",
    "ports A4",
    before="[2.5 2.5 2.5 2.5], where [1. 2. 3. 4.] is right",
    test="tests/training/test_optimizers.py::test_updates_of_another_shape_or_structure_than_the_parameters_are_told",
)
def gradients_of_examples_from_their_mean():
    tx = optax.chain(optax.contrib.differentially_private_aggregate(1e6, 0.0, key=0), optax.sgd(0.1))
    layout = mw.Layout(mw.make_mesh("data=-1"))
    state = mw.training.init_state(lambda key: {"w": jnp.zeros(4)}, tx, 0, layout)
    step = mw.make_step(lambda params, batch: ((params["w"] - batch["y"]) ** 2).mean(), tx, layout)
    for _ in range(500):
        state, _ = step(state, {"y": np.tile(np.arange(1, 5, dtype=np.float32), (8, 1))})
    return f"{np.asarray(state.params['w']).round(4)}, where [1. 2. 3. 4.] is right"


@finding(
    "wish",
    "field 5",
    before="[]",
    test="tests/engine/experiment/test_unused.py::test_stacks_of_vectors_that_muon_takes_for_matrices_are_named",
)
def muon_on_stacked_layers():
    cfg = mw.lm.decoder.Config(vocabulary=16, model=16, layers=2, heads=2, feed_forward=32)
    with lines_logged("Muon") as lines:
        run(
            model=lambda key: mw.lm.decoder.init(cfg, key),
            loss=lambda params, batch: mw.lm.decoder.loss(cfg, params, batch),
            optimizer=optax.contrib.muon(1e-3),
            input=mw.Input({"tokens": np.ones((16, 8), np.int32)}, batch_size=8),
        )
    return lines


@finding(
    "wish",
    "own, eval_when",
    before="{}",
    test="tests/test_wrong_guesses.py::test_a_wrong_guess_is_answered_by_what_to_write_instead",
)
def evaluations_without_examples():
    deployer = mw.Deployer(seed=0, verbose=False)
    trainer = mw.Trainer(deployer, params={"w": jnp.ones(4)}, loss=squares, optimizer=optax.sgd(0.01))
    return trainer.fit({"x": X}, batch_size=16, epochs=1, eval_when=2)


# --- files of others that say more than was read


def golden(name: str, **changes: object) -> Path:
    """Copy a folder of tests, with changed settings of its JSON file of settings, and return the copy."""
    copied = Path(shutil.copytree(ROOT / "tests" / name, Path(name).name, dirs_exist_ok=True))
    (settings,) = (path for path in copied.glob("*config.json") if path.name in SETTINGS)
    settings.write_text(json.dumps(json.loads(settings.read_text()) | changes))
    return copied


SETTINGS = ("adapter_config.json", "config.json")


@finding(
    "files",
    "language A1",
    before="read with rank 2",
    test="tests/lm/tuning/test_peft.py::test_an_adapter_that_is_not_computed_here_is_refused_by_name",
)
def adapter_whose_base_was_changed():
    adapter = golden("tuning/golden/llama", init_lora_weights="pissa")
    return f"read with rank {mw.lm.read_adapter(adapter, ROOT / 'tests/lm/models/golden/llama')[0].rank}"


@finding(
    "files",
    "language A3",
    before="read",
    test="tests/lm/models/test_descriptions.py::test_a_tied_head_that_is_another_is_not_left_out_without_a_word",
)
def tied_head_that_differs_in_its_last_row():
    folder = golden("lm/models/golden/qwen2")
    arrays = {name: np.asarray(x) for name, x in mw.checkpoints.open_source(folder).arrays().items()}
    head = arrays["model.embed_tokens.weight"].copy()
    head[-1] += 1
    mw.checkpoints.export_safetensors(
        mw.checkpoints.as_source(arrays | {"lm_head.weight": head}, "changed"), "changed"
    )
    shutil.copy("changed/model.safetensors", folder)
    mw.lm.hugging_face.open_model(folder)
    return "read"


@finding(
    "files",
    "publicbugs 4, language B3",
    before="layers that an adapter of layer 0 changes: [0, 1]",
    test="tests/lm/tuning/test_peft.py::test_an_adapter_of_one_layer_leaves_the_others_as_they_are",
)
def adapter_of_one_layer():
    adapter, model = (
        golden("tuning/golden/llama", layers_to_transform=[0]),
        ROOT / "tests/lm/models/golden/llama",
    )
    arrays = {
        name: x for name, x in mw.checkpoints.open_source(adapter).arrays().items() if "layers.0." in name
    }
    mw.checkpoints.export_safetensors(mw.checkpoints.as_source(arrays, "layer 0"), "first")
    shutil.copy("first/model.safetensors", adapter / "adapter_model.safetensors")
    lora, arrays = mw.lm.read_adapter(adapter, model)
    base = mw.checkpoints.load(mw.lm.hugging_face.open_model(model))
    merged = lora.merged({"base": base, "adapter": arrays})
    changed = [n for n in range(2) if (merged["layers"]["q"][n] != base["layers"]["q"][n]).any()]
    return f"layers that an adapter of layer 0 changes: {changed}"


@finding(
    "files",
    "language A1, config.json",
    before="mlp_multiplier=2, tie_word_embeddings='false': read, tied='false'",
    test="tests/lm/models/test_descriptions.py::test_what_cannot_be_is_refused_by_name",
)
def config_with_more_than_is_read():
    said = {"tie_word_embeddings": "false", "mlp_multiplier": 2.0}
    cfg = mw.lm.hugging_face.config(golden("lm/models/golden/llama", **said))
    return f"mlp_multiplier=2, tie_word_embeddings='false': read, tied={cfg.tied!r}"


@finding(
    "files",
    "language C, config.json",
    before="read with norm_epsilon='1e-6'",
    test="tests/lm/models/test_descriptions.py::test_what_cannot_be_is_refused_by_name",
)
def number_that_is_a_text():
    cfg = mw.lm.hugging_face.config(golden("lm/models/golden/llama", rms_norm_eps="1e-6"))
    return f"read with norm_epsilon={cfg.norm_epsilon!r}"


def experiment_of(cfg: mw.lm.decoder.Config, generation: mw.lm.Generation) -> mw.Experiment:
    return mw.Experiment(
        workdir="run",
        model=functools.partial(mw.lm.decoder.init, cfg),
        loss=functools.partial(mw.lm.decoder.loss, cfg),
        optimizer=optax.sgd(0.1),
        input=mw.Input({"tokens": np.ones((8, 6), np.int32)}, batch_size=8),
        max_steps=1,
        samples=generation,
    )


@finding(
    "files",
    "publicbugs 6, language A2",
    before="generation_config.json ends texts at [0, 3]; served, they end at ((0,),)",
    test="tests/lm/server/test_chat.py::test_a_folder_with_a_template_answers_chats_and_its_end_tokens_end_them",
)
def several_tokens_that_end_an_answer():
    folder = shutil.copytree(ROOT / "tests/data/tokens/golden/tokenizer", "tokenizer")
    shutil.copy(ROOT / "tests/data/tokens/golden/chatml.jinja", folder + "/chat_template.jinja")
    Path(folder, "generation_config.json").write_text('{"eos_token_id": [0, 3]}')
    cfg = mw.lm.decoder.Config(vocabulary=512, model=8, layers=1, heads=2, feed_forward=8)
    experiment = experiment_of(cfg, mw.lm.Generation(mw.lm.with_cache(cfg), tokenizer=folder))
    stop = mw.lm._internal.served_of_checkpoint(experiment, "chats")[1].decoding.stop
    return f"generation_config.json ends texts at [0, 3]; served, they end at {stop}"


@finding(
    "files",
    "language A4",
    before="asked to stop at '<end>', it stops at (0, 1), which no text has",
    test="tests/lm/generation/test_text.py::test_tokens_of_a_text_that_ends_a_result_have_no_token_before_them",
)
def stop_of_a_tokenizer_that_begins_texts():
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "<end>": 1, "a": 2}, unk_token="a"))
    inner.add_special_tokens(["<s>", "<end>"])
    begin = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    inner.post_processor = begin
    cfg = mw.lm.decoder.Config(vocabulary=3, model=8, layers=1, heads=2, feed_forward=8)
    whole = experiment_of(cfg, mw.lm.Generation(mw.lm.with_cache(cfg), tokenizer=inner))
    asked = []

    def decoded(model, params, prompts, decoding, **_):
        asked.append(decoding.stop)
        return iter(())

    with unittest.mock.patch("meshwright.lm._checkpoint_models.stream", decoded):
        mw.lm._internal.texts_of_checkpoint(whole, ["a"], stop=["<end>"])
    said = ", which no text has" if asked[0] == ((0, 1),) else ""
    return f"asked to stop at '<end>', it stops at {asked[0][0]}{said}"


@finding(
    "files",
    "own, tokenizer.json",
    before="a prompt of 6 words is cut to 2 tokens",
    test="tests/lm/generation/test_text.py::test_truncation_and_padding_in_a_file_of_a_tokenizer_do_not_count",
)
def tokenizer_that_cuts_prompts():
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.enable_truncation(2)
    inner.save("tokenizer.json")
    found = mw.lm.tokenizer_of("tokenizer.json").encode("a b a b a b")
    return f"a prompt of 6 words is {'cut to ' * (len(found) < 6)}{len(found)} tokens"


@finding(
    "files",
    "own, npz",
    before="of two arrays w and a text, the file has [('w', 1.0)]",
    test="tests/checkpoints/formats/readers/test_npz.py::test_what_would_be_passed_over_is_refused",
)
def archive_with_more_than_arrays():
    with zipfile.ZipFile("x.npz", "w") as archive, warnings.catch_warnings(action="ignore"):
        for value in (0.0, 1.0):
            with archive.open("w.npy", "w") as file:
                np.lib.format.write_array(file, np.full(1, value))
        archive.writestr("scale.txt", "2")
    arrays = mw.checkpoints.open_source("x.npz").arrays()
    held = [(name, float(np.asarray(x)[0])) for name, x in arrays.items()]
    return f"of two arrays w and a text, the file has {held}"


@finding(
    "files",
    "own, safetensors",
    before="beside a model.safetensors with a=1, read a=0.0",
    test="tests/checkpoints/formats/readers/test_safetensors.py::test_two_checkpoints_in_a_folder_are_refused",
)
def two_checkpoints_in_a_folder():
    zeros = {"a": np.zeros(50, np.float32), "b": np.zeros(50, np.float32)}
    mw.checkpoints.export_safetensors(zeros, "x", max_shard_bytes=200)
    mw.checkpoints.export_safetensors({"a": np.ones(50, np.float32), "b": zeros["b"]}, "one")
    shutil.copy("one/model.safetensors", "x")
    a = np.asarray(mw.checkpoints.open_source("x").arrays()["a"])[0]
    return f"beside a model.safetensors with a=1, read a={a}"


@finding(
    "files",
    "own, keys twice",
    before="rms_norm_eps twice: read with 0.5",
    test="tests/base/test_documents.py::test_a_key_that_an_object_has_twice_is_an_error_and_not_passed_over",
)
def key_that_is_there_twice():
    config = golden("lm/models/golden/llama") / "config.json"
    config.write_text(config.read_text().rstrip()[:-1] + ', "rms_norm_eps": 0.5}')
    return f"rms_norm_eps twice: read with {mw.lm.hugging_face.config(config).norm_epsilon}"


@finding(
    "files",
    "language B6",
    before="CheckpointError: {}.w: cannot stack arrays of 2 kinds; all must have one shape and dtype, and "
    "these have [\"((3,), 'bfloat16', None)\", \"((3,), 'float32', None)\"].",
    test="tests/lm/models/test_map.py::test_layers_of_several_floating_dtypes_get_one_that_has_all_their_values",
)
def layer_of_another_dtype():
    layers = {"0.w": np.ones(3, jnp.bfloat16), "1.w": np.ones(3, np.float32)}
    table = mw.lm.Map((mw.lm.Row("w", "{}.w"),))
    return table.to_ours(mw.checkpoints.as_source(layers, "layers")).arrays()["w"].dtype


@finding(
    "files",
    "own, added tokens",
    before="tokenizer_config.json says that <|mark|> is token 777; its tokens are 7",
    test="tests/data/tokens/test_chat.py::test_tokens_that_files_of_a_tokenizer_say_differently_are_refused",
)
def token_that_is_not_in_the_tokenizer():
    folder = shutil.copytree(ROOT / "tests/data/tokens/golden/tokenizer", "tokenizer")
    said = {"777": {"content": "<|mark|>"}}
    Path(folder, "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": said}))
    found = mw.data.chat(folder).files.tokenizer.encode("<|mark|>").ids
    return f"tokenizer_config.json says that <|mark|> is token 777; its tokens are {len(found)}"


@finding(
    "files",
    "own, keys of tokenizers",
    before="split_special_tokens and suppress_tokens: taken",
    test="tests/data/tokens/test_known_keys.py::test_a_key_that_is_not_known_is_refused_with_its_value",
)
def keys_that_nobody_knows():
    folder = shutil.copytree(ROOT / "tests/data/tokens/golden/tokenizer", "tokenizer")
    Path(folder, "generation_config.json").write_text('{"suppress_tokens": [1]}')
    mw.data._internal.end_tokens(folder)
    Path(folder, "tokenizer_config.json").write_text('{"split_special_tokens": true}')
    mw.data.chat(folder)
    return "split_special_tokens and suppress_tokens: taken"


@finding(
    "files",
    "own, tar",
    before="of texts a and b, the second a link: ['ab']",
    test="tests/data/corpus/test_documents.py::test_members_of_a_tar_that_would_be_passed_over_are_refused",
)
def sample_that_is_a_link():
    with tarfile.open("texts.tar", "w") as archive:
        for name, kind in (("a.txt", tarfile.REGTYPE), ("b.txt", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "a.txt", 2 * (kind == tarfile.REGTYPE)
            archive.addfile(member, io.BytesIO(b"ab"))
    return f"of texts a and b, the second a link: {list(mw.data.documents('texts.tar'))}"


@finding(
    "files",
    "own, add_bos_token",
    before="add_bos_token=False, and a prompt begins with <s>: [0, 1]",
    test="tests/lm/generation/test_text.py::test_files_that_say_differently_what_begins_a_text_are_refused",
)
def prompt_that_begins_otherwise():
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "a": 1}, unk_token="a"))
    inner.add_special_tokens(["<s>"])
    begin = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    inner.post_processor = begin
    inner.save("tokenizer.json")
    Path("tokenizer_config.json").write_text(json.dumps({"add_bos_token": False, "bos_token": "<s>"}))
    found = mw.lm.tokenizer_of("tokenizer.json").encode("a")
    return f"add_bos_token=False, and a prompt begins with <s>: {found}"


# --- data that the model does not see as meant


@finding(
    "data",
    "publicbugs2 2",
    before="[]",
    test="tests/engine/experiment/test_unused.py::test_arrays_of_the_batch_that_the_loss_does_not_read_are_each_named",
)
def segments_under_another_name():
    with lines_logged("no influence") as lines:
        run(input=mw.Input({"x": X, "segment_ids": np.ones(64, np.int32)}, batch_size=16))
    return lines


@finding(
    "data",
    "publicbugs 2",
    before="generated [[4, 42, 10, 15], [4, 42, 10, 15]], trained 1 step",
    test="tests/engine/experiment/test_lookups.py::test_tokens_of_another_model_end_a_run_before_its_first_step",
)
def tokens_outside_the_vocabulary():
    cfg = decoder.Config(vocabulary=64, model=32, layers=1, heads=2, feed_forward=64)
    said = []
    try:
        model, params = mw.lm.with_cache(cfg), decoder.init(cfg, jax.random.key(0))
        rows = mw.lm.generate(model, params, [[64, 5], [-1, 5]], mw.lm.Decoding(max_new_tokens=4))
        said.append(f"generated {[row.tolist() for row in rows]}")
    except mw.errors.UsageError as error:
        said.append(str(error).splitlines()[0])
    try:
        outcome = run(
            model=lambda key: decoder.init(cfg, key),
            loss=lambda params, batch: decoder.loss(cfg, params, batch),
            input=mw.Input({"tokens": np.full((16, 9), 64, np.int32)}, batch_size=16),
        )
        said.append(f"trained {outcome.step} step")
    except mw.errors.UsageError as error:
        said.append(str(error).splitlines()[0])
    return ", ".join(said)


@finding(
    "data",
    "publicbugs2 7",
    before="[]",
    test="tests/engine/experiment/test_unused.py::test_rows_that_begin_with_padding_are_told",
)
def segments_from_0():
    cfg = decoder.Config(vocabulary=64, model=32, layers=1, heads=2, feed_forward=64)
    segments = np.tile(np.repeat(np.arange(3, dtype=np.int32), 3), (16, 1))
    with lines_logged("segment 0") as lines:
        run(
            model=lambda key: decoder.init(cfg, key),
            loss=lambda params, batch: decoder.loss(cfg, params, batch),
            input=mw.Input({"tokens": np.ones((16, 9), np.int32), "segments": segments}, batch_size=16),
        )
    return lines


# --- rows that meet


PAIRS = {name: np.random.default_rng(i).normal(size=(28, 4)) for i, name in enumerate("ab")}


def contrastive(params, batch):
    logits = (batch["a"] @ params["w"]) @ batch["b"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(len(logits))).mean()


@finding(
    "rows",
    "ports A2",
    before="eval/loss 4.0297, where 4.1465 is right",
    test="tests/engine/evaluation/test_pieces.py::test_rows_that_meet_in_the_loss_are_computed_together_on_a_mesh_that_does_not_divide_them",
)
def contrastive_loss_of_the_last_batch():
    deployer = mw.Deployer(seed=0, verbose=False)
    trainer = mw.Trainer(deployer, params={"w": jnp.eye(4)}, loss=contrastive, optimizer=optax.sgd(0.1))
    found = trainer.evaluate(mw.Evaluation("loss", PAIRS, batch_size=16))["loss"]
    parts = [{name: x[i : i + 16] for name, x in PAIRS.items()} for i in (0, 16)]
    right = sum(float(contrastive(trainer.params, part)) * len(part["a"]) / 28 for part in parts)
    return f"eval/loss {found:.4f}, where {right:.4f} is right"


@finding(
    "rows",
    "ports A3",
    before="[]",
    test="tests/training/test_step.py::test_rows_that_meet_in_a_loss_of_microbatches_are_told",
)
def contrastive_loss_in_microbatches():
    with lines_logged("rows of the batch") as lines:
        layout, tx = mw.Layout(mw.make_mesh("data=-1")), optax.sgd(0.1)
        state = mw.training.init_state(lambda key: {"w": jnp.eye(4)}, tx, 0, layout)
        batch = {name: x[:16].astype(np.float32) for name, x in PAIRS.items()}
        mw.make_step(contrastive, tx, layout, microbatches=2)(state, batch)
    return lines


@finding(
    "rows",
    "publicbugs2 6",
    before="4",
    test="tests/engine/experiment/test_auto.py::test_a_batch_whose_rows_meet_in_the_loss_is_not_cut",
)
def whitened_advantages_in_a_number_of_pieces_by_memory():
    def whitened(params, batch):
        weights = (batch["a"] - batch["a"].mean(0)) / batch["a"].std(0)
        return (jnp.tanh(batch["b"] @ params["w"]) * weights.sum(-1, keepdims=True)).mean()

    rows = {name: np.resize(x, (1024, 4)) for name, x in PAIRS.items()}
    made = mw.Experiment(
        workdir="run",
        model=lambda key: {"w": jnp.ones((4, 512))},
        loss=whitened,
        optimizer=optax.sgd(0.1),
        max_steps=1,
        microbatches="auto",
        input=mw.Input(rows, batch_size=1024),
    )
    peak = mw.plan.compile_ahead(dataclasses.replace(made, microbatches=1)).peak_bytes
    memory = dataclasses.replace(mw.plan._internal.hardware_here(jax.devices()).chip, memory_bytes=0.5 * peak)
    here = lambda devices: dataclasses.replace(mw.plan._internal.hardware_here(devices), chip=memory)  # noqa: E731
    with unittest.mock.patch("meshwright.plan._choice.hardware_here", here):
        mw.run(made)
    return (Path("run") / "experiment.txt").read_text().partition("microbatches = ")[2].partition("\n")[0]


# --- modes and draws


@finding(
    "modes",
    "axes 1",
    before="the gradient of the recurrent weight is off by 32 %",
    test="tests/parallel/test_sequence.py::test_the_gradients_of_a_recurrent_network_are_those_of_one_device",
)
def recurrent_weights_split_twice():
    rng = np.random.default_rng(0)
    params = {name: (rng.normal(size=(32, 32)) / 6).astype(np.float32) for name in ("h", "out")}
    batch = {"x": rng.normal(size=(16, 12, 32)).astype(np.float32)}

    def loss(params, batch):
        def one(h, x):
            return (jnp.tanh(x + h @ params["h"]),) * 2

        states = jax.lax.scan(one, jnp.zeros((16, 32)), batch["x"].swapaxes(0, 1))[1]
        return ((mw.parallel.shard_batch_dim(states.swapaxes(0, 1)) @ params["out"]) ** 2).mean()

    layout = mw.Layout(
        mw.make_mesh("data=2,fsdp=2,tensor=2"), (mw.parallel.match("h|out", "fsdp", "tensor"),)
    )
    state = mw.training.init_state(lambda key: params, optax.sgd(1.0), 0, layout)
    new, _ = mw.make_step(loss, optax.sgd(1.0), layout)(state, batch)
    slope = jax.grad(loss)(params, batch)["h"]
    error = np.abs(params["h"] - np.asarray(new.params["h"]) - slope).max() / np.abs(slope).max()
    return f"the gradient of the recurrent weight is off by {100 * error:.0f} %"


@finding(
    "modes",
    "ports A1",
    before="2150 of 4096 values are dropped in evaluation",
    test="tests/engine/adapters/test_functional.py::test_a_mode_that_is_a_field_of_the_module_is_off_in_evaluation",
)
def mode_that_is_a_field():
    class Net(linen.Module):
        deterministic: bool = False

        @linen.compact
        def __call__(self, x):
            return linen.Dropout(0.5, deterministic=self.deterministic)(x)

    ones = jnp.ones((64, 64))
    out = mw.functional(Net(), ones).apply({}, ones, key=jax.random.key(0), train=False)
    return f"{(out == 0).sum()} of {out.size} values are dropped in evaluation"


@finding(
    "modes",
    "own, fields that are dicts",
    before="value -1.564 in training, value -0.168 in evaluation",
    test="tests/engine/adapters/test_functional.py::test_the_order_of_a_field_is_the_same_in_evaluation",
)
def fields_in_another_order():
    class Net(linen.Module):
        heads: dict

        @linen.compact
        def __call__(self, x):
            return {name: linen.Dense(1)(x) for name in self.heads}

    ones, key = jnp.ones((1, 4)), jax.random.key(0)
    model = mw.functional(Net({"value": 1, "policy": 1}), ones)
    params = model.init(key)
    outs = {
        mode: model.apply(params, ones, key=key, train=mode == "training")
        for mode in ("training", "evaluation")
    }
    return ", ".join(f"value {out['value'].item():.3f} in {mode}" for mode, out in outs.items())


@finding(
    "modes",
    "own, modules made in methods",
    before="evaluation draws: True",
    test="tests/engine/adapters/test_linen.py::test_dropout_of_a_module_that_is_made_in_a_method_does_not_stay_on_in_"
    "evaluation",
)
def dropout_of_a_module_made_in_a_method():
    class Block(linen.Module):
        deterministic: bool = False

        @linen.compact
        def __call__(self, x):
            return linen.Dropout(0.5, deterministic=self.deterministic)(x)

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return Block()(x)

    model = mw.functional(Net(), jnp.ones((1, 64)))
    return f"evaluation draws: {bool((model.apply({}, jnp.ones((1, 64)), key=jax.random.key(0)) == 0).any())}"


@finding(
    "modes",
    "publicbugs2 3",
    before="2 different rows of 16",
    test="tests/nn/test_moe.py::test_a_block_draws_random_numbers_only_where_it_is_called_once",
)
def block_of_experts_that_draws():
    def block(weights, rows, dot):
        return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, rows.shape), dot(rows, weights), 0)

    experts = jnp.stack([jnp.eye(16)] * 4)
    with mw.parallel._internal.in_mesh(mw.make_mesh("data=8")):
        out = jax.jit(lambda x: mw.nn.moe(block, experts, x, jnp.zeros((16, 4)), top_k=1)[0])(
            jnp.ones((16, 16))
        )
    return f"{len(np.unique(out, axis=0))} different rows of 16"


# --- processes that begin differently


@finding(
    "beginnings",
    "attack 1",
    before="exit code 0",
    test="tests/processes/test_compare.py::test_what_differs_at_the_start_is_told_before_the_first_step",
)
def another_first_state_on_process_1():
    program = """
        import os, jax.numpy as jnp, meshwright as mw, numpy as np, optax
        mw.parallel.start_processes()
        start = [np.full(4, float(os.environ["JAX_PROCESS_ID"]), np.float32)]
        loss = lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean()
        mw.run(mw.Experiment(
            workdir="run", model=lambda key: {"w": jnp.asarray(start[0])}, loss=loss, max_steps=1,
            optimizer=optax.sgd(0.01), input=mw.Input({"x": np.ones((16, 4), np.float32)}, batch_size=16),
        ))"""
    launch = [sys.executable, "-m", "meshwright", "launch", "local", "-n", "2", "--", sys.executable, "-c"]
    ended = subprocess.run([*launch, textwrap.dedent(program)], capture_output=True, text=True)
    differences = [line.strip() for line in ended.stderr.splitlines() if "params/w" in line]
    return ", ".join([f"exit code {ended.returncode}", *differences[:1]])


# --- checks that promise


class Loader:
    """A loader of batches, as PyTorch's."""

    def __iter__(self):
        return ({"x": X[start : start + 16]} for start in range(0, 64, 16))


def run_with_an_evaluation(measure, examples):
    """Return how many checkpoints and steps there are, and the error, of a run of six steps."""
    try:
        run(
            max_steps=6,
            evaluations={"test": mw.Evaluation(measure, examples, when=3)},
            save=mw.Save(when=3),
            logging=mw.Logging(every=1),
        )
        error = "no error"
    except Exception as raised:
        error = f"{type(raised).__name__}: {str(raised).splitlines()[0]}"
    reports, saved = Path("run/metrics.jsonl"), [*Path("run/checkpoints").glob("step_*")]
    steps = len(reports.read_text().splitlines()) if reports.exists() else 0
    return f"{steps} steps reported, {len(saved)} checkpoints, {error}"


@finding(
    "checks",
    "newcomer A1",
    before="3 steps reported, 0 checkpoints, "
    "ExamplesError: batch 0 of the loader is smaller than 256 examples.",
    test="tests/engine/experiment/test_loaders.py"
    "::test_a_loader_of_other_batches_than_those_of_its_evaluation_is_refused_before_the_first_step",
)
def loader_of_other_batches():
    return run_with_an_evaluation(measure_squares, mw.data.Batched(Loader()))


@finding(
    "checks",
    "newcomer A1: the loader says its batch size",
    before="3 steps reported, 0 checkpoints, "
    "ExamplesError: batch 0 of the loader is smaller than 256 examples.",
    test="tests/engine/experiment/test_loaders.py::test_an_evaluation_takes_the_batch_size_of_a_loader_that_has_one",
)
def loader_with_a_batch_size():
    loader = Loader()
    loader.batch_size = 16
    return run_with_an_evaluation(measure_squares, mw.data.Batched(loader))


@finding(
    "checks",
    "newcomer A1: an evaluation raises",
    before="3 steps reported, 0 checkpoints, OSError: the disk of the examples is gone",
    test="tests/engine/experiment/test_evaluations.py"
    "::test_an_evaluation_that_raises_leaves_its_step_saved_and_is_owed",
)
def an_evaluation_that_raises():
    def examples():
        if Path("run/metrics.jsonl").exists():
            raise OSError("the disk of the examples is gone")
        return [{"x": X}]

    return run_with_an_evaluation(measure_squares, mw.data.Batched(examples))


# --- a profile beside a save


@finding(
    "profile",
    "seeds F1",
    before="JaxRuntimeError: INVALID_ARGUMENT: BlockHostUntilReady() called on deleted or donated buffer",
    test="tests/observe/profile/test_trace.py::test_a_window_that_ends_while_a_save_is_written_ends_no_run",
)
def profile_beside_a_save():
    run(
        model=lambda key: {f"w{i}": jax.random.normal(jax.random.fold_in(key, i), (4, 2)) for i in range(20)},
        loss=lambda params, batch: sum(((batch["x"] @ w) ** 2).mean() for w in params.values()),
        max_steps=20,
        save=mw.Save(when=1),
        profile=mw.Profile(steps=tuple(range(2, 18, 3)), num_steps=1),
    )
    return "the run ends well"


# --- pages that name what is not there or deny what is, and answers in words of another library


def page_of(name: str) -> str:
    return (ROOT / f"docs/coming-from-{name}.md").read_text()


def exit_of(*words: str) -> str:
    """Run a command in this process; return its exit code and the first line of its error."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = cli.main([*words])
    return f"exit code {code} {errors.getvalue().partition(chr(10))[0]}".strip()


@finding(
    "pages",
    "field 0.4",
    before="denied: Ray, evaluation harness, mixtures, serving, emergency checkpoints, pipelines, ring",
    test="tests/test_migration_pages.py::test_what_a_page_denies_is_listed_and_has_no_door",
)
def denials_of_what_there_is():
    levanter, maxtext = page_of("levanter"), page_of("maxtext")
    left_out = maxtext.partition("## Left out")[2]
    denied = {
        "Ray": "| Ray on TPUs | not there" in levanter,
        "evaluation harness": "| evaluation harness (`eval_harness`) | not there" in levanter,
        "mixtures": "mixtures as a setting;" in levanter,
        "serving": "\nserving; emergency" in left_out,
        "emergency checkpoints": "multi-tier checkpoints | not there" in maxtext,
        "pipelines": "pipeline parallelism as a" in left_out,
        "ring": "ring and paged attention" in left_out,
    }
    return f"denied: {', '.join(name for name, is_denied in denied.items() if is_denied) or 'nothing'}"


@finding(
    "pages",
    "seeds F3",
    before="TypeError: truncate() takes from 0 to 1 positional arguments but 2 were given",
    test="tests/test_migration_pages.py"
    "::test_what_the_tables_name_is_there_and_takes_the_arguments_that_they_write",
)
def row_about_adapting():
    rows = re.search(r"`adapt=(\[.*?\])`", page_of("axlearn"))[1]
    [(_, adapt)] = eval(rows, {"mw": mw})
    return adapt(np.zeros((4, 2)), jax.ShapeDtypeStruct((3, 2), np.float32)).shape


@finding(
    "pages",
    "seeds F2",
    before="TypeError: Batching.get_lr_schedule_fn() got an unexpected keyword argument 'n_epochs'. "
    "Did you mean 'epochs'?",
    test="tests/engine/deployer/test_messages.py"
    "::test_an_argument_that_redco_calls_otherwise_is_answered_by_the_methods_too",
)
def an_argument_of_redco():
    deployer = mw.Deployer(seed=0, verbose=False)
    return deployer.get_lr_schedule_fn(train_size=64, per_device_batch_size=1, n_epochs=2, learning_rate=1.0)


@finding(
    "pages",
    "newcomer B6",
    before="exit code 2 error: batch leaf 'image' of shape (64, 64) does not divide: "
    "its first dimension must be a multiple of 512",
    test="tests/test_docs.py::test_the_plan_in_the_readme_can_be_made_as_it_is_shown",
)
def plan_of_the_readme():
    page = (ROOT / "README.md").read_text()
    Path("first.py").write_text(re.search(r"```python\n(.*?)```", page, re.S)[1])
    words = re.search(r"`meshwright (plan [^`]+)`", page)[1].replace("first:", "first.py:").split()
    return exit_of(*words)


@finding(
    "pages",
    "seeds F5",
    before="2 reports of step 4 have the learning rate",
    test="tests/engine/experiment/test_evaluations.py::test_the_learning_rate_of_a_step_is_reported_once",
)
def learning_rate_of_the_last_step():
    evaluations = {"test": mw.Evaluation(measure_squares, {"x": X}, when=3, batch_size=16)}
    run(max_steps=4, logging=mw.Logging(every=2), evaluations=evaluations)
    last = [each for each in mw.observe.read_jsonl("run/metrics.jsonl") if each["step"] == 4]
    return f"{sum('learning_rate' in each for each in last)} reports of step 4 have the learning rate"


@finding(
    "pages",
    "seeds F6",
    before="0 arrays of the optimizer in state.txt",
    test="tests/training/test_statistics.py"
    "::test_the_table_has_each_array_of_parameters_optimizer_and_model_and_the_sizes",
)
def arrays_of_the_optimizer():
    run(max_steps=1, optimizer=optax.adam(1e-2))
    return f"{Path('run/state.txt').read_text().count('opt_state/')} arrays of the optimizer in state.txt"


@finding(
    "pages",
    "seeds F7",
    before="exit code 2 error: meshwright init: argument kind: invalid choice: 'mine.py' "
    "(choose from 'nnx', 'linen', 'equinox', 'plain')",
    test="tests/cli/test_init.py::test_a_file_without_a_kind_is_answered_by_the_order_of_the_two",
)
def init_of_a_file_alone():
    return exit_of("init", "mine.py")


# --- the first failure, and the output of many processes


@finding(
    "first",
    "many_processes 2",
    before="14 lines of 4 equal tracebacks of 5",
    test="tests/launch/test_output.py::test_equal_tracebacks_are_shown_once_though_a_line_comes_twice_in_each",
)
def equal_tracebacks():
    lines = Lines()
    for process in range(4):
        for line in ("f", "^", "g", "^", "e"):
            lines.add(process, (line, sys.stderr))
    return f"{len([*lines.merged()])} lines of 4 equal tracebacks of 5"


@finding(
    "first",
    "many_processes 7",
    before="6 lines",
    test="tests/launch/test_output.py"
    "::test_what_c_prints_with_time_and_process_is_merged_and_stacks_are_only_in_the_files",
)
def lines_of_c():
    out = io.StringIO()
    with Output(2) as output:
        for process in range(2):
            head = f"1129 06:31:24.94577{process}   1011{process} "
            output.add(process, f"W{head}preemption_notifier.cc:94] SIGTERM caught at 2026-11-29T06:31", out)
            output.add(process, f"F{head}client.h:86] Terminating process", out)
            output.add(process, f"    @     0x7f31c6af817{process}  absl::LogMessage::Flush()", out)
    return f"{len(out.getvalue().splitlines())} lines"


NAMED = "tests/launch/test_summary.py::test_the_process_because_of_which_the_others_ended_is_named"


@finding(
    "first",
    "attack 8: Ctrl-C on process 0 alone",
    before="process 2 of 3 failed first, with exit code 6 (another process was gone). It ran on a. "
    "Its last lines:",
    test=NAMED,
)
def ctrl_c_on_one():
    others = [End(n, "a", 6, ("meshwright: error: process 0 ended with exit code 130, and",)) for n in (2, 1)]
    ends = [*others, End(0, "a", 130, ("KeyboardInterrupt",))]
    return summary(ends, ends, None).splitlines()[0]


@finding(
    "first",
    "many_processes 3: the process that was stopped",
    before="process 0 of 3 failed first, with signal SIGABRT. It ran on a. Its last lines:",
    test=NAMED,
)
def stopped_process():
    lines = ("JAX distributed service detected fatal errors: (stopped sending heartbeats):", "1", "The tasks")
    aborted, killed = [End(number, "a", -6, lines) for number in (0, 2)], End(1, "a", -9)
    return summary([*aborted, killed], aborted, None).splitlines()[0]


@finding(
    "first",
    "attack 8: sys.exit while the program is imported",
    before="exit code 6, process 0 of 2 failed first, with exit code 6 (another process was gone).",
    test="tests/processes/test_compare.py"
    "::test_a_program_that_leaves_while_it_is_imported_ends_the_run_with_its_exit_code",
)
def leaving_while_imported():
    program = """
        import os, sys, jax.numpy as jnp, meshwright as mw, optax
        if os.environ["JAX_PROCESS_ID"] == "1":
            sys.exit(3)
        experiment = lambda: mw.Experiment(
            workdir="run", model=lambda key: {"w": jnp.ones(4)}, max_steps=1, optimizer=optax.sgd(0.1),
            loss=lambda params, batch: (batch["x"] @ params["w"]).mean(),
            input=mw.Input({"x": jnp.ones((16, 4))}, batch_size=16),
        )"""
    Path("leaving.py").write_text(textwrap.dedent(program))
    train = [sys.executable, "-m", "meshwright", "train", "leaving.py:experiment"]
    launch = [sys.executable, "-m", "meshwright", "launch", "local", "-n", "2", "--", *train]
    ended = subprocess.run(launch, capture_output=True, text=True)
    named = ended.stderr.partition("meshwright launch: ")[2].partition(" It ran on")[0]
    return f"exit code {ended.returncode}, {named}"


@finding(
    "first",
    "many_processes 3: the order by default",
    before="told of a stopped process after 30 s, aborted by JAX after 15 to 30 s",
    test="tests/processes/heartbeat/test_board.py"
    "::test_by_default_a_run_says_which_process_is_stopped_before_jax_ends_the_others",
)
def order_by_default():
    timeout = inspect.signature(mw.parallel.start_processes).parameters["heartbeat_timeout_seconds"].default
    told = f"told of a stopped process after {mw.Watchdog().shortest_seconds:g} s"
    return f"{told}, aborted by JAX after {timeout / 2:g} to {timeout} s"


# --- stores that are away for a while


@contextlib.contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler, int], None]):
    """Answer the GET and HEAD requests to a bucket of S3 by a function of the request and its number."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self, next(numbers))

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    numbers = itertools.count()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        keys = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "name", "AWS_SECRET_ACCESS_KEY": "secret key"}
        with unittest.mock.patch.dict(os.environ, keys):
            yield
        server.shutdown()


@finding(
    "patience",
    "attack 3: a store that is away for more than 13 requests",
    before="MeshwrightError: cannot look for s3://bucket/run: HTTP 503 Service Unavailable",
    test="tests/checkpoints/test_store_faults.py::test_a_store_may_be_away_for_three_minutes",
)
def a_store_that_is_away():
    def away(request, number):
        request.send_response(503 if number < 20 else 404)
        request.end_headers()

    shorter = {"first": 0.001, "longest": 0.002}  # pauses, in seconds
    with answering(away), unittest.mock.patch.dict(_settings.PATIENCE, shorter):
        return f"is there: {mw.base._internal.location('s3://bucket/run').is_file()}"


@finding(
    "patience",
    "attack 3: a listing that is cut off once",
    before="MeshwrightError: cannot list s3://bucket/run: Error getting list response body: HTTP error: "
    "request or response body error",
    test="tests/checkpoints/test_store_faults.py::test_a_listing_that_is_cut_off_is_asked_for_again",
)
def a_listing_that_is_cut_off():
    content = b"<ListBucketResult><Name>bucket</Name></ListBucketResult>"

    def cut_once(request, number):
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content if number else content[:9])

    with answering(cut_once):
        return f"holds {mw.base._internal.location('s3://bucket/run').below()}"


@finding(
    "patience",
    "attack 3: an old checkpoint that cannot be removed at once",
    before="MeshwrightError: the save of step 2 failed:",
    test="tests/checkpoints/test_store_faults.py"
    "::test_old_checkpoints_that_cannot_be_removed_are_removed_later",
)
def an_old_checkpoint_that_stays():
    effects = itertools.chain([OSError("the disk is away")], itertools.repeat(None))
    with unittest.mock.patch("shutil.rmtree", side_effect=effects):
        outcome = run(max_steps=3, save=mw.Save(when=1, keep=1))
    return f"the run ends at step {outcome.step}"


# --- beginnings and ends of several processes


SMALL = """
import jax.numpy as jnp, numpy as np, optax, meshwright as mw

def experiment(workdir: str) -> mw.Experiment:
    loss = lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean()
    data = mw.Input({"x": np.ones((16, 4), np.float32)}, batch_size=8)
    init = lambda key: {"w": jnp.ones(4)}
    return mw.Experiment(workdir, init, loss, optax.sgd(0.1), data, max_steps=2)
"""
TRAINING = """
import atexit, gc, os, signal, sys
from meshwright.cli import main
sys.argv = ["meshwright", "train", "small:experiment", "workdir=run"]
"""
WAITING = """
import os, signal, sys, time
me = int(os.environ["JAX_PROCESS_ID"])
def stop(number, frame):
    print(sys.argv[1], flush=True)
    if me == 1:
        os._exit(130)
if sys.argv[1:]:
    signal.signal(signal.SIGTERM, lambda *_: print(sys.argv[1], flush=True))
    signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(600)
"""


def train_small(program):
    """Return how a training ends, and what becomes of it, in which a program sends signals."""
    Path("small.py").write_text(SMALL)
    command = [sys.executable, "-c", TRAINING + program]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join([".", *sys.path])}, capture_output=True
    )
    return f"exit code {done.returncode}, {'done' if b'done: step 2' in done.stdout else 'not done'}"


def launch_and_stop(number, *words):
    """Return how the launch of two processes ends that get a signal."""
    command = [sys.executable, "-m", "meshwright", "launch", "local", "-n", "2", "--grace", "1", "--"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    launcher = subprocess.Popen([*command, sys.executable, "-c", WAITING, *words], **pipes)
    ready = 0
    while ready < 2:
        numbers = launcher.stdout.readline().partition("]")[0]
        ready += 2 if "-" in numbers else 1
    launcher.send_signal(number)
    try:
        launcher.communicate(timeout=8)
    except subprocess.TimeoutExpired:
        launcher.send_signal(number)
        launcher.communicate()
        return "it runs on"
    return f"exit code {launcher.returncode}"


@finding(
    "ends",
    "many_processes 1",
    before="exit code 0, done",
    test="tests/cli/test_signals.py::test_a_signal_while_jax_is_imported_ends_the_process_at_once",
)
def ctrl_c_while_jax_is_imported():
    return train_small("""
def once(*_):
    if "jax" in sys.modules and once in gc.callbacks:
        gc.callbacks.remove(once)
        os.kill(os.getpid(), signal.SIGINT)
gc.callbacks.append(once)
sys.exit(main())
""")


@finding(
    "ends",
    "many_processes 4",
    before="exit code 143",
    test="tests/launch/test_local.py::test_who_has_said_that_all_is_saved_and_does_not_end_has_stopped",
)
def all_is_saved_and_said():
    words = "stopped by SIGTERM after step 13. Run the same command again to continue."
    return launch_and_stop(signal.SIGTERM, words)


@finding(
    "ends",
    "many_processes 5",
    before="exit code 143",
    test="tests/launch/test_local.py"
    "::test_who_was_asked_to_stop_and_ends_by_sigterm_or_without_another_has_not_failed",
)
def told_before_there_is_a_handler():
    return launch_and_stop(signal.SIGTERM)


@finding(
    "ends",
    "attack 2",
    before="it runs on",
    test="tests/launch/test_local.py::test_after_ctrl_c_one_that_ends_gives_the_others_a_time_of_grace",
)
def one_hangs_after_ctrl_c():
    return launch_and_stop(signal.SIGINT, "stopping")


@finding(
    "ends",
    "attack C: SIGTERM after the last step",
    before="exit code -15, done",
    test="tests/cli/test_signals.py::test_a_signal_after_a_run_changes_nothing_of_how_it_ended",
)
def told_after_the_last_step():
    return train_small("atexit.register(os.kill, os.getpid(), signal.SIGTERM)\nsys.exit(main())")


@finding(
    "first",
    "many_processes 11",
    before="PeersError: evaluations.all.measure: process 3 has ended",
    test="tests/engine/experiment/test_evaluations.py::test_the_end_of_another_process_is_no_fault_of_a_setting",
)
def blamed_for_another_process():
    with errors_naming("evaluations.all.measure"):
        raise mw.errors.PeersError("process 3 has ended")


@finding(
    "first",
    "many_processes 13",
    before="a save costs 1 s, and one is made every 25 s of work; an attempt fails every 26 s, so that a "
    "save every 7.211 s would lose the least (Young and Daly)",
    test="tests/report/test_ledger.py::test_one_failure_says_nothing_of_how_often_a_run_fails",
)
def figure_after_one_failure():
    return saving_advice(Ledger({"step": 25.0, "save": 1.0}, attempts=2, failures=1, saves=1))


# --- who can connect to the processes of a run


@finding(
    "network",
    "attack 4: the processes of one machine listen at all its addresses",
    before="listens at ::",
    test="tests/processes/test_rendezvous.py::test_where_the_coordinator_is_on_loopback_nothing_listens_elsewhere",
)
def a_rendezvous_on_loopback():
    with _rendezvous._listen(f"127.0.0.1:{free_port()}") as listener:
        return f"listens at {listener.getsockname()[0]}"


@finding(
    "network",
    "attack 4: a stranger is taken for a process",
    before="characters of the token: 0",
    test="tests/processes/test_rendezvous.py::test_who_does_not_know_the_token_is_no_process_of_the_run",
)
def a_token_of_the_launcher():
    program = "import os; open('length', 'w').write(str(len(os.environ.get('MESHWRIGHT_TOKEN', ''))))"
    mw.launch._internal.launch_local([sys.executable, "-c", program], num_processes=1)
    return f"characters of the token: {Path('length').read_text()}"


@finding(
    "network",
    "attack 5: a connection that drips",
    before="a line with a limit of 0.3 s is still read after 1.5 s",
    test="tests/processes/test_rendezvous.py::test_a_line_that_comes_in_drops_has_a_time_limit_as_a_whole",
)
def a_connection_that_drips():
    reader, writer = socket.socketpair()
    with reader, writer, ThreadPoolExecutor(1) as threads:
        line = threads.submit(_sockets.read_line, reader, 0.3)
        for _ in range(30):
            writer.sendall(b" ")
            wait([line], timeout=0.05)
        return "is given up" if line.done() else "a line with a limit of 0.3 s is still read after 1.5 s"


@finding(
    "network",
    "axes 8: a short message to a process that does not read",
    before="waits",
    test="tests/processes/test_rendezvous.py"
    "::test_a_short_message_to_all_does_not_wait_for_one_that_does_not_read",
)
def a_process_that_does_not_read():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as peer,
        server.accept()[0],
        unittest.mock.patch.object(_sockets, "_SEND_SECONDS", 2),
    ):
        connections = _sockets.Connections({1: peer})
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(peer.fileno(), bytes(1 << 16))
        start = time.monotonic()
        connections.broadcast({})
        return "waits" if time.monotonic() - start > 1 else "does not wait"


# --- files and templates of strangers


@finding(
    "strangers",
    "attack 6: a pipe in the place of a file of a T5X checkpoint",
    before="is opened, and read for ever",
    test="tests/checkpoints/formats/readers/test_zarr2.py::test_a_file_that_is_a_pipe_a_device_or_a_folder_is_an_error",
)
def a_pipe_in_a_checkpoint():
    os.mkfifo("pipe")

    def write():
        Path("pipe").write_text("{}")

    threading.Thread(target=write, daemon=True).start()
    try:
        _file.read_json(Path("pipe"))
    except OSError as error:
        return f"{error.strerror}: pipe"
    return "is opened, and read for ever"


@finding(
    "strangers",
    "attack 9: a chunk that claims 2^40 items",
    before="MemoryError: Unable to allocate 8.00 TiB for an array with shape (8796093022208,) and data "
    "type uint8",
    test="tests/checkpoints/formats/readers/test_zarr2.py::test_a_chunk_that_claims_more_than_there_can_be_is_damage",
)
def a_chunk_that_claims_much():
    Path("0").write_bytes(zlib.compress(bytes(8)))
    metadata = _zarr2.Zarr2((1 << 40,), (1 << 40,), np.dtype("<f8"), {"id": "zlib"})
    return _zarr2.zarr_array(Path.cwd(), "array", metadata).read((slice(0, 1),))


@finding(
    "strangers",
    "attack 7: a template whose lists repeat each other 2^24 times",
    before="100663292 characters",
    test="tests/data/tokens/test_chat.py::test_a_template_that_grows_without_end_is_ended",
)
def a_template_of_nested_lists():
    twice = "{% for i in range(24) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    return chat_by(f"{{% set n = namespace(x=[]) %}}{twice}{{{{ n.x|string|length }}}}") + " characters"


def chat_by(template):
    """Return the text of a chat by a template, which may take a second at most."""
    place = mw.data.train_tokenizer(["a word"], "tokens", vocab_size=270, chat_template=template)
    with unittest.mock.patch("meshwright.data._tokens._template._MOST_SECONDS", 1):
        return mw.data.chat(place).text([{"role": "user", "content": "why?"}])


# --- models, optimizers and environments of others


@finding(
    "models",
    "publicbugs 7: an optimizer that needs the loss",
    before="TypeError: reduce_on_plateau.<locals>.update_fn() missing 1 required keyword-only argument: "
    "'value'",
    test="tests/training/test_optimizers.py::test_an_optimizer_that_needs_the_loss_gets_that_of_the_whole_batch",
)
def optimizer_that_needs_the_loss():
    return run(optimizer=optax.chain(optax.adam(0.01), optax.contrib.reduce_on_plateau())).step


@finding(
    "models",
    "publicbugs 7: an optimizer that needs the loss as a function",
    before="TypeError: scale_by_zoom_linesearch.<locals>.update_fn() missing 3 required keyword-only "
    "arguments: 'value', 'grad', and 'value_fn'",
    test="tests/training/test_optimizers.py"
    "::test_an_optimizer_that_needs_the_loss_as_a_function_is_refused_with_what_to_write",
)
def optimizer_that_needs_a_function():
    return run(optimizer=optax.lbfgs()).step


class Linear(equinox.Module):
    """A model whose mask is a module, too."""

    w: jax.Array

    def __call__(self, x):
        return x @ self.w


@finding(
    "models",
    "publicbugs 8",
    before="ValueError: pytree structure error: different types at key path",
    test="tests/training/test_optimizers.py::test_masks_and_labels_as_a_module_are_refused_with_what_to_write",
)
def mask_as_a_module():
    mask = jax.tree.map(lambda x: x.ndim > 0, Linear(jnp.ones(4)))
    return run(optimizer=optax.adamw(0.1, mask=mask)).step


def squares_by_a_constant(params, batch):
    with jax.ensure_compile_time_eval():
        two = jnp.asarray(1.0) + 1
    return ((batch["x"] @ params["w"]) ** two).mean()


@finding(
    "models",
    "ports B2",
    before="AssertionError",
    test="tests/engine/trainer/test_models.py::test_a_loss_may_compute_constants_while_it_is_traced",
)
def loss_that_computes_constants():
    try:
        return run(loss=squares_by_a_constant, mesh="data=2,fsdp=4").step
    except AssertionError as error:
        return type(error).__name__


@finding(
    "models",
    "ports B1",
    before="LayoutError: query/kernel has shape (16, 4, 4), but its logical axes are ('embed', 'kv').",
    test="tests/engine/adapters/test_linen.py"
    "::test_a_kernel_that_flax_reshapes_has_no_names_for_its_further_dimensions",
)
def names_that_flax_pads():
    named = linen.with_logical_partitioning(linen.initializers.lecun_normal(), ("embed", "kv"))
    model = mw.functional(linen.MultiHeadDotProductAttention(4, kernel_init=named), jnp.ones((2, 3, 16)))
    rules = (mw.parallel.logical({"query/kernel": model.axes["query/kernel"]}),)
    layout = mw.Layout(mw.make_mesh("data=2,fsdp=4"), rules)
    return layout.shardings(jax.eval_shape(model.init, jax.random.key(0)))["query"]["kernel"].spec


@finding(
    "models",
    "ports B3",
    before="NameError: Found an unbound axis name: batch. To fix this, please call psum under "
    "`jax.shard_map`.",
    test="tests/test_wrong_guesses.py::test_a_wrong_guess_is_answered_by_what_to_write_instead",
)
def axis_of_pmap():
    return run(loss=lambda params, batch: jax.lax.pmean(squares(params, batch), "batch")).step


@finding(
    "models",
    "ports C1",
    before="AxisError: mesh axis 'data' of size 8 only repeats work: it splits neither the batch nor any "
    "array of the state, and no operation of the program names it.",
    test="tests/parallel/test_idle_axes.py"
    "::test_batches_that_are_to_stay_whole_may_be_repeated_on_all_devices",
)
def whole_batches():
    return run(batch_axis_names=()).step


# --- words that a newcomer writes first


@finding(
    "words",
    "newcomer B2: a loss that asks for the step",
    before="TypeError: loss_of_the_step.<locals>.<lambda>() missing 1 required positional argument: 'step'",
    test="tests/engine/experiment/test_experiment.py"
    "::test_what_asks_for_the_step_gets_that_of_the_state_also_after_a_restart",
)
def loss_of_the_step():
    return run(loss=lambda params, batch, key, step: squares(params, batch) * step).step


@finding(
    "words",
    "newcomer B8: a model of functional in a loop of one's own",
    before="TypeError: 'Functional' object is not callable",
    test="tests/training/test_state.py"
    "::test_a_model_of_functional_is_taken_for_the_function_that_makes_its_parameters",
)
def state_of_a_model():
    model = mw.functional((lambda key: {"w": jnp.ones(4)}, lambda params, x: x @ params["w"]))
    layout = mw.Layout(mw.make_mesh("data=-1"))
    return mw.training.init_state(model, optax.sgd(0.1), 0, layout).params["w"]


@finding(
    "words",
    "newcomer B5: one score, one name",
    before="UsageError: stop.early reads the score 'loss', but no evaluation gives it. "
    "Did you mean 'eval/loss'?",
    test="tests/engine/trainer/test_checkpoints.py"
    "::test_a_score_has_one_name_for_the_best_and_for_early_stopping",
)
def one_name_of_a_score():
    stop = mw.Stop(early=mw.engine.early_stopping("test/loss", "max", patience=1))
    save = mw.Save(keep=mw.checkpoints.best("test/loss", "min"))
    evaluations = {"test": mw.Evaluation("loss", {"x": X})}
    trainer = mw.Trainer(
        mw.Deployer(seed=0, workdir="run", verbose=False),
        params={"w": np.ones(4, np.float32)},
        loss=squares,
        optimizer=optax.sgd(0.01),
    )
    trainer.fit({"x": X}, batch_size=16, epochs=4, evaluations=evaluations, save=save, stop=stop)
    return f"stopped after step {trainer.step}"


def answers(*calls):
    """Return the hint of each error, which follows its first sentence."""
    hints = []
    for call in calls:
        try:
            call()
        except mw.MeshwrightError as error:
            hints.append(str(error).splitlines()[0].partition(". ")[2] or "no hint")
    return " | ".join(hints)


@finding(
    "words",
    "newcomer B5, C1: guesses that were answered by the nearest letters",
    before="Did you mean memory? | Did you mean eval_metric_fn? | Did you mean from_step? | "
    "Did you mean max_steps? | Did you mean 'plan'? | no hint",
    test="tests/test_wrong_guesses.py::test_a_wrong_guess_is_answered_by_what_to_write_instead",
)
def guesses_of_a_newcomer():
    trainer = mw.Trainer(
        mw.Deployer(seed=0, verbose=False), params={"w": X[0]}, loss=squares, optimizer=optax.sgd(0.1)
    )
    fit = functools.partial(trainer.fit, {"x": X}, batch_size=16, epochs=1)
    known = inspect.signature(lambda workdir, learning_rate=0.1: None).parameters
    return answers(
        lambda: fit(early=None),
        lambda: fit(early_stopping=3),
        lambda: fit(verbose=0),
        lambda: fit(eval_steps=10),
        lambda: _guess.command_in(["explain"], _commands.grammar()),
        lambda: _overrides._check_names({"lr": "0.1"}, known, mw.Experiment),
    )


@finding(
    "words",
    "language B2: a model's type is no typing error",
    before="CheckpointError: there is no model here for model_type 'gemma3'; did you mean gemma?",
    test="tests/lm/models/test_hugging_face.py::test_what_the_decoder_lacks_is_refused",
)
def type_of_another_model():
    return mw.lm.hugging_face.config({"model_type": "gemma3"})


@finding(
    "words",
    "an argument of a loss with a default got the random key",
    before="l2 is key<fry>[]",
    test="tests/training/test_step.py::test_arguments_of_a_loss_with_a_default_keep_it",
)
def argument_with_a_default():
    seen = []

    def loss(params, batch, l2=1e-4):
        seen.append(getattr(l2, "aval", l2))
        return squares(params, batch)

    run(loss=loss)
    return f"l2 is {getattr(seen[0], 'str_short', lambda: seen[0])()}"


@finding(
    "models",
    "own, a last batch on explicit axes",
    before="AssertionError",
    test="tests/engine/evaluation/test_pieces.py"
    "::test_on_explicit_axes_the_last_examples_are_split_as_those_before_them",
)
def last_batch_on_explicit_axes():
    deployer = mw.Deployer(0, verbose=False, mesh="explicit: data=8")
    params = {"w": jnp.ones(4)}
    trainer = mw.Trainer(deployer, params=params, loss=squares, optimizer=optax.sgd(0.01))
    try:
        return f"{trainer.evaluate(mw.Evaluation('loss', {'x': X[:60]}, batch_size=16))['loss']:.4f}"
    except AssertionError as error:
        return type(error).__name__


@finding(
    "network",
    "axes 2",
    before="process 0 sends 64 messages when an epoch ends on 8 other processes",
    test="tests/processes/test_peers.py"
    "::test_process_0_compares_the_ends_of_examples_alone_and_tells_only_a_difference",
)
def ends_of_an_epoch():
    others, number = range(1, 9), 0

    def broadcast(message, *, but=None):
        nonlocal number
        number += len({*others} - {but})

    watch = _peers.Watch(unittest.mock.Mock(others=others, broadcast=broadcast))
    stream = watch.streams.open()
    for process in others:
        watch.on_message(process, {"process": process, "stream": stream, "end": [4, 1, 0]})
    watch.read(stream, 4, [4, 1, 0])
    return f"process 0 sends {number} messages when an epoch ends on {len(others)} other processes"


# --- environments


@contextlib.contextmanager
def home_that_cannot_be_written():
    """Set a home in which nothing can be made."""
    Path("home").touch()
    home = {"HOME": str(Path("home").absolute()), "XDG_CACHE_HOME": ""}
    with unittest.mock.patch.dict(os.environ, home), unittest.mock.patch("tempfile.tempdir", str(Path.cwd())):
        yield


@finding(
    "environments",
    "publicbugs 9: a run",
    before="UsageError: compile_cache: cannot keep compiled programs in a home that cannot be written",
    test="tests/base/storage/test_of_user.py::test_a_home_that_cannot_be_written_is_a_warning_and_the_run_trains",
)
def run_without_a_home():
    kept = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        with home_that_cannot_be_written():
            return f"step {run().step}"
    except mw.errors.UsageError as error:
        message = re.sub(r" in /.*", " in a home that cannot be written", str(error))
        return f"{type(error).__name__}: {message}"
    finally:
        jax.config.update("jax_compilation_cache_dir", kept)


@finding(
    "environments",
    "publicbugs 9: a text",
    before="NotADirectoryError",
    test="tests/base/storage/test_of_user.py::test_tokens_are_kept_where_a_home_cannot_be_written",
)
def text_without_a_home():
    Path("a.txt").write_text("abc")
    try:
        with home_that_cannot_be_written():
            store = mw.data._internal.tokenized("a.txt", mw.lm.Bytes())
            with contextlib.closing(store):
                return store.block(0).tokens
    except OSError as error:
        return type(error).__name__


@finding(
    "environments",
    "publicbugs 10: a terminal of ASCII",
    before="UnicodeEncodeError",
    test="tests/cli/test_streams.py::test_what_ascii_lacks_is_escaped_on_a_terminal_that_has_no_more",
)
def doctor_in_ascii():
    written = io.BytesIO()
    screen = io.TextIOWrapper(written, "ascii")
    with contextlib.redirect_stdout(screen), unittest.mock.patch("sys.argv", ["meshwright", "doctor"]):
        try:
            cli.main()
        except UnicodeEncodeError as error:
            return type(error).__name__
    return re.search(rb"devices.*", written.getvalue())[0].decode()


@finding(
    "environments",
    "publicbugs 10: a locale of ASCII",
    before="UnicodeDecodeError: 'ascii' codec can't decode byte 0xe2 in position 6918: ordinal not in "
    "range(128)",
    test="tests/cli/test_streams.py::test_every_command_answers_in_ascii",
)
def report_in_ascii():
    run()
    locale = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "meshwright", "report", "run"]
    done = subprocess.run(command, env=os.environ | locale, capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines()[-1]


@finding(
    "environments",
    "publicbugs 10: a screen that is gone",
    before="BrokenPipeError: [Errno 32] Broken pipe",
    test="tests/base/test_lines.py::test_a_screen_whose_reader_is_gone_stops_nothing",
)
def screen_that_is_gone():
    reading, writing = os.pipe()
    os.close(reading)
    screen = os.fdopen(writing, "w")
    try:
        with contextlib.redirect_stderr(screen):
            return f"step {run().step}"
    finally:
        with contextlib.suppress(BrokenPipeError):
            screen.close()


@finding(
    "environments",
    "publicbugs 11",
    before="UsageError: after batch 2147483648 the state has step=-2147483648. An update must count each "
    "batch once, however many updates it makes or skips, because a restart continues by this count.",
    test="tests/engine/experiment/test_experiment.py::test_a_value_that_cannot_be_is_refused_by_name",
)
def more_steps_than_are_counted():
    def count(state, batch):
        return dataclasses.replace(state, step=state.step + 1), {}

    state = mw.TrainState(jnp.int32(2**31 - 1), {}, (), jnp.uint32(0))
    return f"made, and at the end the step is {mw.fit(count, state, iter([0]), max_steps=2**31).step}"


@finding(
    "environments",
    "many_processes 12",
    before="MeshwrightError: too many files are open: [Errno 24] Too many open files",
    test="tests/engine/experiment/test_power.py::test_what_the_machine_fails_at_is_told_with_its_cause",
)
def too_few_descriptors():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = [*Path("/proc/self/fd").iterdir()]
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_files) + 1, limits[1]))
    try:
        run()
    except mw.errors.MeshwrightError as error:
        told = " ".join(str(error).split())
        told = re.sub(r"the run ended because |(: '.*?')?\. The run writes .*?run\.|Then run .*", "", told)
        return f"{type(error).__name__}: {told}".strip()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@dataclass(frozen=True)
class DeviceOfCpu:
    """A CPU device of one of several processes, of which JAX tells slice 0."""

    id: int
    process_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"
    slice_index: int = 0


@finding(
    "environments",
    "axes 5",
    before="{'data': 1, 'fsdp': 8}",
    test="tests/parallel/test_mesh.py::test_processes_are_groups_on_cpus_whose_slices_are_all_number_0",
)
def groups_of_cpus():
    return dict(mw.make_mesh("data=-1; fsdp=-1", [DeviceOfCpu(i, i // 4) for i in range(8)]).shape)


def fourier(params, batch):
    h = batch["x"] @ params["into"]
    for w, mix in params["layers"]:
        channels = jnp.moveaxis(h, -1, 1)
        f = jnp.fft.rfft2(channels)
        f = jnp.zeros_like(f).at[:, :, :4, :4].set(jnp.einsum("bixy,ioxy->boxy", f[:, :, :4, :4], w))
        h = jax.nn.gelu(jnp.moveaxis(jnp.fft.irfft2(f, s=(16, 16)), 1, -1) + h @ mix)
    return jnp.square(h).mean()


@finding(
    "environments",
    "axes 9",
    before="JaxRuntimeError: INTERNAL: RET_CHECK failure",
    test="tests/engine/experiment/test_out_of_memory.py"
    "::test_an_fft_that_xla_cannot_compute_on_cpus_says_which_mesh_to_try",
)
def fft_over_tensor():
    layer = jnp.ones((32, 32, 4, 4), jnp.complex64), jnp.ones((32, 32))
    params = {"into": jnp.ones((4, 32)), "layers": [layer, layer]}
    split = (mw.parallel.match("layers.*", "fsdp", "tensor"), mw.parallel.match("into", None, "tensor"))
    rows = mw.Input({"x": np.ones((16, 16, 16, 4), np.float32)}, batch_size=16)
    try:
        return run(
            model=lambda key: params, loss=fourier, input=rows, rules=split, mesh="data=2,fsdp=2,tensor=2"
        ).step
    except jax.errors.JaxRuntimeError as error:
        return f"{type(error).__name__}: {str(error).partition(' (')[0]}"


@finding(
    "environments",
    "axes 10: the axis of experts",
    before="Give its devices to an axis that splits the batch (data or fsdp), or use it: in a rule for "
    "parameters, to split batches, or in a constraint or `shard_map` of the model. If all devices are to "
    "compute the same, of whole batches, write batch_axis_names=().",
    test="tests/parallel/test_idle_axes.py::test_an_axis_that_a_function_splits_over_names_it",
)
def axis_of_experts():
    try:
        return run(mesh="data=2,expert=4").step
    except mw.errors.LayoutError as error:
        return str(error).splitlines()[1].strip()


@finding(
    "environments",
    "axes 10: a graph in microbatches",
    before="TypeError: sub got incompatible shapes for broadcasting: (8,), (32,).",
    test="tests/training/test_step.py::test_microbatches_of_arrays_with_other_numbers_of_rows_are_refused",
)
def graph_in_microbatches():
    def loss(params, batch):
        return (batch["x"] @ params["w"] - batch["y"]).sum()

    layout, tx = mw.Layout(mw.make_mesh("data=8")), optax.sgd(0.1)
    state = mw.training.init_state(lambda key: {"w": jnp.ones(4)}, tx, 0, layout)
    return mw.make_step(loss, tx, layout, microbatches=2)(state, {"x": X[:16], "y": X[:, 0]})


@finding(
    "environments",
    "many_processes 8",
    before="LayoutError: evaluations.all: a batch of 256 examples cannot be split into 6 equal parts, as the "
    "mesh {'data': 6} splits it (P('data',)).",
    test="tests/engine/experiment/test_evaluations.py"
    "::test_the_usual_batch_size_is_rounded_up_to_what_the_mesh_splits",
)
def default_that_the_mesh_does_not_split():
    layout = mw.Layout(mw.make_mesh("data=6", jax.devices()[:6]))
    context = EvaluationContext(layout, seed=0, compute_dtype=None)
    (part,) = evaluation_parts({"all": mw.Evaluation(measure_squares, {"x": X})}, None, context)
    state = mw.training.abstract_state(lambda key: {"w": jnp.ones(4)}, optax.sgd(0.01), layout)
    part.scoring.check(state)
    return f"scores: {part.scoring.names}"


@finding(
    "environments",
    "attack C: directories of killed launchers",
    before="1 directory of a killed launcher is left",
    test="tests/launch/test_scratch.py::test_the_directory_of_a_killed_launcher_is_removed_at_the_next_start",
)
def directories_of_killed_launchers():
    python = [
        sys.executable,
        "-c",
        "import meshwright as mw, sys; mw.launch._internal.launch_local(sys.argv[1:], 1)",
    ]
    environ = os.environ | {"TMPDIR": str(Path.cwd())}
    with subprocess.Popen([*python, "sleep", "60"], env=environ) as launcher:
        while not [*Path.cwd().iterdir()]:
            time.sleep(0.05)
        launcher.kill()
    subprocess.run([*python, "true"], env=environ)
    return f"{len([*Path.cwd().iterdir()])} directory of a killed launcher is left"


@finding(
    "environments",
    "attack C: probes in a store",
    before="['.probe-0123abcd']",
    test="tests/engine/experiment/test_addresses.py"
    "::test_what_a_store_that_could_not_delete_has_kept_is_removed_at_the_next_start",
)
def probes_in_a_store():
    place = "memory://probes"
    with mw.base._internal.put_file_at(f"{place}/.probe-0123abcd") as path:
        path.write_text("written")
    run(workdir=place)
    with mw.data.local_copy(place) as copy:
        return [path.name for path in copy.rglob(".probe-*")]


@finding(
    "environments",
    "attack C: a draft of the ledger",
    before="['checkpoints.tmp']",
    test="tests/engine/experiment/test_ledger.py::test_a_ledger_that_cannot_take_its_place_leaves_no_draft",
)
def draft_of_the_ledger():
    with unittest.mock.patch("meshwright.engine._ledger.LEDGER", "checkpoints"):  # where a directory is
        run()
    return [path.name for path in Path("run").glob("*.tmp")]


@finding(
    "environments",
    "attack 7: templates that do not end",
    before="alive after eight seconds",
    test="tests/data/tokens/test_chat.py::test_a_template_that_does_not_end_is_ended_and_others_go_on",
)
def template_that_does_not_end():
    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 8)
    try:
        search = "{% set l = range(99999)|list %}{% for i in range(99999) %}{{ 'x' in l }}{% endfor %}"
        return chat_by(search)
    except (TimeoutError, mw.errors.InputError) as error:
        ended = "refuses the messages: it takes more than 1 seconds" in str(error)
        return "ended after a second of work" if ended else "alive after eight seconds"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="run those whose kind or number has one of these words")
    parser.add_argument("--tiny", action="store_true", help="run one program of each kind")
    arguments = parser.parse_args()
    chosen = [
        finding
        for finding in FINDINGS
        if not arguments.words or any(word in f"{finding.kind} {finding.number}" for word in arguments.words)
    ]
    if untested := [finding.test for finding in chosen if not finding.has_test()]:
        sys.exit(f"There are no such tests: {', '.join(untested)}")
    if arguments.tiny:
        chosen = list({finding.kind: finding for finding in reversed(chosen)}.values())[::-1]
    faults = 0
    for finding in chosen:
        now = finding.now()
        is_mended = now != finding.before
        faults += not is_mended
        print(f"{finding.number} ({finding.kind}): {'mended' if is_mended else 'NOT MENDED'}")
        print(f"  before: {finding.before}\n  now:    {now}\n  test:   {finding.test}", flush=True)
    print(f"{len(chosen) - faults} of {len(chosen)} are mended.")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
