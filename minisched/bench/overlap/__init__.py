"""How much of the host's work is hidden: begin at ``in_turn``, then ``hidden``, ``shares``."""
