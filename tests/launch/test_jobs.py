"""What is submitted to schedulers, and from the command line."""

import subprocess
import sys

import pytest

from meshwright.cli import main
from meshwright.errors import UsageError
from meshwright.launch._job import Job, name_of
from meshwright.launch._slurm import slurm_script


def test_a_script_of_slurm_is_one_of_bash(tmp_path):
    job = Job(("python", "a file.py", "$x"), 8, 2, name="gpt")
    (tmp_path / "script").write_text(slurm_script(job, ["account=me", "exclusive"], ["container-image=i"]))
    subprocess.run(["bash", "-n", str(tmp_path / "script")], check=True)
    lines = (tmp_path / "script").read_text().splitlines()
    for option in ("--nodes=4", "--ntasks-per-node=2", "--account=me", "--exclusive", "--requeue"):
        assert f"#SBATCH {option}" in lines
    (srun,) = [line for line in lines if line.lstrip().startswith("srun")]
    assert "--kill-on-bad-exit=1 --label --container-image=i" in srun
    assert "        python 'a file.py' '$x' &" in lines


def test_the_users_options_of_slurm_win():
    script = slurm_script(Job(("true",)), ["signal=B:USR1@600", "job-name=mine"])
    assert script.count("--signal") == 2  # the option, and that of scancel
    assert "#SBATCH --signal=B:USR1@600" in script
    assert "#SBATCH --job-name=mine" in script


@pytest.mark.parametrize("option", ["nodes=4", "ntasks=8", "no-requeue", "--ntasks-per-node=1"])
def test_options_that_the_script_sets_are_refused(option):
    with pytest.raises(UsageError, match="the script sets it itself"):
        slurm_script(Job(("true",)), [option])


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"command": ()}, "no program to start"),
        ({"num_processes": 0}, "-n is 0"),
        ({"num_processes": 3, "processes_per_host": 2}, "cannot be divided evenly"),
        ({"restarts": -1}, "--restarts is -1"),
        ({"name": "My Job"}, "--name is 'My Job'"),
    ],
)
def test_what_no_job_can_be_is_refused(more, complaint):
    with pytest.raises(UsageError, match=complaint):
        Job(**{"command": ("true",), **more})


def test_a_job_is_named_after_its_program():
    assert name_of(("meshwright", "train", "gpt.py:experiment")) == "gpt"
    assert name_of(("meshwright", "train", "lab.big_model:experiment")) == "big-model"
    assert name_of(("python", "/home/me/train_llama.py", "x=1")) == "train-llama"
    assert name_of(("./program",)) == "train"


@pytest.mark.parametrize("place", ["slurm", "jobset"])
def test_print_shows_what_would_be_submitted_and_submits_nothing(place, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    options = {"slurm": [], "jobset": ["--image", "r/x:1", "--shared", "none"]}
    assert main(["launch", place, "-n", "2", *options[place], "--print", "--", "python", "train.py"]) == 0
    assert "train.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "program"), [("slurm", "sbatch"), ("jobset --image r/x:1 --shared none", "kubectl")]
)
def test_without_the_schedulers_program_nothing_is_submitted(place, program, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert main(["launch", *place.split(), "-n", "2", "--", "python", "train.py"]) == 2
    assert f"the program '{program}' is not in PATH, so nothing was submitted" in capsys.readouterr().err


def test_a_jobset_whose_next_start_would_see_nothing_is_refused_before_it_is_created(
    tmp_path, capsys, monkeypatch
):
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\ntouch {tmp_path}/created\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["launch", "jobset", "-n", "2", "--image", "r/x:1", "--", "python", "train.py"]) == 2
    assert not (tmp_path / "created").exists()
    said = capsys.readouterr().err
    for way in (
        "--mount CLAIM:PATH",
        "--shared and a folder there, such as gs://bucket/runs",
        "--shared none",
    ):
        assert way in said


def test_what_is_submitted_is_a_file_of_the_scheduler(tmp_path, capfd, monkeypatch):
    (tmp_path / "sbatch").write_text('#!/bin/sh\nhead -n 2 "$1"; exit 7\n')
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["launch", "slurm", "-n", "2", "--", "python", "train.py"]) == 7
    assert capfd.readouterr().out == "#!/bin/bash\n#SBATCH --job-name=train\n"


def test_without_ray_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["launch", "ray", "-n", "2", "--", "python", "train.py"]) == 2
    assert "pip install 'meshwright[ray]'" in capsys.readouterr().err


def test_a_job_may_have_the_name_of_a_command(capsys):
    assert main(["launch", "slurm", "-n", "2", "--name", "train", "--print", "--", "true"]) == 0
    assert "--job-name=train" in capsys.readouterr().out


def test_after_a_jobset_is_created_the_command_that_shows_its_output_is_told(tmp_path, capfd, monkeypatch):
    (tmp_path / "kubectl").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = [
        "-n",
        "9",
        "--image",
        "r/x:1",
        "--shared",
        "none",
        "--namespace",
        "lab",
        "--name",
        "gpt",
        "--",
        "true",
    ]
    assert main(["launch", "jobset", *words]) == 0
    shown = "logs -f -l jobset.sigs.k8s.io/jobset-name=gpt --prefix --tail=-1 --max-log-requests=9 -n lab"
    assert f"to follow it: kubectl {shown}\n" in capfd.readouterr().err
