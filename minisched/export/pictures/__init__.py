"""Diagrams and drawings other than the topics' views; ``golden.py`` lists them."""
