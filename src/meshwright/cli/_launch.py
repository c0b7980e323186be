"""`meshwright launch`: start a program here, or write its job and submit it.

This file does not use JAX.
"""

import argparse
import shlex
import shutil
import subprocess
import tempfile

from meshwright.cli._output import show
from meshwright.cli._train import use_fake_devices
from meshwright.errors import EXIT_DONE, UsageError
from meshwright.launch import (
    Job,
    Pods,
    jobset_manifest,
    launch_hosts,
    launch_local,
    launch_ray,
    name_of,
    sky_task,
    slurm_script,
)

_SUBMIT = {
    "slurm": ("sbatch",),
    "jobset": ("kubectl", "create", "-f"),
    "sky": ("sky", "jobs", "launch", "--yes"),
}
"""The command that submits a file, without the file's name."""
_SUFFIX = {"slurm": ".sbatch", "jobset": ".yaml", "sky": ".yaml"}


def local(options: argparse.Namespace) -> int:
    """Run `meshwright launch local`."""
    if options.fake_devices:
        use_fake_devices(options.fake_devices)
    return launch_local(
        options.command_line,
        options.num_processes,
        devices_per_process=options.devices_per_process,
        grace_seconds=options.grace,
        restarts=options.restarts,
        min_processes=options.min_processes,
        logs=options.logs,
    )


def hosts(options: argparse.Namespace) -> int:
    """Run `meshwright launch hosts`."""
    if options.fake_devices:
        use_fake_devices(options.fake_devices)
    return launch_hosts(
        options.command_line,
        options.num_processes,
        at=options.at,
        hosts=options.hosts,
        min_hosts=options.min_hosts,
        devices_per_process=options.devices_per_process,
        wait_seconds=options.wait,
        grace_seconds=options.grace,
        restarts=options.restarts,
        logs=options.logs,
    )


def ray(options: argparse.Namespace) -> int:
    """Run `meshwright launch ray`."""
    return launch_ray(
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


def slurm(options: argparse.Namespace) -> int:
    """Run `meshwright launch slurm`."""
    sbatch = [option for text in options.sbatch for option in shlex.split(text)]
    srun = [option for text in options.srun for option in shlex.split(text)]
    return _submit(options, "slurm", slurm_script(_job(options, options.processes_per_host), sbatch, srun))


def jobset(options: argparse.Namespace) -> int:
    """Run `meshwright launch jobset`."""
    pods = Pods(
        options.image,
        replicas=options.replicas,
        gpus=options.gpus,
        tpu=options.tpu,
        mounts=options.mount,
        namespace=options.namespace,
    )
    return _submit(options, "jobset", jobset_manifest(_job(options), pods))


def sky(options: argparse.Namespace) -> int:
    """Run `meshwright launch sky`."""
    task = sky_task(
        _job(options),
        accelerators=options.accelerators,
        spot=options.spot,
        setup=options.setup,
        mounts=options.mount,
    )
    return _submit(options, "sky", task)


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
    command = _SUBMIT[place]
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"launch {place}: the program {command[0]!r} is not in PATH, so nothing was submitted. Run this "
            f"on a machine that has it; or add --print, and submit the text: {shlex.join(command)} FILE."
        )
    with tempfile.NamedTemporaryFile("w", prefix=f"{place}-", suffix=_SUFFIX[place]) as file:
        file.write(text)
        file.flush()
        return subprocess.run([*command, file.name]).returncode
