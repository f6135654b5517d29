"""One step on a device: resolve, forward, sample, relay, copy back."""

from .worker import GenerationBatchResult, Worker

__all__ = ["GenerationBatchResult", "Worker"]
