"""Many runs: grids of settings (``minisched sweep GRID.toml``), and the processes for them."""
