"""The machine that something was measured on, in a few words."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

GIBIBYTE = 1 << 30


def machine() -> dict[str, Any]:
    """System, processor, cores that this process may use, and memory in GiB where it is known."""
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cpus": cpus(),
        "memory_gib": memory_gib(),
    }


def cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def memory_gib() -> float | None:
    """Memory of the machine, where the system tells."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIBIBYTE, 1)
