import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import UsageError
from meshwright.plan import hardware_named


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
        ("h10:8", "Did you mean 'h100'"),
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
