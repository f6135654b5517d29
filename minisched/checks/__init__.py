"""Verdicts on runs: are the tokens right, does it leak, does it race, does it really overlap?

Begin with ``judge.py``: one case (``case.py``) through one loop, and which of the laws it broke
(``laws``, ``progress``; ``oracle`` knows the truth). ``draw`` makes random cases, ``many`` runs and
counts them.

The questions to recorded runs have a file each, and ``answers`` puts them: ``identity``,
``leaks``, ``races``, and for overlap ``overlap`` (the time), ``causes`` (of idling),
``what_if`` (a change, replayed) and ``findings``. All ask ``history`` what came before what.
``foreign`` and ``profiled`` make traces of what other engines' profilers saw.
"""
