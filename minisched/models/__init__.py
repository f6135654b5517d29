"""What a token costs and which one comes next."""
