from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import UsageError
from meshwright.plan._hardware import hardware_here, hardware_named


@pytest.mark.parametrize(
    ("text", "name", "num_devices", "group"),
    [
        ("h100:8", "NVIDIA H100 80GB HBM3:8", 8, 8),
        ("h100:64x8", "NVIDIA H100 80GB HBM3:64x8", 512, 8),
        ("v5e:16x16", "TPU v5 lite:64x4", 256, 256),
        ("2*v5p:8x8x16", "TPU v5:512x4", 2048, 1024),
        ("cpu:8", "cpu:8", 8, 8),
    ],
)
def test_hardware_is_named_as_mesh_rules_will_see_it(text, name, num_devices, group):
    found = hardware_named(text)
    assert (str(found), found.num_devices, found.group) == (name, num_devices, group)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("h100", "cannot read the hardware"),
        ("a10-40gb:8", "the chip 'a10-40gb' is not known.\n"),
        ("a100-40g:8", "Did you mean 'a100-40gb'"),
        ("h100:16", "Write h100:2x8 for 16 GPUs"),
        ("h100:2x2x2", "HOSTSxGPUS_PER_HOST"),
        ("2*h100:8", "HOSTSxGPUS_PER_HOST"),
        ("v5e:4", "2 sizes, as in v5e:4x4"),
        ("v5p:4x4", "3 sizes"),
        ("cpu:2x4", "one number"),
        ("v5e:0x4", "zero devices"),
    ],
)
def test_hardware_that_cannot_be_is_refused_with_what_could(text, problem):
    with pytest.raises(UsageError, match=problem):
        hardware_named(text)


@given(hosts=st.integers(1, 999), each=st.integers(1, 8))
def test_gpus_of_all_hosts_are_counted(hosts, each):
    found = hardware_named(f"h200:{hosts}x{each}")
    assert found.num_devices == hosts * each == found.num_groups * found.per_host


def device(kind, platform="gpu", host=0, coords=None, slice_index=0):
    return SimpleNamespace(
        device_kind=kind, platform=platform, process_index=host, coords=coords, slice_index=slice_index
    )


def test_devices_at_hand_are_the_hardware_of_their_name():
    gpus = [device("NVIDIA H200", host=host) for host in (0, 0, 1, 1)]
    assert hardware_here(gpus) == hardware_named("h200:2x2")
    corners = [(x, y, 0) for x in range(2) for y in range(4)]
    tpus = [device("TPU v5 lite", "tpu", coords=corner, slice_index=s) for s in (0, 1) for corner in corners]
    assert hardware_here(tpus) == hardware_named("2*v5e:2x4")
    assert hardware_here() == hardware_named("cpu:8")


def test_a_device_without_figures_is_refused_with_those_that_have_some():
    with pytest.raises(UsageError, match=r"no figures for devices of the kind 'Wonder 9'(.|\n)*NVIDIA H100"):
        hardware_here([device("Wonder 9")])
