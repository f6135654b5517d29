"""Guessing the next tokens, so that one step can verify several."""
