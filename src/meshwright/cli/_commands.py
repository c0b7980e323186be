"""All commands, in the order in which `--help` shows them."""

from importlib import import_module

from meshwright._version import __version__
from meshwright.cli._parser import Commands, Parser

COMMANDS = {
    "init": "Write a first program, ready to run on a file of your own.",
    "completion": "Print a script by which a shell completes commands, options and runs.",
    "demo": "Train a small real model on virtual devices, offline.",
    "train": "Train an experiment, or continue its run.",
    "resume": "Continue a run with the function and settings it was started with.",
    "tune": (
        "Tune a model of Hugging Face's on a file of chats or texts, and write an adapter or a model. "
        "More settings: lora=16 (the rank), base=int8 or nf4, epochs, batch_size, length, learning_rate, "
        "held_out, mesh."
    ),
    "eval": "Print the scores of a run's checkpoint: the newest, of a step, or the best. Nothing is written.",
    "show": "Print all settings of an experiment, without running it.",
    "sample": "Print what the model of a run writes after a prompt, as it comes.",
    "export": "Write the model of a run as a program that JAX alone runs, or as GGUF.",
    "serve": "Serve the model of a run to a browser, curl and OpenAI's clients, to try it.",
    "plan": "Estimate a step's memory, communication and time on hardware you do not have.",
    "inspect": "Show the contents of a run or a checkpoint.",
    "report": "Write an HTML page about a run, or a page that compares several, and print a summary.",
    "runs": "List the runs under a directory or URL: state, step, loss, score.",
    "trace": "Show how the time of profiled steps was spent.",
    "hlo": "Compile an experiment's step and write the optimised program (HLO).",
    "nan": (
        "Find the first value of a run that is not finite: step, operation, line, layer, examples, "
        "device. Exit code 4 if there is one."
    ),
    "verify-resume": (
        "Run an experiment for some steps, kill it by SIGKILL, continue it, and compare all to the bit "
        "with a run that was not killed. Exit code 1 if they differ; the cause is named."
    ),
    "verify": "Check every byte of checkpoints against their checksums; exit code 3 if one is damaged.",
    "diff": "Compare two checkpoints array by array; exit code 1 if they differ.",
    "convert": "Write a checkpoint in another format, dtype or naming, or only part of it.",
    "pin": "Keep the checkpoint of a step, so that the run never deletes it.",
    "unpin": "Undo `pin`, so that the run may delete the checkpoint again.",
    "doctor": (
        "Check this machine, or all of a launch together: versions, devices, processes, compiling, writing."
    ),
    "launch": "Start one program as several processes: on this machine, or as a job of a scheduler.",
}
"""The sentence on each command that help shows. The file `_NAME.py` of a command has `add`, which adds its
parser and its options."""
_FILES = {"unpin": "_pin"}
"""The files of commands that share the file of another."""


def grammar(command: str | None = None) -> Commands:
    """Return the parsers: of all commands, or of one, beside which the others have names alone.

    Each command sets `run`: a function from the options to a result.

    Args:
      command: A command, or "" for none. None means all: for completion, and for the page of all commands.
    """
    top = Parser(
        prog="meshwright",
        description="Train, checkpoint, evaluate and inspect any JAX model, on one device or thousands.",
        epilog="exit codes: 0 done, 1 failed, 2 wrong usage (nothing was started), 3 input missing or "
        "damaged, 4 diverged, 5 hung, 6 another process of the run is gone (start the command again), "
        "75 stopped with the state saved (start the command again), 130 Ctrl-C",
    )
    top.add_argument("--version", action="version", version=f"meshwright {__version__}")
    commands = Commands(top, COMMANDS)
    for name in COMMANDS:
        file = _FILES.get(name, f"_{name.replace('-', '_')}")
        if name in commands.parsers:
            continue
        if command is None or command in (name, *(other for other in _FILES if _FILES[other] == file)):
            import_module(f"meshwright.cli.{file}").add(commands)
        else:
            commands.add_name(name)
    return commands
