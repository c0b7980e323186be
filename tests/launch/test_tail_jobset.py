"""The output of a JobSet, shown here. `kubectl` is a script that plays scenes; see also tests/clusters."""

import json
import os

import pytest

from meshwright.cli import main
from meshwright.errors import MeshwrightError
from meshwright.launch import Job, Pods, _tail_jobset, tail_jobset

KUBECTL = """#!/bin/sh
cd {folder}
echo "$@" >> asked
scene=$(cat scene)
case "$1 $2" in
"get pods")
    if [ -e $scene.shown ] && [ -e $((scene + 1)).pods ]; then echo $((scene + 1)) > scene; fi
    cat $(cat scene).pods ;;
"get jobset") cat $scene.jobset ;;
logs*) cat $scene.logs; touch $scene.shown ;;
create*) echo "jobset.jobset.x-k8s.io/gpt created" ;;
esac
"""
JOB, PODS = Job(("true",), 2, name="gpt"), Pods("r/x:1", shared="none")
RUNS = {"running": {}}
ENDED = {"terminated": {"exitCode": 0}}


class Play:
    """Scenes that `kubectl` tells of, one after the other; the last one stays."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0
        (folder / "scene").write_text("0")

    def scene(self, pods, *lines, end="", restarts=0):
        """Add a scene: the states of pods by their names, lines of their logs, and the end of the JobSet."""
        condition = {"type": end, "status": "True", "message": "job gpt-workers-0 failed"}
        status = {"restarts": restarts, "conditions": [condition] if end else []}
        self._write("jobset", json.dumps({"status": status}))
        self._write("pods", json.dumps({"items": [described(*pod) for pod in pods.items()]}))
        self._write("logs", "".join(f"{line}\n" for line in lines))
        self.count += 1

    def _write(self, kind, text):
        (self.folder / f"{self.count}.{kind}").write_text(text)

    def asked(self):
        return (self.folder / "asked").read_text().splitlines()


def described(name, state):
    return {
        "metadata": {"name": name},
        "status": {
            "containerStatuses": [{"name": "sidecar", "state": RUNS}, {"name": "main", "state": state}]
        },
    }


def line(pod, second, text):
    return f"[pod/{pod}/main] 2026-11-27T10:00:{second:02}.000000001Z {text}"


@pytest.fixture
def play(tmp_path, monkeypatch):
    (tmp_path / "kubectl").write_text(KUBECTL.format(folder=tmp_path))
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(_tail_jobset, "_POLL_SECONDS", 0.03)
    return Play(tmp_path)


A, B, A2, B2 = (f"gpt-workers-0-{index}-{suffix}" for suffix in ("aaaaa", "bbbbb") for index in (0, 1))


def test_lines_are_numbered_and_equal_ones_shown_once_also_over_restarts(play, capsys):
    first = [line(A, 1, "hello"), line(B, 1, "hello"), line(B, 2, "step 1")]
    again = [line(A2, 5, "hello again"), line(B2, 5, "hello again")]
    play.scene({A: RUNS, B: RUNS}, *first)
    play.scene({A: ENDED, B: RUNS}, *first, line(A, 3, "failed"))  # the connection was cut in between
    play.scene({A2: RUNS, B2: RUNS}, *again, restarts=1)
    play.scene({A2: ENDED, B2: ENDED}, *again, line(B2, 6, "done"), end="Completed", restarts=1)
    assert tail_jobset(JOB, PODS) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["[0-1] hello", "[1] step 1", "[0] failed", "[0-1] hello again", "[1] done"]
    assert err == "meshwright launch: the JobSet starts all pods again; restart 1\n"


def test_lines_of_one_time_are_all_shown_and_once(play, capsys):
    first = [line(A, 1, "Traceback"), line(A, 1, "  File x.py"), line(B, 1, "hello")]
    play.scene({A: RUNS, B: RUNS}, *first)
    play.scene({A: ENDED, B: ENDED}, *first, line(A, 1, "ValueError"), end="Failed")
    assert tail_jobset(JOB, PODS) == 1
    shown = capsys.readouterr().out.splitlines()
    assert [text for text in shown if text.startswith("[0]")] == [
        "[0] Traceback", "[0]   File x.py", "[0] ValueError"
    ]  # fmt: skip
    assert sorted(shown)[-1] == "[1] hello"


def test_a_part_of_a_second_is_later_than_the_second_itself():
    times = ["2026-11-27T10:00:01Z", "2026-11-27T10:00:01.02Z", "2026-11-27T10:00:01.1Z"]
    assert sorted(times, key=_tail_jobset._ordered) == times


def test_a_jobset_that_fails_is_shown_to_the_end_of_its_last_pod(play, capsys):
    play.scene({A: ENDED, B: RUNS}, line(A, 1, "process 0 failed first"), end="Failed")
    play.scene({A: ENDED, B: ENDED}, line(B, 2, "saved"), end="Failed")
    assert tail_jobset(JOB, PODS) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == ["[0] process 0 failed first", "[1] saved"]
    assert err == "meshwright launch: the JobSet gpt has failed: job gpt-workers-0 failed\n"


def test_processes_of_several_jobs_have_the_numbers_of_the_run(play, capsys):
    play.scene({"gpt-workers-1-0-abcde": ENDED}, line("gpt-workers-1-0-abcde", 1, "x"), end="Completed")
    assert tail_jobset(JOB, Pods("r/x:1", replicas=2, shared="none", namespace="lab")) == 0
    assert capsys.readouterr().out == "[1] x\n"
    assert all(words.endswith("-n lab") for words in play.asked())


def test_pods_that_do_not_begin_are_told_of_with_the_reason(play, capsys, monkeypatch):
    monkeypatch.setattr(_tail_jobset, "_WAITING_SECONDS", 0)
    pulls = {"waiting": {"reason": "ImagePullBackOff"}}
    play.scene({A: RUNS, B: pulls}, line(A, 1, "hello"))
    play.scene({A: ENDED, B: ENDED}, line(A, 1, "hello"), end="Completed")
    assert tail_jobset(JOB, PODS) == 0
    assert f"1 of 2 pods have begun. ImagePullBackOff: {B}\n" in capsys.readouterr().err


def test_ctrl_c_ends_the_showing_and_says_how_to_end_the_jobset(play, capsys, monkeypatch):
    def ctrl_c(seconds):
        raise KeyboardInterrupt

    play.scene({A: RUNS, B: RUNS})
    monkeypatch.setattr(_tail_jobset.time, "sleep", ctrl_c)
    assert tail_jobset(JOB, Pods("r/x:1", shared="none", namespace="lab")) == 130
    assert "the JobSet gpt goes on; to end it: kubectl delete jobset gpt -n lab" in capsys.readouterr().err


def test_a_jobset_that_is_deleted_ends_the_showing(play, capsys):
    play.scene({})
    gone = 'echo "Error from server (NotFound): jobsets \\"gpt\\" not found" >&2; exit 1'
    text = (play.folder / "kubectl").read_text()
    (play.folder / "kubectl").write_text(text.replace('"get jobset") ', f'"get jobset") {gone} ;; "never") '))
    assert tail_jobset(JOB, PODS) == 1
    assert capsys.readouterr().err == "meshwright launch: the JobSet gpt was deleted\n"


@pytest.mark.parametrize(("end", "code"), [("Completed", 0), ("Failed", 1)])
def test_the_command_creates_a_jobset_shows_it_and_ends_as_it_does(play, capfd, end, code):
    play.scene({A: RUNS, B: RUNS}, line(A, 1, "hello"), line(B, 1, "hello"))
    play.scene({A: ENDED, B: ENDED}, line(A, 2, "bye"), end=end)
    words = ["launch", "jobset", "-n", "2", "--image", "r/x:1", "--shared", "none", "--name", "gpt", "--tail"]
    assert main([*words, "--", "true"]) == code
    out, err = capfd.readouterr()
    assert out.splitlines() == ["jobset.jobset.x-k8s.io/gpt created", "[0-1] hello", "[0] bye"]
    again = (
        "exit code 1; to go on, run: kubectl delete --ignore-not-found jobset gpt && meshwright launch jobset"
    )
    assert (again in err) == (code == 1)


def test_a_kubectl_that_never_answers_is_told_and_not_waited_for_for_ever(play, monkeypatch):
    monkeypatch.setattr(_tail_jobset, "_AWAY_SECONDS", 0)
    (play.folder / "kubectl").write_text("#!/bin/sh\necho you must be logged in >&2; exit 1\n")
    with pytest.raises(
        MeshwrightError,
        match="for 0 s, kubectl cannot look at the JobSet gpt: you must be logged in\n  The JobSet goes on",
    ):
        tail_jobset(JOB, PODS)
