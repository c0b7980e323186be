"""Type checkers let a user's program pass, and none of the mistakes that one makes."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.types

PROGRAM = (Path(__file__).parent / "typed/program.py").read_text()
MISTAKES = {
    "name": ("mw.Experiment(", "mw.Experimnt("),
    "package": ("mw.checkpoints.best", "mw.checkpoint.best"),
    "name_in_a_package": ("mw.checkpoints.best", "mw.checkpoints.bets"),
    "type": ("max_steps=4", 'max_steps="4"'),
    "argument": ("batch_size=16", "batchsize=16"),
    "field": ("outcome.seconds", "outcome.second"),
    "method": ("trainer.fit(", "trainer.fitt("),
    "score": ('scores["test/loss"] + 1', 'scores["test/loss"] + "1"'),
    "restored_state": ("state.params[", "state.parms["),
    "restored_params": ('state.params["w"].sum()', 'state.params["w"].summ()'),
    "looped_params": ('state.params["w"].shape', 'state.params["w"].shap'),
    "trained_params": ('trainer.params["w"]', 'trainer.params["w"]["x"].foo'),
}
CHECKERS = {
    name: ("-m", module, *options)
    for name, module, *options in (
        ("mypy", "mypy", "--no-error-summary", "--no-color-output", "--disable-error-code=import-untyped"),
        ("pyright", "basedpyright", "--level", "error", "--pythonpath", sys.executable),
    )
    if importlib.util.find_spec(module)  # pyright is there in `make types` alone
}


def line_of(mistake: str) -> int:
    right, _ = MISTAKES[mistake]
    return PROGRAM[: PROGRAM.index(right)].count("\n") + 1


@pytest.fixture(scope="module", params=CHECKERS)
def found(request, tmp_path_factory):
    """The errors that a checker finds, as pairs of a file's name and a line."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "program.py").write_text(PROGRAM)
    for name, (right, wrong) in MISTAKES.items():
        (folder / f"{name}.py").write_text(PROGRAM.replace(right, wrong, 1))
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    command = [sys.executable, *CHECKERS[request.param], *sorted(path.name for path in folder.glob("*.py"))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    print(done.stdout)
    return {
        (name, int(line))
        for name, line in re.findall(r"(\w+)\.py:(\d+)(?::\d+)?(?:: | - )error", done.stdout)
    }


def test_a_users_program_passes(found):
    assert not [line for name, line in found if name == "program"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_where_it_is_made(found, mistake):
    assert (mistake, line_of(mistake)) in found
