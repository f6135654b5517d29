"""What an output may be: a regex or a JSON schema, as a mask over the tokens that may come next.

``compile`` chooses who follows it. A regex always goes from text to tree (``regex``,
``regex_chars``), so that it means one thing. Where tokens are bytes, the tree goes on to positions
(``positions``) and to a table of states (``build``, ``automaton``, ``show``), in which a request
has its place (``token_grammar``). Else it is written out for a library, which has JSON schemas as
well (``llguidance_grammar``, ``llguidance_source``).
"""

from .build import compile_grammar

__all__ = ["compile_grammar"]
