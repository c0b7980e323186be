"""What is tried before the first step, so that a long run does not fail on something small."""

from collections.abc import Iterator

import jax

from meshwright import tree
from meshwright.checkpoint import Checkpoints
from meshwright.sharding import Layout
from meshwright.train import ComputeDtype, Step, TrainState, wider_than
from meshwright.trainer._epochs import Epochs
from meshwright.trainer._scores import Best, Evaluation, check_best
from meshwright.tree import PyTree
from meshwright.when import Tick


def structs_of(rows: PyTree, batch_size: int) -> PyTree:
    """Return the structs of a global batch, given some rows of it."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype)),
        tree.abstract(rows),
    )


def told(layout: Layout, target: TrainState, data: Epochs, checkpoints: Checkpoints | None) -> Iterator[str]:
    """Yield what people want to know before training starts: what lies where, and what is gone on from."""
    yield f"mesh {dict(layout.mesh.shape)}\n{layout.explain({'params': target.params})}"
    if checkpoints and checkpoints.resumed is not None:
        yield from checkpoints.passed_over
        yield f"continuing after step {checkpoints.resumed}, in epoch {data.epoch + 1}"


def checks(
    batch: PyTree,
    compute_dtype: ComputeDtype,
    step: Step,
    state: TrainState,
    data: Epochs,
    evaluation: Evaluation,
    best: Best,
    checkpoints: Checkpoints | None,
) -> Iterator[str]:
    """Yield what was found of all parts of a run: the step is compiled, the rest done once, on little.

    Collective. A run that goes on from a checkpoint has shown that it can save.

    Raises:
      UsageError, InputError: as the parts do.
    """
    shapes = (f"{name or 'batch'} {x.dtype}{list(x.shape)}" for name, x in tree.named_leaves(batch).items())
    yield f"one batch read: {', '.join(shapes)}"
    if wider := wider_than(compute_dtype, batch):
        yield f"compute_dtype: {wider}"
    yield f"step compiled in {step.compile_seconds:.1f} s"
    scores = evaluation.first(state)
    check_best(best, list(scores))
    if scores:
        found = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        yield f"evaluation of the first examples: {found}"
    if checkpoints and checkpoints.resumed is None:
        checkpoints.saver(lambda step: True)(Tick(int(state.step)), state, data, {})
        checkpoints.wait()
        yield f"state saved in {checkpoints.directory}"
