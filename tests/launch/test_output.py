"""The lines of many processes on one screen."""

import io
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from eventually import eventually
from launched import by_process
from meshwright.launch._output import Lines, Output, numbers_text


def test_equal_lines_of_many_processes_are_shown_once():
    out = io.StringIO()
    with Output(1000) as output:
        for process in range(1000):
            output.add(process, "compiling", out)
    assert sum(line.endswith("compiling") for line in out.getvalue().splitlines()) <= 3


def test_lines_of_1000_processes_cost_little_and_none_is_lost():
    def seconds():
        out, begin = io.StringIO(), time.process_time()
        with Output(1000) as output:
            for step in range(50):
                for process in range(1000):
                    output.add(process, f"step={step}", out)
                    output.add(process, f"process {process} did step {step}", out)
        lines = out.getvalue().splitlines()
        assert sum("did step" in line for line in lines) == 50_000
        assert len(lines) < 60_000
        return time.process_time() - begin

    assert any(seconds() < 1 for _ in range(3))  # of a core, for 100,000 lines


def test_equal_tracebacks_are_shown_once_though_a_line_comes_twice_in_each():
    lines = Lines()
    for process in range(16):
        for line in ("f", "^^^", "g", "^^^", "error"):
            lines.add(process, (line, sys.stderr))
    assert [line for _, (line, _) in lines.merged()] == ["f", "^^^", "g", "^^^", "error"]


def test_what_c_prints_with_time_and_process_is_merged_and_stacks_are_only_in_the_files(tmp_path):
    out = io.StringIO()
    with Output(2, tmp_path) as output:
        for process in range(2):
            head = f"1129 06:31:24.94577{process}   1011{process} "
            output.add(process, f"W{head}preemption_notifier.cc:94] SIGTERM caught at 2026-11-29T06:31", out)
            output.add(process, f"F{head}client.h:86] Terminating process", out)
            output.add(process, f"    @     0x7f31c6af817{process}  absl::LogMessage::Flush()", out)
    assert by_process(out.getvalue()).splitlines() == [
        f"[{process}] F client.h:86] Terminating process" for process in range(2)
    ]
    assert len((tmp_path / "1.log").read_text().splitlines()) == 3


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"))))
def test_the_lines_of_each_process_stay_in_their_order(written):
    lines = Lines()
    for process, line in written:
        lines.add(process, (line, io.StringIO))
    for process in range(4):
        seen = [line for processes, (line, _) in lines.merged() for each in processes if each == process]
        assert seen == [line for each, line in written if each == process]


@given(st.sets(st.integers(0, 30)))
def test_few_ranges_are_written_out_and_many_are_counted(numbers):
    text = numbers_text(numbers, 31)
    if text.endswith(" of 31"):
        assert int(text.split()[0]) == len(numbers)
        return
    found = set()
    for part in text.split(", ") if text else ():
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == numbers


def test_a_lone_line_does_not_wait_for_long(capsys):
    out = io.StringIO()
    with Output(2) as output:
        output.add(1, "step 1", out)
        eventually(out.getvalue)
        assert out.getvalue() == "[1] step 1\n"
