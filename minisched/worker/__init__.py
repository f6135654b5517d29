"""One step on a device: resolve, forward, sample, relay, copy back."""

from .worker import Pending, Worker

__all__ = ["Pending", "Worker"]
