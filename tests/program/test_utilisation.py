"""What reports say of how well the devices are used."""

from collections import Counter
from types import SimpleNamespace

import pytest

from meshwright.program._flops import Flops, Product
from meshwright.program._utilisation import utilisation, with_utilisation


def counted(**by_dtype):
    return Flops(Counter({Product("dot", dtype, False): count for dtype, count in by_dtype.items()}))


AGAIN = Flops(Counter({Product("dot", "bfloat16", True): 10**12}))
A100S = 4 * [SimpleNamespace(device_kind="NVIDIA A100-SXM4-80GB")]
CPUS = 2 * [SimpleNamespace(device_kind="cpu")]


def test_utilisation_is_the_share_of_the_peak_with_and_without_recomputation():
    found = utilisation(counted(bfloat16=3 * 10**12) + AGAIN, 208, A100S)
    assert found == pytest.approx({"tflops_per_device": 156, "mfu": 156 / 312, "hfu": 208 / 312})


def test_each_dtype_is_held_to_its_own_peak():
    found = utilisation(counted(bfloat16=312 * 10**12, float32=156 * 10**12), 0.5, A100S[:1])
    assert found["mfu"] == pytest.approx(1.0)


def test_where_the_peak_of_a_device_or_a_dtype_is_not_known_there_is_no_utilisation():
    expected = pytest.approx({"tflops_per_device": 1.5})
    assert utilisation(counted(float32=10**12), 3, CPUS) == expected
    assert utilisation(counted(bfloat16=10**12, float64=10**12), 3, A100S) == expected


def test_where_nothing_is_counted_nothing_is_said():
    assert utilisation(Flops(not_counted=Counter(pallas_call=3)), 3, A100S) == {}


def test_reports_with_a_rate_tell_and_others_are_as_they_were():
    seen = []
    write = with_utilisation(lambda step, values: seen.append(values), counted(bfloat16=10**12), CPUS)
    write(1, {"loss": 0.5, "steps_per_second": 2.0})
    write(1, {"test/loss": 0.25})
    assert seen == [{"loss": 0.5, "steps_per_second": 2.0, "tflops_per_device": 1.0}, {"test/loss": 0.25}]
