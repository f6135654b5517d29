"""Does it overlap? Begin with ``report.py``: the verdict, the bubbles, the bound and the remedy."""
