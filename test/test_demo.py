"""What the demo makes of its ranks' reports; test_series runs it whole."""

from __future__ import annotations

from multiprocessing import Pipe
from typing import Any, Optional

import pytest

from overlay import demo_model

ROW = {"module": "c2", "parameters": "bfloat16", "received": "bfloat16", "gradient": "float32"}


def report(error: Optional[str] = None, **row: Any) -> dict[str, Any]:
    return {"torch": "2.13.0", "ok": not error, "error": error, "rows": [{**ROW, **row}]}


def outcome(*reports: Optional[dict[str, Any]], silent: int = -1) -> tuple[bool, Optional[str]]:
    """Whether it worked and what was wrong, where None stands for a rank that dies."""
    pipes = [Pipe(duplex=False) for _ in reports]
    for rank, (sent, (_, sender)) in enumerate(zip(reports, pipes)):
        if sent is not None and rank != silent:
            sender.send(sent)
        if rank != silent:
            sender.close()
    merged = demo_model._merged(demo_model._collect([receiver for receiver, _ in pipes]))
    return merged["ok"], merged["error"]


def test_it_works_where_every_rank_does() -> None:
    assert outcome(report(), report(gradient=None)) == (True, None)


@pytest.mark.parametrize(
    "ranks, error",
    [
        ((report("wrong dtype"), report("wrong dtype")), "wrong dtype"),
        ((report(), report("no gradient")), "rank 1: no gradient"),
        ((report(), report(received="float32")), "rank 1: other dtypes than on rank 0"),
        ((report(), None), "rank 1: the process ended early"),
        ((None, report()), "the process ended early"),
    ],
)
def test_it_fails_where_one_rank_does(ranks: tuple[Any, ...], error: str) -> None:
    ok, said = outcome(*ranks)
    assert not ok
    assert said and said.startswith(error)


def test_a_rank_that_waits_for_a_failed_one_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo_model, "FAILURE_TIMEOUT_SECONDS", 0.1)
    assert outcome(report(), report("no gradient"), silent=0) == (False, "rank 1: no gradient")
    monkeypatch.setattr(demo_model, "RUN_TIMEOUT_SECONDS", 0.1)
    assert outcome(report(), report(), silent=1) == (
        False,
        "rank 1: the ranks did not finish in 0.1 s",
    )
