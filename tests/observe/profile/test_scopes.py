"""Where the time of a profile went, by the layers of the model."""

import dataclasses
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.observe import _internal as profile
from meshwright.observe._profile._scopes import Origin, is_command_buffer, origin_of
from observe.profile import xplanes
from observe.profile.test_summary import traced  # noqa: F401

US = 1e-6
GPU = Path(__file__).with_name("gpu.xplane.pb")


def by_scope(found):
    return {each.scope: each for each in found.scopes}


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("jit(step)/jvp(head)/dot_general", ("head", "forward")),
        ("jit(step)/transpose(jvp(head))/dot_general", ("head", "backward")),
        (
            "jit(step)/jvp(layers)/while/body/closed_call/attention/dot_general",
            ("layers/attention", "forward"),
        ),
        (
            "jit(s)/transpose(jvp(layers))/while/body/closed_call/checkpoint/rematted_computation/mlp/up/mul",
            ("layers/mlp", "backward"),
        ),
        ("jit(step)/jvp(Net)/Block_3/Dense_0/vmap(BTNH,BSNH->BNTS)/dot_general", ("Net/Block_*", "forward")),
        ("jit(step)/jvp()/vmap(mlp)/jit(silu)/mul", ("mlp", "forward")),
        ("jit(step)/optimizer/mul", ("optimizer", "other")),
        ("jit(step)/jvp()/while/body/closed_call/mul", ("(no scope, in a loop)", "forward")),
        ("jit(step)/(transpose(jvp(a))/reduce_sum:jvp(b)/reduce_sum)", ("a", "backward")),
        ("jit(step)/(transpose(jvp())/reduce_sum:optimizer/add)", ("optimizer", "other")),
        ("jit(step)/jvp(layers)/while/body/eval_jaxpr/(mlp/mul:mlp/add)", ("layers/mlp", "forward")),
        ("jit(step)/jvp(head)/reshape;jit(step)/jvp(b)/mul", ("head", "forward")),
        ("state.params['head']", ("(arguments of the program)", "other")),
        ("", ("(no scope)", "other")),
    ],
)
def test_an_operation_is_placed_by_the_scopes_in_its_name(source, place):
    assert origin_of(source) == Origin(*place)


def test_scopes_are_told_apart_as_deep_as_one_asks():
    source = "jit(step)/jvp(a)/b/c/d/mul"
    assert [origin_of(source, depth).scope for depth in (1, 2, 3)] == ["a", "a/b", "a/b/c"]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("CudaGraphExec:2", True), ("command_buffer_3", True), ("fusion.3", False), ("all-reduce.1", False)],
)
def test_command_buffers_are_known_by_their_names(name, is_one):
    assert is_command_buffer(name) == is_one


@pytest.mark.slow
def test_a_real_profile_has_its_layers_forward_and_backward(traced):  # noqa: F811
    found = by_scope(profile.summarize(*profile.find_profiles(traced)))
    for layer in ("layers/attention", "layers/feed_forward"):
        assert found[layer].forward_seconds > 0
        assert found[layer].backward_seconds > 0
        assert 0 < found[layer].collective_seconds < found[layer].seconds
    assert found["optimizer"].other_seconds > 0


@pytest.mark.slow
@pytest.mark.slow
def test_scopes_have_the_time_of_all_operations(traced):  # noqa: F811
    found = profile.summarize(*profile.find_profiles(traced))
    assert sum(each.seconds for each in found.scopes) == pytest.approx(sum(op.seconds for op in found.ops))
    named = [each for each in found.scopes if not each.scope.startswith("(")]
    assert sum(each.seconds for each in named) > 0.8 * sum(each.seconds for each in found.scopes)


@pytest.mark.slow
@pytest.mark.slow
def test_the_command_shows_layers_as_deep_as_asked(traced, capsys):  # noqa: F811
    assert main(["trace", str(traced), "--depth", "1"]) == 0
    shown = capsys.readouterr().out
    assert "layers, of the devices' time" in shown
    assert "layers/attention" not in shown


def test_the_file_of_a_gpu_is_what_the_script_writes(tmp_path):
    written = profile.summarize(xplanes.write(tmp_path / "gpu.xplane.pb", *xplanes.on_a_gpu()))
    assert dataclasses.replace(written, file=str(GPU)) == profile.summarize(
        GPU
    )  # maps have no order in bytes


def test_time_in_cuda_graphs_is_apart_and_the_profile_says_what_shows_it():
    found = profile.summarize(GPU)
    scopes = by_scope(found)
    assert scopes["(in a command buffer)"].seconds == pytest.approx(120 * US)
    assert (scopes["head"].forward_seconds, scopes["head"].backward_seconds) == pytest.approx(
        (40 * US, 30 * US)
    )
    assert "61.5 % of the time operations are hidden in command buffers" in str(found)
    assert "compile.options={'xla_gpu_enable_command_buffer': ''}" in str(found)


def test_a_tpus_events_tell_their_own_source(tmp_path):
    ops = [("%fusion.1 = f32[8] fusion(%x)", 0, 10, {"tf_op": "jit(step)/jvp(head)/dot_general:"})]
    file = xplanes.write(
        tmp_path / "x.xplane.pb", {**xplanes.steps((0, 1)), "/device:TPU:0": {"XLA Ops": ops}}
    )
    assert by_scope(profile.summarize(file))["head"].forward_seconds == pytest.approx(10 * US)


@pytest.mark.parametrize(
    ("ops", "waits", "first"),
    [
        ([("fusion.1", 0, 90)], [(0, 40)], "the loop waits for examples"),
        ([("all-reduce.1", 0, 50), ("fusion.1", 50, 100)], [], "devices wait for communication"),
        ([("fusion.1", 0, 10), ("fusion.1", 90, 100)], [], "devices are idle"),
        ([("fusion.1", 0, 100)], [], "name parts of the model"),
    ],
)
def test_the_last_line_says_what_to_do_first(tmp_path, ops, waits, first):
    planes = {**xplanes.steps((0, 100)), "/device:GPU:0": {"Stream #1": ops}}
    planes["/host:CPU"]["python"] += [("input wait", *wait) for wait in waits]
    found = profile.summarize(xplanes.write(tmp_path / "x.xplane.pb", planes))
    assert first in str(found).splitlines()[-1]
