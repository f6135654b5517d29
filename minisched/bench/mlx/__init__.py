"""Questions of the discussion of SGLang #22416, answered by measurement on MLX."""
