"""The options of `meshwright export`."""

import argparse

from meshwright.cli._checkpoint_commands import add_which
from meshwright.cli._parser import Commands


def add_export(commands: Commands) -> None:
    """Add the command."""
    export = commands.add(
        "export", "_export", "Write the model of a run as a program that JAX alone runs, or as GGUF."
    )
    export.add_argument("path", metavar="RUN", help="the directory or URL of the run")
    export.add_argument(
        "--to",
        required=True,
        metavar="FILE",
        help="the file to write: NAME.jaxexport; NAME.safetensors for the parameters alone; NAME.gguf for "
        "llama.cpp",
    )
    export.add_argument(
        "--platforms",
        default="cpu,cuda,tpu",
        metavar="NAMES",
        help="what the program is for: cpu, cuda, rocm, tpu (default: cpu,cuda,tpu)",
    )
    export.add_argument(
        "--arrays",
        choices=("inside", "beside"),
        default="inside",
        help="where the parameters are: in the program, or in NAME.safetensors beside it (default: inside)",
    )
    _add_what(export)
    add_which(export, "export")


def _add_what(export: argparse.ArgumentParser) -> None:
    """Add the options that say what of the run is written."""
    export.add_argument(
        "--evaluation",
        metavar="NAME",
        help="export what this evaluation predicts (default: the model's logits, or the only evaluation "
        "with `predict`)",
    )
    export.add_argument(
        "--context-length",
        type=int,
        metavar="N",
        help="the tokens that a GGUF file allows (default: what the config.json beside the tokenizer says)",
    )
    export.add_argument(
        "--by",
        metavar="module:function",
        help="the function that the run was started from; needed only if other users can write to RUN",
    )
