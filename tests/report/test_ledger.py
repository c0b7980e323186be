"""Where the seconds of a run's life go, over all attempts."""

import json
import math

import pytest

from meshwright.engine._ledger import saving_remark
from meshwright.report._ledger import PARTS, WORK, Ledger, read_ledger, saving_advice
from meshwright.report._run import read_run
from meshwright.report._summary import list_runs, runs_table, summary
from report.runs import page_of, write_run
from soak import cases, rng


def lived(draw, until):
    """Return the ledger of a run of random attempts, its last sign of life, and the steps that were saved."""
    ledger, step, saved = Ledger(), 0, []
    for _ in range(draw.randint(1, 6)):
        ledger = ledger.begun(until := until + draw.expovariate(0.1))
        step = draw.choice([0, *saved])
        ledger = ledger.continued(step)
        saved = [each for each in saved if each <= step]
        for _ in range(draw.randrange(20)):
            seconds = {draw.choice([*WORK, "save", "stall", "compile"]): draw.random() * 10}
            until += sum(seconds.values())
            ledger, step = ledger.added(seconds, until), step + 1
            if draw.random() < 0.2:
                ledger, saved = ledger.saved(step), [*saved, step]
    return ledger, until


@pytest.mark.soak
def test_the_parts_sum_to_the_wall_clock_whatever_happens_to_a_run():
    draw = rng("ledgers")
    for _ in range(cases(few=40, many=20_000)):
        started = draw.random() * 1e9
        first = started + draw.expovariate(0.1)
        ledger, until = lived(draw, first)
        assert set(ledger.seconds) <= set(PARTS)
        assert min(ledger.seconds.values(), default=0) > -1e-6
        begun = ledger.until - ledger.total
        assert begun >= first - 1e-6
        assert ledger.until == until


def test_what_was_done_after_the_save_that_a_run_continues_from_is_lost():
    ledger = Ledger().begun(0.0).added({"step": 20.0}, 20.0).saved(50)
    ledger = ledger.added({"step": 30.0, "save": 1.0}, 51.0).saved(100)
    ledger = ledger.added({"step": 30.0, "evaluation": 5.0, "save": 1.0}, 87.0)
    continued = ledger.begun(100.0).continued(100)
    spent = {part: seconds for part, seconds in continued.seconds.items() if seconds}
    assert spent == {"step": 50.0, "save": 2.0, "lost": 35.0, "waiting": 13.0}
    assert (continued.attempts, continued.failures, continued.total) == (2, 1, 100.0)
    assert list(continued.seconds) == [part for part in PARTS if part in continued.seconds]


def test_a_run_that_begins_again_at_step_0_has_lost_all_work():
    ledger = Ledger().begun(0.0).added({"step": 50.0}, 50.0).begun(50.0)
    assert ledger.continued(0).seconds["lost"] == 50.0


def test_nothing_is_known_to_be_lost_after_a_checkpoint_from_elsewhere():
    ledger = Ledger().begun(0.0).added({"step": 50.0}, 50.0).begun(50.0)
    assert "lost" not in ledger.continued(7).seconds


def test_the_time_after_a_run_has_finished_is_none_of_its_life():
    ledger = Ledger(ended="finished", until=10.0, seconds={"step": 10.0}, attempts=1).begun(1000.0)
    assert (ledger.total, ledger.failures) == (10.0, 0)


def test_an_attempt_that_was_stopped_on_request_did_not_fail():
    assert Ledger(ended="stopped", until=10.0, attempts=1).begun(20.0).failures == 0


def test_the_interval_between_saves_is_that_of_young_and_daly():
    ledger = Ledger({"step": 980.0, "save": 20.0, "waiting": 500.0}, attempts=3, failures=2, saves=10)
    assert ledger.best_save_seconds == math.sqrt(2 * 2.0 * 500.0)
    assert ledger.seconds_between_saves == 98.0


def test_saves_that_cost_nothing_and_attempts_that_fail_at_once_call_for_no_interval():
    free = Ledger({"step": 10.0}, attempts=3, failures=2, saves=2)
    assert free.best_save_seconds is None
    assert saving_advice(free) == (
        "a save costs 0 s, and one is made every 5 s of work; an attempt fails every 5 s"
    )
    assert saving_remark(free) is None
    assert saving_remark(Ledger({"waiting": 3.0}, attempts=3, failures=2, saves=1)) is None


def test_one_failure_says_nothing_of_how_often_a_run_fails():
    once = Ledger({"step": 10.0, "save": 1.0}, attempts=2, failures=1, saves=2)
    assert (once.seconds_between_failures, once.best_save_seconds, saving_remark(once)) == (None, None, None)
    assert saving_advice(once).endswith("; one attempt has failed so far")


def test_a_ledger_is_read_as_it_was_written(tmp_path):
    ledger = Ledger().begun(5.0).added({"step": 50.0, "save": 1.0}, 56.0).saved(100)
    (tmp_path / "ledger.json").write_text(json.dumps(ledger.document()))
    assert read_ledger(tmp_path / "ledger.json") == ledger


@pytest.fixture
def run(tmp_path):
    ledger = Ledger({"step": 90.0, "save": 10.0, "lost": 100.0}, 7.0, None, 3, 2, 5)
    write_run(tmp_path / "a")
    (tmp_path / "a" / "ledger.json").write_text(json.dumps(ledger.document()))
    return tmp_path / "a"


def test_the_page_the_summary_and_the_list_tell_where_the_time_went(run):
    page, text, row = page_of(run), summary(read_run(run)), runs_table(list_runs(run.parent)).splitlines()[1]
    for part, share in (("step", "45.0 %"), ("lost", "50.0 %"), ("save", "5.0 %")):
        assert f"{part} {share}" in text
        assert part in page
        assert share in page
    told = (
        "a save costs 2 s, and one is made every 38 s of work; an attempt fails every 100 s, so that a save "
    )
    assert f"{told}every 20 s would lose the least" in text
    assert told in page
    assert row.endswith("45.0 %")


WHOLE = json.dumps(Ledger({"step": 90.0}, 7.0).document())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"seconds": 1}',
        *(WHOLE.replace("90.0", number) for number in ("1e999", "-5", "1e300", "[]")),
    ],
)
def test_a_damaged_ledger_is_told_and_hides_nothing_else(run, content):
    (run / "ledger.json").write_text(content)
    found = read_run(run)
    assert (found.ledger, found.step) == (None, 40)
    assert "ledger.json cannot be read" in found.damage[0]
