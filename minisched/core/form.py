"""The form of a request: each field of a client has a value of its kind, within its limits."""

from __future__ import annotations

from .request import Request
from .sampling import SamplingParams, shown, wrong_token, wrong_type


def wrong_form(req: Request) -> str | None:
    """Return a sentence on the first field of a request with a wrong value, or None.

    >>> wrong_form(Request("a", "hello"))
    "prompt is 'hello', but it must be a list of token ids."
    """
    names = ("rid", "prompt", "arrival_time", "priority")
    if problem := wrong_type(req, names) or wrong_token(req.prompt):
        return problem
    if not isinstance(req.params, SamplingParams):
        return f"params is {shown(req.params)}, but it must be SamplingParams."
    return req.params.problem()
