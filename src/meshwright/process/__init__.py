"""The processes of a run: they find each other, compare settings, exchange values, lock files, and stop.

`_start` joins the processes (`_detect` finds them, `_rendezvous` connects them), `_compare` compares their
programs, `_agree` and `_run_on` exchange values, `_signals` stops a run, `_peers` and `_leave` handle
processes that end. May import ground rooms. Add a launcher to `_launchers` and `_detect`, a setting of JAX
that processes must share to `_environment`.

cluster = process.start()                  # before anything uses a device
with process.signals() as signals:
    for step in range(1, steps + 1):
        ...
        if signals.stop(step):             # the same answer on all processes
            break
"""

from meshwright.process._agree import agree, barrier, gather, is_lead
from meshwright.process._clocks import describe_clocks
from meshwright.process._cluster import Cluster
from meshwright.process._compare import (
    Compared,
    check_all_failed,
    compare,
    compare_devices,
    compare_over,
    gather_on_hosts,
    sharing_errors,
    spans_all_processes,
)
from meshwright.process._detect import detect
from meshwright.process._disk import is_shared
from meshwright.process._ends import ending_together
from meshwright.process._leave import exit_now, shared_work
from meshwright.process._lock import DirectoryLock, is_locked, lock_directory, lock_run_directory
from meshwright.process._only_compile import only_compiles
from meshwright.process._peers import announce_exit, delaying_exit, receiving, send_to_all
from meshwright.process._program import digest_of, program_text, text_of_values
from meshwright.process._progress import (
    report_board,
    report_can_compile_ahead,
    report_progress,
    why_started_again,
)
from meshwright.process._rendezvous import rendezvous
from meshwright.process._run_on import on_all, on_lead
from meshwright.process._signals import Signals, signals
from meshwright.process._slurm import expand_nodes, job_end
from meshwright.process._start import start

__all__ = [
    "Cluster",
    "Compared",
    "DirectoryLock",
    "Signals",
    "agree",
    "announce_exit",
    "barrier",
    "check_all_failed",
    "compare",
    "compare_devices",
    "compare_over",
    "delaying_exit",
    "describe_clocks",
    "detect",
    "digest_of",
    "ending_together",
    "exit_now",
    "expand_nodes",
    "gather",
    "gather_on_hosts",
    "is_lead",
    "is_locked",
    "is_shared",
    "job_end",
    "lock_directory",
    "lock_run_directory",
    "on_all",
    "on_lead",
    "only_compiles",
    "program_text",
    "receiving",
    "rendezvous",
    "report_board",
    "report_can_compile_ahead",
    "report_progress",
    "send_to_all",
    "shared_work",
    "sharing_errors",
    "signals",
    "spans_all_processes",
    "start",
    "text_of_values",
    "why_started_again",
]
