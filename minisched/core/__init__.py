"""The nouns: a request, the lease it holds, and the batch that a step runs."""

from .batch import (
    ForwardMode,
    NoBatch,
    Output,
    Outputs,
    Result,
    Row,
    ScheduleBatch,
)
from .logprobs import Logprobs, TokenLogprob
from .request import FinishReason, Lease, Request
from .sampling import LogitAdjustment, SamplingParams

__all__ = [
    "FinishReason",
    "ForwardMode",
    "Lease",
    "LogitAdjustment",
    "Logprobs",
    "NoBatch",
    "Output",
    "Outputs",
    "Request",
    "Result",
    "Row",
    "SamplingParams",
    "ScheduleBatch",
    "TokenLogprob",
]
