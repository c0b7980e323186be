"""`Predictor`: one function over any number of examples. Each method is a few lines over a room."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright import process, tree
from meshwright.adapters import functional
from meshwright.deployer import Deployer
from meshwright.engine import comparable_settings
from meshwright.errors import UsageError
from meshwright.evaluation import Look, looking
from meshwright.functions import prediction_of
from meshwright.input import Collate, facts_of, is_indexed, num_examples, numbered_batches
from meshwright.predict import Outputs, OverBatches, fingerprint, rows_of
from meshwright.sharding import Rules, as_arrays, as_rules, auto, copy_to, fsdp
from meshwright.storage import local_path
from meshwright.train import TrainState, Variables, as_seed, eval_params, nothing
from meshwright.tree import PyTree
from meshwright.unknown_arguments import explained


@explained
class Predictor:
    """Computes a prediction for each example, over the whole mesh, in order.

    Args:
      deployer: whose mesh, randomness and log to use.
      predict: returns a tree of arrays with a row for each example. It is called with those of these
        arguments that it names: `params`, `model` (if there is one; called as `model(inputs)`), `batch`,
        `key`, `model_state`. It is compiled once for each shape of a batch.
      collate: makes a dictionary of arrays of a list of examples; without it they are stacked.
      model: a Flax or Equinox model, or a pair `(init, apply)`; see `mw.functional`.
      output: makes a list of outputs, one for each example, of predictions as NumPy arrays. It sees real
        examples only. Without it the output is the example's row of each array.
      rules: how parameters that are not on the mesh yet are split over it, before what is found by itself;
        None for no such rules; or a dictionary of these by the keys of the parameters.

    Raises:
      UsageError: a function asks for what there is not.

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
        predict: Callable[..., PyTree],
        collate: Collate | None = None,
        model: Any = None,
        output: Callable[[PyTree], Iterable[Any]] | None = None,
        rules: Rules = None,
    ):
        self._deployer, self._collate, self._rules = deployer, collate, rules
        called = prediction_of(predict, None if model is None else functional(model))
        tell = cache(deployer.log_info)  # once
        idle = lambda error: tell(f"! predictions: {error}")  # noqa: E731
        self._predictions = OverBatches(called, deployer.layout(), deployer.seed, idle)
        self._output = output or rows_of
        self._given = {"predict": predict, "collate": collate, "output": output, "rules": self._rules}

    @process.shared_work()
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
        """Return the list of outputs, the same on every process, or the file that holds them. Collective.

        Args:
          examples: as `mw.batches` takes, or any iterable; none at all are fine. With several processes all
            read the same.
          per_device_batch_size: Examples at a time, for each part that the mesh splits a batch into.
          params: Arrays of JAX, NumPy or PyTorch; those that are on the mesh are used as they are.
          model_state: The state of a model that has one: `trainer.model_state`.
          seed: What `key` draws goes by it and by the number of the example. It is the deployer's if not
            given, and each call draws the same; another seed draws anew, without compiling again.
          to: write a line of JSON for each example to this file, on a disk, instead of holding all in memory.
            A call that was killed goes on where it stopped when it is made again, and comes to the same
            bytes; one that had ended computes nothing.
          desc: what the progress bar says.

        Raises:
          UsageError: not all processes are given the same examples and settings, told before anything is
            computed; predictions have no row for each example, or `output` another number of outputs; `to`
            is an address, or is there already, of other parameters, another seed or number of examples; JSON
            cannot hold an output.
          ExamplesError: the examples do not make batches.
          LayoutError: the parameters do not fit the mesh.
        """
        _check_size(per_device_batch_size)
        seed = self._deployer.seed if seed is None else as_seed(seed)
        file = None if to is None else local_path(to)
        size = self._deployer.get_local_global_micro_batch_size(per_device_batch_size)[1]
        examples = _read_once(examples)
        process.compare("what is predicted", lambda: self._said(examples, per_device_batch_size, to, seed))
        variables = self._on_mesh(params, model_state)
        if file is not None:
            return self._to_file(examples, variables, size, seed, file, desc)
        each = self._each(examples, variables, size, seed, desc)
        return [output for outputs in each for output in outputs]

    def of_state(self, state: TrainState, examples: Any, batch_size: int, look: Look = nothing) -> list[Any]:
        """Return the outputs for the parameters that are evaluated of a state of training (`eval_params`).

        `batch_size` examples are computed at a time, and `look` is called before each time. Nothing is shown:
        training has a screen of its own.
        """
        variables = Variables(eval_params(state), state.model_state)
        each = self._each(examples, variables, batch_size, self._deployer.seed, None)
        return [output for outputs in looking(each, look) for output in outputs]

    def _said(
        self, examples: Any, per_device_batch_size: int, to: str | Path | None, seed: int
    ) -> dict[str, str]:
        """Return what must be the same on all processes. Of an iterable `numbered_batches` sees to it."""
        settings = {"per_device_batch_size": per_device_batch_size, "to a file": to is not None, "seed": seed}
        given = {**settings, **self._given}
        facts = facts_of(examples) if is_indexed(examples) else {}
        return {**facts, **comparable_settings(given)}

    def _each(
        self, examples: Any, variables: Variables, size: int, seed: int, desc: str | None, start: int = 0
    ) -> Iterator[list[Any]]:
        """Yield the outputs of each batch, from the example of number `start` on."""
        sharding, number = self._deployer.layout().batch_sharding, num_examples(examples)
        data = numbered_batches(examples, size, sharding, collate=self._collate, start=start)
        found = self._predictions(variables.params, variables.model_state, data, seed)
        num_batches = None if number is None else -(-(number - start) // size)
        shown = found if desc is None else self._deployer.progress(found, num_batches, desc)
        for ids, prediction in shown:
            yield _one_each(self._output(prediction), len(ids))

    def _to_file(
        self, examples: Any, variables: Variables, size: int, seed: int, path: Path, desc: str
    ) -> Path:
        """Write the outputs to `path`, those that are not there yet."""
        about = {
            "parameters": fingerprint((variables.params, variables.model_state), self._deployer.layout()),
            "seed": seed,
            "examples": num_examples(examples),
        }
        file = Outputs(path, about)
        start = process.on_lead(lambda: file.begin(size))
        if start is None:
            self._deployer.log_info(f"{path}: all predictions are there")
            return path
        if start:
            self._deployer.log_info(f"{path}: {start} predictions are there, going on after them")
        for outputs in self._each(examples, variables, size, seed, desc, start):
            if process.is_lead():
                file.append(outputs)
        process.on_lead(file.finish)
        return path

    def _on_mesh(self, params: PyTree, model_state: PyTree) -> Variables:
        """Return the arrays that are on the mesh as they are, and copies there of the others."""
        arrays = {"params": as_arrays(params), "model_state": as_arrays(model_state, "model_state")}
        mesh = self._deployer.mesh
        if all(_is_on(mesh, x) for x in jax.tree.leaves(arrays)):
            return Variables(params, model_state)
        structs = tree.abstract(arrays)
        rules = *as_rules(self._rules, params), auto(structs["params"]), fsdp()
        shardings = self._deployer.layout(*rules).shardings(structs)
        there = jax.tree.map(lambda x, s: x if _is_on(mesh, x) else copy_to(x, s), arrays, shardings)
        return Variables(**there)


def _is_on(mesh: Mesh, x: Any) -> bool:
    if not isinstance(x, jax.Array):
        return False
    on_mesh = isinstance(x.sharding, NamedSharding) and x.sharding.mesh == mesh
    return on_mesh or x.sharding.is_equivalent_to(NamedSharding(mesh, P()), x.ndim)


def _read_once(examples: Any) -> Any:
    """Return `examples` as `numbered_batches` takes them: an iterable as the function that returns it."""
    if isinstance(examples, Iterable) and not (callable(examples) or is_indexed(examples)):
        return lambda: examples
    return examples


def _check_size(per_device_batch_size: Any) -> None:
    if not isinstance(per_device_batch_size, int | np.integer):
        raise UsageError(
            f"per_device_batch_size must be a whole number; found a {type(per_device_batch_size).__name__}.\n"
            "  The order is predict(examples, per_device_batch_size, params)."
        )
    if per_device_batch_size < 1:
        raise UsageError(f"per_device_batch_size={per_device_batch_size}: it must be at least 1.")


def _one_each(outputs: Any, num_examples: int) -> list[Any]:
    """Return what `output` returned, if it is one for each example."""
    if not isinstance(outputs, Iterable):
        raise UsageError(
            f"`output` returned {outputs!r} for {num_examples} examples.\n"
            "  It must return a list with one output for each."
        )
    outputs = list(outputs)
    if len(outputs) != num_examples:
        raise UsageError(
            f"`output` returned {len(outputs)} outputs for {num_examples} examples.\n"
            "  It must return one for each."
        )
    return outputs
