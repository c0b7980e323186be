"""What Linux tells of this host: https://man7.org/linux/man-pages/man5/proc.5.html."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_SECTOR_NBYTES = 512
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""Beginnings of the names of block devices that are no disks, or whose bytes a disk counts as well."""


def host_shares(root: Path = Path("/")) -> dict[str, float]:
    """Return the shares of the host's memory that are used, and those that this process uses, from 0 to 1."""
    found: dict[str, float] = {}
    with suppress(OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
        told = _by_name(root / "proc/meminfo")
        total = told["MemTotal:"]
        found["memory/host"] = 1 - told["MemAvailable:"] / total
        pages = int((root / "proc/self/statm").read_text("utf-8").split()[1])
        found["memory/process"] = pages * os.sysconf("SC_PAGE_SIZE") / (1024 * total)
    return found


def host_counts(root: Path = Path("/")) -> dict[str, float]:
    """Return numbers that only grow: ticks of the cores, and bytes of disks and of the network."""
    return {**_ticks(root), **_disks(root), **_network(root)}


def busy_share(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the share of time that the cores worked between two countings, from 0 to 1."""
    if not {"ticks", "idle_ticks"} <= before.keys() & after.keys() or after["ticks"] <= before["ticks"]:
        return {}
    idle = (after["idle_ticks"] - before["idle_ticks"]) / (after["ticks"] - before["ticks"])
    return {"busy/cpu": min(1.0, max(0.0, 1 - idle))}


def _ticks(root: Path) -> dict[str, float]:
    with suppress(OSError, ValueError, IndexError):
        whole, *_ = (root / "proc/stat").read_text("utf-8").splitlines()
        ticks = [int(each) for each in whole.split()[1:9]]
        return {"ticks": sum(ticks), "idle_ticks": ticks[3] + ticks[4]}  # idle, and waiting for disks
    return {}


def _disks(root: Path) -> dict[str, float]:
    read = written = 0
    with suppress(OSError, ValueError, IndexError):
        for place in (root / "sys/block").iterdir():
            if not place.name.startswith(_NOT_DISKS):
                fields = (place / "stat").read_text("utf-8").split()
                read, written = read + int(fields[2]), written + int(fields[6])
        return {"bytes/disk_read": _SECTOR_NBYTES * read, "bytes/disk_written": _SECTOR_NBYTES * written}
    return {}


def _network(root: Path) -> dict[str, float]:
    with suppress(OSError, ValueError, IndexError):
        rows = [row for name, row in _interfaces(root) if name != "lo"]
        return {
            "bytes/received": sum(int(row[0]) for row in rows),
            "bytes/sent": sum(int(row[8]) for row in rows),
        }
    return {}


def _interfaces(root: Path) -> Iterator[tuple[str, list[str]]]:
    for line in (root / "proc/net/dev").read_text("utf-8").splitlines()[2:]:
        name, _, row = line.partition(":")
        yield name.strip(), row.split()


def _by_name(path: Path) -> dict[str, int]:
    rows = (line.split() for line in path.read_text("utf-8").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}
