import os
import signal
import threading

import jax
import pytest

from meshwright.errors import EXIT_AGAIN, EXIT_CTRL_C
from meshwright.processes import _internal as processes


def test_nobody_stops_who_was_not_told_to():
    with processes.stop_signals() as signals:
        assert not signals.stop(1)
    assert signals.interruption is None


@pytest.mark.parametrize(
    ("number", "exit_code", "cause"),
    [(signal.SIGTERM, EXIT_AGAIN, "SIGTERM"), (signal.SIGINT, EXIT_CTRL_C, "Ctrl-C")],
)
def test_the_first_signal_ends_the_run_after_the_step(number, exit_code, cause):
    with processes.stop_signals() as signals:
        signal.raise_signal(number)
        assert signals.stop(7)
    assert signals.interruption.exit_code == exit_code
    assert str(signals.interruption).startswith(f"stopped by {cause} after step 7.")


def test_the_first_ctrl_c_says_what_happens_next(capfd):
    with processes.stop_signals():
        signal.raise_signal(signal.SIGINT)
    assert "press Ctrl-C again to stop now" in capfd.readouterr().err


def test_the_second_ctrl_c_ends_the_process_without_waiting_for_python():
    with processes.stop_signals():
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_a_second_ctrl_c_is_heard_as_soon_as_the_note_asks_for_it(monkeypatch):
    handlers = []
    monkeypatch.setattr(os, "write", lambda *_: handlers.append(signal.getsignal(signal.SIGINT)))
    with processes.stop_signals():
        signal.raise_signal(signal.SIGINT)
    assert handlers == [signal.SIG_DFL]


def test_the_second_ctrl_c_leaves_an_interactive_session_alive(monkeypatch):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    with processes.stop_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_answer_stays_once_it_was_given():
    with processes.stop_signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        assert [signals.stop(7), signals.stop(8)] == [True, True]
    assert "after step 7" in str(signals.interruption)


def test_a_process_alone_knows_at_once_that_the_run_ends():
    with processes.stop_signals() as signals:
        assert not signals.ending
        signal.raise_signal(signal.SIGTERM)
        assert signals.ending


def test_a_run_that_ended_before_it_asked_was_not_interrupted():
    with processes.stop_signals() as signals:
        signal.raise_signal(signal.SIGTERM)
    assert signals.interruption is None


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with processes.stop_signals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_off_the_main_thread_signals_are_left_alone():
    heard = []

    def work():
        with processes.stop_signals() as signals:
            heard.append((signals.stop(1), signal.getsignal(signal.SIGTERM)))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [(False, before)]


@pytest.mark.parametrize("is_over", [False, True])
def test_ctrl_c_sends_several_processes_a_notice_only_while_steps_are_left(monkeypatch, is_over):
    sent = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
    with processes.stop_signals() as signals:
        signals.is_over = is_over
        signal.raise_signal(signal.SIGINT)
    assert sent == ([] if is_over else [(os.getpid(), signal.SIGTERM)])
