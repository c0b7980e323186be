"""Each part that a description opens: that it is open, does what it is there for, and is closed again."""

import contextlib
import json
import logging
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment, init, loss, losses, measure
from meshwright.engine._compiler import StepOptions
from meshwright.errors import DivergedError, InputError, UsageError


def recorded(seen):
    """A tracker that keeps what it is told, and whether it is open."""

    @contextlib.contextmanager
    def tracker():
        seen["open"] = True
        yield lambda step, values: seen.setdefault("reports", []).append((step, dict(values)))
        seen["open"] = False

    return tracker


def test_the_first_mesh_rule_for_the_hardware_changes_the_run(tmp_path):
    rules = (
        ("TPU.*", mw.parallel.override(max_steps=99)),
        ("cpu:8", mw.parallel.override(max_steps=3, microbatches=2)),
        (".*", mw.parallel.override()),
    )
    outcome = mw.run(experiment(tmp_path, mesh_rules=rules))
    assert outcome.step == 3
    assert "microbatches = 2" in (tmp_path / "experiment.txt").read_text()


def test_where_no_mesh_rule_matches_the_run_is_as_described_and_says_so(tmp_path, capsys):
    assert (
        mw.run(
            experiment(tmp_path, max_steps=2, mesh_rules=(("TPU.*", mw.parallel.override(max_steps=99)),))
        ).step
        == 2
    )
    assert "no mesh rule for 'cpu:8'" in capsys.readouterr().err


def test_a_rule_for_other_hardware_that_names_no_field_is_an_error_here(tmp_path):
    with pytest.raises(UsageError, match=r"mesh_rules: .*TPU.*'microbatch' \(did you mean 'microbatches'"):
        mw.run(experiment(tmp_path, mesh_rules=(("TPU.*", mw.parallel.override(microbatch=2)),)))


def test_rules_that_nobody_gives_are_read_off_the_loss(tmp_path):
    def wide(key):
        return {"up": jax.random.normal(key, (4, 1024)), "down": jnp.ones((1024, 4))}

    def of_wide(params, batch, key):
        return ((jax.nn.relu(batch["x"] @ params["up"]) @ params["down"]) ** 2).mean()

    described = {"model": wide, "loss": of_wide, "mesh": "data=2,tensor=4", "max_steps": 1}
    params = mw.run(experiment(tmp_path, **described)).state.params
    assert (params["up"].sharding.spec, params["down"].sharding.spec) == (P(None, "tensor"), P("tensor"))


def test_a_functional_model_splits_by_its_own_names(tmp_path):
    from flax import nnx

    def network(rngs):
        split = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("mlp", None))
        return nnx.Linear(4, 8, kernel_init=split, rngs=rngs)

    model = mw.functional(network)

    def of_model(params, batch, key):
        return (model.apply(params, batch["x"]) ** 2).mean()

    described = {"model": model, "loss": of_model, "mesh": "data=2,tensor=4", "max_steps": 1}
    kernel = mw.run(experiment(tmp_path, **described)).state.params["kernel"]
    assert kernel.sharding.spec == P("tensor")  # what the loss does alone would split the other dimension


def test_a_large_array_that_stays_whole_is_told_with_its_bytes_and_what_to_do(tmp_path, capsys):
    def tied(key):
        return {"embedding": jnp.ones((32001, 16)), "up": jnp.ones((16, 64)), "down": jnp.ones((64, 16))}

    def of_tied(params, batch, key):
        x = params["embedding"][batch["x"].astype(int) % 32001]
        x = x + jax.nn.relu(x @ params["up"]) @ params["down"]
        return jax.nn.logsumexp(x @ params["embedding"].T, axis=-1).mean()

    mw.run(experiment(tmp_path, model=tied, loss=of_tied, mesh="data=4,tensor=2", max_steps=1))
    assert re.search(
        r"params/embedding 32001 × 16 \(1.95 MiB\) stays whole on every device: "
        r"32001 rows do not divide by 2 \(tensor\); pad them to 32002",
        capsys.readouterr().err,
    )


def test_without_rules_all_is_replicated(tmp_path):
    outcome = mw.run(experiment(tmp_path, rules=(), mesh="fsdp=8", max_steps=2))
    assert outcome.state.params["w"].sharding.spec == P()


@pytest.mark.parametrize("names", [None, ("data",), ("data", "fsdp")])
@pytest.mark.daily(1)
def test_the_batch_is_split_over_its_axes(tmp_path, names):
    seen = []

    def looking(params, batch, key):
        jax.debug.inspect_array_sharding(batch["x"], callback=seen.append)
        return loss(params, batch, key)

    described = {
        "mesh": "data=4,fsdp=2",
        "rules": (mw.parallel.match("w", "fsdp"),),
        "batch_axis_names": names,
    }
    mw.run(experiment(tmp_path, loss=looking, max_steps=1, **described))
    ways = 4 if names == ("data",) else 8
    assert {sharding.shard_shape((16, 4)) for sharding in seen} == {(16 // ways, 4)}


def test_trackers_hear_all_reports_and_are_closed(tmp_path):
    seen, plain = {}, []
    trackers = (recorded(seen), lambda step, values: plain.append((step, values)))
    mw.run(experiment(tmp_path, logging=mw.Logging(every=5, trackers=trackers)))
    assert [step for step, values in seen["reports"] if "loss" in values] == [4, 5, 8, 10]
    assert seen["open"] is False
    assert plain == seen["reports"]


def test_histograms_that_the_loss_returns_are_reported_and_a_run_with_them_goes_on(tmp_path):
    def counting(params, batch, key):
        return loss(params, batch, key), {"x": mw.observe.Histogram.of(batch["x"])}

    heard = {}
    for max_steps in (2, 4):
        mw.run(
            experiment(
                tmp_path,
                loss=counting,
                max_steps=max_steps,
                logging=mw.Logging(every=5, trackers=(heard.__setitem__,)),
            )
        )
    assert heard[4]["x"].bins()[0].sum() == 2 * 16 * 4
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "x" in line] == [2, 4]


def test_the_size_of_the_state_is_reported_at_the_start_of_each_attempt(tmp_path):
    mw.run(experiment(tmp_path, max_steps=2))
    mw.run(experiment(tmp_path, max_steps=4))
    sizes = [
        (r["step"], r["num_params"])
        for r in mw.observe.read_jsonl(tmp_path / "metrics.jsonl")
        if "num_params" in r
    ]
    assert sizes == [(0, 8), (2, 8)]
    assert re.search(r"params/w .*8 +32 B", (tmp_path / "state.txt").read_text())


def test_reports_have_the_time_of_one_step(tmp_path):
    mw.run(experiment(tmp_path))
    reports = mw.observe.read_jsonl(tmp_path / "metrics.jsonl")
    assert all(report["step_seconds"] > 0 for report in reports if report["step"] in (4, 8))


@pytest.mark.parametrize("peak", [None, 1e12])
def test_reports_tell_how_well_the_devices_are_used_as_far_as_that_is_known(
    tmp_path, monkeypatch, capsys, peak
):
    monkeypatch.setattr("meshwright.program._utilisation.peak_flops", lambda kind, dtype: peak)
    mw.run(experiment(tmp_path))
    first, *reports = mw.observe.read_jsonl(tmp_path / "metrics.jsonl")
    assert first["model_flops"] == 2 * 2 * 16 * 4 * 2
    for report in (report for report in reports if "steps_per_second" in report):
        used = report["steps_per_second"] * first["model_flops"] / 8 / 1e12
        assert report["tflops_per_device"] == pytest.approx(used)
        assert ("mfu" in report, "hfu" in report) == (peak is not None, peak is not None)
        assert report.get("mfu", used) == report.get("hfu", used) == pytest.approx(used)
    assert ("mfu=" in capsys.readouterr().err) == (peak is not None)


@pytest.mark.slow
def test_profiles_are_where_tensorboard_looks_and_one_cut_by_the_end_is_closed(tmp_path):
    mw.run(experiment(tmp_path / "first", profile=mw.Profile((2, 9))))
    mw.run(experiment(tmp_path / "second", profile=mw.Profile((1,), num_steps=1), max_steps=1))
    found = sorted(path.parent.name for path in tmp_path.glob("*/plugins/profile/*/*.xplane.pb"))
    assert found == ["step_1", "step_2", "step_9"]


@pytest.mark.slow
def test_a_profile_cut_by_an_error_is_closed_and_the_next_run_can_take_one(tmp_path):
    def failing(epoch):
        yield from ({"x": row} for row in EXAMPLES["x"][:48])
        raise OSError("the disk is gone")

    described = {"profile": mw.Profile((2,)), "input": mw.Input(failing, batch_size=16, shuffle=False)}
    with pytest.raises(OSError, match="the disk is gone"):
        mw.run(experiment(tmp_path / "first", **described))
    mw.run(experiment(tmp_path / "second", profile=mw.Profile((1,)), max_steps=1))
    assert list(tmp_path.glob("second/plugins/profile/step_1/*.xplane.pb"))


def test_the_watchdog_tells_of_a_step_that_does_not_end_and_the_run_goes_on(tmp_path, monkeypatch):
    heard = Heard("in write")
    monkeypatch.setattr(logging.getLogger("meshwright"), "handlers", [heard])

    @contextlib.contextmanager
    def slow_once():
        yield write

    def write(step, values):
        if step == 5:
            heard.hang()

    logs = mw.Logging(every=5, trackers=(slow_once,))
    assert mw.run(experiment(tmp_path, logging=logs, watchdog=mw.Watchdog(0.2))).step == 10


class Heard(logging.Handler):
    """Lets what hangs wait until the watchdog has told of it."""

    def __init__(self, words):
        super().__init__()
        self._words, self._event = words, threading.Event()

    def emit(self, record):
        if self._words in record.getMessage():
            self._event.set()

    def hang(self, *_):
        assert self._event.wait(60)


def hanging_in(phase, hang):
    """Return settings of an experiment in which `hang` is called in that phase, and in no earlier one."""
    is_training = threading.Event()

    class Rows:
        def __len__(self):
            return 64

        def __getitem__(self, i):
            if is_training.is_set():
                hang()
            return {"x": EXAMPLES["x"][i]}

    def first(epoch):
        hang()
        yield from ({"x": row} for row in EXAMPLES["x"])

    def traced(params, batch):
        hang()
        return measure(params, batch)

    def when(step):
        is_training.set()
        return step == 5

    return {
        "start": lambda: {"model": lambda key: hang() or init(key)},
        "first_batch": lambda: {"input": mw.Input(first, batch_size=16, shuffle=False)},
        "restore": lambda: {"init_state_builder": lambda target: hang() or {}},
        "compile": lambda: {"evaluations": {"all": mw.Evaluation(traced, EXAMPLES, batch_size=64)}},
        "evaluation": lambda: {"evaluations": {"all": mw.Evaluation(measure, Rows(), when, batch_size=64)}},
        "save": lambda: {"save": mw.Save(keep=lambda scores: hang() or set(scores))},
    }[phase]()


@pytest.mark.parametrize("phase", ["start", "first_batch", "restore", "compile", "evaluation", "save"])
@pytest.mark.daily(3)
def test_the_watchdog_sees_a_hang_in_any_phase_and_names_it(tmp_path, phase):
    heard = Heard(f"process 0: {phase} has taken ")
    logging.getLogger("meshwright").addHandler(heard)
    try:
        timeouts = {"step": 60, phase: 0.05}
        described = hanging_in(phase, heard.hang)
        assert mw.run(experiment(tmp_path, watchdog=mw.Watchdog(timeouts), **described)).step == 10
    finally:
        logging.getLogger("meshwright").removeHandler(heard)


def test_a_timeout_of_no_phase_is_named(tmp_path):
    with pytest.raises(UsageError, match="there is no phase evaluations"):
        experiment(tmp_path, watchdog=mw.Watchdog({"step": 60, "evaluations": 5}))


def test_no_thread_is_left_when_the_data_fail(tmp_path):
    def failing(epoch):
        yield from ({"x": row} for row in EXAMPLES["x"][:32])
        raise OSError("the disk is gone")

    before = set(threading.enumerate())
    with pytest.raises(OSError, match="the disk is gone"):
        mw.run(experiment(tmp_path, input=mw.Input(failing, batch_size=16, shuffle=False)))
    left = [thread for thread in set(threading.enumerate()) - before if thread.name != "QueueFeederThread"]
    for thread in left:  # those that read ahead are told to end, and not waited for
        thread.join(60)
    assert not any(thread.is_alive() for thread in left)


def test_parameter_noise_is_in_training_alone(tmp_path):
    described = {
        "evaluations": {"all": mw.Evaluation(lambda p, b: {"w": b["x"][:, 0] * 0 + p["w"][0, 0]}, EXAMPLES)}
    }
    plain = mw.run(experiment(tmp_path / "plain", max_steps=1, **described))
    noisy = mw.run(experiment(tmp_path / "noisy", max_steps=1, parameter_noise=((".*", 0.1),), **described))
    assert losses(tmp_path / "plain") != losses(tmp_path / "noisy")
    assert noisy.scores["all/w"] == pytest.approx(float(noisy.state.params["w"][0, 0]))
    assert plain.scores["all/w"] != noisy.scores["all/w"]


def test_rematerialisation_changes_no_result(tmp_path):
    plain = mw.run(experiment(tmp_path / "plain"))
    saved = mw.run(experiment(tmp_path / "remat", remat="nothing"))
    np.testing.assert_array_equal(plain.state.params["w"], saved.state.params["w"])


def test_a_rematerialisation_policy_that_there_is_not_is_named(tmp_path):
    with pytest.raises(UsageError, match="remat: there is no rematerialisation policy 'dot'"):
        mw.run(experiment(tmp_path, remat="dot"))


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("restored", [True, False])
@pytest.mark.daily(2)
def test_a_run_goes_on_with_or_without_the_place_of_its_data(tmp_path, saved, restored):
    mw.run(experiment(tmp_path, max_steps=5, save=mw.Save(data_position=saved)))
    mw.run(experiment(tmp_path, max_steps=6, save=mw.Save(data_position=restored)))
    stood = mw.checkpoints.open_source(tmp_path / "checkpoints").extra["data"]
    read_since = 6 * 16 if saved else 16
    assert stood == ({"samples": read_since, "seed": 0, "num_examples": 64} if restored else "not saved")


def programs_below(folder):
    return sorted(folder.rglob("*-cache"))


def test_another_run_of_the_same_program_compiles_nothing(tmp_path, compiled_for_users, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mw.run(experiment(tmp_path / "first"))
    kept = programs_below(tmp_path / "cache/meshwright/compile_cache")
    assert kept
    assert jax.config.jax_compilation_cache_dir is None
    mw.run(experiment(tmp_path / "second"))
    assert programs_below(tmp_path) == kept


def test_compiled_programs_are_kept_in_a_folder_of_ones_own(tmp_path, compiled_for_users):
    mw.run(experiment(tmp_path / "run", max_steps=1, compile=mw.Compile(cache=str(tmp_path / "mine"))))
    assert programs_below(tmp_path) == programs_below(tmp_path / "mine") != []


def test_no_program_is_kept_where_that_is_not_wanted(tmp_path, compiled_for_users, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mw.run(experiment(tmp_path / "run", max_steps=1, compile=mw.Compile(cache=False)))
    assert not programs_below(tmp_path)


def test_options_of_the_compiler_reach_it(tmp_path):
    options = {"xla_dump_to": str(tmp_path / "dumped"), "xla_dump_hlo_as_text": True}
    mw.run(experiment(tmp_path / "run", max_steps=1, compile=mw.Compile(options=options)))
    assert list((tmp_path / "dumped").glob("*.txt"))


@pytest.mark.parametrize("options", [{"xla_fast": True}, {"xla_cpu_enable_fast_math": "maybe"}])
def test_an_option_that_the_compiler_refuses_is_an_error_before_the_run(tmp_path, options):
    with pytest.raises(UsageError, match=f"{next(iter(options))}.*(?s:.*)mesh_rules"):
        mw.run(experiment(tmp_path, compile=mw.Compile(options=options)))
    assert not (tmp_path / "checkpoints/step_00000001").exists()


def test_a_refused_option_is_named_with_the_hardware_before_the_model_is_built(tmp_path):
    def never(key):
        raise AssertionError("the model was built")

    with pytest.raises(UsageError, match=r"compile\.options: .*'xla_fast', of the compiler for cpu"):
        mw.run(experiment(tmp_path, model=never, compile=mw.Compile(options={"xla_fast": True})))


def test_the_first_lines_of_a_run_say_which_options_are_set(tmp_path, caplog):
    mw.run(experiment(tmp_path, max_steps=1, compile=mw.Compile(options={"xla_cpu_enable_fast_math": False})))
    assert "options of the compiler for cpu: xla_cpu_enable_fast_math=False" in caplog.text


def test_the_share_of_a_gpu_s_memory_is_told(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    options = StepOptions("NVIDIA H100 80GB HBM3", {}, memory_nbytes=72 << 30)
    assert [*options.summary()] == [
        "72 GiB of a device's memory for arrays: XLA_PYTHON_CLIENT_MEM_FRACTION=0.9"
    ]


def test_a_mesh_rule_sets_options_for_one_kind_of_device(tmp_path):
    rule = ("cpu.*", mw.parallel.override({"compile.options": {"xla_fast": True}}))
    with pytest.raises(UsageError, match="xla_fast"):
        mw.run(experiment(tmp_path, mesh_rules=(rule,)))


def test_a_loss_that_is_infinite_ends_the_run(tmp_path):
    with pytest.raises(DivergedError, match="step 4 is inf"):
        mw.run(experiment(tmp_path, loss=lambda params, batch, key: loss(params, batch, key) + jnp.inf))


def test_a_run_that_goes_on_with_another_seed_is_refused(tmp_path):
    mw.run(experiment(tmp_path, max_steps=2))
    with pytest.raises(InputError, match="seed was 0, is 1"):
        mw.run(experiment(tmp_path, seed=1))


def test_norms_of_single_parameters_are_reported_where_they_are_asked_for(tmp_path):
    mw.run(experiment(tmp_path, logging=mw.Logging(norms="w"), max_steps=1))
    report = next(r for r in mw.observe.read_jsonl(tmp_path / "metrics.jsonl") if "loss" in r)
    assert report["grad_norm/w"] == pytest.approx(report["grad_norm"])


def test_a_batch_that_is_wider_than_train_dtype_is_told_before_the_first_step(tmp_path, capsys):
    mw.run(experiment(tmp_path, compute_dtype="bfloat16", max_steps=1))
    assert "x of the batch is wider than bfloat16" in capsys.readouterr().err
    halves = {"x": EXAMPLES["x"].astype(jnp.bfloat16)}
    given = mw.Input(halves, batch_size=16)
    mw.run(experiment(tmp_path / "narrow", compute_dtype="bfloat16", input=given, max_steps=1))
    assert "wider than" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "how", [{}, {"mesh": "fsdp=4,tensor=2"}, {"remat": "nothing"}], ids=["plain", "sharded", "remat"]
)
@pytest.mark.daily(1)
def test_a_loss_that_draws_nothing_need_not_take_a_key(tmp_path, how):
    ours = mw.run(experiment(tmp_path / "ours", loss=lambda params, batch: loss(params, batch, None), **how))
    theirs = mw.run(experiment(tmp_path / "theirs", **how))
    np.testing.assert_array_equal(ours.state.params["w"], theirs.state.params["w"])
