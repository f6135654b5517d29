"""The scheduler: pure host code that knows no device, no tensor library and no clock."""

from .config import SchedulerConfig
from .scheduler import Scheduler, SchedulerStuck

__all__ = ["Scheduler", "SchedulerConfig", "SchedulerStuck"]
