"""Models: the KV and the logits of a step's tokens, and the choice of the next ones."""
