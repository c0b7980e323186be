"""An experiment as text, and in what two of them differ."""

import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.cli.demo import digits, text
from meshwright.engine._describe import Difference, describe, differences
from meshwright.lm._models import decoder

GOLDEN = Path(__file__).parent / "golden" / "digits.txt"
EXAMPLES = {"x": np.ones((64, 4), np.float32)}


def init(key, width=2):
    return {"w": jnp.ones((4, width))}


def loss(params, batch, key):
    return (batch["x"] @ params["w"]).mean()


def experiment(**more):
    described = {"model": init, "loss": loss, "optimizer": optax.sgd(0.1), "max_steps": 10}
    return mw.Experiment(workdir="runs/x", input=mw.Input(EXAMPLES, batch_size=16), **described | more)


def lines(name, value):
    """The lines of the description that a value of a field is given."""
    return [line for line in describe(experiment(**{name: value})).splitlines() if line.startswith(name)]


def of(model):
    """The line of a description that shows a function."""
    return lines("model", model)[0].removeprefix("model = ")


def test_the_digits_are_described_as_they_were():
    """The golden text: a change of a default or of the demo shows here. Optax's own names are left out."""
    ours = [line for line in describe(digits.experiment()).splitlines() if not line.startswith("optimizer")]
    assert ours == GOLDEN.read_text().splitlines()


def test_nothing_of_ours_in_a_demo_is_a_nameless_function():
    assert not re.search(r"meshwright[\w.]*<lambda>", describe(text.experiment()))


def test_settings_are_on_lines_of_their_own_under_their_paths():
    said = describe(experiment(evaluations={"all": mw.Evaluation(loss, EXAMPLES, when=4)})).splitlines()
    assert said[0] == "workdir = 'runs/x'"
    assert {"input.batch_size = 16", "evaluations.all.when = 4", "save.keep = 2"} <= set(said)
    assert "input.examples.x = float32[64, 4]" in said


def test_a_lambda_shows_what_it_closes_over():
    width = 128
    assert of(lambda key: init(key, width)).endswith("<lambda>(width=128)")


def test_a_lambda_shows_the_defaults_it_was_made_with():
    assert of(lambda key, width=7, other=None: init(key, width)).endswith("<lambda>(width=7)")


def test_a_partial_shows_its_arguments_by_name():
    assert of(functools.partial(init, None, width=3)) == f"{__name__}.init(key=None, width=3)"


def test_a_model_of_a_library_is_shown_as_it_was_given():
    said = lines("model", mw.functional((init, loss)))
    assert said[0].startswith("model = meshwright.engine.Functional(")
    assert said[0].endswith(f"given=[{__name__}.init, {__name__}.loss])")


def test_a_function_that_another_closes_over_is_shown_below_it_and_a_circle_ends():
    width = 5

    def helper(key):
        return init(key, width) or helper(key)

    def model(key):
        return helper(key)

    said = lines("model", model)
    assert [line.partition(" = ")[0] for line in said] == ["model", "model.helper"] + [
        f"model.helper.{name}" for name in ("helper", "width")
    ]
    assert said[-2:] == ["model.helper.helper = …", "model.helper.width = 5"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (jnp.ones((2, 3)), "float32[2, 3]"),
        ("x" * 1000, "<str of 1000>"),
        (object(), "<builtins.object>"),
        pytest.param(f"of {object()}", "'of <object object>'", id="a text with an address"),
    ],
)
def test_values_are_shown_without_addresses_and_without_data(value, shown):
    assert of(lambda key: (key, value)).endswith(f"<lambda>(value={shown})")


def test_objects_that_refer_to_each_other_make_no_endless_text():
    @dataclass(eq=False)
    class Node:
        others: list["Node"]

    nodes = [Node([]) for _ in range(8)]
    for node in nodes:
        node.others += nodes
    assert len(lines("model", lambda key: nodes)) < 20_000


def test_a_chain_shows_its_transformations_and_their_numbers():
    tx = optax.chain(optax.clip_by_global_norm(1.0), mw.training.keep_ema(0.999))
    assert lines("optimizer", tx) == [
        "optimizer = optax.chain",
        "optimizer.0 = optax.with_extra_args_support",
        "optimizer.0.tx = optax.clip_by_global_norm(max_norm=1.0)",
        "optimizer.1 = meshwright.training.keep_ema(bias_correction=True, decay=0.999)",
    ]


def test_a_schedule_does_not_differ_after_it_was_called():
    """Optax turns the steps of its own into a float then."""
    schedule = optax.cosine_decay_schedule(3e-3, 900)
    before = describe(experiment(optimizer=optax.adamw(schedule)))
    schedule(3)
    assert differences(before, experiment(optimizer=optax.adamw(schedule))) == []


def test_an_optimizer_of_ours_shows_what_it_was_given():
    tx = mw.training.skip_exploding(optax.sgd(0.25), mw.training.mean_plus_std(6))
    said = "\n".join(lines("optimizer", tx))
    assert all(number in said for number in ("step_size=-0.25", "stds=6", "after=100"))


def test_rules_and_policies_show_what_they_were_given():
    rules = (mw.parallel.match("q|k", None, ("fsdp", "tensor")), mw.parallel.fsdp(min_size=8))
    assert lines("rules", rules) == [
        "rules.0 = meshwright.parallel.Match(pattern='q|k', spec=[None, ['fsdp', 'tensor']])",
        "rules.1 = meshwright.parallel.Fsdp(axis='fsdp', min_size=8)",
    ]
    save = mw.Save(
        when=mw.engine.any_of(mw.engine.every(100), mw.engine.at(20, 3)), keep=mw.checkpoints.last(3)
    )
    said = lines("save", save)
    assert "save.when.whens.0 = meshwright.processes.Every(num_steps=100)" in said
    assert "save.when.whens.1 = meshwright.processes.At(steps=[3, 20])" in said
    assert "save.keep = meshwright.checkpoints.Last(num_checkpoints=3)" in said


def test_a_policy_that_keeps_time_is_the_same_text_later():
    assert lines("save", mw.Save(when=mw.engine.every_minutes(3))) == lines(
        "save", mw.Save(when=mw.engine.every_minutes(3))
    )


@pytest.mark.slow
def test_two_processes_write_the_same_text():
    """Under different hash seeds, which order sets differently and lay objects elsewhere."""
    script = (
        "from meshwright.cli.demo import text; from meshwright.engine import describe\n"
        "print(describe(text.experiment()), end='')"
    )
    commands = [([sys.executable, "-c", script], {**os.environ, "PYTHONHASHSEED": seed}) for seed in "12"]
    running = [subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) for words, env in commands]
    one, other = (process.communicate()[0] for process in running)
    assert one == other
    assert "0x" not in one
    assert "clip_by_global_norm(max_norm=1.0)" in one


def test_differences_name_what_changed_with_both_values():
    a = experiment(optimizer=optax.chain(optax.clip_by_global_norm(1.0)))
    b = experiment(optimizer=optax.chain(optax.clip_by_global_norm(0.5)), max_steps=20)
    found = differences(a, b)
    assert found == [
        Difference("optimizer.0.tx.max_norm", "1.0", "0.5"),
        Difference("max_steps", "10", "20"),
    ]
    assert str(found[0]) == "optimizer.0.tx.max_norm: 1.0 → 0.5"


def test_what_only_one_has_differs_from_nothing():
    found = differences(experiment(), experiment(evaluations={"all": mw.Evaluation(loss, EXAMPLES)}))
    assert str(found[0]) == "evaluations: {} → nothing"
    assert "evaluations.all.dtype: nothing → 'train'" in map(str, found)


def test_texts_are_compared_as_experiments_are():
    a, b = digits.experiment(), digits.experiment(width=64)
    assert differences(describe(a), b) == differences(a, b) == [Difference("model.width", "128", "64")]


def test_eighty_billion_parameters_are_described_and_constructed_without_an_array(mesh):
    before = jax.live_arrays()
    cfg = decoder.Config(vocabulary=128_256, model=8192, heads=64, feed_forward=28_672, layers=80)
    large = experiment(model=functools.partial(decoder.init, cfg), rules=decoder.RULES)
    state = mw.training.abstract_state(large.model, large.optimizer, mw.Layout(mesh, large.rules))
    assert mw.training.num_params(state.params) > 70e9
    assert state.params["layers"]["up"].sharding.spec == jax.P(None, "fsdp", "tensor")
    assert "model.cfg.feed_forward = 28672\n" in describe(large)
    assert len(jax.live_arrays()) == len(before)
