"""How much of the host's work is hidden: begin at ``hidden``, then ``shares``."""
