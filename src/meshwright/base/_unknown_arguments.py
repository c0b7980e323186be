"""Errors about arguments that a function does not have, with the argument to write instead.

Users of other libraries write the argument names of those. Python's own error names no other. `_SAME` has the
names of one argument in several libraries, and `_INSTEAD` the advice for arguments that are elsewhere, by the
function that gets them. The command line answers unknown settings from both.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from meshwright.errors import UsageError, did_you_mean, listed

F = TypeVar("F", bound=Callable[..., Any])

_SAME: Mapping[str, Sequence[str]] = {
    words.split()[0]: words.split()
    for words in (
        "epochs n_epochs num_epochs max_epochs num_train_epochs nb_epoch",
        "max_steps max_step step steps num_steps n_steps total_steps num_train_steps train_steps",
        "batch_size global_batch_size train_batch_size total_batch_size",
        "per_device_batch_size per_device_train_batch_size micro_batch_size local_batch_size",
        "data train_dataset train_data dataset train_dataloader train_dataloaders examples",
        "eval_examples validation_data eval_dataset val_dataset val_dataloaders valid_data test_examples",
        "evaluations evalers evals",
        "eval_when eval_steps eval_every eval_interval eval_strategy val_check_interval validation_freq",
        "save_when save.when save_every save_steps save_freq checkpoint checkpoints checkpoint_every",
        "save.keep max_to_keep save_total_limit save_top_k",
        "logging.every log_every log_steps logging_steps log_every_n_steps log_interval",
        "max_seconds max_time",
        "early_stopping early_stopping_patience patience",
        "progress_bar verbose enable_progress_bar disable_tqdm",
        "augment augmentation transform transforms map map_fn preprocess",
        "callbacks callback hooks",
        "learning_rate lr peak_lr base_lr",
        "optimizer tx optim optimizers",
        "loss loss_fn compute_loss criterion loss_function",
        "workdir run run_dir output_dir logdir log_dir checkpoint_dir default_root_dir dir",
        "seed jax_seed random_seed rng key prng_key",
        "compute_dtype dtype precision mixed_precision train_dtype bf16 fp16",
        "microbatches accumulate_grad_batches gradient_accumulation_steps grad_accum_steps",
        "num_threads num_workers workers",
        "num_model_shards n_model_shards model_shards num_shards",
        "num_processes n_processes",
        "rules params_sharding_rules",
        "update_key update_rng",
        "collate collate_fn",
        "shuffle_key shuffle_rng",
        "vocabulary vocab vocab_size num_tokens num_embeddings",
        "layers num_layers n_layers n_layer num_hidden_layers depth",
        "heads num_heads n_heads n_head num_attention_heads num_query_heads",
        "key_heads num_key_value_heads num_kv_heads kv_heads n_kv_heads num_key_heads",
        "head head_dim head_size d_kv d_head",
        "feed_forward intermediate_size d_ff ffn_dim mlp_dim n_inner ff",
        "norm_epsilon rms_norm_eps layer_norm_epsilon layer_norm_eps norm_eps eps epsilon",
        "tied tie_word_embeddings tie_embeddings tied_embeddings logits_via_embedding",
        "positions n_positions max_position_embeddings block_size context_length n_ctx max_length",
    )
}
"""The names of one argument, ours first; settings have their paths."""


def _instead(*rows: tuple[str, str]) -> dict[str, str]:
    """Return the advice by name, from pairs of words and an advice; a word stands for all of its synonyms."""
    return {name: text for words, text in rows for word in words.split() for name in _SAME.get(word, [word])}


_STOP = 'stop=mw.Stop(early=mw.engine.early_stopping("test/loss", "min", patience=3))'
_TEST = 'evaluations={"test": mw.Evaluation("loss", examples)}'
_MAPPED = "augment", "The examples have it: mw.data.mapped(function, examples)."
_KEEP = "save.keep", "Write keep=3, or a policy of mw.checkpoints."
_WHEN = "Write when=100, a number of steps, or a policy of mw.processes."
_OF_MODEL = (
    "hidden_size d_model n_embd dim embed_dim emb_dim width features hidden",
    "Write model=, the number of features.",
)
_INSTEAD: Mapping[str, Mapping[str, str]] = {
    "Trainer": _instead(
        ("learning_rate", "The optimizer has it: optimizer=optax.adamw(1e-3)."),
        ("epochs max_steps batch_size per_device_batch_size data eval_examples callbacks",
         f"`fit` takes it: trainer.fit(examples, batch_size=64, epochs=3, {_TEST})."),
        ("workdir seed mesh progress_bar", "The deployer has it: mw.Deployer(seed=0, workdir='runs/x')."),
        ("early early_stopping", f"`fit` takes it: trainer.fit(..., {_STOP})."),
        ("save_when", "`fit` takes it: trainer.fit(..., save=mw.Save(when=1000))."),
        _MAPPED,
    ),
    "Trainer.fit": _instead(
        ("batch_size", "Write batch_size=, the examples of an update over all devices."),
        ("data", "The examples are the first argument, train_examples."),
        ("learning_rate", "The trainer's optimizer has it: mw.Trainer(..., optimizer=optax.adamw(1e-3))."),
        ("eval_examples", f"Write {_TEST}."),
        ("eval_loss eval_predictor eval_metric_fn",
         "The evaluation has it: mw.Evaluation('loss', examples, predict=predictor, metric_fn=f1), with None "
         "instead of 'loss' for eval_loss=False."),
        ("eval_per_device_batch_size per_device_eval_batch_size",
         "The evaluation has it, for the whole batch: mw.Evaluation('loss', examples, batch_size=64)."),
        ("eval_when", "The evaluation has it: mw.Evaluation('loss', examples, when=100)."),
        ("save_when save.keep keep memory", "Write save=mw.Save(when=1000, keep=3)."),
        ("best save_argmin_ckpt_by_metrics save_argmax_ckpt_by_metrics load_best_model_at_end",
         'Write save=mw.Save(keep=mw.checkpoints.best("test/loss", "min")).'),
        ("keep_every_epochs save_ckpt_every_k_epochs",
         'Write save=mw.Save(keep=mw.checkpoints.multiples(2, of="epoch")).'),
        ("save_last_ckpt", "Leave it out: with a workdir the last state is always saved."),
        ("callbacks", "Write mw.Evaluation(metric_fn=...) for metrics, stop=mw.Stop(early=...) to end early, "
         "and a loop of your own with mw.fit for all else."),
        ("early early_stopping", f"Write {_STOP}."),
        ("progress_bar", "The deployer has it: mw.Deployer(seed=0, verbose=False)."),
        ("logging.every", "Write logging=mw.Logging(every=50)."),
        ("workdir", "The deployer has it: mw.Deployer(seed=0, workdir='runs/x')."),
        _MAPPED,
    ),
    "Deployer": _instead(
        ("n_local_devices devices", "Write num_local_devices=, or mesh='data=-1'."),
    ),
    "Experiment": _instead(
        ("learning_rate", "The optimizer has it: optimizer=optax.adamw(1e-3)."),
        ("epochs", "Write input=mw.Input(examples, batch_size=64, epochs=3)."),
        ("batch_size per_device_batch_size data", "Write input=mw.Input(examples, batch_size=64)."),
        ("eval_examples evaluations eval_when",
         'Write evaluations={"test": mw.Evaluation(measure, examples, when=100, batch_size=64)}.'),
        ("callbacks", "Write logging=mw.Logging(trackers=...) to see reports, stop=mw.Stop(early=...) to end "
         "early, and a loop of your own with mw.fit for all else."),
        ("save_when", "Write save=mw.Save(when=1000, keep=3)."),
        ("logging.every trackers loggers logger", "Write logging=mw.Logging(every=50, trackers=...)."),
        ("max_seconds", "Write stop=mw.Stop(max_seconds=3600)."),
        ("early early_stopping", f"Write {_STOP}."),
        ("progress_bar", "`run` takes it: mw.run(experiment, verbose=True)."),
        ("init", "Write model=."),
        _MAPPED,
    ),
    "Input": _instead(
        ("seed", "The experiment has it: mw.Experiment(..., seed=0)."),
        ("collate", "Use mw.data.Batched(loader) for batches that are made already."),
        _MAPPED,
    ),
    "Evaluation": _instead(
        ("every eval_when", _WHEN),
        ("metrics metric", "Write measure=, or metric_fn= with predict=."),
    ),
    "Save": _instead(("every save_when", _WHEN), _KEEP),
    "Checkpoints": _instead(_KEEP),
    "Stop": _instead(
        ("early_stopping", 'Write early=mw.engine.early_stopping("test/loss", "min", patience=3).')
    ),
    "Logging": _instead(("logging.every", "Write every=50.")),
    "Predictor": _instead(
        ("params per_device_batch_size batch_size data",
         "`predict` takes it: predictor.predict(examples, per_device_batch_size=64, params=params)."),
        ("predict_fn pred_fn output_fn", "Write predict=, and output= for what each row becomes."),
    ),
    "Predictor.predict": _instead(("batch_size", "Write per_device_batch_size=.")),
    "Trainer.evaluate": _instead(
        ("data eval_examples batch_size per_device_batch_size loss predictor metric_fn",
         "The evaluation has it: trainer.evaluate(mw.Evaluation('loss', examples, batch_size=64))."),
    ),
    "fit": _instead(
        ("epochs", "The data have it: mw.batches(examples, 64, sharding, epochs=3)."),
        ("callbacks", "Write on_step=, which is called after each step, or log=."),
    ),
    "batches": _instead(
        ("shuffle", "Write seed=0 for a new order in each epoch, or seed=None for the examples' own order."),
        ("drop_remainder drop_last", "What does not fill a batch at the end of the last epoch is left out."),
    ),
    "lm.Decoding": _instead(
        ("max_length max_tokens max_decode_len", "Write max_new_tokens=, without the prompt."),
        ("num_beams beam_size", "Write beams=."),
        ("do_sample", "Write temperature=1.0 to draw, 0 for the most likely token."),
        ("eos_token_id eos_token_ids stop_token_ids eos_id", "Write stop=(0,)."),
        ("seed", "`generate` takes it: mw.lm.generate(model, params, prompts, decoding, seed=0)."),
    ),
    "lm.decoder.Config": _instead(
        ("positions", "A row may have any length: its positions are rotary."),
        ("rope_theta rope_base rope", "Write ropes=(mw.lm.decoder.Rope(base=...),)."),
        ("sliding_window window", "Write windows=(4096,)."),
        _OF_MODEL,
    ),
    "lm.gpt2.Config": _instead(_OF_MODEL),
    "lm.t5.Config": _instead(_OF_MODEL, ("num_decoder_layers", "Write decoder_layers=.")),
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
    """Return a decorator that does as `explained`, for a function or class that errors name by a path."""
    return functools.partial(_explained, path=path)


def _explained(function: F, path: str) -> F:
    called = function.__init__ if isinstance(function, type) else function
    if any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(called).parameters.values()
    ):
        return function  # it takes any
    names = [
        parameter.name
        for parameter in inspect.signature(called).parameters.values()
        if parameter.name != "self"
    ]

    @functools.wraps(called)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= allowed:
            raise _unknown(path, next(name for name in kwargs if name not in allowed), names)
        return called(*args, **kwargs)

    allowed = frozenset(names)
    if not isinstance(function, type):
        return checked  # type: ignore[return-value]
    function.__init__ = checked
    return function


def synonym(name: str, names: Iterable[str]) -> str | None:
    """Return the name, or path, among `names` that means the same as a name of another library."""
    same = next((group for group in _SAME.values() if name in group), [])
    return next(
        (candidate for ours in same for candidate in names if f".{candidate}".endswith(f".{ours}")), None
    )


def instead(path: str, name: str) -> str:
    """Return the advice about an argument that a function does not have, or ""."""
    return _INSTEAD.get(path, {}).get(name, "")


def _unknown(path: str, name: str, names: list[str]) -> UsageError:
    hint = instead(path, name)
    if not hint and (same := synonym(name, names)):
        hint = f"Write {same}=."
    hint = f" {hint}" if hint else did_you_mean(name, names)
    return UsageError(f"mw.{path} has no argument {name!r}.{hint}\n  It has {listed(names, len(names))}.")
