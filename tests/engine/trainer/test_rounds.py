"""Rounds: data are made by the state, and a program that begins anew comes to the same bits."""

import contextlib
import json

import jax
import numpy as np
import pytest

import meshwright as mw
from engine.trainer.runs import EXAMPLES, arrays, deployer, reports, trainer
from engine.trainer.test_resume import Crash
from meshwright.errors import CheckpointError, UsageError
from soak import cases, rng

NUM_ROUNDS = 4


def start():
    return {"noise": np.zeros(4, np.float32), "seen": 0}


def one_round(shared, actor, critic, each, hit):
    """Train both on what the other's parameters and the carry make; `hit` may raise anywhere."""
    hit(f"{each.number} begins")
    noise = np.asarray(jax.random.normal(shared.gen_rng(), (4,)))
    drawn = {"x": EXAMPLES["x"][:32] + noise * float(actor.params["b"]), "y": EXAMPLES["y"][:32]}
    actor.fit(drawn, batch_size=16, epochs=1)
    hit(f"{each.number} half way")
    judged = drawn | {"y": drawn["x"] @ np.asarray(actor.params["w"])}
    critic.fit(judged, batch_size=16, max_steps=1)
    each.carry = {"noise": each.carry["noise"] + noise, "seen": each.carry["seen"] + 32}
    hit(f"{each.number} ends")


def play(shared, num_rounds=NUM_ROUNDS, hit=lambda place: None):
    actor, critic = (trainer(given=shared, name=name) for name in ("actor", "critic"))
    rounds = shared.rounds(num_rounds, carry=start())
    for each in rounds:
        one_round(shared, actor, critic, each, hit)
    return arrays(actor), arrays(critic), rounds.carry["noise"].tobytes(), rounds.carry["seen"]


@pytest.fixture(scope="module")
def undisturbed():
    return play(deployer())


def crash_at(place):
    def hit(here):
        if here == place:
            raise Crash

    return hit


def test_a_workdir_changes_no_bits(tmp_path, undisturbed):
    assert play(deployer(tmp_path)) == undisturbed


@pytest.mark.parametrize(
    "place",
    [
        "1 half way",
        "3 begins",
        "4 ends",
        *(pytest.param(place, marks=pytest.mark.long) for place in ("1 begins", "2 ends", "4 half way")),
    ],
)
@pytest.mark.daily(1)
def test_a_program_that_begins_anew_comes_to_the_same_bits(tmp_path, undisturbed, place):
    with pytest.raises(Crash):
        play(deployer(tmp_path), hit=crash_at(place))
    assert play(deployer(tmp_path)) == undisturbed


def test_finished_rounds_are_skipped(tmp_path, undisturbed):
    play(deployer(tmp_path))
    entered = []
    assert play(deployer(tmp_path), hit=entered.append) == undisturbed
    assert entered == []


@pytest.mark.slow
def test_more_rounds_go_on_from_those_that_are_finished(tmp_path, undisturbed):
    play(deployer(tmp_path), num_rounds=2)
    entered = []
    assert play(deployer(tmp_path), hit=entered.append) == undisturbed
    assert entered[0] == "3 begins"


def test_a_second_loop_of_one_program_makes_more_rounds(tmp_path):
    with deployer(tmp_path) as shared:
        made = trainer(given=shared)
        numbers = []
        for _ in range(2):
            for each in shared.rounds(2):
                made.fit(EXAMPLES, batch_size=16, epochs=1)
                numbers.append(each.number)
    assert numbers == [1, 2, 3, 4]
    assert made.step == 12


@pytest.mark.slow
def test_in_one_program_a_round_that_an_error_cut_off_is_made_again(tmp_path, undisturbed):
    shared = deployer(tmp_path)
    actor, critic = (trainer(given=shared, name=name) for name in ("actor", "critic"))

    def played(hit):
        rounds = shared.rounds(NUM_ROUNDS - shared.loops.num_finished, carry=start())
        for each in rounds:
            one_round(shared, actor, critic, each, hit)
        return arrays(actor), arrays(critic), rounds.carry["noise"].tobytes(), rounds.carry["seen"]

    with pytest.raises(Crash) as held:  # as a notebook holds the error, and with it the loop
        played(crash_at("3 half way"))
    assert played(lambda place: None) == undisturbed
    assert held.value is not None


def test_all_fits_of_a_loop_leave_one_file_of_events_one_description_and_one_page(tmp_path):
    made = trainer(tmp_path)
    for _ in made.deployer.rounds(3):
        for _ in range(2):
            made.fit(EXAMPLES, batch_size=16, epochs=1, logging=mw.Logging(every=1))
    assert [step for step, _ in reports(tmp_path)] == list(range(1, 19))
    names = [path.name for path in (*tmp_path.iterdir(), *(tmp_path / "attempts").iterdir())]
    events = [name for name in names if name.startswith("events.out")]
    assert len(events) == 1
    assert names.count("step_00000000.txt") == len(list((tmp_path / "attempts").iterdir())) == 1
    assert {"report.html", "outcome.json"} <= set(names)


def test_while_a_loop_goes_on_the_run_is_in_use_and_after_it_finished(tmp_path):
    made = trainer(tmp_path)
    for _ in made.deployer.rounds(1):
        made.fit(EXAMPLES, batch_size=16, epochs=1)
        assert mw.report.read_run(tmp_path).ending.state == "running"
    assert mw.report.read_run(tmp_path).ending.state == "finished"


def test_an_error_in_a_round_is_told_in_the_run(tmp_path):
    made = trainer(tmp_path)

    def rounds():
        for _ in made.deployer.rounds(2):
            made.fit(EXAMPLES, batch_size=16, epochs=1)
            made.fit({"x": EXAMPLES["x"]}, batch_size=16, epochs=1)

    with pytest.raises(KeyError, match="y"):
        rounds()
    assert json.loads((tmp_path / "outcome.json").read_text())["ended"] == "failed"


def test_a_page_is_drawn_while_a_loop_goes_on_but_rarely(tmp_path, monkeypatch):
    monkeypatch.setattr("meshwright.engine._record._PAGE_SECONDS", 0.0)
    made = trainer(tmp_path)
    for each in made.deployer.rounds(2):
        assert (tmp_path / "report.html").exists() == (each.number > 1)
        made.fit(EXAMPLES, batch_size=16, epochs=1)


@pytest.mark.slow
def test_a_loop_that_was_killed_and_made_anew_reports_each_step_once(tmp_path):
    with pytest.raises(Crash):
        play(deployer(tmp_path), hit=crash_at("3 half way"))
    play(deployer(tmp_path))
    steps = [step for step, _ in reports(tmp_path / "actor")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 2 * NUM_ROUNDS


def test_a_carry_may_grow(tmp_path):
    def grown(num_rounds):
        rounds = deployer(tmp_path).rounds(num_rounds, carry={"seen": np.zeros(0)})
        for each in rounds:
            each.carry = {"seen": np.append(each.carry["seen"], each.number)}
        return rounds.carry["seen"].tolist()

    assert [grown(2), grown(4)] == [[1, 2], [1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("first", "later", "said"),
    [
        (None, {"a": np.zeros(1)}, "a: in the checkpoint, but not in the target"),
        ({}, {"a": np.zeros(1)}, "a: in the checkpoint"),
        ([np.zeros(1)], [np.zeros(1)] * 2, "1: in the checkpoint"),
        ({"n": 0}, {"n": 2.5}, "n: dtype"),
        ({"x": np.zeros((0, 3))}, {"x": np.zeros((1, 3), np.int32)}, "x: dtype"),
        ({"x": jax.numpy.zeros(1)}, {"x": jax.numpy.zeros(2)}, "x: shape"),
    ],
)
def test_a_carry_that_a_restart_could_not_restore_is_refused_when_it_is_first_saved(
    tmp_path, first, later, said
):
    rounds = iter(deployer(tmp_path).rounds(2, carry=first))
    next(rounds).carry = later
    with pytest.raises(UsageError, match=rf"the carry after round 1 does not fit the target:\n  {said}"):
        next(rounds)


def test_carries_of_all_kinds_are_restored(tmp_path):
    first = {"key": jax.random.key(0), "n": 0, "s": np.float32(0), "x": jax.numpy.zeros(2), "none": None}
    later = {"key": jax.random.key(5), "n": 7, "s": np.float32(3), "x": jax.numpy.ones(2), "none": None}
    for num_rounds in (1, 1):
        rounds = deployer(tmp_path).rounds(num_rounds, carry=first)
        for each in rounds:
            each.carry = later
    assert jax.random.key_data(rounds.carry["key"]).tolist() == jax.random.key_data(later["key"]).tolist()
    assert (rounds.carry["n"], rounds.carry["s"], rounds.carry["x"].tolist()) == (7, 3, [1, 1])


def test_a_second_loop_whose_carry_the_first_could_not_restore_is_refused(tmp_path):
    shared = deployer(tmp_path)
    list(shared.rounds(1, carry={"a": 0}))
    with pytest.raises(
        UsageError, match=r"the carry after round 2 does not fit the target:\n  a: in the target"
    ):
        list(shared.rounds(1, carry={"b": 0}))


@pytest.mark.parametrize("wrong", [0, "3", 2.5])
def test_what_is_no_number_of_rounds_is_refused(wrong):
    with pytest.raises(UsageError, match="must be a whole number of at least 1"):
        deployer().rounds(wrong)


def test_other_trainers_than_before_are_refused(tmp_path):
    play(deployer(tmp_path), num_rounds=1)
    shared = deployer(tmp_path)
    trainer(given=shared, name="actor")
    other = trainer(given=shared, name="judge")
    with pytest.raises(CheckpointError, match=r"has the trainers \['actor', 'critic'\], and this program"):
        list(shared.rounds(2, carry=start()))
    assert other.step == 0


def test_two_trainers_without_names_are_refused(tmp_path):
    shared = deployer(tmp_path)
    both = [trainer(given=shared), trainer(given=shared)]
    with pytest.raises(UsageError, match="have the same name, 'trainer'"):
        list(shared.rounds(1))
    assert len(both) == 2


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"save": mw.Save(when=1)}, r"leave out save\. The end of each round saves"),
        ({"from_step": 2, "strict": True}, r"leave out strict, from_step\. .* repeats the unfinished round"),
        ({"logging": mw.Logging(trackers=(print,))}, r"leave out logging.trackers\. .*Deployer\(trackers="),
    ],
)
def test_a_fit_that_asks_for_what_the_loop_over_rounds_does_is_refused(tmp_path, asked, says):
    shared = deployer(tmp_path)
    made = trainer(given=shared)
    rounds = iter(shared.rounds(1))
    next(rounds)
    with pytest.raises(UsageError, match=says):
        made.fit(EXAMPLES, batch_size=16, epochs=1, **asked)


@pytest.mark.soak
@pytest.mark.parametrize("case", range(cases(few=2, many=60)))
@pytest.mark.daily(1)
def test_however_often_it_is_hit(tmp_path, undisturbed, case):
    random = rng(f"rounds {case}")
    for _ in range(random.randint(1, 4)):
        place = f"{random.randint(1, NUM_ROUNDS)} {random.choice(('begins', 'half way', 'ends'))}"
        with contextlib.suppress(Crash):
            play(deployer(tmp_path), hit=crash_at(place))
    assert play(deployer(tmp_path)) == undisturbed
