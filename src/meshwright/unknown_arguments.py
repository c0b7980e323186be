"""Errors about arguments that a function does not have: they say which one to write instead.

Those who come from another library write its argument names. Python's own error names no other. `_INSTEAD` is
the table of such names, by the function of ours that they are given to.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from meshwright.errors import UsageError, listed, nearest

F = TypeVar("F", bound=Callable[..., Any])

_EPOCHS = ("n_epochs", "num_epochs", "max_epochs", "num_train_epochs", "nb_epoch")
_STEPS = ("max_step", "steps", "num_steps", "n_steps", "total_steps", "num_train_steps", "train_steps")
_BATCH = ("global_batch_size", "train_batch_size", "total_batch_size")
_DEVICE_BATCH = ("per_device_train_batch_size", "micro_batch_size", "local_batch_size", "device_batch_size")
_DATA = (
    "train_dataset",
    "train_data",
    "dataset",
    "data",
    "train_dataloader",
    "train_dataloaders",
    "examples",
)
_TEST = ("validation_data", "eval_dataset", "val_dataset", "val_dataloaders", "valid_data", "test_examples")
_RATE = ("learning_rate", "lr")
_TX = ("tx", "optim", "optimizers")
_LOSS = ("loss_fn", "compute_loss", "criterion", "loss_function")
_WORKDIR = ("run", "run_dir", "output_dir", "logdir", "log_dir", "checkpoint_dir", "default_root_dir", "dir")
_SEED = ("jax_seed", "random_seed", "rng", "key", "prng_key")
_DTYPE = ("dtype", "precision", "mixed_precision", "train_dtype", "bf16", "fp16")
_ACCUMULATE = ("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum_steps")
_CALLBACKS = ("callbacks", "callback", "hooks")
_VOCABULARY = ("vocab", "vocab_size", "num_tokens", "num_embeddings")
_MODEL = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "width", "features", "hidden")
_LAYERS = ("num_layers", "n_layers", "n_layer", "num_hidden_layers", "depth")
_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "num_query_heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_heads", "n_kv_heads", "num_key_heads")
_HEAD = ("head_dim", "head_size", "d_kv", "d_head")
_FEED_FORWARD = ("intermediate_size", "d_ff", "ffn_dim", "mlp_dim", "n_inner", "ff")
_EPSILON = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", "eps", "epsilon")
_TIED = ("tie_word_embeddings", "tie_embeddings", "tied_embeddings", "logits_via_embedding")
_LENGTH = ("n_positions", "max_position_embeddings", "block_size", "context_length", "n_ctx", "max_length")

_OPTIMIZER = "The optimizer has it: optimizer=optax.adamw(1e-3)."
_OF_FIT = "`fit` takes it: trainer.fit(examples, batch_size=64, epochs=3, eval_examples=...)."
_OF_DEPLOYER = "The deployer has it: mw.Deployer(seed=0, workdir='runs/x')."


def _instead(*groups: tuple[tuple[str, ...], str]) -> dict[str, str]:
    return {name: text for names, text in groups for name in names}


_RULES = ("params_sharding_rules",), "Write rules=."
_UPDATE_KEY = ("update_rng",), "Write update_key=."
_OF_LEARNING = ((_RATE, _OPTIMIZER), (_TX, "Write optimizer=."), (_LOSS, "Write loss=."))
_OF_SIZES = (
    (_VOCABULARY, "Write vocabulary=."),
    (_MODEL, "Write model=, the number of features."),
    (_LAYERS, "Write layers=."),
    (_HEADS, "Write heads=."),
    (_FEED_FORWARD, "Write feed_forward=."),
    (_EPSILON, "Write norm_epsilon=."),
)
_INSTEAD: Mapping[str, Mapping[str, str]] = {
    "Trainer": _instead(
        *_OF_LEARNING,
        (("epochs", "max_steps", "batch_size", "eval_examples", "per_device_batch_size"), _OF_FIT),
        ((*_EPOCHS, *_STEPS, *_BATCH, *_DEVICE_BATCH, *_DATA, *_TEST, *_CALLBACKS), _OF_FIT),
        ((*_WORKDIR, "workdir", "seed", *_SEED, "mesh"), _OF_DEPLOYER),
        (_DTYPE, 'Write compute_dtype="bfloat16".'),
        (_ACCUMULATE, "Write microbatches=."),
    ),
    "Trainer.fit": _instead(
        (_EPOCHS, "Write epochs=."),
        (_STEPS, "Write max_steps=."),
        (_BATCH, "Write batch_size=, the examples of an update over all devices."),
        (_DEVICE_BATCH, "Write per_device_batch_size=."),
        (_DATA, "The examples are the first argument, train_examples."),
        (_TEST, "Write eval_examples=."),
        (_RATE, "The trainer's optimizer has it: mw.Trainer(..., optimizer=optax.adamw(1e-3))."),
        (_CALLBACKS, "Write eval_metric_fn= for metrics, stop=mw.Stop(early=...) to end early, and a loop of "
         "your own with mw.fit for all else."),
        (("log_every",), "Write logging=mw.Logging(every=50)."),
        ((*_WORKDIR, "workdir"), _OF_DEPLOYER),
    ),
    "Deployer": _instead(
        (_SEED, "Write seed=."),
        (_WORKDIR, "Write workdir=."),
        (("n_model_shards", "model_shards", "num_shards"), "Write num_model_shards=."),
        (("n_processes",), "Write num_processes=."),
        (("n_local_devices", "devices"), "Write num_local_devices=, or mesh='data=-1'."),
    ),
    "Deployer.get_accumulate_grad_batches": _instead((_BATCH, "Write batch_size=.")),
    "Deployer.get_model_input_batches": _instead(
        (("collate_fn",), "Write collate=."),
        (("shuffle_rng",), "Write shuffle_key=."),
        (_ACCUMULATE, "Write microbatches=."),
    ),
    "Deployer.get_lr_schedule_fn": _instead(
        (_EPOCHS, "Write epochs=."), (_ACCUMULATE, "Write microbatches=.")
    ),
    "Deployer.get_params_spec": _instead(_RULES),
    "Deployer.load_ckpt": _instead(_RULES, _UPDATE_KEY),
    "Deployer.load_last_ckpt": _instead(_RULES, _UPDATE_KEY),
    "Experiment": _instead(
        *_OF_LEARNING,
        (_WORKDIR, "Write workdir=."),
        (_STEPS, "Write max_steps=."),
        (("epochs", *_EPOCHS), "Write input=mw.Input(examples, batch_size=64, epochs=3)."),
        (("batch_size", *_BATCH, *_DEVICE_BATCH), "Write input=mw.Input(examples, batch_size=64)."),
        (_DATA, "Write input=mw.Input(examples, batch_size=64)."),
        ((*_TEST, "eval_examples", "evalers", "evals"),
         'Write evaluations={"test": mw.Evaluation(measure, examples, when=100, batch_size=64)}.'),
        (_SEED, "Write seed=."),
        (_DTYPE, 'Write compute_dtype="bfloat16".'),
        (_ACCUMULATE, "Write microbatches=."),
        (_CALLBACKS, "Write logging=mw.Logging(trackers=...) to see reports, stop=mw.Stop(early=...) to end "
         "early, and a loop of your own with mw.fit for all else."),
        (("checkpoints", "checkpoint_every", "save_every", "save_steps"),
         "Write save=mw.Save(when=1000, keep=3)."),
        (("log_every", "trackers", "loggers", "logger"), "Write logging=mw.Logging(every=50, trackers=...)."),
        (("max_seconds", "max_time", "early_stopping"), "Write stop=mw.Stop(max_seconds=3600, early=...)."),
        (("init",), "Write model=."),
    ),
    "Input": _instead(
        (_EPOCHS, "Write epochs=."),
        (_BATCH, "Write batch_size=."),
        (("num_workers", "workers"), "Write num_threads=."),
        (("seed",), "The experiment has it: mw.Experiment(..., seed=0)."),
        (("collate", "collate_fn"), "Use mw.Batched(loader) for batches that are made already."),
    ),
    "Evaluation": _instead(
        (("every", "eval_every", "eval_steps"), "Write when=100, a number of steps, or a policy of mw.when."),
        (("metrics", "metric"), "Write measure=, or metric_fn= with predict=."),
        (("data", "dataset"), "Write examples=."),
    ),
    "Save": _instead(
        (("every", "save_every", "save_steps"),
         "Write when=1000, a number of steps, or a policy of mw.when."),
        (("max_to_keep", "save_total_limit", "save_top_k"), "Write keep=3, or a policy of mw.checkpoint."),
    ),
    "Checkpoints": _instead(
        (("max_to_keep", "save_total_limit"), "Write keep=3, or a policy of mw.checkpoint."),
    ),
    "Predictor": _instead(
        (("params", "per_device_batch_size", "batch_size", "examples"),
         "`predict` takes it: predictor.predict(examples, per_device_batch_size=64, params=params)."),
        (("predict_fn", "pred_fn", "output_fn"), "Write predict=, and output= for what each row becomes."),
    ),
    "Predictor.predict": _instead((("batch_size",), "Write per_device_batch_size=.")),
    "Trainer.evaluate": _instead(((*_DATA, *_TEST), "The examples are the first argument.")),
    "fit": _instead(
        (_STEPS, "Write max_steps=."),
        (("epochs", *_EPOCHS), "The data have it: mw.batches(examples, 64, sharding, epochs=3)."),
        (_CALLBACKS, "Write on_step=, which is called after each step, or log=."),
    ),
    "batches": _instead(
        (("shuffle",),
         "Write seed=0 for a new order in each epoch, or seed=None for the examples' own order."),
        (_EPOCHS, "Write epochs=."),
        (("num_workers", "workers"), "Write num_threads=."),
        (("drop_remainder", "drop_last"),
         "What does not fill a batch at the end of the last epoch is left out."),
    ),
    "Decoding": _instead(
        (("max_length", "max_tokens", "max_decode_len"), "Write max_new_tokens=, without the prompt."),
        (("num_beams", "beam_size"), "Write beams=."),
        (("do_sample",), "Write temperature=1.0 to draw, 0 for the most likely token."),
        (("eos_token_id", "eos_token_ids", "stop_token_ids", "eos_id"), "Write stop=(0,)."),
        (("seed",), "`generate` takes it: mw.generate(model, params, prompts, decoding, seed=0)."),
    ),
    "models.decoder.Config": _instead(
        *_OF_SIZES,
        (_KEY_HEADS, "Write key_heads=."),
        (_HEAD, "Write head=."),
        (_TIED, "Write tied=."),
        (_LENGTH, "A row may have any length: its positions are rotary."),
        (("rope_theta", "rope_base", "rope"), "Write ropes=(mw.models.decoder.Rope(base=...),)."),
        (("sliding_window", "window"), "Write windows=(4096,)."),
    ),
    "models.gpt2.Config": _instead(*_OF_SIZES, (_LENGTH, "Write positions=.")),
    "models.t5.Config": _instead(
        *_OF_SIZES,
        (_HEAD, "Write head=."),
        (_TIED, "Write tied=."),
        (("num_decoder_layers",), "Write decoder_layers=."),
    ),
}  # fmt: skip


def explained(function: F) -> F:
    """Return a function or class that raises an error that helps when it is given an unknown argument.

    A class is changed itself. The signature that type checkers and `help` show stays.

    Raises (when called):
      UsageError: There is no such argument. The error says which one to write.

    Example:
      >>> mw.Input([1, 2], batch_size=1, num_workers=2)
      Traceback (most recent call last):
          ...
      meshwright.errors.UsageError: mw.Input has no argument 'num_workers'. Write num_threads=.
      ...
    """
    return explained_as(function.__qualname__)(function)


def explained_as(path: str) -> Callable[[F], F]:
    """Return a decorator that does as `explained`, for a function or class that errors name by a path.

    Args:
      path: The path below `mw` by which users call it, such as `models.decoder.Config`.
    """
    return lambda function: _explained(function, path)


def _explained(function: F, path: str) -> F:
    called = function.__init__ if isinstance(function, type) else function
    if any(each.kind is each.VAR_KEYWORD for each in inspect.signature(called).parameters.values()):
        return function  # it takes any
    names = [each.name for each in inspect.signature(called).parameters.values() if each.name != "self"]

    @functools.wraps(called)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= known:
            raise _unknown(path, next(name for name in kwargs if name not in known), names)
        return called(*args, **kwargs)

    known = frozenset(names)
    if not isinstance(function, type):
        return checked  # type: ignore[return-value]
    function.__init__ = checked
    return function


def _unknown(path: str, name: str, names: list[str]) -> UsageError:
    close = nearest(name, names)
    instead = _INSTEAD.get(path, {}).get(name) or (f"Did you mean {close}?" if close else "")
    return UsageError(f"mw.{path} has no argument {name!r}. {instead}\n  It has {listed(names, len(names))}.")
