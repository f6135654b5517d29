"""The run of multi-step scheduling."""

from __future__ import annotations

from .recipe import a_bit_of_everything

RECIPES = {"multi_step": a_bit_of_everything("multi_step")}
