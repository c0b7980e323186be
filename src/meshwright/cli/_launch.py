"""`meshwright launch`: start a program here, or write its job and submit it.

This file does not use JAX.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile

from meshwright.cli._output import show
from meshwright.cli._train import use_fake_devices
from meshwright.errors import EXIT_DIVERGED, EXIT_DONE, EXIT_INPUT, EXIT_USAGE, UsageError
from meshwright.launch._internal import (
    Job,
    Pods,
    jobset_manifest,
    launch_hosts,
    launch_local,
    launch_ray,
    name_of,
    run_pod,
    slurm_script,
    tail_slurm,
)

_SUBMIT = {
    "slurm": ("sbatch",),
    "jobset": ("kubectl", "create", "-f"),
}
"""The command that submits a file, without the file's name."""
_SUFFIX = {"slurm": ".sbatch", "jobset": ".yaml"}


def local(options: argparse.Namespace) -> int:
    """Run `meshwright launch local`."""
    if options.fake_devices:
        use_fake_devices(options.fake_devices)
    exit_code = launch_local(
        options.command_line,
        options.num_processes,
        devices_per_process=options.devices_per_process,
        grace_seconds=options.grace,
        restarts=options.restarts,
        min_processes=options.min_processes,
        compile_ahead=not options.no_compile_ahead,
        logs=options.logs,
    )
    return _say_how_to_go_on(options, exit_code)


def hosts(options: argparse.Namespace) -> int:
    """Run `meshwright launch hosts`."""
    if options.fake_devices:
        use_fake_devices(options.fake_devices)
    exit_code = launch_hosts(
        options.command_line,
        options.num_processes,
        address=options.at,
        hosts=options.hosts,
        min_hosts=options.min_hosts,
        devices_per_process=options.devices_per_process,
        wait_seconds=options.wait,
        grace_seconds=options.grace,
        restarts=options.restarts,
        logs=options.logs,
    )
    return _say_how_to_go_on(options, exit_code)


def ray(options: argparse.Namespace) -> int:
    """Run `meshwright launch ray`."""
    exit_code = launch_ray(
        options.command_line,
        options.num_processes,
        gpus_per_process=options.gpus_per_process,
        cpus_per_process=options.cpus_per_process,
        address=options.address,
        wait_seconds=options.wait,
        grace_seconds=options.grace,
        restarts=options.restarts,
        min_processes=options.min_processes,
        logs=options.logs,
    )
    return _say_how_to_go_on(options, exit_code)


def _say_how_to_go_on(options: argparse.Namespace, exit_code: int) -> int:
    """Print the command that continues a run that is not complete, and return its exit code."""
    if exit_code != EXIT_DONE:
        first = "correct that, and then " if exit_code in (EXIT_USAGE, EXIT_INPUT, EXIT_DIVERGED) else ""
        command = shlex.join(["meshwright", *options.words])
        print(f"meshwright launch: exit code {exit_code}; to go on, {first}run: {command}", file=sys.stderr)
    return exit_code


def slurm(options: argparse.Namespace) -> int:
    """Run `meshwright launch slurm`."""
    sbatch = [option for text in options.sbatch for option in shlex.split(text)]
    srun = [option for text in options.srun for option in shlex.split(text)]
    script = slurm_script(_job(options, options.processes_per_host), sbatch, srun)
    if not options.tail or options.print:
        return _submit(options, "slurm", script)
    if any(option.lstrip("-").startswith(("array", "output=/dev/null")) for option in sbatch):
        raise UsageError("launch slurm: --tail shows one output, but this job has none, or several (array).")
    done = _give("slurm", script, "--parsable", stdout=subprocess.PIPE)
    if done.returncode:
        return done.returncode
    number = done.stdout.strip().partition(";")[0]
    print(f"meshwright launch: submitted job {number}", file=sys.stderr)
    return tail_slurm(number, options.num_processes)


def jobset(options: argparse.Namespace) -> int:
    """Run `meshwright launch jobset`."""
    pods = Pods(
        options.image,
        replicas=options.replicas,
        gpus=options.gpus,
        tpu=options.tpu,
        mounts=options.mount,
        shared=options.shared,
        namespace=options.namespace,
    )
    job = _job(options)
    exit_code = _submit(options, "jobset", jobset_manifest(job, pods))
    if options.print or exit_code != EXIT_DONE:
        return exit_code
    namespace = ["-n", options.namespace] if options.namespace else []
    pods_of_all = ["-l", f"jobset.sigs.k8s.io/jobset-name={job.name}", "--prefix", "--tail=-1"]
    most = f"--max-log-requests={job.num_processes}"
    command = shlex.join(["kubectl", "logs", "-f", *pods_of_all, most, *namespace])
    print(f"meshwright launch: to follow it: {command}", file=sys.stderr)
    return exit_code


def pod(options: argparse.Namespace) -> int:
    """Run `meshwright launch pod`."""
    return run_pod(options.command_line, options.name, options.shared)


def _job(options: argparse.Namespace, processes_per_host: int = 1) -> Job:
    return Job(
        options.command_line,
        options.num_processes,
        processes_per_host,
        name=options.name or name_of(options.command_line),
        restarts=options.restarts,
        save_seconds=options.save_seconds,
    )


def _submit(options: argparse.Namespace, place: str, text: str) -> int:
    """Give a text to the scheduler, or print it; return the scheduler's exit code."""
    if options.print:
        show(text.rstrip("\n"))
        return EXIT_DONE
    return _give(place, text).returncode


def _give(place: str, text: str, *more: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    """Give a text to the scheduler."""
    command = (*_SUBMIT[place], *more)
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"launch {place}: the program {command[0]!r} is not in PATH, so nothing was submitted. Run this "
            f"on a machine that has it; or add --print, and submit the text: {shlex.join(command)} FILE."
        )
    with tempfile.NamedTemporaryFile(prefix=f"{place}-", suffix=_SUFFIX[place]) as file:
        file.write(text.encode())
        file.flush()
        return subprocess.run([*command, file.name], stdout=stdout, encoding="utf-8", errors="replace")
