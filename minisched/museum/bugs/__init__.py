"""Published bugs, a chapter a file; and the suspicions that do not hold."""
