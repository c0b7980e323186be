"""A loss spike: the run goes back, leaves out the batches around it, and tells what it did."""

import dataclasses
import json
import math

import numpy as np
import pytest
from benchmarks.planted import spikes

import meshwright as mw
from checkpoints.test_memory import settle
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.engine._spikes import Rule
from meshwright.errors import DivergedError, InputError, UsageError
from soak import cases, rng


def decisions(run):
    return [json.loads(line) for line in (run / "spikes.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", params=["labels", "nan"])
def spiked(request, tmp_path_factory):
    run = tmp_path_factory.mktemp("spiked")
    outcome = mw.run(spikes.experiment(str(run), request.param))
    assert outcome.step == spikes.STEPS
    return run, outcome


def test_the_batches_around_each_spike_are_left_out(spiked):
    run, _ = spiked
    found = decisions(run)
    assert [each["batches"] for each in found] == [[step - 1, step + 1] for step in spikes.BAD_STEPS]
    assert [each["continued_after"] for each in found] == [40, 80]
    numbers = [(step - 2) * spikes.BATCH for step in spikes.BAD_STEPS]
    assert [each["examples"] for each in found] == [[*range(n, n + 3 * spikes.BATCH)] for n in numbers]


@pytest.mark.daily(1)
def test_the_run_is_that_of_data_without_these_batches(spiked, tmp_path):
    _, outcome = spiked
    kept = np.ones(len(spikes.examples("none")["x"]), bool)
    for step in spikes.BAD_STEPS:
        kept[(step - 2) * spikes.BATCH : (step + 1) * spikes.BATCH] = False
    clean = spikes.experiment(str(tmp_path), "none", spikes=False)
    examples = {name: x[kept] for name, x in spikes.examples("none").items()}
    given = mw.Input(examples, batch_size=spikes.BATCH, shuffle=False)
    expected = mw.run(dataclasses.replace(clean, input=given))
    assert outcome.state.params["w"].tolist() == expected.state.params["w"].tolist()


def test_the_page_and_the_summary_tell_what_was_left_out(spiked):
    run, _ = spiked
    told = mw.report._internal.summary(mw.report.read_run(run))
    assert "at step 50; went back to step 40, left out batches 49 to 51" in told
    page = (run / "report.html").read_text()
    assert "Loss spikes" in page
    assert f">{spikes.BAD_STEPS[0] - 1} to {spikes.BAD_STEPS[0] + 1}<" in page
    manifest = mw.checkpoints.open_source(run / "checkpoints").extra
    assert manifest["data"]["left_out"] == [[49, 51], [90, 92]]


def test_each_step_is_reported_once_though_some_are_made_again(spiked):
    steps = [r["step"] for r in mw.observe.read_jsonl(spiked[0] / "metrics.jsonl") if "loss" in r]
    assert steps == sorted(set(steps))
    assert steps[-1] == spikes.STEPS


def test_a_run_that_has_gone_back_too_often_ends(tmp_path):
    experiment = spikes.experiment(str(tmp_path))
    experiment = dataclasses.replace(experiment, spikes=mw.engine.Spikes(at_least=20, max_rollbacks=1))
    with pytest.raises(
        DivergedError, match=r"gone back 1 times before, at steps 50, and spikes\.max_rollbacks"
    ):
        mw.run(experiment)


def test_what_was_left_out_stays_left_out_without_the_rule(spiked):
    run, outcome = spiked
    again = spikes.experiment(str(run), "labels", spikes=False)
    assert mw.run(dataclasses.replace(again, max_steps=spikes.STEPS + 3)).step == outcome.step + 3
    assert mw.checkpoints.open_source(run / "checkpoints").extra["data"]["batches"] == outcome.step + 3 + 6


def test_the_rule_needs_the_position_of_the_data(tmp_path):
    experiment = spikes.experiment(str(tmp_path))
    with pytest.raises(UsageError, match=r"set save\.data_position"):
        dataclasses.replace(experiment, save=mw.Save(data_position=False))


@pytest.mark.daily(1)
def test_without_a_checkpoint_the_run_goes_back_to_its_first_state(spiked, tmp_path):
    experiment = dataclasses.replace(spikes.experiment(str(tmp_path)), save=mw.Save(when=1000))
    outcome = mw.run(experiment)
    assert [each["continued_after"] for each in decisions(tmp_path)] == [0, 0]
    assert outcome.state.params["w"].tolist() == spiked[1].state.params["w"].tolist()


@pytest.mark.daily(1)
def test_the_newest_state_to_go_back_to_may_be_in_memory(spiked, tmp_path, monkeypatch):
    save_in_memory = Checkpoints._save_in_memory

    def save_all(checkpoints, *rest):  # none is skipped, however slow the machine is
        save_in_memory(checkpoints, *rest)
        settle(checkpoints)

    monkeypatch.setattr(Checkpoints, "_save_in_memory", save_all)
    save = mw.Save(when=1000, memory=mw.checkpoints.InMemory(every=7, budget_nbytes=10**7))
    outcome = mw.run(dataclasses.replace(spikes.experiment(str(tmp_path)), save=save))
    assert [each["batches"] for each in decisions(tmp_path)] == [[49, 51], [90, 92]]
    assert [each["continued_after"] for each in decisions(tmp_path)] == [42, 84]  # and not 49
    assert outcome.state.params["w"].tolist() == spiked[1].state.params["w"].tolist()


@pytest.mark.daily(1)
def test_a_checkpoint_that_has_seen_a_batch_to_leave_out_is_set_aside(spiked, tmp_path):
    outcome = mw.run(dataclasses.replace(spikes.experiment(str(tmp_path)), save=mw.Save(when=7)))
    assert [each["continued_after"] for each in decisions(tmp_path)] == [42, 84]  # and not 49
    assert len(list((tmp_path / "checkpoints").glob("step_00000049.later-*"))) == 1
    assert outcome.state.params["w"].tolist() == spiked[1].state.params["w"].tolist()


@pytest.mark.parametrize("text", ["{", '{"step": 1}', '{"step": 1, "batches": "ab"}', "[1]"])
@pytest.mark.daily(2)
def test_a_damaged_record_of_spikes_ends_the_run_before_it_begins(tmp_path, text):
    (tmp_path / "spikes.jsonl").write_text(text + "\n")
    with pytest.raises(InputError, match=r"spikes\.jsonl, which says .* is damaged"):
        mw.run(spikes.experiment(str(tmp_path)))


NOISES = {
    "normal": lambda r: r.gauss(0, 1),
    "Laplace": lambda r: r.expovariate(1) * r.choice((-1, 1)),
    "uniform": lambda r: r.uniform(-1, 1),
}


def noisy(random, noise, steps):
    """Return losses that fall by a power of the step, and gradient norms, both noisy."""
    start, end, power = random.uniform(3, 11), random.uniform(0.1, 2), random.uniform(0.2, 0.7)
    scale, spread = random.uniform(0.01, 0.1), random.uniform(0.05, 0.4)
    means = [end + (start - end) * (1 + step / 10) ** -power for step in range(steps)]
    losses = [mean * (1 + scale * NOISES[noise](random)) for mean in means]
    return [{"loss": loss, "grad_norm": math.exp(spread * NOISES[noise](random))} for loss in losses]


MOST_ALARMS = {"normal": 0, "uniform": 0, "Laplace": 1 / 20_000}
"""The largest share of steps that may be taken for spikes though they are noise."""


@pytest.mark.soak
@pytest.mark.parametrize("noise", NOISES)
def test_noisy_losses_that_fall_are_no_spikes_and_a_planted_one_is_found(noise):
    random, num_steps, num_alarms = rng(f"spikes/{noise}"), 400, 0
    histories = cases(few=4, many=1000)
    for _ in range(histories):
        rule, values = Rule(mw.engine.Spikes()), noisy(random, noise, num_steps)
        num_alarms += sum(rule.judge(step, each) is not None for step, each in enumerate(values))
        name = random.choice(("loss", "grad_norm"))
        usual = max(each[name] for each in values[-128:])
        spike = rule.judge(num_steps, {**values[-1], name: usual * (3 if name == "loss" else 200)})
        assert spike is not None
        assert spike.metric == name
    assert num_alarms <= math.ceil(MOST_ALARMS[noise] * histories * num_steps)


def test_a_window_that_never_holds_enough_values_is_refused():
    with pytest.raises(
        UsageError, match=r"at_least is 32, and window is 16: .* no finite value would ever be"
    ):
        mw.engine.Spikes(window=16)


def test_the_rule_goes_on_from_its_state_as_if_nothing_had_happened():
    random = rng("spikes/state")
    values = noisy(random, "normal", 100)
    rule, other = (Rule(mw.engine.Spikes(window=16, at_least=8)) for _ in range(2))
    for step, each in enumerate(values):
        rule.judge(step, each)
    other.set_state(json.loads(json.dumps(rule.get_state())))
    assert other.get_state() == rule.get_state()
    assert other.judge(100, {"loss": 99.0, "grad_norm": 1.0}) == rule.judge(
        100, {"loss": 99.0, "grad_norm": 1.0}
    )
