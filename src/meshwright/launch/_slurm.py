"""The batch script of a SLURM job, which continues after a stop and starts again after a failure; its output.

The signals of SLURM, and their receivers, were tried with SLURM 22.05:

    cause                        tasks     batch shell
    --signal=B:USR1@S                      USR1
    preemption with grace time   TERM
    scancel, scontrol requeue    TERM      TERM
    a node is lost                         TERM

So TERM to the shell means that SLURM or the user has decided what comes next; the script only ends. All other
ends are decided by the script.
"""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from meshwright.base._internal import print_line
from meshwright.errors import EXIT_AGAIN, EXIT_CTRL_C, EXIT_FAILED, EXIT_PEERS, UsageError
from meshwright.launch._job import Job
from meshwright.launch._outcome import FINAL_EXIT_CODES
from meshwright.launch._output import Output

_SCRIPT = """\
#!/bin/bash
{directives}

# USR1 comes before the time limit: stop the tasks, which save. TERM comes when SLURM or a user ends the job.
trap 'signal=yes time_is_up=yes' USR1
trap 'signal=yes told_to_end=yes' TERM
time_is_up= told_to_end=

# Process 0 writes its newest saved step into the first file, and each task its end into the second.
export MESHWRIGHT_PROGRESS="${{SLURM_SUBMIT_DIR:-$PWD}}/.progress-$SLURM_JOB_ID"
export MESHWRIGHT_TOKEN=$(od -An -N16 -tx8 /dev/urandom)  # which strangers who connect do not know
ends="$MESHWRIGHT_PROGRESS.ends"
trap 'rm -f "$MESHWRIGHT_PROGRESS" "$ends"' EXIT
saved() {{ cat "$MESHWRIGHT_PROGRESS" 2>/dev/null || echo -1; }}
saved_text() {{ [ "$(saved)" = -1 ] && echo none || echo "of step $(saved)"; }}
give_up() {{
    say "to go on from the newest checkpoint ($(saved_text)): scontrol requeue $SLURM_JOB_ID"
    exit "$1"
}}
say() {{ echo "meshwright launch: $*" >&2; }}

# srun kills all tasks when one ends with another code than 0. So a task that has stopped and saved, {again},
# ends with 0: the others may still be saving.
task='trap : TERM
"$@"; code=$?
echo "$code $SLURM_PROCID $(hostname)" >> "$MESHWRIGHT_PROGRESS.ends" && [ $code = {again} ] && exit 0
exit $code'
# Names the first task that failed for a cause of its own: not as another was gone, {peers}, or srun ended it.
report() {{
    first=$(grep -svm1 -E '^(0|{again}|{peers}|143) ' "$ends") || return
    read -r first_code number host <<< "$first"
    say "process $number on $host failed first, with exit code $first_code. Its last lines:"
    # Its lines begin with its number, in the files of the job.
    scontrol show job "$SLURM_JOB_ID" | sed -nE 's/^ *Std(Out|Err)=//p' | sort -u |
        xargs -d '\n' grep -hsE "^ *$number: " | tail -n 10
    codes=$(cut -d' ' -f1 "$ends" | sort | uniq -c | sed -E 's/ *(.+) (.+)/ \\1 × \\2,/' | tr -d '\\n')
    say "of {number} processes, exit codes:$codes the others were killed. Newest checkpoint: $(saved_text)."
}}
stop_tasks() {{
    until squeue -hs -j "$SLURM_JOB_ID" -o %i | grep -q '\\.[0-9]'; do  # the tasks are not started yet
        kill -0 $step 2>/dev/null || return
        sleep 1
    done
    scancel --signal=TERM "$SLURM_JOB_ID"
}}
requeue() {{
    say "stopped after the checkpoint of step $(saved); the job goes back to the queue."
    scontrol requeue "$SLURM_JOB_ID"
    exit {again}
}}

restarts=0
while true; do
    [ "$time_is_up" ] && requeue
    rm -f "$ends"; before=$(saved)
    {srun} sh -c "$task" task \\
        {command} &
    step=$!
    while signal=; do
        wait $step; code=$?
        [ "$signal" ] && [ $code -gt 128 ] || break  # a signal ends `wait` early
        [ "$time_is_up" ] && stop_tasks
    done
    [ $code = 0 ] && grep -qs '^{again} ' "$ends" && code={again}
    final=$(grep -som1 -E '^({final}) ' "$ends") && code=${{final% }}
    [ $code = 0 ] || report
    [ "$told_to_end" ] && exit $code
    case $code in
        0) exit 0 ;;
        {final}) give_up $code ;;
        {again}) requeue ;;  # the time is up, or other jobs go first
    esac
    [ "$time_is_up" ] && requeue
    [ "$(saved)" -gt "$before" ] && restarts=0
    if [ $restarts -ge {restarts} ]; then
        say "failed with exit code $code; {restarts} restarts brought no newer checkpoint."
        give_up $code
    fi
    restarts=$((restarts + 1))
    say "failed with exit code $code; restart $restarts of {restarts} in this allocation."
done
"""


def slurm_script(job: Job, sbatch: Sequence[str] = (), srun: Sequence[str] = ()) -> str:
    """Return a batch script for `sbatch`.

    Example:
      >>> job = mw.launch._internal.Job(("python", "train.py"), num_processes=8, processes_per_host=1)
      >>> print(mw.launch._internal.slurm_script(job, ["gpus-per-node=8"]))  # doctest: +ELLIPSIS
      #!/bin/bash
      #SBATCH --job-name=train
      #SBATCH --nodes=8
      #SBATCH --ntasks-per-node=1
      ...
    """
    # Without --ntasks-per-node, SLURM may place the tasks unevenly, as in 3,1.
    directives = _merged(
        {
            "job-name": job.name,
            "nodes": str(job.num_hosts),
            "ntasks-per-node": str(job.processes_per_host),
            "signal": f"B:USR1@{job.save_seconds}",
            "open-mode": "append",
            "requeue": None,
        },
        sbatch,
        fixed=("nodes", "ntasks-per-node", "ntasks", "requeue", "no-requeue"),
    )
    # --kill-on-bad-exit ends the other tasks 2 s after one is killed; otherwise they wait for it for minutes.
    options = _merged(
        {"kill-on-bad-exit": "1", "label": None}, srun, fixed=("kill-on-bad-exit", "nodes", "ntasks")
    )
    return _SCRIPT.format(
        directives="\n".join(f"#SBATCH {option}" for option in directives),
        srun=shlex.join(["srun", *options]),
        command=job.shell_command(),
        final="|".join(str(code) for code in FINAL_EXIT_CODES if code),
        again=EXIT_AGAIN,
        peers=EXIT_PEERS,
        restarts=job.restarts,
        number=job.num_processes,
    )


def _merged(ours: Mapping[str, str | None], theirs: Sequence[str], *, fixed: Collection[str]) -> list[str]:
    """Return options with their dashes; those of the user win."""
    options = dict(ours)
    for text in theirs:
        name, equals, value = text.lstrip("-").partition("=")
        if name in fixed:
            raise UsageError(
                f"launch slurm: --{name} cannot be given here: the script sets it itself, from -n, "
                "--processes-per-host and --restarts."
            )
        options[name] = value if equals else None
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]


# A line of `srun --label`: the number of the task, and the task's line.
_LABEL = re.compile(r" *(\d+): (.*)", re.DOTALL)
_OVER = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
)
_POLL_SECONDS = 1.0


def tail_slurm(number: str, num_processes: int) -> int:
    """Show the output of a job of SLURM until the job is over, also over its restarts; return its exit code.

    The files of the output must be visible here. Ctrl-C ends the showing, not the job.
    """
    files: dict[str, _File] = {}
    try:
        with Output(num_processes) as output:
            while True:
                job = _job(number)
                for name in {job[key] for key in ("StdOut", "StdErr") if key in job}:
                    for line in files.setdefault(name, _File(Path(name))).lines():
                        _show(line, output)
                if job.get("JobState", "") in _OVER:
                    return _exit_code(job)
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        print(f"job {number} goes on; to end it: scancel {number}", file=sys.stderr)
        return EXIT_CTRL_C


def _show(line: str, output: Output) -> None:
    if labelled := _LABEL.fullmatch(line):
        output.add(int(labelled[1]), labelled[2], sys.stdout)
    else:
        # The script has written this line.
        output.flush()
        print_line(line, sys.stderr)


class _File:
    """A file that grows, or is not there yet."""

    def __init__(self, path: Path):
        self._path, self._read, self._rest = path, 0, b""

    def lines(self) -> Iterator[str]:
        """Return the whole lines that are new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")


def _job(number: str) -> Mapping[str, str]:
    """Return the fields of a job, by name. A job that SLURM has forgotten counts as over."""
    result = subprocess.run(
        ["scontrol", "-o", "show", "job", number], stdin=subprocess.DEVNULL, capture_output=True
    )
    # SLURM forgets jobs some time after their end.
    if b"Invalid job id" in result.stderr:
        return {"JobState": "COMPLETED", "ExitCode": f"{EXIT_FAILED}:0"}
    words = result.stdout.decode(errors="replace").split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def _exit_code(job: Mapping[str, str]) -> int:
    """Return the exit code of a job that is over; 128 + n if signal n ended it."""
    code, _, signal = job.get("ExitCode", "0:0").partition(":")
    if int(signal or 0):
        return 128 + int(signal)
    return int(code) or (0 if job["JobState"] == "COMPLETED" else EXIT_FAILED)
