"""The runs of the three loops that the others are measured against."""

from __future__ import annotations

from .recipe import a_bit_of_everything

TITLES = {
    "serial": "serial: host and device take turns",
    "overlap": "overlap: the host works on the steps before and after",
    "mlx_async": "mlx_async: the next step is built on tokens nobody has computed yet",
}
RECIPES = {loop: a_bit_of_everything(loop) for loop in TITLES}
