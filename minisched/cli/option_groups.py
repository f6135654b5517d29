"""Writes options once: a dataclass is a group of options that any command can take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter whose type is a dataclass into one option for each of its fields.

    typer asks a command for its signature; this one answers with the fields in the place of the
    parameter, and builds the dataclass when it is called.

        @app.command()
        @with_option_groups
        def replay(file: Path, scheduler: SchedulerOptions) -> None: ...
    """
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: item.annotation for name, item in own.items() if is_dataclass(item.annotation)
    }

    @wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{item.name: values.pop(item.name) for item in fields(group)})
        command(**values)

    merged = [
        parameter
        for name, item in own.items()
        for parameter in (options_of(groups[name]) if name in groups else [item])
    ]
    keyword_only = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in merged]
    call.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    call.__annotations__ = {item.name: item.annotation for item in merged}
    return call


def options_of(group: type[Any]) -> Iterator[inspect.Parameter]:
    """The fields of a dataclass as parameters of a command."""
    types = get_type_hints(group, include_extras=True)
    for item in fields(group):
        yield inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default_of(item),
            annotation=types[item.name],
        )


def default_of(item: Field[Any]) -> Any:
    """A field's default; a command's parameter without one is required."""
    if item.default_factory is not MISSING:
        return item.default_factory()
    return inspect.Parameter.empty if item.default is MISSING else item.default
