"""`Predictor`: a predict function, compiled once and called for any number of examples."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, explained, local_path, tree
from meshwright.data._internal import Collate, facts_of, is_indexed, num_examples, numbered_batches
from meshwright.engine._adapters._functional import functional
from meshwright.engine._deployer._deployer import Deployer
from meshwright.engine._describe import comparable_settings
from meshwright.engine._evaluation._batches import BeforeBatch, calling_before_each
from meshwright.engine._functions import prediction_of
from meshwright.engine._predict._outputs import Outputs, fingerprint
from meshwright.engine._predict._run import BatchedPredict, rows_of
from meshwright.errors import UsageError
from meshwright.parallel._internal import Rules, as_arrays, as_rules, copy_to, fsdp, in_mesh, infer_rules
from meshwright.processes import _internal as processes
from meshwright.training._internal import TrainState, Variables, as_seed, eval_params, nothing


@runtime_checkable
class PredictsAll(Protocol):
    """A value that predicts all examples itself, as their outputs take different numbers of steps."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts that a file of predictions depends on, by name."""
        ...

    def predictions(
        self, params: PyTree, examples: Any, *, slots: int, seed: int, start: int = 0
    ) -> Iterator[list[Any]]:
        """Yield lists of outputs, in the order of the examples from number `start` on. Collective."""
        ...


@explained
class Predictor:
    """Computes a prediction for each example, over the whole mesh, in order.

    Args:
      deployer: The deployer whose mesh, seed and log are used.
      predict: A function that returns a tree of arrays with a row for each example. Its parameters may be
        any of `params`, `model` (if one is given; call it as `model(inputs)`), `batch`, `key` and
        `model_state`. It is compiled once for each shape of a batch. Or a `mw.lm.Generation`: an output is
        then the text after a prompt, or its tokens if there is no tokenizer. Examples are texts, sequences of
        tokens, or mappings with a `prompt`. Its own `prompts` and `when` are not used.
      collate: A function that makes a dictionary of arrays from a list of examples. Without it the examples
        are stacked.
      model: A Flax or Equinox model, or a pair `(init, apply)`; see `mw.functional`.
      output: A function that makes a list of outputs, one for each example, from the predictions as NumPy
        arrays. It never sees padding. Without it an output is the example's row of each array.
      rules: Sharding rules for parameters that are not on the mesh yet. They come before the rules that are
        found automatically. A dictionary gives rules for each key of the parameters.

    Raises:
      UsageError: A function has a parameter of another name.

    Example:
      >>> deployer = mw.Deployer(seed=0, verbose=False)
      >>> predictor = mw.Predictor(
      ...     deployer,
      ...     predict=lambda params, batch: params["w"] * batch["x"],
      ...     output=lambda predictions: predictions.tolist(),
      ... )
      >>> predictor.predict({"x": np.arange(3.0)}, 1, {"w": jnp.float32(2)})
      [0.0, 2.0, 4.0]
    """

    def __init__(
        self,
        deployer: Deployer,
        *,
        predict: Callable[..., PyTree] | PredictsAll,
        collate: Collate | None = None,
        model: Any = None,
        output: Callable[[PyTree], Iterable[Any]] | None = None,
        rules: Rules = None,
    ):
        self._deployer, self._collate, self._rules = deployer, collate, rules
        self._of_all = predict if isinstance(predict, PredictsAll) else None
        if isinstance(predict, PredictsAll):
            _check_unused({"collate": collate, "model": model, "output": output})
        else:
            with in_mesh(deployer.mesh):  # the model may state how its parameters are split
                called = prediction_of(predict, None if model is None else functional(model))
            log_once = cache(deployer.log_info)
            idle = lambda error: log_once(f"! predictions: {error}")  # noqa: E731
            self._predictions = BatchedPredict(called, deployer.layout(), deployer.seed, idle)
        self._output = output or rows_of
        self._settings: dict[str, Any] = {
            "predict": predict,
            "collate": collate,
            "output": output,
            "rules": self._rules,
        }

    @explained
    @processes.collective()
    def predict(
        self,
        examples: Any,
        per_device_batch_size: int,
        params: PyTree,
        *,
        model_state: PyTree = None,
        seed: int | None = None,
        to: str | Path | None = None,
        desc: str = "Predicting",
    ) -> Any:
        """Return the list of outputs, the same on every process, or the path of a file of them. Collective.

        Args:
          examples: Anything that `mw.batches` takes, or any iterable. It may be empty. All processes must
            give the same examples.
          per_device_batch_size: The number of examples computed at a time, for each part into which the mesh
            splits a batch.
          params: The parameters, as arrays of JAX, NumPy or PyTorch. Arrays that are on the mesh already are
            not copied.
          model_state: The state of a model that has one: `trainer.model_state`.
          seed: The seed of `key`, the deployer's by default. Each call with the same seed draws the same
            numbers for the same examples. Another seed does not compile the function again.
          to: A local file to write instead of returning a list: one line of JSON for each example. If the
            call was killed, make it again: it resumes where it stopped, and the file has the same bytes. If
            the file is complete, nothing is computed.
          desc: The text of the progress bar.

        Raises:
          UsageError: The processes give different examples or settings, which is found before anything is
            computed; the predictions do not have a row for each example, or `output` returns another number
            of outputs; `to` is an address, or holds predictions of other parameters, of another seed or of
            another number of examples; or JSON cannot hold an output.
          ExamplesError: The examples cannot be made into batches.
          LayoutError: The parameters do not fit the mesh.
        """
        _check_size(per_device_batch_size)
        seed = self._deployer.seed if seed is None else as_seed(seed)
        file = None if to is None else local_path(to)
        size = self._deployer.get_local_global_micro_batch_size(per_device_batch_size)[1]
        examples = _iterable_as_function(examples)
        facts = partial(self._facts, examples, per_device_batch_size, file, seed)
        processes.compare("what is predicted", facts)
        variables = self._on_mesh(params, model_state)
        if file is not None:
            return self._to_file(examples, variables, size, seed, file, desc)
        batches = self._output_batches(examples, variables, size, seed, desc)
        return [output for outputs in batches for output in outputs]

    def of_state(
        self, state: TrainState, examples: Any, batch_size: int, before_batch: BeforeBatch = nothing
    ) -> list[Any]:
        """Return the outputs for a training state's evaluated parameters (see `eval_params`).

        It shows no progress bar, because training shows its own.

        Args:
          state: The training state.
          examples: The examples, as for `predict`.
          batch_size: The number of examples computed at a time, over the whole mesh.
          before_batch: A function that is called before each batch.
        """
        variables = Variables(eval_params(state), state.model_state)
        batches = self._output_batches(examples, variables, batch_size, self._deployer.seed, None)
        return [output for outputs in calling_before_each(batches, before_batch) for output in outputs]

    def _facts(
        self, examples: Any, per_device_batch_size: int, path: Path | None, seed: int
    ) -> dict[str, str]:
        """Return facts that all processes must share. `numbered_batches` compares those of an iterable."""
        call = {"per_device_batch_size": per_device_batch_size, "to a file": path is not None, "seed": seed}
        facts = facts_of(examples) if is_indexed(examples) else {}
        return {**facts, **comparable_settings({**call, **self._settings})}

    def _output_batches(
        self, examples: Any, variables: Variables, size: int, seed: int, desc: str | None, start: int = 0
    ) -> Iterator[list[Any]]:
        """Yield the outputs of each batch, from the example of index `start` on."""
        if self._of_all is not None:
            options: dict[str, Any] = {"slots": size, "seed": seed, "start": start}
            outputs = self._of_all.predictions(variables.params, examples, **options)
            number = num_examples(examples)
            num_left = None if number is None else number - start
            yield from outputs if desc is None else self._deployer.progress(outputs, num_left, desc)
            return
        sharding, number = self._deployer.layout().batch_sharding, num_examples(examples)
        data = numbered_batches(examples, size, sharding, collate=self._collate, start=start)
        predictions = self._predictions(variables.params, variables.model_state, data, seed)
        num_batches = None if number is None else -(-(number - start) // size)
        if desc is not None:
            predictions = self._deployer.progress(predictions, num_batches, desc)
        for ids, prediction in predictions:
            yield _checked_outputs(self._output(prediction), len(ids))

    def _to_file(
        self, examples: Any, variables: Variables, size: int, seed: int, path: Path, desc: str
    ) -> Path:
        """Write to `path` the outputs that are not there yet."""
        about = {
            "parameters": fingerprint((variables.params, variables.model_state), self._deployer.layout()),
            "seed": seed,
            "examples": num_examples(examples),
        }
        if self._of_all is not None:
            about |= self._of_all.facts
        file = Outputs(path, about)
        whole = size if self._of_all is None else 1  # what a prompt gets does not depend on its batch
        start = processes.on_lead(lambda: file.begin(whole))
        if start is None:
            self._deployer.log_info(f"{path}: all predictions are there")
            return path
        if start:
            self._deployer.log_info(f"{path}: {start} predictions are there; the rest follow")
        for outputs in self._output_batches(examples, variables, size, seed, desc, start):
            if processes.is_lead():
                file.append(outputs)
        processes.on_lead(file.finish)
        return path

    def _on_mesh(self, params: PyTree, model_state: PyTree) -> Variables:
        """Return the arrays on the mesh; those that are there already are not copied."""
        arrays = {"params": as_arrays(params), "model_state": as_arrays(model_state, "model_state")}
        mesh = self._deployer.mesh
        if all(_is_on(mesh, x) for x in jax.tree.leaves(arrays)):
            return Variables(params, model_state)
        structs = tree.abstract(arrays)
        rules = *as_rules(self._rules, params), infer_rules(structs["params"]), fsdp()
        shardings = self._deployer.layout(*rules).shardings(structs)
        placed = jax.tree.map(lambda x, s: x if _is_on(mesh, x) else copy_to(x, s), arrays, shardings)
        return Variables(**placed)


def _is_on(mesh: Mesh, x: Any) -> bool:
    if not isinstance(x, jax.Array):
        return False
    on_mesh = isinstance(x.sharding, NamedSharding) and x.sharding.mesh == mesh
    return on_mesh or x.sharding.is_equivalent_to(NamedSharding(mesh, P()), x.ndim)


def _iterable_as_function(examples: Any) -> Any:
    """Return an iterable as a function that returns it, as `numbered_batches` takes it; others unchanged."""
    if isinstance(examples, Iterable) and not (callable(examples) or is_indexed(examples)):
        return lambda: examples
    return examples


def _check_unused(arguments: dict[str, Any]) -> None:
    if names := [name for name, value in arguments.items() if value is not None]:
        raise UsageError(f"a Predictor that generates has no use for {', '.join(names)}.")


def _check_size(per_device_batch_size: Any) -> None:
    if not isinstance(per_device_batch_size, int | np.integer):
        raise UsageError(
            "per_device_batch_size must be a whole number; found a value of type "
            f"{type(per_device_batch_size).__name__}.\n"
            "  The order is predict(examples, per_device_batch_size, params)."
        )
    if per_device_batch_size < 1:
        raise UsageError(f"per_device_batch_size={per_device_batch_size}: it must be at least 1.")


def _checked_outputs(outputs: Any, num_examples: int) -> list[Any]:
    """Return the outputs as a list, having checked that there is one for each example."""
    if not isinstance(outputs, Iterable):
        raise UsageError(
            f"`output` returned {outputs!r} for {num_examples} examples.\n"
            "  It must return a list with one output for each."
        )
    outputs = list(outputs)
    if len(outputs) != num_examples:
        raise UsageError(
            f"`output` returned {len(outputs)} outputs for {num_examples} examples.\n"
            "  It must return a list with one output for each."
        )
    return outputs
