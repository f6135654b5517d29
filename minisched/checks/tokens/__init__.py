"""Are the tokens right? Begin with ``identity.py``; ``wrong_token.py`` tells why not."""
