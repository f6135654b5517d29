"""How many changes of the code the tests see: begin at ``mutants``."""
