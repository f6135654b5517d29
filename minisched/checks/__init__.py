"""Verdicts on runs: are the tokens right, does it leak, does it race, does it really overlap?

Begin with ``judge.py``: one case (``case.py``) on one loop, and the laws that it broke. The laws
are in ``laws`` and ``progress``; ``oracle`` computes the right tokens. ``draw`` makes random cases,
and ``many`` runs and counts them.

Each check of recorded runs has a file, and ``answers`` calls them: ``identity``, ``leaks``,
``races``, and for overlap ``overlap`` (the time), ``course`` (what each op waited for), ``causes``
(of idle time) and ``findings``. All take the order of events from ``history``. ``foreign`` and
``profiled`` make traces from the files of other engines' profilers.
"""
