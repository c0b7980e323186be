"""What is tried before the first step, so that a long run does not fail on something small.

Each check says in a few words what it found, or raises. The cheap ones come first, and nothing
compiles before all that can be seen without compiling has been.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from meshwright import tree
from meshwright.checkpoint import metrics_of
from meshwright.errors import UsageError, nearest
from meshwright.experiment._evaluations import Evaluation, seconds_of
from meshwright.experiment._experiment import Evaler, Experiment
from meshwright.experiment._parts import Parts, global_batch, naming
from meshwright.input import local_rows, num_examples, some_rows
from meshwright.sharding import Layout, device_bytes, human_bytes
from meshwright.train import TrainState, num_params, wider_than

PyTree = Any


def preflight(experiment: Experiment, parts: Parts, evaluations: Mapping[str, Evaluation]) -> Iterator[str]:
    """Yield what each check found; the last of them has compiled the step.

    Raises:
      UsageError, InputError: as the parts do.
    """
    layout, target = parts.layout, parts.target
    num_arrays, num_all = len(jax.tree.leaves(target.params)), num_params(target.params)
    yield f"{num_arrays} arrays of {num_all:,} parameters fit the mesh"
    yield from layout.left_whole({"params": target.params})
    yield f"one batch read: {_shapes(parts.batch)}"
    if wider := wider_than(experiment.train_dtype, parts.batch):
        yield f"train_dtype: {wider}"
    scores: list[str] = []
    for name, evaler in experiment.evalers.items():
        with naming(f"evalers.{name}"):
            first = _first_batch(evaler, layout)
        scores += evaluations[name].check(target, first)
        _check_not_time(name, scores)
        number = num_examples(evaler.examples)
        yield f"evaluation {name!r} fits: {'any number of' if number is None else number} examples"
    _check_metrics(experiment, scores)
    programs = [parts.step.compile(target, batch) for batch in (*parts.other_batches, parts.batch)]
    shapes = f" for {len(programs)} shapes" if parts.other_batches else ""
    seconds, memory = parts.step.compile_seconds, _memory(programs, target)
    yield f"step compiled{shapes} in {seconds:.1f} s; {memory} per device"


def _check_not_time(name: str, scores: Sequence[str]) -> None:
    """Check that no score of an evaluation is called as the time that it takes."""
    if seconds_of(name) in scores:
        raise UsageError(
            f"evalers.{name}.measure gives a score called 'seconds', as reports call the time it takes.\n"
            "  Give it another name."
        )


def _check_metrics(experiment: Experiment, scores: Sequence[str]) -> None:
    """Check that the evaluations give the `scores` by which policies go."""
    policies = {"checkpoints.keep": experiment.checkpoints.keep, "stop_early": experiment.stop_early}
    for field, policy in policies.items():
        for metric in metrics_of(policy):
            if metric not in scores:
                close = nearest(metric, scores)
                raise UsageError(
                    f"{field} goes by {metric!r}, which no evaluation gives."
                    f"{f' Did you mean {close!r}?' if close else ''}\n"
                    f"  There are: {', '.join(scores) or 'none; give the experiment evalers'}."
                )


def _first_batch(evaler: Evaler, layout: Layout) -> PyTree:
    local_rows(evaler.batch_size, layout.batch_sharding)  # raises if it does not divide
    return global_batch(some_rows(evaler.examples, evaler.batch_size), evaler.batch_size)


def _shapes(batch: PyTree) -> str:
    return ", ".join(
        f"{name or 'batch'} {x.dtype}{list(x.shape)}" for name, x in tree.named_leaves(batch).items()
    )


def _memory(programs: Sequence[jax.stages.Compiled], target: TrainState) -> str:
    """Return what a device holds between steps, and in the one that takes most."""
    state = sum(device_bytes(x, x.sharding) for x in jax.tree.leaves(target))
    analyses = [analysis for program in programs if (analysis := program.memory_analysis())]
    work = max((analysis.temp_size_in_bytes for analysis in analyses), default=None)
    work = "" if work is None else f" + {human_bytes(work)} at work"
    return f"state {human_bytes(state)}{work}"
