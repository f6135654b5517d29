"""``minisched check FILE``, as a user types it: real profiles, and files in our own format."""

from dataclasses import MISSING, Field
from inspect import signature, unwrap
from pathlib import Path
from typing import Any

import pytest
import typer

from minisched.cli.app import app
from tests.conftest import ROOT

GROUP: Any = typer.main.get_command(app)
REAL = sorted((ROOT / "minisched" / "learn" / "traces").glob("*.gz"))


# -- Options ---------------------------------------------------------------------------------------


def plain_settings() -> list[tuple[Any, str, Any]]:
    """Return (command, option, declared default) of each setting outside a group."""
    found = []
    for name in GROUP.list_commands(None):
        command = GROUP.get_command(None, name)
        for one in (command, *getattr(command, "commands", {}).values()):
            declared = signature(unwrap(one.callback)).parameters if one.callback else {}
            found += [
                (one, key, item.default) for key, item in declared.items()
                if isinstance(item.default, Field)
            ]  # fmt: skip
    return found


def test_a_setting_that_is_not_given_has_the_value_that_its_function_declares() -> None:
    """``step: str = setting("", ...)`` arrives as ``""``, never as None.

    So ``--step ''`` and no ``--step`` are the same: both name no range, and the engines' own names
    count. A code path that splits the text would end in a traceback on None.
    """
    settings = plain_settings()
    assert len(settings) > 30
    for command, name, declared in settings:
        (option,) = (item for item in command.params if item.name == name)
        is_made = declared.default is MISSING
        wanted = declared.default_factory() if is_made else declared.default
        assert option.default == wanted, f"{command.name} --{name}"


@pytest.mark.parametrize("file", REAL, ids=lambda path: path.name.partition(".")[0])
def test_a_profile_of_a_real_engine_is_judged(cli: Any, file: Path) -> None:
    code, out, err = cli(f"check {file}")
    assert (code, err) == (0, "") and "overlaps?" in out
    assert cli(f"check --step '' {file}") == (code, out, err)
