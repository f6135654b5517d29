"""One step on a device: resolve, forward, sample, relay, copy back."""

from .generation_batch_result import GenerationBatchResult
from .worker import Worker

__all__ = ["GenerationBatchResult", "Worker"]
