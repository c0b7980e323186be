"""`Predictor`: one function over any number of examples. Each method is a few lines over a room."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import NamedSharding

from meshwright import process
from meshwright.adapters import functional
from meshwright.deployer import Deployer
from meshwright.errors import UsageError
from meshwright.functions import prediction_of
from meshwright.input import Collate, numbered_batches
from meshwright.predict import Outputs, predictions
from meshwright.sharding import Layout, Rule, auto, copy_to, fsdp
from meshwright.train import TrainState, Variables
from meshwright.tree import PyTree


class Predictor:
    """Computes a prediction for each example, over the whole mesh, in order.

    Args:
      deployer: whose mesh and log to use.
      predict: returns a tree of arrays with a row for each example. It is called with those of these
        arguments that it names: `params`, `model` (if there is one; called as `model(inputs)`), `batch`,
        `rng`, `model_state`.
      collate: makes a dictionary of arrays of a list of examples; without it they are stacked.
      model: a Flax or Equinox model, or a pair `(init, apply)`; see `mw.adapters.functional`.
      output: makes a list of outputs, one for each example, of predictions as NumPy arrays. It sees real
        examples only. Without it the output is the example's row of each array.
      rules: how parameters that are not on the mesh yet are split over it, before what is found by itself.

    Raises:
      UsageError: a function asks for what there is not.
    """

    def __init__(
        self,
        deployer: Deployer,
        *,
        predict: Callable[..., PyTree],
        collate: Collate | None = None,
        model: Any = None,
        output: Callable[[PyTree], Sequence[Any]] | None = None,
        rules: Sequence[Rule] = (),
    ):
        self._deployer, self._collate, self._rules = deployer, collate, tuple(rules)
        self._predict = prediction_of(predict, None if model is None else functional(model))
        self._output = output or _rows

    def predict(
        self,
        examples: Any,
        params: PyTree,
        per_device_batch_size: int,
        *,
        model_state: PyTree = None,
        to: str | Path | None = None,
        desc: str = "Predicting",
    ) -> Any:
        """Return the list of outputs, the same on every process, or the file that holds them. Collective.

        Args:
          examples: as `mw.batches` takes.
          params: arrays of any sort; those that are on the mesh are used as they are.
          per_device_batch_size: examples at a time, for each part that the mesh splits a batch into.
          to: write a line of JSON for each example to this file instead of holding all in memory. A call
            that was killed goes on where it stopped, when it is made again.
          desc: what the progress bar says.

        Raises:
          UsageError: predictions have no row for each example, or `output` another number of outputs;
            `to` exists, or is of other parameters.
        """
        layout = self._deployer.layout(*self._rules, auto(params), fsdp())
        variables = Variables(_on_mesh(params, layout), _on_mesh(model_state, layout))
        size = self._deployer.get_local_global_micro_batch_size(per_device_batch_size)[1]
        if to is not None:
            return self._to_file(examples, variables, layout, size, Path(to), desc)
        each = self._each(examples, variables, layout, size, 0, desc)
        return [output for outputs in each for output in outputs]

    def of_state(self, state: TrainState, examples: Any, batch_size: int) -> list[Any]:
        """Return the outputs for the parameters of a state of training, `batch_size` examples at a time."""
        variables, layout = Variables(state.params, state.model_state), self._deployer.layout()
        each = self._each(examples, variables, layout, batch_size, 0, "Evaluating")
        return [output for outputs in each for output in outputs]

    def _each(
        self, examples: Any, variables: Variables, layout: Layout, size: int, start: int, desc: str
    ) -> Iterator[Sequence[Any]]:
        """Yield the outputs of each batch, from the example of number `start` on."""
        data = numbered_batches(examples, size, layout.batch_sharding, collate=self._collate, start=start)
        key, params, model_state = (
            jax.random.key(self._deployer.seed),
            variables.params,
            variables.model_state,
        )
        found = predictions(self._predict, layout, params, model_state, data, key)
        total = -(-len(examples) // size) if hasattr(examples, "__len__") else None
        for ids, prediction in self._deployer.progress(found, total, desc):
            outputs = self._output(prediction)
            if len(outputs) != len(ids):
                raise UsageError(
                    f"`output` returned {len(outputs)} outputs for {len(ids)} examples.\n"
                    "  It must return one for each."
                )
            yield outputs

    def _to_file(
        self, examples: Any, variables: Variables, layout: Layout, size: int, path: Path, desc: str
    ) -> Path:
        file = Outputs(path, {"norm of the parameters": float(jax.jit(optax.tree.norm)(variables.params))})
        start = process.on_lead(file.open)
        if start:
            self._deployer.log_info(f"{path}: {start} predictions are there, going on after them")
        for outputs in self._each(examples, variables, layout, size, start, desc):
            if process.is_lead():
                file.append(outputs)
        process.on_lead(file.finish)
        return path


def _on_mesh(arrays: PyTree, layout: Layout) -> PyTree:
    """Return `arrays` as they are, if they are on the mesh, and otherwise copies that are."""
    shardings = [getattr(x, "sharding", None) for x in jax.tree.leaves(arrays)]
    if all(isinstance(s, NamedSharding) and s.mesh == layout.mesh for s in shardings):
        return arrays
    return copy_to(arrays, layout.shardings({"params": arrays})["params"])


def _rows(prediction: PyTree) -> list[PyTree]:
    num_examples = len(jax.tree.leaves(prediction)[0])
    return [jax.tree.map(lambda x, i=i: x[i], prediction) for i in range(num_examples)]
