"""What NVIDIA's management library tells of GPUs: https://docs.nvidia.com/deploy/nvml-api.

Its Python package, nvidia-ml-py, is the extra `meshwright[nvidia]`. Without it, or without a driver, this
says nothing. A figure that a GPU does not have, such as those of NVLink, is left out.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

KIB = 1024
_SLOWED = (
    "nvmlClocksEventReasonHwSlowdown",
    "nvmlClocksEventReasonHwThermalSlowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown",
    "nvmlClocksEventReasonSwThermalSlowdown",
)
"""Reasons for which a GPU lowers its clocks although there is work: heat, and power that is missing."""


def nvidia_gpus(numbers: Sequence[int]) -> Callable[[], Iterator[tuple[dict[str, float], dict[str, float]]]]:
    """Return a function that yields for each GPU its figures, and the numbers that only grow."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [_handle(nvml, number) for number in numbers]
    except Exception:  # the package or the driver is missing, or this is a GPU that NVML does not see
        return lambda: iter(())
    return lambda: ((_figures(nvml, each), _counts(nvml, each)) for each in handles)


def _handle(nvml: Any, number: int) -> Any:
    """Return NVML's handle for the GPU that CUDA numbers so."""
    seen = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    name = seen[number] if number < len(seen) else str(number)
    return (
        nvml.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdecimal()
        else nvml.nvmlDeviceGetHandleByUUID(name)
    )


def _figures(nvml: Any, gpu: Any) -> dict[str, float]:
    readings: dict[str, Callable[[], float]] = {
        "busy/device": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
        "celsius/device": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "megahertz/device": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "watts/device": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        "errors/ecc_corrected": lambda: _ecc(nvml, gpu, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "errors/ecc_uncorrected": lambda: _ecc(nvml, gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "errors/slowed": lambda: float(_is_slowed(nvml, gpu)),
        "bytes_per_second/pcie_sent": lambda: (
            KIB * nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES)
        ),
        "bytes_per_second/pcie_received": lambda: (
            KIB * nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES)
        ),
    }
    found: dict[str, float] = {}
    for name, read in readings.items():
        with suppress(nvml.NVMLError, AttributeError):  # this GPU, or this version of NVML, does not have it
            found[name] = float(read())
    return found


def _ecc(nvml: Any, gpu: Any, kind: int) -> int:
    return nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, nvml.NVML_VOLATILE_ECC)


def _is_slowed(nvml: Any, gpu: Any) -> bool:
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    return any(reasons & getattr(nvml, name) for name in _SLOWED)


def _counts(nvml: Any, gpu: Any) -> dict[str, float]:
    """Return the bytes of all of a GPU's NVLinks so far."""
    found: dict[str, float] = {}
    with suppress(nvml.NVMLError, AttributeError):
        fields = {
            "bytes/nvlink_sent": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            "bytes/nvlink_received": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        }
        told = nvml.nvmlDeviceGetFieldValues(gpu, list(fields.values()))
        for name, each in zip(fields, told, strict=True):
            if each.nvmlReturn == nvml.NVML_SUCCESS:
                found[name] = float(KIB * each.value.ullVal)
    return found
