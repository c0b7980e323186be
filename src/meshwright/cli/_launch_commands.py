"""The options of `meshwright launch` for each place where processes can be started."""

import argparse

from meshwright.cli._parser import Commands

_AFTER_DASHES = "the program to start and its arguments, after --"


def add_launch(commands: Commands) -> None:
    """Add `launch` with its subcommands."""
    places = commands.group(
        "launch",
        "Start one program as several processes: on this machine, or as a job of a scheduler.",
        epilog="Example: meshwright launch local -n 2 -- python train.py. The same program runs in all "
        "places. A failed run starts again and continues from its newest checkpoint (--restarts), except "
        "after exit codes 2, 3, 4 and 130.",
    )
    _add_local(places)
    _add_hosts(places)
    _add_ray(places)
    _add_slurm(places)
    _add_jobset(places)
    _add_pod(places)


def _add_local(places: Commands) -> None:
    local = places.add(
        "local",
        "_launch",
        "Start one program as several processes on this machine.",
        epilog="Example: meshwright launch local -n 2 -- python train.py. "
        "The exit code is that of the process that failed first. (Processes that end only because another "
        "one is gone do so with 6, and do not count as the first.)",
    )
    _add_supervised(local, restarts=0)
    _add_min_processes(local)
    local.add_argument(
        "--no-compile-ahead",
        action="store_true",
        help="with --min-processes on CPUs: do not compile for one process fewer while the run trains",
    )
    _add_devices(local)
    local.add_argument("command_line", nargs="+", metavar="CMD", help=_AFTER_DASHES)


def _add_hosts(places: Commands) -> None:
    hosts = places.add(
        "hosts",
        "_launch",
        "Start one program on several machines without a scheduler: run the same command on each.",
        epilog="Example: meshwright launch hosts --at node1:29400 --hosts 3 -n 1 -- python train.py. Machine "
        "node1 leads, and process 0 runs there. When a machine or a process is lost, all start again.",
    )
    hosts.add_argument(
        "--at",
        required=True,
        metavar="HOST:PORT",
        help="address of the machine that leads, which all machines can reach",
    )
    hosts.add_argument("--hosts", type=int, required=True, metavar="H", help="number of machines")
    hosts.add_argument(
        "--min-hosts",
        type=int,
        metavar="M",
        help="go on with M machines or more if the others do not come back within 15 s (default: H)",
    )
    hosts.add_argument(
        "--wait",
        type=float,
        default=300,
        metavar="SECONDS",
        help="longest time to wait for the machines (default: 300)",
    )
    _add_supervised(hosts, restarts=3)
    _add_devices(hosts)
    hosts.add_argument("command_line", nargs="+", metavar="CMD", help=_AFTER_DASHES)


def _add_ray(places: Commands) -> None:
    ray = places.add(
        "ray",
        "_launch",
        "Start one program as several processes on a Ray cluster; again after failures and lost nodes.",
        epilog="Example: meshwright launch ray -n 4 --gpus-per-process 8 -- meshwright train gpt:experiment "
        "workdir=/shared/runs/gpt",
    )
    _add_supervised(ray, restarts=3)
    _add_min_processes(ray)
    ray.add_argument(
        "--gpus-per-process", type=int, default=0, metavar="G", help="number of GPUs of each process"
    )
    ray.add_argument(
        "--cpus-per-process",
        type=float,
        default=1,
        metavar="C",
        help="number of CPUs that Ray reserves for each process (default: 1)",
    )
    ray.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="address of the cluster (default: RAY_ADDRESS, or this machine)",
    )
    ray.add_argument(
        "--wait",
        type=float,
        default=300,
        metavar="SECONDS",
        help="longest time to wait until the cluster has the resources (default: 300)",
    )
    ray.add_argument("command_line", nargs="+", metavar="CMD", help=_AFTER_DASHES)


def _add_slurm(places: Commands) -> None:
    slurm = places.add(
        "slurm",
        "_launch",
        "Submit one program as a SLURM job, which continues after preemption, time limits and failures.",
        epilog="Example: meshwright launch slurm -n 8 --sbatch 'gpus-per-node=8 time=04:00:00 account=me' -- "
        "meshwright train gpt.py:experiment workdir=/shared/runs/gpt",
    )
    _add_job(slurm)
    slurm.add_argument(
        "--processes-per-host",
        type=int,
        default=1,
        metavar="K",
        help="number of processes on each machine (default: 1, which uses all of its GPUs)",
    )
    slurm.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="further options of the job without dashes: 'account=me partition=gpu gpus-per-node=8'",
    )
    slurm.add_argument(
        "--srun",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="further options of srun without dashes: 'container-image=IMAGE'",
    )
    slurm.add_argument(
        "--tail",
        action="store_true",
        help="stay, and show the output of the job until it is over, equal lines of its processes once. "
        "Ctrl-C ends only the showing",
    )
    slurm.add_argument("command_line", nargs="+", metavar="CMD", help=_AFTER_DASHES)


def _add_jobset(places: Commands) -> None:
    jobset = places.add(
        "jobset",
        "_launch",
        "Create one program as a Kubernetes JobSet, with a pod for each process.",
        epilog="Example: meshwright launch jobset -n 4 --image registry.example.com/train:1 --gpus 8 "
        "--mount runs:/runs --print -- meshwright train gpt:experiment workdir=/runs/gpt",
    )
    _add_job(jobset)
    _add_machines(jobset)
    _add_volumes(jobset)
    jobset.add_argument("--namespace", default="", help="namespace (default: that of kubectl's context)")
    jobset.add_argument("command_line", nargs="+", metavar="CMD", help=_AFTER_DASHES)


def _add_machines(jobset: argparse.ArgumentParser) -> None:
    jobset.add_argument("--image", required=True, help="container image with the program and Meshwright")
    jobset.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="R",
        help="number of Jobs that the pods are divided into, such as one for each TPU slice (default: 1)",
    )
    jobset.add_argument("--gpus", type=int, default=0, metavar="G", help="number of NVIDIA GPUs of each pod")
    jobset.add_argument(
        "--tpu",
        default="",
        metavar="ACCELERATOR:TOPOLOGY:CHIPS",
        help="TPUs: the labels of Google's nodes and the chips of each pod: tpu-v5-lite-podslice:4x4:4",
    )


def _add_volumes(jobset: argparse.ArgumentParser) -> None:
    jobset.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="CLAIM:PATH",
        help="mount a PersistentVolumeClaim in all pods; may be repeated",
    )
    jobset.add_argument(
        "--shared",
        default="",
        metavar="PATH_OR_URL",
        help="where pods leave their ends, for the summary of a start that failed: a directory below a "
        "--mount, or the URL of a store, gs://bucket/runs (default: the path of the first --mount). `none` "
        "for a program that saves nothing, such as meshwright doctor: no summary",
    )


def _add_pod(places: Commands) -> None:
    pod = places.add(
        "pod",
        "_launch",
        "Run one process of a JobSet in its pod; the manifest of `launch jobset` calls this.",
        epilog="Example: meshwright launch pod --name gpt --shared /runs -- meshwright train gpt:experiment. "
        "After a failure, one pod prints which process failed first.",
    )
    pod.add_argument("--name", required=True, help="name of the JobSet")
    pod.add_argument(
        "--shared",
        required=True,
        metavar="PATH_OR_URL",
        help="a directory that all pods see, or the URL of a store",
    )
    pod.add_argument("command_line", nargs="+", metavar="CMD", help=_AFTER_DASHES)


def _add_number(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--num-processes", type=int, required=True, metavar="N", help="number of processes to start"
    )


def _add_restarts(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--restarts",
        type=int,
        default=default,
        metavar="R",
        help="after a failure, start all processes again, at most R times in a row without a newer "
        f"checkpoint (default: {default})",
    )


def _add_supervised(parser: argparse.ArgumentParser, restarts: int) -> None:
    """Add the options of places in which this command itself starts the processes."""
    _add_number(parser)
    _add_restarts(parser, default=restarts)
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


def _add_job(parser: argparse.ArgumentParser) -> None:
    """Add the options that all schedulers have."""
    _add_number(parser)
    _add_restarts(parser, default=3)
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
