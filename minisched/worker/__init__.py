"""One step on a device: resolve, forward, sample, relay, copy back."""

from .step import Step
from .worker import Worker

__all__ = ["Step", "Worker"]
