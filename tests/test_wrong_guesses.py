"""What newcomers write first, and the words of the answer that say what to write instead."""

import dataclasses
import functools
import inspect
import re

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import meshwright as mw
from meshwright.base._unknown_arguments import _INSTEAD
from meshwright.cli import _commands, _overrides, _parser
from meshwright.errors import MeshwrightError, _is_within, nearest

EXAMPLES = {"x": np.ones((16, 4), np.float32)}


def init(key):
    return {"w": jnp.ones((4, 2))}


def loss(params, batch):
    return ((batch["x"] @ params["w"]) ** 2).mean()


def scores(params, batch):
    return {"loss": ((batch["x"] @ params["w"]) ** 2).mean(-1)}


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(4, 2, rngs=rngs)


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x)


class NormOfPmap(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.BatchNorm(use_running_average=not train, axis_name="batch")(x)


class EquinoxNet(eqx.Module):
    w: jax.Array


class Batches:
    """A loader of batches as people write them: it has a length, and no way to get one by its number."""

    def __len__(self):
        return 2

    def __iter__(self):
        yield from [{"x": EXAMPLES["x"][:8]}] * 2


def experiment(**changes):
    usual = {
        "workdir": "runs/x",
        "model": init,
        "loss": loss,
        "optimizer": optax.sgd(0.1),
        "input": mw.Input(EXAMPLES, batch_size=8),
        "max_steps": 1,
    }
    return mw.Experiment(**{**usual, **changes})


def trainer(**changes):
    usual = {"loss": loss, "optimizer": optax.sgd(0.1), "params": {"w": np.ones((4, 2), np.float32)}}
    return mw.Trainer(mw.Deployer(seed=0, verbose=False), **{**usual, **changes})


def fit(examples=EXAMPLES, **changes):
    return trainer().fit(examples, **{"batch_size": 8, "epochs": 1, **changes})


def fit_model(model):
    made = trainer(model=model, params=None, loss=lambda model, batch: (model(batch["x"]) ** 2).mean())
    return made.fit(EXAMPLES, batch_size=8, epochs=1)


def evaluated(measure):
    return experiment(evaluations={"test": mw.Evaluation(measure, EXAMPLES, when=1, batch_size=8)})


def go_back_to_a_state_that_was_trained():
    one = trainer()
    one.fit(EXAMPLES, batch_size=8, epochs=1)
    before = one.state
    one.fit(EXAMPLES, batch_size=8, epochs=1)
    one.state = before


GUESSES = {
    "epochs of a trainer": (lambda: trainer(n_epochs=3), "trainer.fit(examples, batch_size=64, epochs=3"),
    "data of a trainer": (lambda: trainer(train_dataset=EXAMPLES), "trainer.fit(examples,"),
    "the learning rate of a trainer": (lambda: trainer(lr=1e-3), "optimizer=optax.adamw(1e-3)"),
    "a run directory of a trainer": (lambda: trainer(output_dir="x"), "mw.Deployer(seed=0, workdir="),
    "redco's seed": (lambda: mw.Deployer(jax_seed=0), "Write seed=."),
    "redco's shards": (lambda: mw.Deployer(n_model_shards=2), "Write num_model_shards=."),
    "redco's epochs": (lambda: fit(n_epochs=2), "Write epochs=."),
    "redco's batch": (lambda: fit(global_batch_size=8), "Write batch_size=,"),
    "a batch as of Hugging Face": (
        lambda: fit(per_device_train_batch_size=8),
        "Write per_device_batch_size=.",
    ),
    "validation as of Keras": (lambda: fit(validation_data=EXAMPLES), 'mw.Evaluation("loss", examples)'),
    "callbacks as of Keras": (lambda: fit(callbacks=[]), "stop=mw.Stop(early=...)"),
    "early stopping of a trainer": (lambda: trainer(patience=3), "`fit` takes it: trainer.fit(..., stop="),
    "early": (lambda: fit(early=None), "Write stop=mw.Stop(early=mw.engine.early_stopping("),
    "early stopping": (
        lambda: fit(early_stopping=None),
        "Write stop=mw.Stop(early=mw.engine.early_stopping(",
    ),
    "patience": (lambda: fit(patience=3), "Write stop=mw.Stop(early=mw.engine.early_stopping("),
    "patience of a stop": (lambda: mw.Stop(patience=3), "Write early=mw.engine.early_stopping("),
    "a quiet trainer": (lambda: fit(verbose=0), "mw.Deployer(seed=0, verbose=False)"),
    "redco's predictor": (lambda: fit(eval_predictor=None), "predict=predictor, metric_fn=f1)"),
    "redco's best": (lambda: fit(save_argmin_ckpt_by_metrics=["loss"]), 'mw.checkpoints.best("test/loss",'),
    "redco's epochs between saves": (lambda: fit(save_ckpt_every_k_epochs=2), 'multiples(2, of="epoch")'),
    "steps between evaluations": (lambda: fit(eval_steps=100), "mw.Evaluation('loss', examples, when=100)"),
    "steps between saves": (lambda: fit(checkpoint=100), "Write save=mw.Save(when=1000, keep=3)."),
    "augmentation": (lambda: fit(augment=len), "mw.data.mapped(function, examples)"),
    "the learning rate of fit": (lambda: fit(lr=1e-3), "mw.Trainer(..., optimizer=optax.adamw(1e-3))"),
    "the learning rate of an experiment": (lambda: experiment(lr=1e-3), "optimizer=optax.adamw(1e-3)"),
    "early stopping of an experiment": (lambda: experiment(patience=3), "Write stop=mw.Stop(early="),
    "augmentation of an input": (
        lambda: mw.Input(EXAMPLES, 8, augment=len),
        "mw.data.mapped(function, examples)",
    ),
    "how often to report": (lambda: mw.Logging(log_every=50), "Write every=50."),
    "a misspelt argument": (lambda: fit(bach_size=8), "Did you mean 'batch_size'?"),
    "the batch of an experiment": (
        lambda: experiment(batch_size=8),
        "input=mw.Input(examples, batch_size=64)",
    ),
    "epochs of an experiment": (lambda: experiment(epochs=3), "mw.Input(examples, batch_size=64, epochs=3)"),
    "steps of an experiment": (lambda: experiment(num_train_steps=3), "Write max_steps=."),
    "a run directory": (lambda: experiment(output_dir="x"), "Write workdir=."),
    "evaluation of an experiment": (lambda: experiment(eval_dataset=EXAMPLES), "evaluations={"),
    "how often to evaluate": (lambda: mw.Evaluation(scores, EXAMPLES, every=1), "Write when=100"),
    "how often to save": (lambda: mw.Save(every=1), "Write when=100, a number"),
    "how many to keep": (lambda: mw.Checkpoints("x", max_to_keep=3), "Write keep=3"),
    "workers": (lambda: mw.Input(EXAMPLES, batch_size=8, num_workers=2), "Write num_threads=."),
    "shuffling": (lambda: mw.batches(EXAMPLES, 8, None, shuffle=True), "Write seed=0"),
    "steps of a loop": (lambda: mw.fit(None, None, None, steps=3), "Write max_steps=."),
    "parameters of a predictor": (
        lambda: mw.Predictor(mw.Deployer(seed=0, verbose=False), predict=scores, params={}),
        "predictor.predict(examples,",
    ),
    "sizes as of Hugging Face": (
        lambda: mw.lm.decoder.Config(vocab_size=100),
        "mw.lm.decoder.Config has no argument 'vocab_size'. Write vocabulary=.",
    ),
    "the length of a GPT-2": (lambda: mw.lm.gpt2.Config(block_size=64), "Write positions=."),
    "a misspelt size": (lambda: mw.lm.t5.Config(max_distanc=64), "Did you mean 'max_distance'?"),
    "the axis of a pmap": (
        lambda: fit_model(mw.functional(NormOfPmap(), EXAMPLES["x"])),
        "Leave it out, as in BatchNorm(axis_name=None)",
    ),
    "an NNX class": (lambda: experiment(model=NnxNet), "net = mw.functional(NnxNet)"),
    "an NNX module": (lambda: experiment(model=NnxNet(nnx.Rngs(0))), "net = mw.functional(NnxNet)"),
    "a Linen module": (lambda: experiment(model=LinenNet()), "mw.functional(LinenNet, example_input)"),
    "an Equinox module": (lambda: experiment(model=EquinoxNet(jnp.ones(2))), "mw.functional(EquinoxNet)"),
    "a loss of the batch": (
        lambda: mw.run(experiment(loss=lambda batch: 0.0)),
        "called with (params, batch, key)",
    ),
    "a loss of each example": (
        lambda: mw.run(experiment(loss=lambda params, batch: (batch["x"] @ params["w"]).mean(-1))),
        "Return losses.mean()",
    ),
    "one score to keep the best by": (lambda: fit(best="loss"), "Write save=mw.Save(keep="),
    "examples instead of an evaluation": (
        lambda: fit(evaluations={"test": EXAMPLES}),
        "it must be Evaluation or EvaluationFunction",
    ),
    "an average before the optimizer": (
        lambda: mw.run(experiment(optimizer=optax.chain(mw.training.keep_ema(0.9), optax.sgd(0.1)))),
        "Write optax.chain(optax.adam(1e-3), mw.training.keep_ema(0.999))",
    ),
    "averages of a checkpoint": (
        lambda: mw.training.ema_params({"params/w": np.ones(2)}),
        "mw.engine.open_averages(mw.checkpoints.open_best",
    ),
    "a measure without the model's state": (
        lambda: mw.run(
            experiment(
                model=lambda key: mw.training.Variables(init(key), {"mean": jnp.zeros(2)}),
                loss=lambda params, batch, key, model_state: (loss(params, batch), {}, model_state),
                evaluations={"test": mw.Evaluation(scores, EXAMPLES, when=1, batch_size=8)},
            )
        ),
        "called with (params, batch, model_state)",
    ),
    "a measure without a name": (
        lambda: mw.run(evaluated(lambda params, batch: (batch["x"] @ params["w"]).mean(-1))),
        "{'loss': values}; this returned an array",
    ),
    "a measure that is averaged": (
        lambda: mw.run(evaluated(lambda params, batch: {"loss": loss(params, batch)})),
        "Return the values before averaging",
    ),
    "an evaluation that is a class": (
        lambda: experiment(evaluations={"test": mw.Evaluation}),
        "evaluations['test'] is the class Evaluation",
    ),
    "an evaluation without a name": (
        lambda: experiment(evaluations=mw.Evaluation(scores, EXAMPLES, when=1, batch_size=8)),
        "it must be a mapping of str to Evaluation",
    ),
    "an optimizer of NNX": (
        lambda: trainer(optimizer=nnx.Optimizer(NnxNet(nnx.Rngs(0)), optax.sgd(0.1), wrt=nnx.Param)).fit(
            EXAMPLES, batch_size=8, epochs=1
        ),
        "optax.adamw(1e-3) itself",
    ),
    "a number as the optimizer": (lambda: mw.run(experiment(optimizer=0.1)), "optax.adamw(1e-3) itself"),
    "a loader of batches": (lambda: fit(Batches()), "mw.data.Batched(loader)"),
    "a function instead of its experiment": (
        lambda: mw.run(experiment_function),
        "Call it: experiment_function().",
    ),
    "a state that is gone": (
        go_back_to_a_state_that_was_trained,
        "saved = jax.tree.map(jnp.copy, trainer.state)",
    ),
}


def experiment_function():
    return experiment()


@pytest.mark.parametrize("guess", GUESSES)
def test_a_wrong_guess_is_answered_by_what_to_write_instead(guess, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write, words = GUESSES[guess]
    with pytest.raises(MeshwrightError, match=re.escape(words)):
        write()


def test_a_loss_that_calls_the_parameters_is_told_how_to_call_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError) as raised:
        mw.run(experiment(loss=lambda model, batch: model(batch["x"]).mean()))
    assert "net.apply(params, batch['x'], key=key, train=True)" in "".join(raised.value.__notes__)


def own_names():
    """All names of ours that somebody may mistype, by what has them."""
    paths = {path: functools.reduce(getattr, path.split("."), mw) for path in _INSTEAD}
    named = {path: [*inspect.signature(of).parameters] for path, of in paths.items()}
    commands = _commands.grammar().parsers
    options = {f"meshwright {name}": _parser.shown_options(parser) for name, parser in commands.items()}
    fields = [field.name for field in dataclasses.fields(mw.Experiment)]
    settings = [*fields, *_overrides._paths_in(mw.Experiment)]
    return named | options | {"commands": [*commands], "settings": settings, "public": [*mw.__all__]}


def slips(name):
    """A name without one character, with one twice, with two swapped, and with another one."""
    for i in (i for i, letter in enumerate(name) if not letter.isdigit()):
        start, end = name[:i], name[i + 1 :]
        yield from (start + end, start + 2 * name[i] + end, start + "x" + end)
        yield start + end[:1] + name[i] + end[1:]


def test_a_name_with_a_slip_is_answered_by_the_name_and_by_no_other():
    for names in own_names().values():
        for name in {name for name in names if len(name) > 2}:
            for typed in {*slips(name)} - {*names}:
                same = [other for other in names if _is_within(1, typed, other)]
                assert nearest(typed, names) in {name, *same}, (typed, name)


OTHER_WORDS = (
    "explain early_stopping verbose eval_steps patience checkpoint_dir augment lr dataset gpus n_embd betas "
    "weight_decay num_beams tokens epoch_size h"
)


@pytest.mark.parametrize("typed", OTHER_WORDS.split())
def test_a_word_of_another_thing_is_answered_by_no_name(typed):
    for what, names in own_names().items():
        assert typed in names or nearest(typed, names) is None, what


@pytest.mark.parametrize(
    ("typed", "names", "near"),
    [
        ("gemma3", ["gemma", "gemma2"], None),
        ("layers/2/q", ["layers/0/q", "layers/1/q"], None),
        ("layers/1/qery", ["layers/0/query", "layers/1/query"], "layers/1/query"),
        ("lx", ["tx", "lr"], None),
        ("loss", ["test/loss"], "test/loss"),
        ("batch_szie", ["input.batch_size"], "input.batch_size"),
        ("train/loss", ["test/loss"], None),
        ("evalaution", ["evaluation"], "evaluation"),
        ("evlauatoin", ["evaluation"], "evaluation"),
    ],
)
def test_near_are_slips_in_letters_and_names_without_their_path(typed, names, near):
    assert nearest(typed, names) == near
