"""The nouns: a request, the lease it holds, and the batch that a step runs."""

from .batch import (
    Output,
    Outputs,
    Result,
    Row,
    ScheduleBatch,
)
from .forward_mode import ForwardMode, NoBatch
from .logprobs import Logprobs, TokenLogprob
from .part import FinishReason, RequestPart
from .request import Lease, Request
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
    "RequestPart",
    "Result",
    "Row",
    "SamplingParams",
    "ScheduleBatch",
    "TokenLogprob",
]
