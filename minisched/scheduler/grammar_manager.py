"""Gives a request its grammar when it is received."""

from __future__ import annotations

from collections.abc import Callable

from ..core import Request, SamplingParams
from ..core.grammar import Grammar

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
