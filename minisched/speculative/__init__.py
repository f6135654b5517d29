"""Guessing the next tokens, so that one step can verify several.

``lookup.py`` finds drafts in the text so far, ``draft_model.py`` asks a smaller model. What drafts
on the device is told of a step by ``bind``, and runs behind its sampling (``draft``).
"""
