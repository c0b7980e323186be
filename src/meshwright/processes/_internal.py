"""The names of `processes` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.processes import _when as when
    from meshwright.processes._agree import agree, barrier, gather, is_lead, is_shared, on_all, on_lead
    from meshwright.processes._cluster import expand_nodes, job_end
    from meshwright.processes._compare import (
        CheckedProgram,
        broadcasting_errors,
        check_all_failed,
        compare,
        compare_devices,
        compare_over,
        ending_together,
        gather_on_hosts,
        spans_all_processes,
    )
    from meshwright.processes._detect import detect_processes
    from meshwright.processes._differences import digest_of, program_text, text_of_values
    from meshwright.processes._environment import describe_clocks
    from meshwright.processes._heartbeat import (
        Entry,
        ProcessStatus,
        StallMonitor,
        board_directory,
        look,
        read_entries,
        write_entry,
    )
    from meshwright.processes._leave import collective, exit_now
    from meshwright.processes._lock import DirectoryLock, is_locked, lock_directory, lock_run_directory
    from meshwright.processes._peers import announce_exit, delaying_exit, receiving, send_to_all
    from meshwright.processes._proc import birth_of, process_identity, process_start_time
    from meshwright.processes._progress import (
        is_compile_only,
        report_board,
        report_can_compile_ahead,
        report_progress,
        why_started_again,
    )
    from meshwright.processes._rendezvous import rendezvous
    from meshwright.processes._sensors import PREFIX, machine_reader, worst
    from meshwright.processes._signals import Signals, stop_signals
    from meshwright.processes._slow import (
        INPUT_SECONDS,
        REPORT_SECONDS,
        STEP_SECONDS,
        SlowPeers,
        slow_processes,
    )
    from meshwright.processes._sockets import address_towards, send_at_once, split_address
    from meshwright.processes._start import start_processes
    from meshwright.processes._verdict import blamed, verdict
    from meshwright.processes._when import (
        Due,
        Every,
        Scores,
        Tick,
        When,
        any_of,
        asked_once,
        at,
        every,
        every_minutes,
        never,
        whenever_free,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
