"""Random workloads. Begin with ``draw.py``: one case for a seed, over the product of all axes."""
