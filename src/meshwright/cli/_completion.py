"""`meshwright completion`: scripts by which shells complete commands, options and runs.

They are written out from the parsers, so that pressing Tab starts no Python.
"""

import argparse

from meshwright.cli._parser import Commands, Result

_RUN = ("a", "b", "directory", "path", "run", "runs", "source")
"""Names of arguments that are runs, or places with runs or checkpoints in them."""

# zsh runs it, too, by its own `bashcompinit`.
_BASH = """\
# Put into ~/.@SHELL@rc: eval "$(meshwright completion @SHELL@)"
_meshwright_runs() {
    # Runs are directories with metrics.jsonl or experiment.txt in them: below what is typed, then below runs.
    [ -n "$ZSH_VERSION" ] && setopt local_options null_glob
    for file in "$1"*/metrics.jsonl "$1"*/experiment.txt "$1"*/*/metrics.jsonl "$1"*/*/experiment.txt; do
        [ -f "$file" ] && printf '%s\\n' "${file%/*}"
    done | sort -u
}
_meshwright() {
    local word="${COMP_WORDS[COMP_CWORD]}" command="" words each
    for each in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do
        case " @NAMES@ " in *" $each "*) command="$each"; break ;; esac
    done
    case "$command" in
@CASES@
    *) words="@TOP@" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    case " @OF_RUNS@ " in
    *" ${command:-none} "*) [[ "$word" == -* ]] || COMPREPLY+=($(_meshwright_runs "$word")) ;;
    esac
}
complete -o default -F _meshwright meshwright"""

_FISH = """\
# Completion of meshwright for fish: meshwright completion fish > ~/.config/fish/completions/meshwright.fish
function __meshwright_runs
    set -l word (commandline -ct)
    for file in $word*/{metrics.jsonl,experiment.txt} $word*/*/{metrics.jsonl,experiment.txt}
        test -f $file; and string replace -r '/[^/]*$' '' -- $file
    end | sort -u
end
complete -c meshwright -n "not __fish_seen_subcommand_from @NAMES@" -f
@LINES@
complete -c meshwright -n "__fish_seen_subcommand_from @OF_RUNS@" -a "(__meshwright_runs)\""""


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add(
        "completion",
        completion,
        epilog='Put into ~/.bashrc: eval "$(meshwright completion bash)"; into ~/.zshrc: eval "$(meshwright '
        'completion zsh)"; for fish: meshwright completion fish > ~/.config/fish/completions/meshwright.fish',
    )
    command.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to complete in")


def completion(options: argparse.Namespace) -> Result:
    """Return the script for a shell."""
    from meshwright.cli._commands import grammar  # which loads this file

    commands = grammar()
    parsers = commands.parsers
    names = [name for name in parsers if " " not in name]
    words = {
        name: _words(*(parser for other, parser in parsers.items() if f"{other} ".startswith(f"{name} ")))
        for name in names
    }
    seen, lines = "__fish_seen_subcommand_from", []
    for name in names:
        lines.append(_fish_line(f"not {seen} {' '.join(names)}", name, parsers[name].description))
        lines += [_fish_line(f"{seen} {name}", word, text) for word, text in words[name].items()]
    values = {
        "SHELL": options.shell,
        "NAMES": " ".join(names),
        "OF_RUNS": " ".join(name for name in names if any(x.dest in _RUN for x in parsers[name]._actions)),
        "CASES": "\n".join(f'    {name}) words="{" ".join(words[name])}" ;;' for name in names),
        "TOP": " ".join(_words(commands.top)),
        "LINES": "\n".join(lines),
    }
    script = _FISH if options.shell == "fish" else _BASH
    for name, value in values.items():
        script = script.replace(f"@{name}@", value)
    if options.shell == "zsh":
        script = f"autoload -Uz bashcompinit && bashcompinit  # below compinit\n{script}"
    return script, {"shell": options.shell, "script": script}


def _words(*parsers: argparse.ArgumentParser) -> dict[str, str | None]:
    """Return the words that help shows, each with its text: long options, and choices of arguments."""
    words: dict[str, str | None] = {}
    for action in (action for parser in parsers for action in parser._actions):
        if action.help != argparse.SUPPRESS:
            words |= {flag: action.help for flag in action.option_strings if flag.startswith("--")}
            words |= dict.fromkeys([] if action.option_strings else map(str, action.choices or ()))
    return words


def _fish_line(condition: str, word: str, text: str | None) -> str:
    quoted = "'" + (text or "").replace("\\", r"\\").replace("'", r"\'") + "'"
    return f'complete -c meshwright -n "{condition}" -a {word} -d {quoted}'
