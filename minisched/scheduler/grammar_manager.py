"""Gives a request its grammar when it is received, and tells the trace how far that has come."""

from __future__ import annotations

from collections.abc import Callable

from ..core import Output, Request, SamplingParams, ScheduleBatch
from ..core.grammar import Grammar
from ..trace import Recorder

CompileGrammar = Callable[[SamplingParams], Grammar]


def process_req_with_grammar(req: Request, compile_grammar: CompileGrammar | None) -> str:
    """Compile a request's grammar, if it has one; why it can't have it, or nothing.

    SGLang ``constrained/grammar_manager.py`` compiles in threads, while the request waits in
    ``grammar_queue`` for ``get_ready_grammar_requests``; here it is done at once (it takes about a
    millisecond), so that a run can be repeated. The scheduler gets the compiler from outside: it
    knows neither tokenizers nor libraries.
    """
    if not req.params.has_grammar:
        return ""
    if compile_grammar is None:
        return "a grammar was asked for, but nothing here compiles any."
    try:
        req.grammar = compile_grammar(req.params)
    except ValueError as error:
        return str(error)
    return ""


def record_grammar(recorder: Recorder, req: Request) -> None:
    """Mark which rule a request follows from now on."""
    if recorder.is_on and req.grammar is not None:
        rule = req.params.regex or req.params.json_schema or ""
        recorder.mark("grammar", rid=req.rid, rule=rule)


def record_accepted(recorder: Recorder, batch: ScheduleBatch, outputs: list[Output]) -> None:
    """Mark which of the tokens that a step gave to clients each request's grammar has taken.

    One that it does not allow ends its request, so that it is the last one (``Request.error``).
    """
    heard: dict[str, list[int]] = {req.rid: [] for req in batch.reqs if req.grammar is not None}
    for output in outputs:
        if output.rid in heard and output.token is not None:
            heard[output.rid].append(output.token)
    for req in batch.reqs:
        tokens = heard.get(req.rid, [])
        if req.grammar is not None and (taken := tokens[:-1] if req.error else tokens):
            recorder.mark(
                "grammar accept", step=batch.step, rid=req.rid, tokens=" ".join(map(str, taken)),
                terminated=req.grammar.is_terminated,
            )  # fmt: skip
