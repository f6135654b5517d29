"""Who may run runs, and nobody goes before their turn. Begin with ``progress.py``."""
