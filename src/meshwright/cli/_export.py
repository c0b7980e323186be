"""`meshwright export`: the model of a run as a program in one file, or its weights."""

import argparse
from pathlib import PurePath

from meshwright.base import _internal as base
from meshwright.cli._checkpoint import add_which, checkpoint_asked, path_of_step
from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import load_experiment
from meshwright.cli._reopened import STARTED_FROM, recipe_of_run
from meshwright.cli._trust import Purpose
from meshwright.engine import _internal as engine
from meshwright.errors import EXIT_DONE, UsageError, printable
from meshwright.lm import _internal as lm
from meshwright.processes import _internal as processes

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


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add(
        "export",
        export,
        calls_user=True,
    )
    command.add_argument("path", metavar="RUN", help="the directory or URL of the run")
    command.add_argument(
        "--to",
        required=True,
        metavar="FILE",
        help="the file to write: NAME.jaxexport; NAME.safetensors for the parameters alone; NAME.gguf for "
        "llama.cpp",
    )
    command.add_argument(
        "--platforms",
        default="cpu,cuda,tpu",
        metavar="NAMES",
        help="what the program is for: cpu, cuda, rocm, tpu (default: cpu,cuda,tpu)",
    )
    command.add_argument(
        "--arrays",
        choices=("inside", "beside"),
        default="inside",
        help="where the parameters are: in the program, or in NAME.safetensors beside it (default: inside)",
    )
    command.add_argument(
        "--evaluation",
        metavar="NAME",
        help="export what this evaluation predicts (default: the model's logits, or the only evaluation "
        "with `predict`)",
    )
    command.add_argument(
        "--context-length",
        type=int,
        metavar="N",
        help="the tokens that a GGUF file allows (default: what the config.json beside the tokenizer says)",
    )
    command.add_argument("--by", dest="target", **STARTED_FROM)
    add_which(command, "export")


def export(options: argparse.Namespace) -> Result:
    """Export the newest checkpoint of a run, or that of a step, or the best."""
    kind = _checked_suffix(options.to)
    _, experiment = load_experiment(recipe_of_run(options, PURPOSE))
    step, path = lm.export_checkpoint(
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
    document = {"run": options.path, "checkpoint": path_of_step(options.path, step), "files": files}
    lines = [f"wrote {name}, {base.human_bytes(nbytes)}" for name, nbytes in files.items()]
    if kind == _PROGRAM:
        program = engine.load_program(path)
        names = "inputs", "outputs", "constraints", "platforms"
        document |= {name: getattr(program, name) for name in names}
        where = f", where {' and '.join(program.constraints)}" if program.constraints else ""
        lines.append(f"  takes    {_signature(program.inputs)}{where}")
        lines.append(f"  returns  {_signature(program.outputs)}")
        lines.append(f"  runs on  {', '.join(program.platforms)}")
    return "\n".join(lines), document


def _checked_suffix(to: str) -> str:
    """Return how the name of the file ends."""
    suffix = PurePath(to).suffix
    if suffix in (_PROGRAM, ".safetensors", ".gguf"):
        return suffix
    raise UsageError(
        f"--to {to}: expected a name that ends with .jaxexport, for a program, .safetensors, for the weights "
        "alone, or .gguf, for llama.cpp."
    )


def _signature(inputs: str | dict[str, str]) -> str:
    if isinstance(inputs, str):
        return inputs
    return "{" + ", ".join(f"{printable(name, keep='')}: {text}" for name, text in inputs.items()) + "}"
