"""The engine that a model object computes for: the model has one KV, so one engine at a time."""

from __future__ import annotations

import gc
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref


class Owner(Protocol):
    """The part of an engine that ownership needs."""

    worker: Any  # has ``model``

    @property
    def device(self) -> object:
        """Return the device that it launches on."""
        ...

    @property
    def is_done(self) -> bool:
        """Return whether all requests have ended and no step is in flight."""
        ...


_owners: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()  # by model


def owner_of(model: object) -> Owner | None:
    """Return the engine that allocated the model's KV last; None if there is none any more."""
    found = _owners.get(model)
    return found() if found is not None else None


def refuse_if_owned(model: object) -> None:
    """Refuse a model that an engine computes with.

    Raises:
        ValueError: its engine has requests that have not ended.
    """
    if is_busy(owner_of(model)):
        gc.collect()  # an engine that was dropped may still be part of a cycle
    if is_busy(owner_of(model)):
        name = getattr(model, "name", type(model).__name__)
        raise ValueError(
            f"model {name!r} is in use by another engine with requests that have not ended; wait "
            "for them, or give each engine a copy.copy of the model, which shares the weights."
        )


def is_busy(owner: Owner | None) -> bool:
    """Return whether there is an engine with requests that have not ended."""
    return owner is not None and not owner.is_done


class TakenModel:
    """A placeholder for the model in an idle engine that lost it to another; any use is refused."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        raise RuntimeError(
            f"model {self.name!r} belongs to another engine now, which was made while this one had "
            "no request; give each engine a copy.copy of the model."
        )


def give(model: object, owner: Owner) -> None:
    """Make an engine the model's owner; the owner before it can no longer use the model."""
    before = owner_of(model)
    if before is not None and before is not owner:
        before.worker.model = TakenModel(getattr(model, "name", type(model).__name__))
    _owners[model] = ref(owner)


def release(model: object, device: object) -> None:
    """Free a model when its engine on this device has stopped, also with an error."""
    owner = owner_of(model)
    if owner is not None and owner.device is device:
        del _owners[model]
