"""The hash model's integer hash, exact everywhere: 31-bit values, products that fit 64 bits.

It is no random number: over one argument it is a parabola (mod P), so that of neighbouring values
only two are free. What has to be independent is drawn by ``sampling.threefry``.
"""

from __future__ import annotations

P = 2**31 - 1  # a prime; every value is below it, so that no product overflows a signed 64-bit word
A, B, C = 1_103_515_245, 1_013_904_223, 12_345


def mix(a: int, b: int) -> int:
    """A number in [0, P) that depends on both arguments, each in [0, P)."""
    z = (a * A + b * B + C) % P
    return z * z % P
