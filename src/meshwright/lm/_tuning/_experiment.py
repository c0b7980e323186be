"""An experiment that trains an adapter, made of one that trains all parameters."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from meshwright.engine._internal import (
    Evaluation,
    EvaluationFunction,
    Experiment,
    Functional,
    Sampler,
    Samples,
)
from meshwright.lm._checkpoint_models import generation_of_run
from meshwright.lm._text_samples import Generation
from meshwright.lm._tuning._lora import ADAPTER, BASE, Lora
from meshwright.lm._tuning._quantised import Quantised
from meshwright.training._internal import Builder, InitialArrays, TrainState


def adapted(experiment: Experiment, adapter: Lora) -> Experiment:
    """Return an experiment that trains an adapter of the model, and freezes the model.

    The model, loss, optimizer, rules, evaluations, builder and checkpoints are changed for it. If the
    experiment has an `init_state_builder`, such as `mw.engine.from_checkpoint(path)`, checkpoints do not
    contain the base. A run that continues reads the base again by the builder, from where the run says that
    it began.

    Args:
      experiment: An experiment that trains all parameters of the model.
      adapter: The adapter. For a model of Flax or Equinox (`mw.functional`) its form becomes "merged".

    Raises:
      UsageError: The optimizer is a `Trainable`; or the adapter has dropout, which "merged" lacks.

    Example:
      >>> experiment = mw.Experiment(
      ...     workdir="runs/adapted",
      ...     model=lambda key: {"w": jnp.ones((4, 2))},
      ...     loss=lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean(),
      ...     optimizer=optax.adam(0.1),
      ...     input=mw.Input({"x": np.ones((16, 4), np.float32)}, batch_size=8),
      ...     max_steps=2,
      ... )
      >>> outcome = mw.run(mw.lm.adapted(experiment, mw.lm.lora("w", rank=1)))
      >>> print(outcome.state.params["base"]["w"][0], mw.parallel.leaf_names(outcome.state.params["adapter"]))
      [1. 1.] ['w/lora_a', 'w/lora_b']
    """
    model, builder, save = experiment.model, experiment.init_state_builder, experiment.save
    if isinstance(model, Functional):
        adapter = replace(adapter, form="merged")
    return replace(
        experiment,
        model=adapter.init(model),
        loss=adapter.loss(experiment.loss),
        optimizer=adapter.optimizer(experiment.optimizer),
        rules=None if experiment.rules is None else adapter.rules(experiment.rules),
        evaluations={
            name: _evaluation(evaluation, adapter) for name, evaluation in experiment.evaluations.items()
        },
        samples=_samples(experiment, adapter),
        init_state_builder=None if builder is None else BaseBuilder(builder, adapter),
        save=save if builder is None else replace(save, names=WithoutBase(save.names)),
    )


def _samples(experiment: Experiment, adapter: Lora) -> Sampler | None:
    if isinstance(experiment.samples, Samples):
        return replace(experiment.samples, function=_with_adapter(experiment.samples.function, adapter))
    generation: Generation | None = generation_of_run(experiment)
    if generation is None:
        return None
    model = generation.model
    changed = replace(
        model,
        init_cache=_with_adapter(model.init_cache, adapter),
        apply=_with_adapter(model.apply, adapter),
        encode=None if model.encode is None else _with_adapter(model.encode, adapter),
        plain=adapter.merged,
    )
    return replace(generation, model=changed)


def _evaluation(
    evaluation: Evaluation | EvaluationFunction, adapter: Lora
) -> Evaluation | EvaluationFunction:
    if isinstance(evaluation, EvaluationFunction):
        return replace(evaluation, function=_with_adapter(evaluation.function, adapter))
    changes = {name: getattr(evaluation, name) for name in ("measure", "outputs", "predict")}
    changed: Any = {name: None if f is None else _with_adapter(f, adapter) for name, f in changes.items()}
    return replace(evaluation, **changed)


def _with_adapter(function: Callable[..., Any], adapter: Lora) -> Callable[..., Any]:
    """Return a function of the model's parameters as one of those with the adapter."""

    @functools.wraps(function)
    def wrapper(params: Any, *rest: Any, **named: Any) -> Any:
        return function(adapter.effective(params), *rest, **named)

    return wrapper


@dataclass(frozen=True)
class WithoutBase:
    """The names in checkpoints of a run with an adapter: the base has none."""

    names: Callable[[str], str | None] | None

    def __call__(self, name: str) -> str | None:
        if name.startswith(f"params/{BASE}/"):
            return None
        return name if self.names is None else self.names(name)


@dataclass(frozen=True)
class BaseBuilder:
    """A builder for the model's parameters, as one for those with an adapter."""

    builder: Builder
    adapter: Lora

    def __call__(self, target: TrainState) -> InitialArrays:
        arrays = self.builder(replace(target, params=target.params[BASE], opt_state=()))
        moved = {name.replace("params/", f"params/{BASE}/", 1): x for name, x in arrays.items()}
        return {**moved, **(self._magnitudes(target, moved) if self.adapter.dora else {})}

    def _magnitudes(self, target: TrainState, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the first magnitudes of DoRA, which are the norms of the given weights."""
        magnitudes = {}
        for name, weight in self.adapter.chosen(target.params[BASE]).items():
            array = _stored_weight(f"params/{BASE}/{name}", weight, arrays)
            if array is not None:
                leaf_name = f"params/{ADAPTER}/{name}/magnitude"
                magnitudes[leaf_name] = jax.jit(functools.partial(self.adapter.first_magnitude, name))(array)
        return magnitudes


def _stored_weight(name: str, weight: Any, arrays: Mapping[str, Any]) -> Any:
    """Return a weight from arrays by name, given its struct; None if it is not among them."""
    if not isinstance(weight, Quantised):
        return arrays.get(name)
    codes, scales = arrays.get(f"{name}/codes"), arrays.get(f"{name}/scales")
    if codes is None or scales is None:
        return None
    return replace(weight, codes=codes, scales=scales)
