"""One function for many items: every result once, whoever dies, on processes and on Dask."""

from __future__ import annotations

import signal
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from minisched.checking import try_workloads
from minisched.checks.many import try_seed
from minisched.devices.registry import MissingExtra
from minisched.sweep.workers import HERE, ItemLost, Workers, in_order, spread

from .chores import KILLER, dead_once, ignores_interrupt, refusing, squared, squared_or_dead

ITEMS = range(100)
CLUSTER = pytest.param(Workers(2, "dask"), id="dask", marks=pytest.mark.thorough)
EVERYWHERE = [pytest.param(Workers(2), id="processes"), CLUSTER]


@pytest.mark.parametrize("workers", [pytest.param(HERE, id="here"), *EVERYWHERE])
def test_each_result_comes_once(workers: Workers) -> None:
    assert sorted(spread(squared, ITEMS, workers)) == [(at, at * at) for at in ITEMS]


@pytest.mark.parametrize("workers", EVERYWHERE)
def test_an_item_that_kills_its_process_is_lost_alone(workers: Workers) -> None:
    found = dict(spread(squared_or_dead, ITEMS, workers, lost=lambda item, why: -item))
    assert found == {at: at * at if at != KILLER else -KILLER for at in ITEMS}


@pytest.mark.parametrize("workers", EVERYWHERE)
def test_a_worker_that_dies_once_loses_nothing(workers: Workers, tmp_path: Path) -> None:
    one = partial(dead_once, tmp_path)
    assert list(in_order(spread(one, ITEMS, workers))) == [at * at for at in ITEMS]
    assert (tmp_path / "dead").exists()  # else nobody died


@pytest.mark.parametrize("workers", EVERYWHERE)
def test_what_a_function_raises_comes_here(workers: Workers) -> None:
    with pytest.raises(ZeroDivisionError, match="item 37"):
        list(spread(refusing, ITEMS, workers))


def test_it_works_where_a_process_inherits_no_mask_of_signals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on Windows, where Python has neither ``pthread_sigmask`` nor a resource tracker."""
    monkeypatch.delattr(signal, "pthread_sigmask")
    monkeypatch.setattr(resource_tracker, "ensure_running", None)
    found = dict(spread(ignores_interrupt, range(3), Workers(2)))
    assert found == {0: True, 1: True, 2: True}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_lost_item_is_an_error_where_nothing_stands_for_it() -> None:
    with pytest.raises(ItemLost, match="37: the process that ran it died, twice"):
        list(spread(squared_or_dead, ITEMS, Workers(2)))


@pytest.mark.parametrize("workers", [CLUSTER])
def test_a_cluster_judges_workloads_as_this_process_does(workers: Workers) -> None:
    here = [try_seed(seed, ("overlap",)) for seed in range(9)]
    assert list(try_workloads(range(9), ("overlap",), workers=workers)) == here


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"jobs": 0}, "jobs is 0, but it must be at least 1."),
        ({"backend": "slurm"}, "backend is 'slurm', but it must be one of processes, dask."),
        ({"address": "tcp://a:1"}, "address is 'tcp://a:1', but the backend processes runs on"),
    ],
)
def test_bad_workers_are_refused_in_a_sentence(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as error:
        Workers(**given)  # type: ignore[arg-type]
    assert str(error.value).startswith(said)


def test_a_backend_that_is_not_installed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dask.distributed", None)
    with pytest.raises(MissingExtra, match=r"pip install 'minisched\[sweep\]'"):
        list(spread(squared, ITEMS, Workers(2, "dask")))
