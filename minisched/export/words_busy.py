"""How busy the device was, in the words of every picture."""

from __future__ import annotations

from ..checks.overlap import OverlapReport


def busy(report: OverlapReport) -> str:
    """``device busy 98 %``; of several devices the mean, and it says so."""
    mean = f" (mean of {report.devices} devices)" if report.devices > 1 else ""
    return f"device busy {report.device_busy_percent:.0f} %{mean}"


def busy_of_run(report: OverlapReport) -> str:
    """The same beside a few steps of a run: the share is the whole run's."""
    mean = f", the mean of {report.devices} devices" if report.devices > 1 else ""
    return f"device busy {report.device_busy_percent:.0f} % of the run{mean}"
