"""Peaks by what JAX calls a device, and the names that are parts of others."""

import pytest

from meshwright.program._utilisation import peak_flops


@pytest.mark.parametrize(
    ("kind", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A40", 149.7),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H200 NVL", 840),
        ("NVIDIA H20", 148),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("AMD Instinct MI300X", 1307.4),
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v4 lite", 137),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v6 lite", 918),
        ("TPU7x", 1153.5),
    ],
)
def test_a_device_has_its_own_peak_and_not_that_of_one_whose_name_is_part_of_its(kind, tflops):
    assert peak_flops(kind) == tflops * 1e12


@pytest.mark.parametrize(
    "kind",
    ["cpu", "", "NVIDIA A10G", "NVIDIA A1000", "NVIDIA GH200 480GB", "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
     "NVIDIA GeForce RTX 4090", "TPU v9"],
)  # fmt: skip
def test_where_the_peak_is_not_known_none_is_made_up(kind):
    assert peak_flops(kind) is None


def test_case_does_not_matter():
    assert peak_flops("nvidia l40s") == peak_flops("NVIDIA L40S")


def test_each_dtype_has_its_own():
    assert peak_flops("NVIDIA A100-SXM4-40GB", "float32") == 156e12  # TF32
    assert peak_flops("TPU v5p", "float32") == 459e12  # one pass of bfloat16
    assert peak_flops("Tesla V100-SXM2-16GB", "float16") == 125e12
    assert peak_flops("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert peak_flops("NVIDIA H200", "int8") is None
