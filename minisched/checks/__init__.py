"""Verdicts on runs: are the tokens right, does it leak, does it race, does it really overlap?

Begin with ``judge.py``: one case (``case.py``) through one loop, and which of ``laws.py`` it broke.
Each question has a file: ``identity`` and ``why``, ``leaks``, ``races``, ``overlap``. ``draw``
makes random cases, ``many`` runs and counts them, and ``case`` says one in words and makes it
small. ``answers`` puts the questions to recorded runs. ``faults`` breaks something on purpose, and
``foreign`` reads the traces of other engines.
"""
