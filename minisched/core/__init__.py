"""The nouns: a request, the lease it holds, and the batch that a step runs."""

from .batch import ForwardMode, NoBatch, Output, Result, Row, ScheduleBatch
from .lease import Lease
from .logit_adjustment import LogitAdjustment
from .logprobs import Logprobs, TokenLogprob, WantedLogprobs
from .model_worker_batch import ModelWorkerBatch, get_model_worker_batch
from .request import ChunkedReq, FinishReason, Request
from .sampling_params import SamplingParams

__all__ = [
    "ChunkedReq",
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
