"""What an output may be: a regex or a JSON schema, as a mask over the tokens that may come next.

``compile`` chooses who reads it. Where tokens are bytes, a regex goes from text to tree (``regex``,
``regex_chars``), to positions (``positions``), to a table of states (``build``, ``automaton``,
``show``), in which a request has its place (``token_grammar``). All else is the library's
(``llguidance_grammar``, ``llguidance_source``).
"""

from .compile import compile_grammar

__all__ = ["compile_grammar"]
