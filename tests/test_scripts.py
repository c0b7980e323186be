"""Scripts that find Pythons, make environments and run the stages of CI, beside stand-ins for these."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PYTHON = """#!/bin/sh
# A stand-in for Python {version}: environments have a copy of it, packages are a line in `installed`.
case "$*" in
-V) echo "Python {version}" ;;
-c*ensurepip*) echo "{order} $0" ;;
"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
"-m pip install"*) echo "$@" >>"$(dirname "$0")/installed"; {install} ;;
esac
"""


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def add_python(tmp_path):
    """Add a Python to the folder that is on the PATH."""

    def add(version: str, *, installs: bool = True) -> Path:
        major, minor, micro = map(int, version.split("."))
        order = f"{major:03} {minor:03} {micro:03}"
        text = PYTHON.format(version=version, order=order, install="exit 0" if installs else "exit 1")
        return write_program(tmp_path / f"bin/python{major}.{minor}", text)

    return add


@pytest.fixture(scope="module")
def tools(tmp_path_factory) -> Path:
    """The programs of the machine but for its Pythons and make."""
    folder = tmp_path_factory.mktemp("tools")
    for program in {*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()}:
        if not program.name.startswith(("python", "make")) and not (folder / program.name).is_symlink():
            (folder / program.name).symlink_to(program)
    return folder


@pytest.fixture
def run(tmp_path, tools):
    """Run a script of the repository where the Pythons of the test alone are found."""
    environment = {"PATH": f"{tmp_path / 'bin'}:{tools}", "HOME": str(tmp_path)}
    return lambda *command: subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_the_newest_python_comes_first_whatever_the_order_on_the_path(add_python, run):
    pythons = [add_python(version) for version in ("3.11.7", "3.14.0", "3.12.1")]
    ran = run("sh", "scripts/find_python")
    assert ran.stdout.splitlines() == [str(pythons[i]) for i in (1, 2, 0)]
    assert run("sh", "scripts/find_python", "newest").stdout.strip() == str(pythons[1])
    assert run("sh", "scripts/find_python", "oldest").stdout.strip() == str(pythons[0])


def test_without_a_python_it_is_said_how_to_get_one(run):
    ran = run("sh", "scripts/find_python")
    assert ran.returncode == 1
    assert "Install one" in ran.stderr
    assert "PYTHON=" in ran.stderr


@pytest.fixture
def set_up(tmp_path, run):
    """Make the environment, and return what was said of it."""
    lock = tmp_path / "lock.txt"
    lock.touch()
    return lambda python="": run("sh", "scripts/setup", str(tmp_path / "venv"), str(python), str(lock))


def version_of(tmp_path: Path) -> str:
    return subprocess.check_output([tmp_path / "venv/bin/python", "-V"], text=True).strip()


def test_an_environment_is_made_once(tmp_path, add_python, set_up):
    add_python("3.13.0")
    assert "Setting up" in set_up().stderr
    assert set_up().stderr == ""
    os.utime(tmp_path / "lock.txt", (2e9, 2e9))
    assert "Setting up" in set_up().stderr


def test_a_newer_python_makes_the_environment_anew(tmp_path, add_python, set_up):
    add_python("3.13.0")
    set_up()
    add_python("3.14.0")
    set_up()
    assert version_of(tmp_path) == "Python 3.14.0"


def test_a_python_that_is_named_is_taken(tmp_path, add_python, set_up):
    older, _ = add_python("3.12.0"), add_python("3.13.0")
    set_up(older)
    assert version_of(tmp_path) == "Python 3.12.0"


def test_a_python_that_is_not_there_is_an_error_with_those_that_are(add_python, set_up):
    python = add_python("3.13.0")
    ran = set_up("/no/such/python")
    assert ran.returncode == 1
    assert "PYTHON=/no/such/python is not a Python that runs" in ran.stderr
    assert str(python) in ran.stderr


def test_where_the_lock_does_not_install_on_the_newest_the_next_older_is_taken(tmp_path, add_python, set_up):
    add_python("3.13.0")
    add_python("3.14.0", installs=False)
    ran = set_up()
    assert ran.returncode == 0
    assert "Python 3.14.0" in ran.stderr
    assert "An older Python is tried" in ran.stderr
    assert version_of(tmp_path) == "Python 3.13.0"
    assert set_up().stderr == ""


def test_a_failed_environment_is_an_error_and_is_never_taken_for_a_whole_one(tmp_path, add_python, set_up):
    python = add_python("3.14.0", installs=False)
    for _ in range(2):
        ran = set_up(python)
        assert ran.returncode == 1
        assert "No environment was made" in ran.stderr


def test_an_environment_outlives_a_newer_lock_that_installs_on_no_python(tmp_path, add_python, set_up):
    add_python("3.12.0")
    add_python("3.13.0")
    set_up()
    add_python("3.12.0", installs=False)
    python = tmp_path / "venv/bin/python"
    python.write_text(add_python("3.13.0", installs=False).read_text())
    (tmp_path / "venv/packages").touch()
    os.utime(tmp_path / "lock.txt", (2e9, 2e9))
    assert set_up().returncode == 1
    assert version_of(tmp_path) == "Python 3.13.0"
    assert (tmp_path / "venv/packages").exists()
    python.write_text(add_python("3.13.0").read_text())
    assert set_up().returncode == 0
    assert [path.name for path in tmp_path.glob("venv*")] == ["venv"]


@pytest.fixture
def ci(tmp_path, run):
    """Run CI with a stand-in for `make`, which fails for some targets."""

    def call(*arguments: str, failing: str = "none") -> subprocess.CompletedProcess:
        make = f'#!/bin/sh\necho "made $*"\ncase "$*" in *{failing}*) exit 1 ;; esac\n'
        write_program(tmp_path / "bin/make", make)
        return run("bash", ".ci/run", *arguments)

    return call


def test_ci_tells_the_seconds_and_the_budget_of_each_stage(ci):
    ran = ci("oldest")
    assert ran.returncode == 0
    rows = [row.split() for row in ran.stdout.partition("== stages\n")[2].splitlines()]
    assert {row[0] for row in rows} >= {"test-oldest", "types", "docs", "dist"}
    assert all("ok" in row for row in rows[:-1])


def test_a_stage_that_fails_fails_ci_and_the_others_are_run(ci):
    ran = ci("slow", failing="test-share")
    assert ran.returncode == 1
    assert "made --no-print-directory test-clusters" in ran.stdout
    table = ran.stdout.partition("== stages\n")[2]
    assert [row.split()[0] for row in table.splitlines() if "FAILED" in row] == ["slow-share"]


def test_a_failure_of_clusters_which_run_beside_is_a_failure(ci):
    assert ci("slow", failing="test-clusters").returncode == 1


def test_an_unknown_job_of_ci_is_an_error(ci):
    ran = ci("everything")
    assert ran.returncode == 2
    assert "usage" in ran.stderr
