"""The error that all renderers share."""

from __future__ import annotations


class RenderError(RuntimeError):
    """A diagram could not be rendered; the message is one sentence."""
