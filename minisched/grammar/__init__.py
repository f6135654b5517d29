"""What an output may be: a regex or a JSON schema, as a mask over the tokens that may come next."""

from .compile import compile_grammar

__all__ = ["compile_grammar"]
