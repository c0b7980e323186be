"""Errors for command lines that cannot be parsed, with a guess at what was meant."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from meshwright.cli._commands import COMMANDS, grammar
from meshwright.cli._parser import Commands, shown_options, takes_settings
from meshwright.errors import UsageError, did_you_mean

_OF_A_RUN = ("experiment.txt", "experiment.json", "metrics.jsonl")


def command_in(words: Sequence[str]) -> str | None:
    """Return the first word that is not an option, after the check that it is a command."""
    word = _first_word(words)
    if word is None or word in COMMANDS:
        return word
    raise UsageError(
        f"there is no command {word!r}.{_guess(word, [*COMMANDS])}\n"
        f"  Commands: {', '.join(COMMANDS)}. `meshwright --help` describes each."
    )


def check_rest(rest: Sequence[str], command: str, commands: Commands) -> None:
    """Check that no words are left over that the command does not take."""
    if not rest:
        return
    word = rest[0]
    name, equals, _ = word.partition("=")
    if word.startswith("-"):
        options = shown_options(commands.parsers[command])
        hint = did_you_mean(name, options)
        raise UsageError(
            f"meshwright {command} has no option {name}.{hint}\n  Its options: {', '.join(options)}."
        )
    if equals:
        takers = [name for name, parser in grammar().parsers.items() if takes_settings(parser)]
        raise UsageError(
            f"meshwright {command} takes no settings, and {word!r} is one. "
            f"These commands do: {', '.join(takers)}."
        )
    usage = commands.parsers[command].format_usage().strip().removeprefix("usage: ")
    raise UsageError(f"meshwright {command}: unexpected argument {word!r}.\n  usage: {usage}")


def instead_of_target(word: str) -> str | None:
    """Return a hint if a word given as a function is a run directory; None if it is not."""
    if not _is_run(word):
        return None
    return f"{word} is a run directory: `meshwright resume {shlex.quote(word)}` continues it."


def _first_word(words: Sequence[str]) -> str | None:
    waiting = iter(words)
    for word in waiting:
        if word == "--fake-devices":
            next(waiting, None)
        elif not word.startswith("-"):
            return word
    return None


def _guess(word: str, commands: Sequence[str]) -> str:
    place = shlex.quote(word)
    if _is_run(word):
        return (
            f" It is a run directory. `meshwright inspect {place}` shows its contents, `meshwright report "
            f"{place}` how it went, `meshwright eval {place}` scores its newest checkpoint, and `meshwright "
            f"resume {place}` continues it."
        )
    if Path(word).is_dir():
        return f" It is a directory: `meshwright runs {place}` lists the runs in it."
    if ":" in word or word.endswith(".py"):
        target = word if ":" in word else f"{word}:experiment"
        return f" To train the experiment that a function returns: `meshwright train {shlex.quote(target)}`."
    return did_you_mean(word, commands)


def _is_run(word: str) -> bool:
    return any((Path(word) / name).is_file() for name in _OF_A_RUN)
