"""How near a step comes to what the machine allows: begin at ``limit``."""
