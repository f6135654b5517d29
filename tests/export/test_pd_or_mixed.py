"""``compare --loops pd,mixed``: a table next to the picture."""

from __future__ import annotations

import json
from typing import Any


def test_separation_shortens_pauses_and_takes_a_device_more(cli: Any) -> None:
    code, out, _ = cli("compare --loops pd,mixed --json")
    assert code == 0
    cells = {name: (pd, mixed) for name, pd, mixed in json.loads(out)["pd_or_mixed"]}
    apart, together = cells["latency: longest pause while a prompt is computed"]
    assert float(apart.split()[0]) < float(together.split()[0])
    assert cells["devices"] == ("2", "1")


def test_requests_of_ones_own_are_kept(cli: Any) -> None:
    code, out, _ = cli("compare --loops pd,mixed --requests 2 --max-new-tokens 3 --json")
    assert code == 0 and json.loads(out)["runs"][0]["tokens"] == 6
