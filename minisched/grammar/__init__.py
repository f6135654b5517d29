"""What an output may be: a regex or a JSON schema, as a mask over the tokens that may come next.

A regex always goes from text to a tree (``regex.py``), so that it means one thing. Where tokens are
bytes, the tree becomes a table of states, in which a request has its place (``build.py``, which
also chooses). Else it is written out for a library, which has JSON schemas as well
(``llguidance_grammar.py``).
"""

from .build import compile_grammar

__all__ = ["compile_grammar"]
