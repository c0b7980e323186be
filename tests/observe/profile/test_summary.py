"""Where the time of a profile went: of those made by hand, and of a real one on a mesh of eight devices."""

import dataclasses
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cli import main
from meshwright.cli.demo import text
from meshwright.errors import InputError
from meshwright.observe import _internal as profile
from meshwright.program import _internal as hlo
from observe.profile import xplanes

US = 1e-6


def summarize(tmp_path, planes):
    return profile.summarize(xplanes.write(tmp_path / "host.xplane.pb", planes))


@pytest.fixture(scope="session")
def traced(tmp_path_factory):
    """A run of the text demo with a profile of steps 2 to 4."""
    run = tmp_path_factory.mktemp("traced")
    small = text.experiment(workdir=str(run), layers=1, length=16, steps=4)
    mesh = {"mesh": "data=2,fsdp=2,tensor=2", "profile": mw.Profile((2,))}
    mw.run(dataclasses.replace(small, evaluations={}, compile=mw.Compile(cache=False), **mesh))
    return run


@pytest.mark.slow
def test_a_real_profile_has_its_steps_its_devices_and_their_collectives(traced):
    (file,) = profile.find_profiles(traced)
    found = profile.summarize(file)
    assert [step.step for step in found.steps] == [2, 3, 4]
    assert [device.name for device in found.devices] == [f"cpu:{i}" for i in range(8)]
    assert all(0 < device.collective_seconds <= device.busy_seconds for device in found.devices)
    assert {"all-reduce", "all-gather"} <= {op.collective for op in found.ops}
    assert 0 < found.step_seconds < found.seconds
    assert 0 < found.input_wait_seconds < found.seconds


@pytest.mark.slow
def test_the_command_tells_it(traced, capsys):
    assert main(["trace", str(traced)]) == 0
    shown = capsys.readouterr().out
    assert "3 steps, 2 to 4, " in shown
    assert "all-reduce" in shown
    assert main(["trace", str(traced), "--step", "2", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["profiles"]
    assert [step["step"] for step in found["steps"]] == [2, 3, 4]


def test_time_is_split_into_computing_collectives_and_neither(tmp_path):
    streams = {
        "Stream #1(Compute)": [
            ("gemm", 0, 40, {"hlo_op": "dot.1"}),
            ("gemm", 60, 70, {"hlo_op": "dot.1"}),
            ("memset", 70, 70),
        ],
        "Stream #2": [("ncclDevKernel_AllReduce_Sum", 30, 50, {"hlo_op": "all-reduce-start.1"})],
    }
    found = summarize(tmp_path, {**xplanes.steps((0, 80)), "/device:GPU:0": streams})
    (device,) = found.devices
    times = (device.busy_seconds, device.collective_seconds, device.exposed_seconds, found.seconds)
    assert times == pytest.approx((60 * US, 20 * US, 10 * US, 80 * US))
    assert [(op.name, op.count) for op in found.ops[:2]] == [("dot.1", 2), ("all-reduce-start.1", 1)]


def test_a_loop_is_not_counted_beside_what_runs_in_it(tmp_path):
    body = [(f"%fusion.{i} = f32[8] fusion(%x)", 10 * i, 10 * i + 6) for i in range(10)]
    ops = [("%while.1 = (f32[8]) while(%t)", 0, 49), ("%while.1 = (f32[8]) while(%t)", 50, 98), *body]
    found = summarize(tmp_path, {**xplanes.steps((0, 1)), "/device:TPU:0": {"XLA Ops": ops}})
    assert found.devices[0].busy_seconds == pytest.approx(60 * US)
    assert {op.name for op in found.ops} == {f"fusion.{i}" for i in range(10)}
    assert found.step_seconds == pytest.approx(49 * US)  # from the end of one loop to that of the next


def test_other_programs_do_not_mark_steps(tmp_path):
    def run(name, module, start, end):
        return (name, start, end, {"hlo_op": name, "hlo_module": module})

    steps = [run("add.1", "jit_step", 50 * i, 50 * i + 30) for i in range(4)]
    ops = [*steps, run("copy.1", "jit_report", 190, 191), run("copy.1", "jit_report", 192, 193)]
    found = summarize(tmp_path, {"/device:GPU:0": {"Stream #1": ops}})
    assert found.step_seconds == pytest.approx(50 * US)


def test_the_host_is_timed_from_launch_to_launch(tmp_path):
    planes = xplanes.steps((10, 15), (40, 42))
    planes["/host:CPU"]["python"] += [("input wait", 0, 9), ("input wait", 20, 38)]
    found = summarize(tmp_path, planes)
    assert [step.launch_seconds for step in found.steps] == pytest.approx([5 * US, 2 * US])
    assert [step.until_next_seconds for step in found.steps] == [pytest.approx(30 * US), None]
    assert found.input_wait_seconds == pytest.approx(18 * US)  # that before the first step is no part of it
    assert "no operation of a device" in str(found)


def test_a_profile_that_says_nothing_of_input_is_not_taken_for_no_wait(tmp_path):
    found = summarize(tmp_path, xplanes.steps((0, 5)))
    assert found.input_wait_seconds is None
    assert "input" not in str(found).splitlines()[-3:]


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30), st.integers(0, 2), st.booleans()), min_size=1)
)
def test_the_parts_of_a_devices_time_make_up_the_whole(tmp_path_factory, ops):
    streams = {f"Stream #{i}": [] for i in range(3)}
    for start, duration, stream, collective in ops:
        name = "all-gather.1" if collective else "fusion.1"
        streams[f"Stream #{stream}"].append((name, start, start + duration))
    found = summarize(tmp_path_factory.getbasetemp() / "parts", {"/device:GPU:0": streams})
    (device,) = found.devices
    assert 0 <= device.exposed_seconds <= device.collective_seconds + 1e-12
    assert device.collective_seconds <= device.busy_seconds + 1e-12 <= found.seconds + 2e-12


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("all-reduce.12", "all-reduce"),
        ("all-gather-start", "all-gather"),
        ("reduce-scatter.1", "reduce-scatter"),
        ("collective-permute-done.3", "collective-permute"),
        ("ragged-all-to-all", "ragged-all-to-all"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)", "all-reduce"),
        ("reduce.4", None),
        ("all_reduce_like_fusion", None),
    ],
)
def test_collectives_are_known_by_their_names(name, kind):
    assert hlo.collective_of(name) == kind


def test_the_newest_window_is_taken_unless_another_is_asked_for(tmp_path):
    for age, window in enumerate(("step_9", "step_10_process_0", "step_10_process_1")):
        file = xplanes.write(tmp_path / "plugins/profile" / window / "host.xplane.pb", xplanes.steps((0, 1)))
        os.utime(file, (age, age))
    assert [file.parent.name[-9:] for file in profile.find_profiles(tmp_path)] == ["process_0", "process_1"]
    (file,) = profile.find_profiles(tmp_path, step=9)
    assert file.parent.name == "step_9"
    assert profile.find_profiles(file) == profile.find_profiles(file.parent) == [file]
    with pytest.raises(InputError, match="There are: step_10, step_9"):
        profile.find_profiles(tmp_path, step=8)


def test_a_directory_without_a_profile_is_told_how_to_get_one(tmp_path, capsys):
    assert main(["trace", str(tmp_path)]) == 3
    assert "profile.steps" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\x0a\xff", b"no profile at all"])
def test_a_damaged_profile_is_told(tmp_path, capsys, content):
    (tmp_path / "host.xplane.pb").write_bytes(content)
    assert main(["trace", str(tmp_path)]) == 3
    assert "host.xplane.pb" in capsys.readouterr().err


@pytest.mark.slow
def test_a_profile_that_was_cut_short_is_told(traced, tmp_path):
    whole = profile.find_profiles(traced)[0].read_bytes()
    (tmp_path / "cut.xplane.pb").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut\.xplane\.pb is not a profile, or is damaged"):
        profile.summarize(tmp_path / "cut.xplane.pb")
