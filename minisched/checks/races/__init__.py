"""Does it race? Begin with ``races.py``: what every lane did, and what no edge orders."""
