"""MindIE's two layers and the pipeline in their place: a table with every figure read off a run."""

from __future__ import annotations

from ..checks.overlap import ComparedRow, compare_pipelines
from .recipes.recipe import a_bit_of_everything, run_of
from .tables import table

TEXT = """\
# MindIE: two layers, or one pipeline

The five requests behind `traces/mindie_dual.json` and `traces/mindie_single.json`, on the simulated
device; the picture is `mindie_pipeline_refactor_compare.svg`. The tokens are the same. What a phase
of the host costs is assumed (`minisched/devices/cost.py`); how often it comes, what waits for it
and what is wasted follow from the loops.

{table}

- **Fill.** By default the host writes the tokens of N-1 into the inputs of N, so nothing can be
  queued behind N-1: the device idles while the tokens are copied, filled in and launched. On the
  device the tokens never leave, and N is queued before N-1 has ended. The middle column is the two
  layers with the experimental path, which fills on the device too.
- **Wasted rows.** Only the Python layer counts tokens, one call late; so every end costs a row, a
  length stop too. The one ledger knows how many tokens are on their way, and foresees a length.
- **Books.** Two layers keep each request twice, and post-process each token twice.
"""


def pipelines_table() -> str:
    """The comparison as a markdown page, the same every time."""
    columns = {
        "two layers": run_of("mindie_dual"),
        "two layers, filled on the device": a_bit_of_everything("mindie_dual", "fill_device").run(),
        "one pipeline": run_of("mindie_single"),
    }
    rows = compare_pipelines(list(columns.values()))
    return TEXT.format(table=table(["", *columns], map(cells, rows)))


def cells(row: ComparedRow) -> list[str]:
    """A line of the table."""
    name = f"{row.name} ({row.unit})" if row.unit else row.name
    return [name, *(f"{value:g}" for value in row.values)]
