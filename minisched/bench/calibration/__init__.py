"""What steps cost here, and how well ``sim`` predicts with it: begin at ``calibrate``."""
