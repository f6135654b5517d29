"""Verdicts on runs: are the tokens right, does it leak, does it race, does it really overlap?

Begin with ``judge.py``: one case (``case.py``) through one loop, and which of ``laws.py`` it broke.
Each question has a folder: ``tokens``, ``leaks``, ``races``, ``overlap``. ``draw`` makes random
cases, ``many.py`` runs them, ``tally.py`` sums up, ``shrink.py`` makes a case that fails small, and
``case_text.py`` says it in words. ``answers.py`` and ``identical.py`` put the questions to
recorded runs. ``faults`` breaks something on purpose; ``foreign`` reads the traces of other
engines.
"""
