"""Readings of this machine and its devices: memory, use, temperature, clocks, errors and traffic.

The sources are `/proc` and `/sys` of Linux, NVIDIA's management library, libtpu's SDK, and JAX for the
memory of devices. Nothing here keeps a thread or talks to other machines. To add a source, add a function
that returns numbers by name, and call it in `machine_reader`.
"""

import importlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

PREFIX = "machine/"
"""The beginning of the names of all readings."""
Reader = Callable[[], dict[str, float]]
"""A function that returns readings by name, such as `machine/memory/device`."""
_LOWEST = ("busy/device", "busy/tensorcore", "megahertz/device")
"""Readings whose worst value is the lowest one."""


def machine_reader(clock: Callable[[], float] = time.monotonic) -> Reader:
    """Return a function that reads this host and the devices of this process, once with each call.

    Shares are from 0 to 1. Rates are those since the previous call, so the first call has none. Of several
    devices each figure is the worst: the lowest clock, the highest temperature. Figures that a machine does
    not have are left out. A call takes less than a millisecond, and some 50 ms for each NVIDIA GPU.

    Example:
      >>> read = mw.processes._internal.machine_reader()
      >>> 0 < read()["machine/memory/host"] < 1
      True
    """
    devices = jax.local_devices()
    gpus = nvidia_gpus([device.local_hardware_id or 0 for device in devices if device.platform == "gpu"])
    tpus = tpu_chips() if any(device.platform == "tpu" for device in devices) else dict
    last: list[tuple[float, dict[str, float]]] = []

    def read() -> dict[str, float]:
        pairs = list(gpus())
        counts, read_time = {**host_counts(), **worst(counts for _, counts in pairs)}, clock()
        figures = worst([*device_memory(), *(figures for figures, _ in pairs)])
        readings = {**host_shares(), **figures, **tpus()}
        if last:
            earlier_at, earlier = last.pop()
            readings |= busy_share(earlier, counts) | _rates(earlier, counts, read_time - earlier_at)
        last.append((read_time, counts))
        return {f"{PREFIX}{name}": value for name, value in readings.items() if math.isfinite(value)}

    return read


def worst(readings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return one reading of several devices or machines: the worst value of each name."""
    worst_values: dict[str, float] = {}
    for reading in readings:
        for name, value in reading.items():
            choose = min if name.removeprefix(PREFIX) in _LOWEST else max
            worst_values[name] = choose(worst_values.get(name, value), value)
    return worst_values


def _rates(earlier: Mapping[str, float], later: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return bytes per second. A count that has gone down, as after a reset, has no rate."""
    if seconds <= 0:
        return {}
    grown = {name: later[name] - earlier[name] for name in earlier.keys() & later.keys()}
    return {
        f"bytes_per_second/{name.removeprefix('bytes/')}": more / seconds
        for name, more in sorted(grown.items())
        if name.startswith("bytes/") and more >= 0
    }


def device_memory() -> Iterator[dict[str, float]]:
    """Yield for each device the share of its memory that JAX has in use, now and at most, from 0 to 1.

    CPUs have no such figures: their memory is that of the host.
    """
    for device in jax.local_devices():
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit") or stats.get("bytes_reservable_limit")
        if limit:
            in_use = stats.get("bytes_in_use", 0)
            yield {
                "memory/device": in_use / limit,
                "memory/device_peak": stats.get("peak_bytes_in_use", in_use) / limit,
            }


_SECTOR_NBYTES = 512
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""Beginnings of the names of block devices that are no disks, or whose bytes a disk counts as well."""


# Linux: https://man7.org/linux/man-pages/man5/proc.5.html.


def host_shares(root: Path = Path("/")) -> dict[str, float]:
    """Return the shares of the host's memory that are used, and those that this process uses, from 0 to 1."""
    shares: dict[str, float] = {}
    with suppress(OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
        rows = (line.split() for line in (root / "proc/meminfo").read_text("utf-8").splitlines())
        kib = {row[0]: int(row[1]) for row in rows if len(row) > 1}
        total = kib["MemTotal:"]
        shares["memory/host"] = 1 - kib["MemAvailable:"] / total
        pages = int((root / "proc/self/statm").read_text("utf-8").split()[1])
        shares["memory/process"] = pages * os.sysconf("SC_PAGE_SIZE") / (1024 * total)
    return shares


def host_counts(root: Path = Path("/")) -> dict[str, float]:
    """Return numbers that only grow: ticks of the cores, and bytes of disks and of the network."""
    return {**_ticks(root), **_disks(root), **_network(root)}


def busy_share(earlier: Mapping[str, float], later: Mapping[str, float]) -> dict[str, float]:
    """Return the share of time that the cores worked between two countings, from 0 to 1."""
    if not {"ticks", "idle_ticks"} <= earlier.keys() & later.keys() or later["ticks"] <= earlier["ticks"]:
        return {}
    idle = (later["idle_ticks"] - earlier["idle_ticks"]) / (later["ticks"] - earlier["ticks"])
    return {"busy/cpu": min(1.0, max(0.0, 1 - idle))}


def _ticks(root: Path) -> dict[str, float]:
    with suppress(OSError, ValueError, IndexError):
        whole, *_ = (root / "proc/stat").read_text("utf-8").splitlines()
        ticks = [int(tick) for tick in whole.split()[1:9]]
        return {"ticks": sum(ticks), "idle_ticks": ticks[3] + ticks[4]}  # idle, and waiting for disks
    return {}


def _disks(root: Path) -> dict[str, float]:
    read = sectors_written = 0
    with suppress(OSError, ValueError, IndexError):
        for device in (root / "sys/block").iterdir():
            if not device.name.startswith(_NOT_DISKS):
                fields = (device / "stat").read_text("utf-8").split()
                read, sectors_written = read + int(fields[2]), sectors_written + int(fields[6])
        return {
            "bytes/disk_read": _SECTOR_NBYTES * read,
            "bytes/disk_written": _SECTOR_NBYTES * sectors_written,
        }
    return {}


def _network(root: Path) -> dict[str, float]:
    with suppress(OSError, ValueError, IndexError):
        lines = (root / "proc/net/dev").read_text("utf-8").splitlines()[2:]
        interfaces = (line.partition(":") for line in lines)
        rows = [row.split() for name, _, row in interfaces if name.strip() != "lo"]
        return {
            "bytes/received": sum(int(row[0]) for row in rows),
            "bytes/sent": sum(int(row[8]) for row in rows),
        }
    return {}


# NVIDIA's management library: https://docs.nvidia.com/deploy/nvml-api. Its Python package, nvidia-ml-py, is
# the extra `meshwright[nvidia]`. Without the package, or without a driver, there are no figures of GPUs. A
# figure that a GPU does not have, such as those of NVLink, is left out.
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
    if not numbers:
        return lambda: iter(())
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [_handle(nvml, number) for number in numbers]
    except Exception:  # the package or the driver is missing, or this is a GPU that NVML does not see
        return lambda: iter(())
    return lambda: ((_figures(nvml, gpu), _counts(nvml, gpu)) for gpu in handles)


def _handle(nvml: Any, number: int) -> Any:
    """Return NVML's handle for the GPU with a number of CUDA, which counts only the visible ones."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[number] if number < len(visible) else str(number)
    return (
        nvml.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdecimal()
        else nvml.nvmlDeviceGetHandleByUUID(name)
    )


def _figures(nvml: Any, gpu: Any) -> dict[str, float]:
    def slowed(name: str) -> int:
        return nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) & getattr(nvml, name)

    readings: dict[str, Callable[[], float]] = {
        "busy/device": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
        "celsius/device": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "megahertz/device": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "watts/device": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        "errors/ecc_corrected": lambda: _ecc(nvml, gpu, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "errors/ecc_uncorrected": lambda: _ecc(nvml, gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "errors/slowed": lambda: float(any(slowed(name) for name in _SLOWED)),
        "bytes_per_second/pcie_sent": lambda: (
            KIB * nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES)
        ),
        "bytes_per_second/pcie_received": lambda: (
            KIB * nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES)
        ),
    }
    figures: dict[str, float] = {}
    for name, read in readings.items():
        # This GPU, or this version of NVML, does not have it.
        with suppress(nvml.NVMLError, AttributeError):
            figures[name] = float(read())
    return figures


def _ecc(nvml: Any, gpu: Any, kind: int) -> int:
    return nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, nvml.NVML_VOLATILE_ECC)


def _counts(nvml: Any, gpu: Any) -> dict[str, float]:
    """Return the bytes of all of a GPU's NVLinks so far."""
    counts: dict[str, float] = {}
    with suppress(nvml.NVMLError, AttributeError):
        fields = {
            "bytes/nvlink_sent": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            "bytes/nvlink_received": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        }
        answers = nvml.nvmlDeviceGetFieldValues(gpu, list(fields.values()))
        for name, answer in zip(fields, answers, strict=True):
            if answer.nvmlReturn == nvml.NVML_SUCCESS:
                counts[name] = float(KIB * answer.value.ullVal)
    return counts


# libtpu's own SDK: https://cloud.google.com/tpu/docs/tpu-monitoring-library. It comes with libtpu, and so
# with `meshwright[tpu]`. The answer to a metric's name is texts: one for each chip, or one for each link
# with the score of its health, from 0 (well) to 10 (unusable).
_TPU_METRICS = {
    "duty_cycle_pct": ("busy/device", 0.01, min),
    "tensorcore_util": ("busy/tensorcore", 0.01, min),
    "ici_link_health": ("errors/ici_link", 1.0, max),
}


def tpu_chips() -> Callable[[], dict[str, float]]:
    """Return a function that returns the figures of the TPUs of this host, of each the worst."""
    try:
        sdk = importlib.import_module("libtpu.sdk").tpumonitoring
    except (ImportError, AttributeError):
        return dict
    return lambda: _tpu_figures(sdk)


def _tpu_figures(sdk: Any) -> dict[str, float]:
    figures: dict[str, float] = {}
    for metric, (name, unit, worst) in _TPU_METRICS.items():
        # A version of libtpu that does not have this metric, or has no answer yet.
        with suppress(Exception):
            values = [float(str(text).rpartition(":")[2]) for text in sdk.get_metric(metric).data()]
            if values:
                figures[name] = unit * worst(values)
    return figures
