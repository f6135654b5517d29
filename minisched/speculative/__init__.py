"""Drafts of the next tokens, so that one step can verify several.

``lookup.py`` finds drafts in the text so far, and ``draft_model.py`` runs a smaller model. A
drafter on the device receives a step's batch by ``bind``, and runs after its sampling (``draft``).
"""
