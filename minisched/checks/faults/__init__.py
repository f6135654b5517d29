"""Faults put into a healthy run, and what must hold all the same. Begin with ``trial.py``."""
