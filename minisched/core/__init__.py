"""The nouns: a request, the lease it holds, and the batch that a step runs."""

from .batch import Batch, ForwardMode, NoBatch, Output, Result, Row
from .request import ChunkedReq, FinishReason, Lease, Request
from .sampling_params import SamplingParams

__all__ = [
    "Batch",
    "ChunkedReq",
    "FinishReason",
    "ForwardMode",
    "Lease",
    "NoBatch",
    "Output",
    "Request",
    "Result",
    "Row",
    "SamplingParams",
]
