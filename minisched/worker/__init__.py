"""One step on a device: resolve, forward, sample, relay, copy back."""

from .worker import Step, Worker

__all__ = ["Step", "Worker"]
