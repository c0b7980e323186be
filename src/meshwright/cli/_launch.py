"""`meshwright launch`: start a program here, or write its job and submit it.

This file does not use JAX.
"""

import argparse
import shlex
import shutil
import sys
from typing import Any

from meshwright.cli._parser import Commands
from meshwright.cli._process import show
from meshwright.cli._recipe import use_fake_devices
from meshwright.errors import EXIT_DIVERGED, EXIT_DONE, EXIT_INPUT, EXIT_USAGE, UsageError
from meshwright.launch import _internal as launch

_SUBMIT = {"slurm": ("sbatch",), "jobset": ("kubectl", "create", "-f")}
"""The command that submits a file, without the file's name."""
_SUFFIX = {"slurm": ".sbatch", "jobset": ".yaml"}


def add(commands: Commands) -> None:
    """Add `launch` with its places."""
    places = commands.group(
        "launch",
        epilog="Example: meshwright launch local -n 2 -- python train.py. The same program runs in all "
        "places. A failed run starts again and continues from its newest checkpoint (--restarts), except "
        "after exit codes 2, 3, 4 and 130.",
    )
    for add_place in (_add_local, _add_hosts, _add_ray, _add_slurm, _add_jobset, _add_pod):
        add_place(places).add_argument(
            "command_line", nargs="+", metavar="CMD", help="the program to start and its arguments, after --"
        )


def _add_local(places: Commands) -> argparse.ArgumentParser:
    parser = places.add(
        "local",
        local,
        "Start one program as several processes on this machine.",
        calls_user=True,
        epilog="Example: meshwright launch local -n 2 -- python train.py. "
        "The exit code is that of the process that failed first. (Processes that end only because another "
        "one is gone do so with 6, and do not count as the first.)",
    )
    _add_supervised(parser, restarts=0)
    _add_min_processes(parser)
    parser.add_argument(
        "--no-compile-ahead",
        action="store_true",
        help="with --min-processes on CPUs: do not compile for one process fewer while the run trains",
    )
    _add_devices(parser)
    return parser


def local(options: argparse.Namespace) -> int:
    """Run `meshwright launch local`."""
    use_fake_devices(options.fake_devices)
    exit_code = launch.launch_local(
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


def _add_hosts(places: Commands) -> argparse.ArgumentParser:
    parser = places.add(
        "hosts",
        hosts,
        "Start one program on several machines without a scheduler: run the same command on each.",
        calls_user=True,
        epilog="Example: meshwright launch hosts --at node1:29400 --hosts 3 -n 1 -- python train.py. Machine "
        "node1 leads, and process 0 runs there. When a machine or a process is lost, all start again.",
    )
    parser.add_argument(
        "--at",
        required=True,
        metavar="HOST:PORT",
        help="address of the machine that leads, which all machines can reach",
    )
    parser.add_argument("--hosts", type=int, required=True, metavar="H", help="number of machines")
    parser.add_argument(
        "--min-hosts",
        type=int,
        metavar="M",
        help="go on with M machines or more if the others do not come back within 15 s (default: H)",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=300,
        metavar="SECONDS",
        help="longest time to wait for the machines (default: 300)",
    )
    _add_supervised(parser, restarts=3)
    _add_devices(parser)
    return parser


def hosts(options: argparse.Namespace) -> int:
    """Run `meshwright launch hosts`."""
    use_fake_devices(options.fake_devices)
    exit_code = launch.launch_hosts(
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


def _add_ray(places: Commands) -> argparse.ArgumentParser:
    parser = places.add(
        "ray",
        ray,
        "Start one program as several processes on a Ray cluster; again after failures and lost nodes.",
        calls_user=True,
        epilog="Example: meshwright launch ray -n 4 --gpus-per-process 8 -- meshwright train gpt:experiment "
        "workdir=/shared/runs/gpt",
    )
    _add_supervised(parser, restarts=3)
    _add_min_processes(parser)
    parser.add_argument(
        "--gpus-per-process", type=int, default=0, metavar="G", help="number of GPUs of each process"
    )
    parser.add_argument(
        "--cpus-per-process",
        type=float,
        default=1,
        metavar="C",
        help="number of CPUs that Ray reserves for each process (default: 1)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="address of the cluster (default: RAY_ADDRESS, or this machine)",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=300,
        metavar="SECONDS",
        help="longest time to wait until the cluster has the resources (default: 300)",
    )
    return parser


def ray(options: argparse.Namespace) -> int:
    """Run `meshwright launch ray`."""
    exit_code = launch.launch_ray(
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


def _add_supervised(parser: argparse.ArgumentParser, restarts: int) -> None:
    """Add the options of places in which this command itself starts the processes."""
    _add_processes(parser, restarts)
    parser.add_argument(
        "--grace",
        type=float,
        default=12,
        metavar="SECONDS",
        help="time that processes have to save and end, after SIGTERM or after one of them failed, before "
        "they are killed (default: 12)",
    )
    parser.add_argument(
        "--logs", metavar="DIR", help="also append the output of process I to the file DIR/I.log"
    )


def _add_min_processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--min-processes",
        type=int,
        metavar="M",
        help="after a restart, go on without the processes that failed, but with at least M (default: N)",
    )


def _add_devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--devices-per-process",
        type=int,
        metavar="D",
        help="give the first D GPUs of the machine to its first process, the next D to the second, and so on",
    )


def _add_processes(parser: argparse.ArgumentParser, restarts: int) -> None:
    """Add the options of all places but pods."""
    parser.add_argument(
        "-n", "--num-processes", type=int, required=True, metavar="N", help="number of processes to start"
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=restarts,
        metavar="R",
        help="after a failure, start all processes again, at most R times in a row without a newer "
        f"checkpoint (default: {restarts})",
    )


def _say_how_to_go_on(options: argparse.Namespace, exit_code: int) -> int:
    """Print the command that continues a run that is not complete, and return its exit code."""
    if exit_code != EXIT_DONE:
        first = "correct that, and then " if exit_code in (EXIT_USAGE, EXIT_INPUT, EXIT_DIVERGED) else ""
        command = shlex.join(["meshwright", *options.words])
        print(f"meshwright launch: exit code {exit_code}; to go on, {first}run: {command}", file=sys.stderr)
    return exit_code


def _add_slurm(places: Commands) -> argparse.ArgumentParser:
    parser = places.add(
        "slurm",
        slurm,
        "Submit one program as a SLURM job, which continues after preemption, time limits and failures.",
        epilog="Example: meshwright launch slurm -n 8 --sbatch 'gpus-per-node=8 time=04:00:00 account=me' -- "
        "meshwright train gpt.py:experiment workdir=/shared/runs/gpt",
    )
    _add_job(parser)
    parser.add_argument(
        "--processes-per-host",
        type=int,
        default=1,
        metavar="K",
        help="number of processes on each machine (default: 1, which uses all of its GPUs)",
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="further options of the job without dashes: 'account=me partition=gpu gpus-per-node=8'",
    )
    parser.add_argument(
        "--srun",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="further options of srun without dashes: 'container-image=IMAGE'",
    )
    parser.add_argument(
        "--tail",
        action="store_true",
        help="stay, and show the output of the job until it is over, equal lines of its processes once. "
        "Ctrl-C ends only the showing",
    )
    return parser


def slurm(options: argparse.Namespace) -> int:
    """Run `meshwright launch slurm`."""
    sbatch = [option for text in options.sbatch for option in shlex.split(text)]
    srun = [option for text in options.srun for option in shlex.split(text)]
    script = launch.slurm_script(_job(options, options.processes_per_host), sbatch, srun)
    if not options.tail or options.print:
        return _submit(options, "slurm", script)
    if any(option.lstrip("-").startswith(("array", "output=/dev/null")) for option in sbatch):
        raise UsageError("launch slurm: --tail shows one output, but this job has none, or several (array).")
    done = _give("slurm", script, "--parsable", capture=True)
    if done.returncode:
        return done.returncode
    number = done.stdout.strip().partition(";")[0]
    print(f"meshwright launch: submitted job {number}", file=sys.stderr)
    return launch.tail_slurm(number, options.num_processes)


def _add_jobset(places: Commands) -> argparse.ArgumentParser:
    parser = places.add(
        "jobset",
        jobset,
        "Create one program as a Kubernetes JobSet, with a pod for each process.",
        epilog="Example: meshwright launch jobset -n 4 --image registry.example.com/train:1 --gpus 8 "
        "--mount runs:/runs --print -- meshwright train gpt:experiment workdir=/runs/gpt",
    )
    _add_job(parser)
    parser.add_argument("--image", required=True, help="container image with the program and Meshwright")
    parser.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="R",
        help="number of Jobs that the pods are divided into, such as one for each TPU slice (default: 1)",
    )
    parser.add_argument("--gpus", type=int, default=0, metavar="G", help="number of NVIDIA GPUs of each pod")
    parser.add_argument(
        "--tpu",
        default="",
        metavar="ACCELERATOR:TOPOLOGY:CHIPS",
        help="TPUs: the labels of Google's nodes and the chips of each pod: tpu-v5-lite-podslice:4x4:4",
    )
    parser.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="CLAIM:PATH",
        help="mount a PersistentVolumeClaim in all pods; may be repeated",
    )
    parser.add_argument(
        "--shared",
        default="",
        metavar="PATH_OR_URL",
        help="where pods leave their ends, for the summary of a start that failed: a directory below a "
        "--mount, or the URL of a store, gs://bucket/runs (default: the path of the first --mount). `none` "
        "for a program that saves nothing, such as meshwright doctor: no summary",
    )
    parser.add_argument("--namespace", default="", help="namespace (default: that of kubectl's context)")
    return parser


def jobset(options: argparse.Namespace) -> int:
    """Run `meshwright launch jobset`."""
    pods = launch.Pods(
        options.image,
        replicas=options.replicas,
        gpus=options.gpus,
        tpu=options.tpu,
        mounts=options.mount,
        shared=options.shared,
        namespace=options.namespace,
    )
    job = _job(options)
    exit_code = _submit(options, "jobset", launch.jobset_manifest(job, pods))
    if options.print or exit_code != EXIT_DONE:
        return exit_code
    namespace = ["-n", options.namespace] if options.namespace else []
    pods_of_all = ["-l", f"jobset.sigs.k8s.io/jobset-name={job.name}", "--prefix", "--tail=-1"]
    most = f"--max-log-requests={job.num_processes}"
    command = shlex.join(["kubectl", "logs", "-f", *pods_of_all, most, *namespace])
    print(f"meshwright launch: to follow it: {command}", file=sys.stderr)
    return exit_code


def _add_pod(places: Commands) -> argparse.ArgumentParser:
    parser = places.add(
        "pod",
        pod,
        "Run one process of a JobSet in its pod; the manifest of `launch jobset` calls this.",
        epilog="Example: meshwright launch pod --name gpt --shared /runs -- meshwright train gpt:experiment. "
        "After a failure, one pod prints which process failed first.",
    )
    parser.add_argument("--name", required=True, help="name of the JobSet")
    parser.add_argument(
        "--shared",
        required=True,
        metavar="PATH_OR_URL",
        help="a directory that all pods see, or the URL of a store",
    )
    return parser


def pod(options: argparse.Namespace) -> int:
    """Run `meshwright launch pod`."""
    return launch.run_pod(options.command_line, options.name, options.shared)


def _add_job(parser: argparse.ArgumentParser) -> None:
    """Add the options that all schedulers have."""
    _add_processes(parser, restarts=3)
    parser.add_argument(
        "--name", metavar="NAME", help="name of the job (default: that of the program's file)"
    )
    parser.add_argument(
        "--save-seconds",
        type=int,
        default=120,
        metavar="SECONDS",
        help="time that the processes have to save and end before they are killed (default: 120)",
    )
    parser.add_argument(
        "--print", action="store_true", help="print what would be submitted, and submit nothing"
    )


def _job(options: argparse.Namespace, processes_per_host: int = 1) -> "launch.Job":
    return launch.Job(
        options.command_line,
        options.num_processes,
        processes_per_host,
        name=options.name or launch.name_of(options.command_line),
        restarts=options.restarts,
        save_seconds=options.save_seconds,
    )


def _submit(options: argparse.Namespace, place: str, text: str) -> int:
    """Give a text to the scheduler, or print it; return the scheduler's exit code."""
    if options.print:
        show(text.rstrip("\n"))
        return EXIT_DONE
    return _give(place, text).returncode


def _give(place: str, text: str, *more: str, capture: bool = False) -> Any:
    """Give a text to the scheduler. With `capture` the answer is kept, not shown."""
    import subprocess
    import tempfile

    command = (*_SUBMIT[place], *more)
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"launch {place}: the program {command[0]!r} is not in PATH, so nothing was submitted. Run this "
            f"on a machine that has it; or add --print, and submit the text: {shlex.join(command)} FILE."
        )
    with tempfile.NamedTemporaryFile(prefix=f"{place}-", suffix=_SUFFIX[place]) as file:
        file.write(text.encode())
        file.flush()
        stdout = subprocess.PIPE if capture else None
        return subprocess.run([*command, file.name], stdout=stdout, encoding="utf-8", errors="replace")
