import io
import re
import sys
import threading
from datetime import datetime

import pytest
from rich.console import Console as RichConsole
from rich.table import Table

from meshwright.observe._console import Console
from meshwright.processes._when import Tick

REPORT = {
    "accuracy": 0.98123,
    "loss": 1.23456,
    "steps_per_second": 645.3,
    "examples_per_second": 41300.2,
    "input_wait": 0.031,
}
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def file():
    return io.StringIO()


@pytest.fixture
def clock(clock):
    clock.now = datetime(2026, 11, 20, 18, 20, 1).timestamp()
    return clock


def shown(console, width=100):
    """What the panel of `console` looks like now."""
    rich = RichConsole(record=True, width=width, file=io.StringIO())
    rich.print(console)
    return rich.export_text().replace("\N{NARROW NO-BREAK SPACE}", " ")


def frames(terminal):
    return terminal.getvalue().count("/900")


def test_without_a_terminal_a_report_is_one_line(file, clock):
    with Console(900, file=file, clock=clock) as console:
        console.on_step(Tick(1))
        clock.advance(0.7)
        console.on_step(Tick(50))
        console(50, REPORT)
        console(51, {"held_out/accuracy": 0.967})
    assert file.getvalue() == (
        "2026-11-20T18:20:01 step=50/900 loss=1.235 accuracy=0.9812 steps_per_second=645.3 "
        "examples_per_second=41300 input_wait=0.031 left=0:00:12\n"
        "2026-11-20T18:20:01 step=51/900 held_out/accuracy=0.967 left=0:00:12\n"
    )


def test_a_line_is_flushed_at_once(tmp_path):
    with (tmp_path / "log").open("w") as file:
        Console(900, file=file)(50, {"loss": 1.0})
        assert (tmp_path / "log").read_text().endswith("step=50/900 loss=1\n")


def test_time_left_counts_from_the_step_that_a_run_continued_from(file, clock):
    console = Console(9000, file=file, clock=clock)
    console.on_step(Tick(8001))
    clock.advance(100.0)
    console(8101, {})
    assert file.getvalue().endswith("left=0:14:59\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3, "3"),
        (0.99996, "1"),
        (0.0003, "0.0003"),
        (0.00001234, "1.234e-05"),
        (-12.3456, "-12.35"),
        (999.96, "1000"),
        (1234567.0, "1235000"),
        (1.5e20, "1.5e+20"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers_have_four_digits_that_matter(file, value, text):
    Console(1, file=file)(1, {"x": value})
    assert file.getvalue().split("x=")[1] == f"{text}\n"


def test_the_panel_shows_the_run_at_a_glance(file, clock):
    console = Console(900, file=file, clock=clock)
    console.on_step(Tick(1))
    clock.advance(14)
    for loss in (2.0, 1.5, 1.0):
        console(480, {"loss": loss})
    console(500, {"held_out/accuracy": 0.967})
    console(620, REPORT | {"loss": 0.08312})
    bar, values, rates = shown(console).splitlines()
    assert re.fullmatch("━+╸? +620/900  0:00:06 left *", bar)
    assert values.strip() == "loss 0.08312 █▆▄▁ · held_out/accuracy 0.967 @500 · accuracy 0.9812"
    assert rates.strip() == "41 300 examples/s · input wait 3 % · step 1.55 ms"


def test_a_loss_that_is_not_finite_shows_in_the_curve(file):
    console = Console(900, file=file)
    for step, loss in enumerate([1.0, float("nan"), 2.0, float("inf")]):
        console(step, {"loss": loss})
    assert "loss inf ▁×█×" in shown(console)


def test_the_panel_of_a_run_that_has_not_begun_is_a_bar(file):
    assert shown(Console(900, file=file)).strip() == "0/900"


def test_a_terminal_gets_a_live_panel(terminal, clock):
    with Console(900, file=terminal, clock=clock) as console:
        console.on_step(Tick(1))
        clock.advance(1)
        console(50, {"loss": 1.5})
    assert "50/900" in terminal.getvalue()
    assert "loss 1.5" in terminal.getvalue()
    assert "step=" not in terminal.getvalue()


@pytest.mark.parametrize("step", [lambda c, i: c.on_step(Tick(i)), lambda c, i: c(i, {"loss": 0.5})])
def test_the_panel_is_redrawn_five_times_a_second_at_most(terminal, clock, step):
    with Console(900, file=terminal, clock=clock) as console:
        before = frames(terminal)
        for i in range(1, 801):
            clock.advance(1 / 400)
            step(console, i)
        assert 9 <= frames(terminal) - before <= 11


def test_a_report_right_after_a_beat_is_shown_at_once(terminal, clock):
    with Console(900, file=terminal, clock=clock) as console:
        clock.advance(10)
        console.on_step(Tick(1))
        console(1, {"loss": 0.5})
        assert "loss 0.5" in terminal.getvalue()


def test_a_clock_that_is_set_back_does_not_stop_the_panel(terminal, clock):
    with Console(900, file=terminal, clock=clock) as console:
        console.on_step(Tick(1))
        clock.advance(-3600)
        console.on_step(Tick(2))
        assert "2/900" in terminal.getvalue()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_exception_leaves_the_terminal_as_it_was(terminal, error):
    def fail():
        with Console(900, file=terminal) as console:
            console.on_step(Tick(1))
            raise error

    streams = sys.stdout, sys.stderr
    with pytest.raises(error):
        fail()
    assert terminal.getvalue().count(HIDE_CURSOR) == terminal.getvalue().count(SHOW_CURSOR) == 1
    assert terminal.getvalue().endswith(f"\n{SHOW_CURSOR}")
    assert (sys.stdout, sys.stderr) == streams


def test_the_last_panel_stands_with_the_newest_values(terminal, clock):
    with Console(900, file=terminal, clock=clock) as console:
        for step in range(1, 901):
            console.on_step(Tick(step))
            console(step, {"loss": float(step)})
    last_frame = terminal.getvalue().rpartition("\x1b[2K")[2]
    assert "900/900" in last_frame
    assert "loss 900" in last_frame


def test_the_panel_needs_no_thread(terminal):
    before = threading.active_count()
    with Console(900, file=terminal):
        assert threading.active_count() == before


def test_messages_appear_above_the_panel(terminal):
    with Console(900, file=terminal) as console:
        console.say("saved runs/[digits]@600")
        above, below = terminal.getvalue().split("saved runs/[digits]@600")
    assert above.endswith("\x1b[2K")  # the line of the old panel, cleared
    assert "0/900" in below


def test_without_a_terminal_messages_are_printed_as_they_are(file, clock):
    table = Table("name", "shape")
    table.add_row("mlp/0/kernel", "64 × 128")
    with Console(900, file=file, clock=clock) as console:
        console.say("saved runs/[digits]@600")
        console.say(table)
    assert file.getvalue().startswith("saved runs/[digits]@600\n")
    assert "64 × 128" in file.getvalue()


def test_what_a_program_prints_into_a_pipe_stays_out_of_the_panel(terminal, capsys):
    with Console(900, file=terminal):
        print("a result")
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in terminal.getvalue()


@pytest.mark.parametrize("variable", [("TERM", "dumb"), ("TTY_INTERACTIVE", "0")])
def test_a_terminal_that_cannot_redraw_gets_lines(terminal, monkeypatch, variable):
    monkeypatch.setenv(*variable)
    with Console(900, file=terminal) as console:
        console(50, {"loss": 0.5})
    assert terminal.getvalue().endswith("step=50/900 loss=0.5\n")
    assert "\x1b" not in terminal.getvalue()


def test_a_pipe_gets_lines_even_if_colour_is_forced(file, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Console(900, file=file) as console:
        console(50, {"loss": 0.5})
    assert file.getvalue().endswith("step=50/900 loss=0.5\n")


def test_no_color_is_honoured(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with Console(900, file=terminal) as console:
        console.on_step(Tick(450))
    assert not re.search(r"\x1b\[[\d;]*m(?<!\x1b\[0m)", terminal.getvalue())


def test_an_evaluation_stays_above_the_panel(terminal, clock):
    with Console(900, file=terminal, clock=clock) as console:
        for step in (100, 200):
            console(step, {"loss": 0.5, "test/accuracy": step / 1000})
            console.evaluated(step, {"test/accuracy": step / 1000})
    text = terminal.getvalue()
    for step in (100, 200):
        line = f"2026-11-20T18:20:01 step={step}/900 test/accuracy=0.{step // 100}\n"
        assert text.count(line) == 1


def test_without_a_terminal_an_evaluation_is_told_once(file, clock):
    with Console(900, file=file, clock=clock) as console:
        console(100, {"test/accuracy": 0.5})
        console.evaluated(100, {"test/accuracy": 0.5})
    assert file.getvalue().count("test/accuracy") == 1


def test_the_first_step_is_a_line_of_its_own(file, clock):
    Console(900, file=file, clock=clock).first(1, {"loss": 2.5})
    assert file.getvalue() == "2026-11-20T18:20:01 step=1/900 loss=2.5\n"
