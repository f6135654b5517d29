"""Traces of other programs (``torch.profiler``, Nsight Systems). Begin with ``foreign.py``."""
