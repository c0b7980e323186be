"""From the folder of a Hugging Face model and examples to an adapter or a tuned model."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax

from meshwright.base._internal import documented, join, local_path
from meshwright.checkpoints._internal import Source, as_source, best, cast, open_best, subtree
from meshwright.data._internal import end_tokens
from meshwright.engine._internal import (
    Evaluation,
    Experiment,
    Input,
    Logging,
    Outcome,
    Save,
    from_checkpoint,
    perplexity,
    run,
)
from meshwright.errors import UsageError
from meshwright.lm._generation._decoding import Decoding
from meshwright.lm._models import hugging_face
from meshwright.lm._models._with_cache import with_cache
from meshwright.lm._text_samples import Generation
from meshwright.lm._tuning._examples import split_rows
from meshwright.lm._tuning._experiment import adapted
from meshwright.lm._tuning._families import Config, family_of, rows_score
from meshwright.lm._tuning._lora import Lora
from meshwright.lm._tuning._lora import lora as new_lora
from meshwright.lm._tuning._merged import merged_source
from meshwright.lm._tuning._peft import export_adapter
from meshwright.lm._tuning._quantised import Kind, quantised_init, quantised_source
from meshwright.training._internal import schedule

SCORE = "held_out/loss"


def tuning(
    model: str,
    data: str,
    workdir: str = "runs/tuned",
    *,
    lora: int = 16,
    alpha: float | None = None,
    full: bool = False,
    base: Kind | None = None,
    epochs: int = 3,
    batch_size: int = 8,
    length: int = 2048,
    learning_rate: float | None = None,
    held_out: float = 0.05,
    mesh: str = "fsdp=-1",
    seed: int = 0,
) -> Experiment:
    """Return the experiment that tunes a model of Hugging Face's on a file of chats, texts or tokens.

    `meshwright tune` runs it. `meshwright plan meshwright.lm:tuning model=… data=…` plans it.

    Args:
      model: The folder of the model, with `config.json` and safetensors files, and with its tokenizer unless
        `data` has only tokens.
      data: A file of JSON lines, as `read_rows` takes it: chats, prompts with completions, texts or tokens.
        For T5, as `read_pair_rows` takes it: prompts with completions, or inputs and targets.
      workdir: The directory of the run.
      lora: The rank of the adapter, which is of all matrices of the layers.
      alpha: The scale of the adapter is alpha / rank. None stands for twice the rank.
      full: If true, all parameters are trained, and there is no adapter.
      base: How the frozen matrices are stored; None keeps the dtype of the files.
      epochs: How often all examples are read.
      batch_size: The number of rows of an update, over all devices.
      length: The largest number of tokens in a row; for T5, of inputs and of targets.
      learning_rate: The largest rate of AdamW; it rises for 3 % of the steps, and falls to 0 as a cosine.
        None stands for 2e-4, or 1e-5 if all parameters are trained.
      held_out: The share of the examples that is not trained on. The loss per token on these decides which
        checkpoint is the best.
      mesh: The mesh.
      seed: The seed of the adapter, of the order and of the choice of examples that are held out.

    Raises:
      CheckpointError: The folder is not that of a model that is known here.
      InputError: The file has lines of another form.
      UsageError: `base` is given and `full` is true, or another setting is not valid.

    Example:
      >>> import json
      >>> with open("rows.jsonl", "w") as file:
      ...     for n in range(3, 43):
      ...         print(json.dumps({"tokens": [1, n, n + 1, n + 2]}), file=file)
      >>> experiment = mw.lm.tuning("llama", "rows.jsonl", lora=4, epochs=1)
      >>> experiment.max_steps
      4
    """
    cfg = _config(model, full, base)
    # GPT-2 has only so many positions.
    family, length = family_of(cfg), min(length, getattr(cfg, "positions", length))
    train, test = split_rows(family.read(data, length, model, vocabulary=cfg.vocabulary), held_out, seed)
    num_rows, longest = train[family.labels].shape
    max_steps = epochs * num_rows // batch_size
    if max_steps < 2:
        raise UsageError(
            f"{data}: {num_rows} examples, epochs={epochs} and batch_size={batch_size} make {max_steps} "
            f"update{'s' * (max_steps != 1)}, and the learning rate needs at least 2.\n"
            "  Give a smaller batch_size= or more epochs=."
        )
    return tuning_on(
        model,
        train,
        test,
        workdir,
        max_steps=max_steps,
        length=longest,
        # Two evaluations in each epoch.
        when=max(max_steps // (2 * epochs), 1),
        lora=lora,
        alpha=alpha,
        full=full,
        base=base,
        batch_size=batch_size,
        learning_rate=learning_rate,
        mesh=mesh,
        seed=seed,
    )


def tuning_on(
    model: str,
    train: Any,
    held_out: Any,
    workdir: str,
    *,
    max_steps: int,
    length: int,
    when: int = 500,
    lora: int = 16,
    alpha: float | None = None,
    full: bool = False,
    base: Kind | None = None,
    batch_size: int = 8,
    learning_rate: float | None = None,
    mesh: str = "fsdp=-1",
    seed: int = 0,
) -> Experiment:
    """Return the experiment that tunes a model of Hugging Face's on examples of any kind.

    An example is `{"tokens": int[length]}`. It may have `segments`, numbered from 1 with 0 for padding, and
    `weights`, how much each token counts in the loss. For T5 it is as `read_pair_rows` makes it. `write_best`
    writes the result of the run.

    Args:
      model: The folder of the model.
      train: The examples to train on, of the kinds that `Input.examples` lists.
      held_out: The examples whose loss per token decides which checkpoint is the best.
      workdir: The directory of the run.
      max_steps: The number of updates.
      length: The number of tokens in an example.
      when: The number of steps after which to evaluate and to save, each time.
      lora: As in `tuning`, and so are all that follow.
      alpha: The scale of the adapter.
      full: Whether all parameters are trained.
      base: How the frozen matrices are stored.
      batch_size: The number of examples of an update.
      learning_rate: The largest learning rate.
      mesh: The mesh.
      seed: The seed.

    Raises:
      CheckpointError: The folder is not that of a model that is known here.
      UsageError: `base` is given and `full` is true, or another setting is not valid.

    Example:
      >>> rows = {"tokens": np.ones((16, 8), np.int32)}
      >>> experiment = mw.lm.tuning_on("llama", rows, rows, "runs/tuned", max_steps=10, length=8)
      >>> experiment.input.batch_size
      8
    """
    cfg = _config(model, full, base)
    family = family_of(cfg)
    peak = learning_rate or (1e-5 if full else 2e-4)
    rate = schedule("cosine", peak=peak, max_steps=max_steps, warmup_steps=max(round(0.03 * max_steps), 1))
    init = functools.partial(family.init, cfg, dtype=jnp.float32 if full else jnp.bfloat16)
    experiment = Experiment(
        workdir=workdir,
        model=init if base is None else quantised_init(init, family.weights, base),
        loss=functools.partial(_loss, cfg),
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.0)),
        input=Input(train, batch_size=batch_size, item="tokens", items_per_example=length),
        max_steps=max_steps,
        mesh=mesh,
        rules=family.rules,
        compute_dtype="bfloat16",
        seed=seed,
        evaluations={
            "held_out": Evaluation(
                functools.partial(rows_score, cfg), held_out, when, batch_size, metric_fn=perplexity
            )
        },
        samples=Generation(with_cache(cfg), tokenizer=_tokenizer_in(model), decoding=_decoding(model)),
        save=Save(when=when, keep=best(SCORE, "min")),
        logging=Logging(every=min(when, 20)),
        init_state_builder=_builder(model, "float32" if full else "bfloat16", base),
    )
    return experiment if full else adapted(experiment, adapter_of(cfg, lora, alpha))


def _decoding(model: str) -> Decoding:
    """Return the decoding that ends a text where the model's files say."""
    return Decoding(stop=tuple((end,) for end in end_tokens(model)))


def _tokenizer_in(model: str) -> str | None:
    """Return the path of the model's tokenizer, if it has one; `meshwright sample` reads it."""
    file = local_path(model) / "tokenizer.json"
    return str(file) if file.exists() else None


def adapter_of(cfg: Config, rank: int, alpha: float | None) -> Lora:
    """Return the adapter of all matrices of the layers."""
    return new_lora(family_of(cfg).weights, rank, alpha=2 * rank if alpha is None else alpha)


def _config(model: str, full: bool, base: Kind | None) -> Config:
    local_path(model, "Copy the model to a disk.")
    if full and base is not None:
        raise UsageError(
            f"base={base!r} stores weights that are frozen, but full=True trains all of them. Leave out one."
        )
    return hugging_face.config(model)


def _loss(cfg: Config, params: Any, batch: Any) -> Any:
    return family_of(cfg).loss(cfg, params, batch, remat="nothing")


def _builder(model: str, dtype: str, base: Kind | None) -> Any:
    open_with = hugging_face.open_model if base is None else functools.partial(_open_quantised, base, dtype)
    casts = [(".*", dtype)] if base is None else []
    return from_checkpoint(model, assign=[("params/(.*)", r"\1")], casts=casts, open_with=open_with)


def _open_quantised(base: Kind, dtype: str, path: str) -> Source:
    source = cast(hugging_face.open_model(path), [(".*", dtype)])
    return quantised_source(source, family_of(hugging_face.config(path)).weights, base)


@documented
@dataclass(frozen=True)
class Tuned:
    """The result of `tune`."""

    outcome: Outcome
    """The outcome of the run."""
    step: int
    """The step of the best checkpoint, which was written."""
    files: tuple[Path, ...]
    """The files that were written."""


def tune(
    model: str, data: str, workdir: str = "runs/tuned", *, merge: bool = False, **settings: Any
) -> Tuned:
    """Tune a model of Hugging Face's, and write the best adapter or model. Call it on every process.

    A run that was cut off is continued by the same call. The adapter is written to `adapter` in the run
    directory, as PEFT's files; a whole model to `model`. The tokenizer, its template and the settings for
    generation come along.

    Args:
      model: The folder of the model.
      data: A file of JSON lines, as for `tuning`: chats, prompts with completions, texts or tokens.
      workdir: The local directory of the run.
      merge: If true, the adapter is added to the model's weights, and a whole model is written.
      settings: More settings of `tuning`.

    Raises:
      UsageError: A setting is not valid, or the result has been written already.
      CheckpointError: The folder is not that of a model that is known here.
      InputError: The file has lines of another form.

    Example:
      >>> tuned = mw.lm.tune("llama", "chats.jsonl", lora=8)  # doctest: +SKIP
      >>> [path.name for path in tuned.files]  # doctest: +SKIP
      ['adapter_model.safetensors', 'adapter_config.json']
    """
    outcome = run(tuning(model, data, workdir, **settings))
    adapter_settings = {name: settings[name] for name in ("lora", "alpha", "full") if name in settings}
    step, files = write_best(workdir, model, merge=merge, **adapter_settings)
    return Tuned(outcome, step, tuple(files))


def write_best(
    workdir: str,
    model: str,
    *,
    merge: bool = False,
    lora: int = 16,
    alpha: float | None = None,
    full: bool = False,
) -> tuple[int, list[Path]]:
    """Write the best checkpoint of a run of `tuning` for Hugging Face's loaders. Collective.

    Args:
      workdir: The local directory of the run.
      model: The folder of the model that it began from.
      merge: If true, a whole model is written, not an adapter.
      lora: As in `tuning`.
      alpha: As in `tuning`.
      full: As in `tuning`.

    Returns:
      The step of the checkpoint, and the paths of the files. Weights have the dtypes of those in `model`.

    Raises:
      CheckpointError: No checkpoint of the run has a score.
      UsageError: The result has been written already.

    Example:
      >>> step, paths = mw.lm.write_best("runs/tuned", "llama", merge=True)  # doctest: +SKIP
    """
    source = open_best(join(workdir, "checkpoints"), SCORE, "min")
    reference = hugging_face.open_model(model)
    directory = local_path(workdir) / ("model" if full or merge else "adapter")
    if full:
        params = _in_dtypes(subtree(source, "params"), reference)
        return source.step, hugging_face.export_model(params, directory, model)
    adapter, description = (
        subtree(source, "params/adapter"),
        adapter_of(hugging_face.config(model), lora, alpha),
    )
    if merge:
        return source.step, hugging_face.export_model(
            merged_source(reference, adapter, description), directory, model
        )
    files = export_adapter(adapter, directory, description, model)
    return source.step, [*files, *hugging_face.copy_companions(model, directory)]


def _in_dtypes(source: Source, reference: Source) -> Source:
    """Return a source cast to the dtypes of the arrays with these names in another."""
    dtypes = {name: x.dtype for name, x in reference.arrays().items()}
    arrays = {name: x.astype(dtypes.get(name, x.dtype)) for name, x in source.arrays().items()}
    return as_source(arrays, str(source))
