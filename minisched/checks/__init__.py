"""Verdicts on runs: are the tokens right, does it leak, does it race, does it really overlap?

Begin with ``judge.py``: one case through one loop, and which of ``laws.py`` it broke. Each question
has a folder (``tokens``, ``leaks``, ``races``, ``overlap``); ``draw`` makes cases, ``many.py`` runs
them, ``shrink.py`` makes one small, ``faults`` breaks something on purpose, and ``foreign`` reads
the traces of other engines.
"""
