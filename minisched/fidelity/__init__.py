"""In lockstep with the originals: the same cases, step by step, beside their own schedulers.

A ``FidelityCase`` is played by a design of ours (``lockstep.py``) and, in a process of its own, by
the system that its rules are named after (``sglang.py``, ``vllm.py``, ``mini_sglang.py``,
``nano_vllm.py``: how each is imported without a GPU, made, and driven a step). Both give a
``Schedule``, and the two have to be equal. Where they are not, ``lockstep.py`` says by which rule,
looks for the smallest case, and tells it in words.
"""
