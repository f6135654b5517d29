"""What launching means, and whose clock it is: sim, thread, cuda, mlx."""
