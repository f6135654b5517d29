"""What diagrams and drawings show that are no topic's view; ``golden.py`` says which they are."""
