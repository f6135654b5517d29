"""Capabilities that most requests do without, one file each; the core imports none of them.

``core/feature.py`` has the hooks. ``features_of`` makes the list that an engine has by default.
"""

from __future__ import annotations

from functools import partial

from ..core.feature import Feature
from ..grammar import compile_grammar
from ..models.base import Model
from ..models.tokenizer import text_codec_of
from ..scheduler import SchedulerConfig
from ..trace import Recorder
from .beam_search import BeamSearch
from .history import History
from .logprobs import LogProbabilities
from .stale import StaleOutputs
from .stop_strings import StopStringFeature


def features_of(config: SchedulerConfig, model: Model, recorder: Recorder) -> list[Feature]:
    """Return the features of an engine with this model.

    Where two of them end a request with the same token, the later one in the list gives the reason.
    """
    features = list[Feature]()
    codec = text_codec_of(model.name, model.tokenizer)
    if codec is not None:
        features.append(StopStringFeature(codec, config.late_stop_strings))
    compiler = partial(
        compile_grammar, vocab_size=model.vocab_size, eos_ids=model.eos_ids,
        tokenizer=model.tokenizer,
    )  # fmt: skip
    features.append(History(recorder, compiler, config.late_penalties))
    if config.has_logits:
        features.append(LogProbabilities())
    if config.keep_stale_outputs:
        features.append(StaleOutputs())
    if config.beam_width > 1:
        features.append(BeamSearch())
    return features
