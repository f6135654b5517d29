"""The nouns: a request, the lease it holds, and the batch that a step runs."""

from .batch import (
    ForwardMode,
    ModelWorkerBatch,
    NoBatch,
    Output,
    Result,
    Row,
    ScheduleBatch,
    get_model_worker_batch,
)
from .logprobs import Logprobs, TokenLogprob, WantedLogprobs
from .request import FinishReason, Lease, Request
from .sampling import LogitAdjustment, SamplingParams

__all__ = [
    "FinishReason",
    "ForwardMode",
    "Lease",
    "LogitAdjustment",
    "Logprobs",
    "ModelWorkerBatch",
    "NoBatch",
    "Output",
    "Request",
    "Result",
    "Row",
    "SamplingParams",
    "ScheduleBatch",
    "TokenLogprob",
    "WantedLogprobs",
    "get_model_worker_batch",
]
