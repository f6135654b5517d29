"""Our schedulers in lockstep with the originals': the same cases, compared step by step.

A ``FidelityCase`` is drawn (``parts.py``) and played by a design of ours (``lockstep.py``). In a
process of its own it is played by the system that gave its rules their name (``sglang.py``,
``vllm.py``, ``mini_sglang.py``, ``nano_vllm.py``: how each is imported without a GPU, made, and
driven a step). Both return a ``Schedule``, and the two have to be equal. If they are not,
``lockstep.py`` finds the rule and the smallest case, and describes it in words.
"""
