"""An experiment as text, and in what two of them differ."""

import dataclasses
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
from meshwright.demo import digits, text
from meshwright.engine import Difference, describe, differences
from meshwright.models import decoder

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


@pytest.mark.parametrize("demo", [digits, text])
def test_nothing_of_ours_in_a_demo_is_a_nameless_function(demo):
    assert not re.search(r"meshwright[\w.]*<lambda>", describe(demo.experiment()))


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


@pytest.mark.parametrize("partial", [functools.partial, jax.tree_util.Partial])
def test_a_partial_shows_its_arguments_by_name(partial):
    assert of(partial(init, width=3)) == f"{__name__}.init(width=3)"
    assert of(partial(init, None, width=3)) == f"{__name__}.init(key=None, width=3)"


def test_a_function_that_jax_wraps_is_shown_by_its_own_name():
    assert of(jax.jit(init)) == f"{__name__}.init"


def test_a_model_of_a_library_is_shown_as_it_was_given():
    said = lines("model", mw.functional((init, loss)))
    assert said[0].startswith("model = meshwright.adapters.Functional(")
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


def test_a_choice_between_functions_is_shown():
    def one(key):
        return init(key)

    chosen = one
    assert of(lambda key: chosen(key)).endswith(".one)")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1e-4, "0.0001"),
        (np.float32(0.5), "float32(0.5)"),
        (jnp.ones((2, 3)), "float32[2, 3]"),
        (jnp.bfloat16, "jax.numpy.bfloat16"),
        (np.dtype("int8"), "int8"),
        ([1, [2, None]], "[1, [2, None]]"),
        ({10, 9}, "[9, 10]"),
        (jax.sharding.PartitionSpec("fsdp", None), "P('fsdp', None)"),
        ("x" * 1000, "<str of 1000>"),
        (list(range(1000)), "<list of 1000>"),
        ([{"x": 1}], "<list of 1>"),
        (object(), "<builtins.object>"),
        pytest.param(f"of {object()}", "'of <object object>'", id="a text with an address"),
        (Path("a/b"), "'a/b'"),
    ],
)
def test_values_are_shown_without_addresses_and_without_data(value, shown):
    assert of(lambda key: (key, value)).endswith(f"<lambda>(value={shown})")


def test_a_cycle_ends():
    ring = []
    ring.append(lambda key: ring)
    assert lines("model", ring[0])[-1].endswith(" = …")


def test_objects_that_refer_to_each_other_make_no_endless_text():
    @dataclass(eq=False)
    class Node:
        others: list["Node"]

    nodes = [Node([]) for _ in range(8)]
    for node in nodes:
        node.others += nodes
    assert len(lines("model", lambda key: nodes)) < 20_000


def test_a_chain_shows_its_transformations_and_their_numbers():
    tx = optax.chain(optax.clip_by_global_norm(1.0), mw.train.keep_ema(0.999))
    assert lines("optimizer", tx) == [
        "optimizer = optax.chain",
        "optimizer.0 = optax.with_extra_args_support",
        "optimizer.0.tx = optax.clip_by_global_norm(max_norm=1.0)",
        "optimizer.1 = meshwright.train.keep_ema(bias_correction=True, decay=0.999)",
    ]


@pytest.mark.parametrize(
    ("schedule", "numbers"),
    [
        (optax.cosine_decay_schedule(3e-3, 900), ("init_value=0.003", "decay_steps=900")),
        (mw.train.schedule("cosine", peak=3e-3, max_steps=900), ("peak=0.003", "steps=900")),
    ],
)
def test_a_schedule_shows_its_numbers(schedule, numbers):
    said = "\n".join(lines("optimizer", optax.adamw(schedule, b2=0.95)))
    assert all(number in said for number in ("b2=0.95", *numbers))


@pytest.mark.parametrize(
    "schedule",
    [optax.cosine_decay_schedule(3e-3, 900), mw.train.schedule("cosine", peak=3e-3, max_steps=900)],
)
def test_a_schedule_does_not_differ_after_it_was_called(schedule):
    """Optax turns the steps of its own into a float then."""
    before = describe(experiment(optimizer=optax.adamw(schedule)))
    schedule(3)
    assert differences(before, experiment(optimizer=optax.adamw(schedule))) == []


@pytest.mark.parametrize(
    ("tx", "numbers"),
    [
        (
            mw.train.skip_exploding(optax.sgd(0.25), mw.train.mean_plus_std(6)),
            ("step_size=-0.25", "stds=6", "after=100"),
        ),
        (mw.train.by_path([("b", optax.sgd(0.25)), (".*", optax.sgd(0.5))]), ("'b'", "-0.25", "-0.5")),
        (mw.Trainable("lora", optax.sgd(0.25)), ("trainable = 'lora'", "-0.25")),
        (mw.train.update_rules([("enc/.*", "none")], optax.sgd(0.25)), ("[['enc/.*', 'none']]",)),
        (optax.MultiSteps(optax.sgd(0.25), 4).gradient_transformation(), ("-0.25", "every_k_schedule=4")),
        (optax.chain(optax.sgd(0.25), mw.train.scale_by_path([("emb", 0.1)])), ("[['emb', 0.1]]",)),
    ],
)
def test_optimizers_show_what_they_were_given(tx, numbers):
    said = "\n".join(lines("optimizer", tx))
    assert all(number in said for number in numbers)


def test_rules_and_policies_show_what_they_were_given():
    rules = (mw.match("q|k", None, ("fsdp", "tensor")), mw.sharding.fsdp(min_size=8))
    assert lines("rules", rules) == [
        "rules.0 = meshwright.sharding.Match(pattern='q|k', spec=[None, ['fsdp', 'tensor']])",
        "rules.1 = meshwright.sharding.Fsdp(axis='fsdp', min_size=8)",
    ]
    save = mw.Save(when=mw.when.any_of(mw.when.every(100), mw.when.at(20, 3)), keep=mw.checkpoint.last(3))
    said = lines("save", save)
    assert "save.when.whens.0 = meshwright.when.Every(num_steps=100)" in said
    assert "save.when.whens.1 = meshwright.when.At(steps=[3, 20])" in said
    assert "save.keep = meshwright.checkpoint.Last(num_checkpoints=3)" in said


def test_policies_by_score_show_the_score():
    keep = mw.checkpoint.any_of(mw.checkpoint.last(2), mw.checkpoint.best("test/loss", "min"))
    best = "(metric='test/loss', mode='min', num_checkpoints=1, without_metric='keep', events=None)"
    assert f"save.keep.keeps.1 = meshwright.checkpoint.Best{best}" in lines("save", mw.Save(keep=keep))
    early = mw.early_stopping("test/loss", "min", patience=3)
    assert (
        "stop.early = meshwright.engine.EarlyStopping(metric='test/loss', mode='min', patience=3, by=0.0)"
        in lines("stop", mw.Stop(early=early))
    )


def test_a_policy_that_keeps_time_is_the_same_text_later():
    assert lines("save", mw.Save(when=mw.when.every_minutes(3))) == lines(
        "save", mw.Save(when=mw.when.every_minutes(3))
    )


@pytest.mark.slow
def test_two_processes_write_the_same_text():
    """Under different hash seeds, which order sets differently and lay objects elsewhere."""
    script = (
        "from meshwright.demo import text; from meshwright.engine import describe\n"
        "print(describe(text.experiment()), end='')"
    )
    commands = [([sys.executable, "-c", script], {**os.environ, "PYTHONHASHSEED": seed}) for seed in "12"]
    running = [subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) for words, env in commands]
    one, other = (process.communicate()[0] for process in running)
    assert one == other
    assert "0x" not in one
    assert "clip_by_global_norm(max_norm=1.0)" in one


def test_functions_that_share_a_factory_are_shown_once_with_what_all_of_them_close_over():
    assert lines("optimizer", optax.scale_by_rss(initial_accumulator_value=0.2)) == [
        "optimizer = optax.scale_by_rss(initial_accumulator_value=0.2, eps=1e-07)"
    ]


@pytest.mark.parametrize(
    "value",
    [
        mw.when.every(3),
        mw.when.at(1, 2),
        mw.when.any_of(mw.when.every(3), mw.when.never),
        mw.checkpoint.last(2),
        mw.checkpoint.multiples(3),
        mw.checkpoint.spaced(4),
        mw.checkpoint.always(2, then=mw.checkpoint.best("loss", "min")),
        mw.train.schedule("linear", peak=0.1, max_steps=10),
        mw.train.mean_plus_std(6),
        mw.train.relative_std(0.1),
        mw.train.with_parameter_noise(loss, [("w", mw.train.relative_std(0.1))]),
        mw.match("w", "fsdp"),
        mw.sharding.fsdp(),
        mw.experiment.truncate(1),
        mw.experiment.chain(),
        mw.experiment.replace_prefix(),
    ],
)
def test_our_factories_make_values_that_are_equal_and_that_show_their_numbers(value):
    again = dataclasses.replace(value)
    assert (again, hash(again)) == (value, hash(value))
    text = "\n".join(lines("model", value))
    assert "<" not in text
    assert "model = meshwright." in text


def test_equal_experiments_do_not_differ():
    assert differences(digits.experiment(), digits.experiment()) == []


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
    assert "evaluations.all.batch_size: nothing → 256" in map(str, found)


def test_texts_are_compared_as_experiments_are():
    a, b = digits.experiment(), digits.experiment(width=64)
    assert differences(describe(a), b) == differences(a, b) == [Difference("model.width", "128", "64")]


def test_eighty_billion_parameters_are_described_and_constructed_without_an_array(mesh):
    before = jax.live_arrays()
    cfg = decoder.Config(vocabulary=128_256, model=8192, heads=64, feed_forward=28_672, layers=80)
    large = experiment(model=functools.partial(decoder.init, cfg), rules=decoder.RULES)
    state = mw.train.abstract_state(large.model, large.optimizer, mw.Layout(mesh, large.rules))
    assert mw.train.num_params(state.params) > 70e9
    assert state.params["layers"]["up"].sharding.spec == jax.P(None, "fsdp", "tensor")
    assert "model.cfg.feed_forward = 28672\n" in describe(large)
    assert len(jax.live_arrays()) == len(before)
