"""What a host, NVIDIA's GPUs and TPUs tell, from files and modules that stand for them."""

import importlib
import types

import pytest

from meshwright.processes._sensors import (
    _rates,
    busy_share,
    host_counts,
    host_shares,
    machine_reader,
    nvidia_gpus,
    tpu_chips,
    worst,
)

MEMINFO = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 750 kB\n"
NETWORK = (
    "heads\nheads\n  lo: 9 0 0 0 0 0 0 0 9 0\neth0: 1000 1 0 0 0 0 0 0 50 1\n eth1:10 1 0 0 0 0 0 0 5 1\n"
)


@pytest.fixture
def root(tmp_path):
    """A folder like `/` of a host."""
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/statm": "99 10 1 1 0 1 0",
        "proc/stat": "cpu  30 0 20 40 10 0 0 0 0 0\ncpu0 1 1 1\n",
        "proc/net/dev": NETWORK,
        "sys/block/sda/stat": "1 0 4 0 1 0 6 0 0 0 0",
        "sys/block/nvme0n1/stat": "1 0 2 0 1 0 2 0 0 0 0",
        "sys/block/loop0/stat": "1 0 1000 0 1 0 1000 0 0 0 0",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def test_linux_tells_memory_cores_disks_and_network(root):
    shares = host_shares(root)
    assert shares["memory/host"] == 0.25
    assert 0.03 < shares["memory/process"] < 0.7  # 10 pages of 4 to 64 KiB, of 1,000 kB
    assert host_counts(root) == {
        "ticks": 100,
        "idle_ticks": 50,
        "bytes/disk_read": 6 * 512,
        "bytes/disk_written": 8 * 512,
        "bytes/received": 1010,
        "bytes/sent": 55,
    }


def test_a_host_without_proc_tells_nothing(tmp_path):
    assert host_shares(tmp_path) == host_counts(tmp_path) == {}


def test_rates_are_the_growth_of_counts_and_a_reset_has_none():
    before = {"ticks": 100, "idle_ticks": 50, "bytes/sent": 10, "bytes/received": 7}
    after = {"ticks": 200, "idle_ticks": 75, "bytes/sent": 30, "bytes/received": 0}
    assert busy_share(before, after) == {"busy/cpu": 0.75}
    assert _rates(before, after, 2.0) == {"bytes_per_second/sent": 10.0}


def test_of_several_devices_each_figure_is_the_worst():
    cool, hot = (
        {"celsius/device": 50, "megahertz/device": 1980},
        {"celsius/device": 90, "megahertz/device": 900},
    )
    assert worst([cool, hot]) == hot
    assert worst({f"machine/{name}": x for name, x in each.items()} for each in (hot, cool)) == {
        "machine/celsius/device": 90,
        "machine/megahertz/device": 900,
    }


def test_this_machine_is_read():
    times = iter([0.0, 2.0])
    read = machine_reader(lambda: next(times))
    first, second = read(), read()
    assert set(first) == {"machine/memory/host", "machine/memory/process"}
    assert second["machine/bytes_per_second/received"] >= 0


def fake_nvml(**without):
    """Return a module that stands for `pynvml`, with names of the real one alone, and two GPUs."""
    real = importlib.import_module("pynvml")
    told = types.SimpleNamespace
    counts = iter(range(0, 1000, 8))
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda number: [0, 1][number],
        "nvmlDeviceGetHandleByUUID": {"GPU-b": 1}.__getitem__,
        "nvmlDeviceGetUtilizationRates": lambda gpu: told(gpu=50 + gpu, memory=1),
        "nvmlDeviceGetTemperature": lambda gpu, sensor: 60 + 10 * gpu,
        "nvmlDeviceGetClockInfo": lambda gpu, kind: 1980 - 1000 * gpu,
        "nvmlDeviceGetPowerUsage": lambda gpu: 700_000,
        "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, since: (
            3 * (kind == real.NVML_MEMORY_ERROR_TYPE_CORRECTED)
        ),
        "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: (
            gpu * real.nvmlClocksEventReasonHwThermalSlowdown
        ),
        "nvmlDeviceGetPcieThroughput": lambda gpu, way: 2,
        "nvmlDeviceGetFieldValues": lambda gpu, fields: [
            told(nvmlReturn=0, value=told(ullVal=next(counts))) for _ in fields
        ],
    } | without
    fake = types.SimpleNamespace(**answers)
    for name in dir(real):
        if name not in answers and (name.isupper() or name.startswith(("NVML", "nvmlClocks"))):
            setattr(fake, name, getattr(real, name))
    assert all(hasattr(real, name) for name in answers)
    return fake


@pytest.fixture
def nvml(monkeypatch):
    """Let a module stand for `pynvml`."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda fake: monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)


def test_gpus_tell_use_heat_clocks_power_errors_and_links(nvml):
    nvml(fake_nvml())
    [(cool, counted), (hot, _)] = nvidia_gpus([0, 1])()
    assert cool == {
        "busy/device": 0.5,
        "celsius/device": 60,
        "megahertz/device": 1980,
        "watts/device": 700,
        "errors/ecc_corrected": 3,
        "errors/ecc_uncorrected": 0,
        "errors/slowed": 0,
        "bytes_per_second/pcie_sent": 2048,
        "bytes_per_second/pcie_received": 2048,
    }
    assert (hot["celsius/device"], hot["megahertz/device"], hot["errors/slowed"]) == (70, 980, 1)
    assert counted == {"bytes/nvlink_sent": 0, "bytes/nvlink_received": 8 * 1024}


def test_what_a_gpu_does_not_have_is_left_out(nvml):
    real = importlib.import_module("pynvml")

    def refuse(*_):
        raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)

    nvml(fake_nvml(nvmlDeviceGetTotalEccErrors=refuse, nvmlDeviceGetFieldValues=refuse))
    [(figures, counted)] = nvidia_gpus([0])()
    assert not {name for name in figures if "ecc" in name}
    assert (figures["celsius/device"], counted) == (60, {})


def test_the_gpus_are_those_that_cuda_sees(nvml, monkeypatch):
    nvml(fake_nvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    [(figures, _)] = nvidia_gpus([0])()
    assert figures["celsius/device"] == 70


def test_without_a_driver_gpus_tell_nothing():
    assert list(nvidia_gpus([0])()) == []  # the real package, on a machine that has no GPU


def test_tpus_tell_use_and_the_health_of_their_links(monkeypatch):
    told = {
        "duty_cycle_pct": ["100.0", "25.0"],
        "ici_link_health": ["tray1.chip3.ici0.int: 0", "tray1.chip3.ici1.int: 10"],
    }
    sdk = types.ModuleType("libtpu.sdk")
    sdk.tpumonitoring = types.SimpleNamespace(
        get_metric=lambda name: types.SimpleNamespace(data=lambda: told[name])
    )
    monkeypatch.setitem(__import__("sys").modules, "libtpu", types.ModuleType("libtpu"))
    monkeypatch.setitem(__import__("sys").modules, "libtpu.sdk", sdk)
    assert tpu_chips()() == {"busy/device": 0.25, "errors/ici_link": 10}
