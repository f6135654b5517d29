"""Devices (sim, thread, cuda, mlx): how each launches ops, and its clock."""
