"""How much memory a run gets, where no option says so."""

from __future__ import annotations

from ..core import Request
from ..defaults import check_room, with_room
from ..models.base import Model
from ..scheduler import SchedulerConfig
from .scheduler_options import SchedulerOptions, in_words_of_options


def make_config(
    scheduler: SchedulerOptions, model: Model, requests: list[Request]
) -> SchedulerConfig:
    """Room for every request that may run at once, unless options say otherwise.

    Raises:
        ValueError: the options ask for more memory than a run here should take.
    """
    config = with_room(scheduler.make_config, requests, model.context_len)
    try:
        check_room(config)
    except ValueError as error:
        raise ValueError(in_words_of_options(str(error))) from error
    return config
