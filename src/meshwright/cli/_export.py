"""`meshwright export`: the model of a run as a program in one file, or its weights."""

import argparse
from pathlib import PurePath

from meshwright.base._internal import human_bytes, join
from meshwright.checkpoints._internal import checkpoints_of, step_name
from meshwright.cli._checkpoint_option import checkpoint_asked
from meshwright.cli._reopened import reopened
from meshwright.cli._train import Result, made
from meshwright.cli._trust import Purpose
from meshwright.errors import EXIT_DONE, UsageError, printable

PURPOSE = Purpose(
    command="export",
    done="exported",
    doing="exporting by",
    in_program="Another program made this run: `{command}`. Export there: `mw.engine.export(function, "
    "trainer.params, inputs, 'model.jaxexport')`.",
    without_file="Without it, in Python: `mw.engine.export(function, params, inputs, 'model.jaxexport')`.",
    by_another="To export another function, in Python: `mw.engine.export(function, params, inputs, to)`.",
    naming="{place} --by {target} --to FILE",
)

_PROGRAM = ".jaxexport"


def export(options: argparse.Namespace) -> Result:
    """Export the newest checkpoint of a run, or that of a step, or the best."""
    kind = _checked_suffix(options.to)
    options.target = options.by
    opened = reopened(options, PURPOSE)
    _, experiment = made(opened.target, opened.settings, opened.fake_devices, opened.check)
    from meshwright.engine._internal import load_program
    from meshwright.lm._internal import export_checkpoint
    from meshwright.processes import _internal as processes

    step, path = export_checkpoint(
        experiment,
        options.to,
        run=options.path,
        checkpoint=checkpoint_asked(options),
        evaluation=options.evaluation,
        platforms=options.platforms.split(","),
        arrays=options.arrays,
        context_length=options.context_length,
    )
    if not processes.is_lead():
        return EXIT_DONE
    beside = [path.with_suffix(".safetensors")] if kind == _PROGRAM and options.arrays == "beside" else []
    files = {str(each): each.stat().st_size for each in (path, *beside)}
    checkpoint = join(checkpoints_of(options.path), step_name(step))
    found = {"run": options.path, "checkpoint": checkpoint, "files": files}
    lines = [f"wrote {name}, {human_bytes(nbytes)}" for name, nbytes in files.items()]
    if kind == _PROGRAM:
        program = load_program(path)
        names = "inputs", "outputs", "constraints", "platforms"
        found |= {name: getattr(program, name) for name in names}
        where = f", where {' and '.join(program.constraints)}" if program.constraints else ""
        lines.append(f"  takes    {_told(program.inputs)}{where}")
        lines.append(f"  returns  {_told(program.outputs)}")
        lines.append(f"  runs on  {', '.join(program.platforms)}")
    return "\n".join(lines), found


def _checked_suffix(to: str) -> str:
    """Return how the name of the file ends."""
    suffix = PurePath(to).suffix
    if suffix in (_PROGRAM, ".safetensors", ".gguf"):
        return suffix
    raise UsageError(
        f"--to {to}: expected a name that ends with .jaxexport, for a program, .safetensors, for the weights "
        "alone, or .gguf, for llama.cpp."
    )


def _told(inputs: str | dict[str, str]) -> str:
    if isinstance(inputs, str):
        return inputs
    return "{" + ", ".join(f"{printable(name, keep='')}: {text}" for name, text in inputs.items()) + "}"
