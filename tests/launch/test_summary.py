"""The summary of processes that failed: which was first, where others only ended because of it."""

import pytest

from meshwright.launch._members import End
from meshwright.launch._outcome import causes, code_of, summary

ABORTED = (
    "F client.h:86] Terminating process because the JAX distributed service detected fatal errors. "
    "absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):",
    "1",
    "The tasks have crashed. Check the task logs for an earlier error.",
    "RPC: /xla.coordination.CoordinationService/PollForError",
)
LEAD_SILENT = (
    "F client.h:86] Terminating process because the JAX distributed service detected fatal errors. "
    "absl::Status: DEADLINE_EXCEEDED: Deadline Exceeded",
    "RPC: /xla.coordination.CoordinationService/Heartbeat",
)


def said(*texts):
    return tuple(f"meshwright: error: {text}" for text in texts)


HANGS = said("process 2: it stands still, and the others wait for it")
CASES = {
    "an error of process 0 that the others raise": (
        {
            1: (1, ("meshwright.errors.MeshwrightError: process 0: ValueError: no",)),
            0: (1, ("ValueError: no",)),
        },
        (0, 1),
    ),
    "Ctrl-C on process 0 alone": (
        {
            2: (6, said("process 0 ended with exit code 130, and")),
            1: (6, said("process 0 ended with exit code 130, and")),
            0: (130, ("KeyboardInterrupt",)),
        },
        (0, 130),
    ),
    "an end that the others call early": (
        {
            0: (6, said("process 1 has ended its program early, and")),
            1: (6, said("process 0 ended with exit code 6, and")),
        },
        (1, 6),
    ),
    "a process that stopped": ({0: (-6, ABORTED), 2: (-6, ABORTED), 1: (None, ())}, (1, 134)),
    "process 0 that stopped": ({1: (-6, LEAD_SILENT), 2: (-6, LEAD_SILENT), 0: (None, ())}, (0, 134)),
    "a hang that ends with the others": (
        {0: (5, HANGS), 2: (5, ("Process 2 stands in the phase input",)), 1: (5, HANGS)},
        (2, 5),
    ),
    "a hang that JAX ends with process 0": (
        {
            0: (5, HANGS),
            1: (5, HANGS),
            2: (-6, ("Terminating process because the JAX distributed service detected fatal errors.",)),
        },
        (2, 5),
    ),
    "a hang that cannot end": (
        {0: (5, HANGS), 1: (6, said("process 0 ended with exit code 5, and")), 2: (None, ())},
        (2, 5),
    ),
}
"""The exit codes and last lines in the order of the ends, None for one that is killed by the launcher; and
which process is named, and the exit code of all.
"""


@pytest.mark.parametrize("what", CASES)
def test_the_process_because_of_which_the_others_ended_is_named(what):
    ends, (named, code) = CASES[what]
    every = [End(number, "here", end or 0, lines) for number, (end, lines) in ends.items()]
    ended = [end for end in every if ends[end.number][0] is not None]
    silent = [end for end in every if end not in ended]
    assert [end.number for end in causes(ended, silent)][:1] == [named]
    assert code_of(ended, silent) == code
    text = summary(every, ended, None)
    assert text.startswith(f"process {named} of {len(every)} ")
    assert bool(silent) == ("did not answer, and the others ended because of it" in text)
