"""One published bug a file, each as ``EXHIBIT``; suspicions that do not hold as ``REFUTED``."""
