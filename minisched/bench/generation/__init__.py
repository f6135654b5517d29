"""Tokens a second beside the libraries' own generation: begin at ``generation``."""
