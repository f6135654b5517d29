"""The table of tried architectures is what is measured now."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisched.cli.models import LIBRARIES, read_tried
from tests.models.zoo import ARCHITECTURES, DEVICES, measured, save

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_the_table_has_every_architecture_with_both_libraries() -> None:
    found, measured_on = read_tried()
    assert [(each.library, each.architecture) for each in found] == [
        (library, kind) for library in LIBRARIES for kind in ARCHITECTURES
    ]
    for each in found:
        assert each.kind in ("exact", "margin", "refused")
        assert (each.kind == "refused") == bool(each.reason)
    for library in LIBRARIES:
        assert sum(each.library == library and each.kind != "refused" for each in found) >= 40
        assert measured_on[library]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_an_architecture_has_the_class_of_the_table(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path))
    known = {each.library: each for each in read_tried()[0] if each.architecture == kind}
    directory = save(kind, tmp_path)
    for library in DEVICES:
        expected = ": ".join(filter(None, known[library][2:]))
        assert measured(library, directory) == expected
