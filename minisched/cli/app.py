"""The commands; each is a function in a module of its name, loaded on demand."""

from __future__ import annotations

import re
import sys
from importlib import import_module, metadata
from shutil import get_terminal_size
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .exit import BAD_INPUT, INTERRUPTED, complain, guarded_output

COMMANDS = {  # with the example below each command's help; museum has commands of its own
    "compare": "--loops overlap,vllm_async --requests 4",
    "run": "--loop overlap --prompt 'Hello there' --max-new-tokens 8",
    "diagrams": "--check overlap",
    "bench": "overlap --device thread --model small --requests 8 --repeat 1",
    "calibrate": "--device thread --model hash",
    "check": "out/serial.json out/overlap.json",
    "fidelity": "sglang --cases 20",
    "view": "decode out/overlap.json --form text",
    "stepper": "out/serial.json out/overlap.json",
    "replay": "requests.csv --requests 1000",
    "sweep": "grid.toml --jobs 2",
    "map": "--host-ms 3 --device-ms 12 --loops overlap,vllm_async",
    "presets": "",
    "fetch": "smollm2",
    "models": "",
    "learn": "--no-open",
    "doctor": "",
    "museum": "",
}
FROM_COMPARE = "compare writes the files."
FIRST = {  # the command that makes the file of an example
    "check": FROM_COMPARE,
    "view": FROM_COMPARE,
    "stepper": FROM_COMPARE,
    "replay": "requests.csv is yours: a line arrived_at,num_prefill_tokens,num_decode_tokens, "
    "then numbers, a line a request.",
    "sweep": "grid.toml is yours, such as one line: grid = {loop = ['serial', 'overlap']}",
}
LEAST_PANELS = 80  # columns; panels of --help in narrower ones cut the names of options
USAGE_ERROR: Any = typer.BadParameter.__base__  # click's class, from typer's own copy of click


class Commands(TyperGroup):
    """All commands; after Ctrl-C a command exits with 130, after its run has ended cleanly.

    click would turn Ctrl-C into a silent exit, and a broken pipe of our own into exit code 1.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(COMMANDS)  # each is loaded on demand

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, if there is one."""
        if cmd_name not in COMMANDS:
            return None
        from .options import with_options

        found = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        alone = typer.Typer(rich_markup_mode=self.rich_markup_mode)
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=cmd_name)
        else:
            example = f"Example: minisched {cmd_name} {COMMANDS[cmd_name]}".rstrip()
            epilog = "\n\n".join(filter(None, [example, FIRST.get(cmd_name, "")]))
            alone.command(cmd_name, epilog=epilog)(with_options(found))
        return typer.main.get_group(alone).commands[cmd_name]

    def invoke(self, ctx: Any) -> Any:
        """Run the requested command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            return complain("interrupted.", INTERRUPTED)
        except OSError as error:
            what = f"{error.filename}: " if error.filename else ""
            return complain(f"{what}{error.strerror or error}.", BAD_INPUT)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(is_asked: bool) -> None:
    """Print the version, and nothing else."""
    if is_asked:
        print(f"minisched {metadata.version('minisched')}")
        raise typer.Exit


@app.callback()
def of_every_command(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """Overlap scheduling for LLM inference, small enough to read, with pictures."""


def main() -> None:
    """Run the console script: a bad option is one sentence and exit code 2, never a traceback."""
    with guarded_output():
        code = run_command()
    sys.exit(code)


def run_command() -> int:
    """Run the command line."""
    columns = get_terminal_size().columns
    app.rich_markup_mode = None if columns < LEAST_PANELS else "rich"
    command = typer.main.get_command(app)
    try:
        said = command.main(None, "minisched", standalone_mode=False, terminal_width=columns)
        return said or 0
    except USAGE_ERROR as error:
        said = in_one_sentence(error)
        # Without a command, the help was printed.
        return complain(said, BAD_INPUT) if said else BAD_INPUT
    except ValueError as error:
        return complain(str(error), BAD_INPUT)


NO_NUMBER = re.compile(r"valid (integer|number|float)")  # the words of pydantic and click
NUMBERS = {"integer": "a whole number", "number": "a number", "float": "a number"}


def in_one_sentence(error: Any) -> str:
    """Return the error of a command line; for a missing argument also its choices."""
    said = str(error.format_message())
    spelled = next(iter(getattr(error.param, "opts", ())), "") if hasattr(error, "param") else ""
    if spelled and (found := NO_NUMBER.search(said)):
        after = [text for at, text in zip(sys.argv, sys.argv[1:], strict=False) if at == spelled]
        after += [text.partition("=")[2] for text in sys.argv if text.startswith(f"{spelled}=")]
        given = f"is {after[-1]!r}, but it " if after else ""
        return f"{spelled} {given}must be {NUMBERS[found[1]]}."
    if said.startswith("Missing argument") and (help := getattr(error.param, "help", "")):
        return f"{said.rstrip('.')}: {help}"
    return said
