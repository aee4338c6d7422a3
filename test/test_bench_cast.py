"""``bench cast``: what it finds about containers on the real torch, and how it tells what it found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from click.testing import CliRunner
from expecttest import TestCase

from overlay import cast_report as report
from overlay import operations, runtime
from overlay.bench_cast import COUNTS, GOALS, CastBench, Row, Share, Spread, _worker
from overlay.cli import main
from overlay.series import load_series, own_series
from overlay.targets import find_target


def found(contract: dict[str, dict[str, dict[str, str]]]) -> CastBench:
    """Made-up numbers: what is measured differs from run to run."""
    rows = [
        Row(goal, Spread(20 + n, 19, 22), Spread(1, 0.9, 1.1), Spread(0.5, 0.4, 0.6) if n < 3 else None,
            Spread(20 + n, 19, 22))
        for n, goal in enumerate(GOALS)
    ]  # fmt: skip
    share = Share(Spread(120, 110, 130), Spread(100, 90, 110), Spread(25, 20, 30), Spread(3, 2, 4))
    many = {"each": Spread(150, 140, 160), "foreach": Spread(120, 110, 130)}
    counts = {count: {"FSDP1": 4.0 * count, "ours": 0.3 * count, "bare": 0.1} for count in COUNTS}
    return CastBench("2.13.0", "cpu", rows, share, "", [], many, counts, contract)


class TestReport(TestCase):
    def test_contract(self) -> None:
        """On the stock torch 2.13, and with the series' own module."""
        venv = runtime.torch_venv(packages=runtime.TEST_PACKAGES)
        with _worker(venv, load_series(own_series()), "cpu") as worker:
            contract = worker.ask("contract")
            events = worker.ask("events", "right 4", "ours")
        assert events == []
        lines = list(report.markdown_lines([found(contract)]))
        table = "\n".join(lines[: lines.index("", 2)])
        self.assertExpectedInline(
            table,
            """\
## What becomes of an input

| input | 2.13.0 FSDP1 | 2.13.0 FSDP2 | the series |
| --- | --- | --- | --- |
| list | cast; a copy | cast; a copy | cast |
| namedtuple | cast; a copy | cast; a copy | cast |
| frozen dataclass | cast; a copy | cast; a copy | cast |
| dataclass with an init=False field | ValueError | ValueError | cast |
| OrderedDict | cast; a copy | cast; a copy | cast |
| defaultdict | becomes a dict | becomes a dict | cast |
| list subclass with an attribute | a copy that lost attributes | a copy that lost attributes | cast |
| UserDict | the same object | the same object | cast |
| mappingproxy | the same object | the same object | cast |
| PackedSequence | the same object | the same object | cast |
| registered with pytree | the same object | the same object | cast |
| one tensor twice | two tensors; a copy | two tensors; a copy | cast |
| 5000 lists deep | RecursionError | RecursionError | cast |
| a list in itself | RecursionError | RecursionError | ValueError |
| any other object | the same object | the same object | the same object |
| tensor | cast | cast | cast |
| complex tensor | the same object | the same object | the same object |
| sparse tensor | cast | cast | cast |
| nested tensor | cast | cast | cast |
| quantized tensor | the same object | the same object | the same object |
| meta tensor | cast | cast | cast |
| tensor subclass | cast | cast | cast |
| float8 tensor | cast | cast | cast |
| DTensor | cast | cast | cast |""",
        )

    def test_text(self) -> None:
        self.assertExpectedInline(
            "\n".join(report.text_lines(found({}))),
            """\
torch 2.13.0, cpu, one thread; us: median (quartiles)
inputs                              stock  ours  bare loop  times faster         goal
1 tensor, right dtype               20.00  1.00  0.50       20.0 (19.0 to 22.0)  10
4 tensors, right dtype              21.00  1.00  0.50       21.0 (19.0 to 22.0)  10
a list of 100 tensors, right dtype  22.00  1.00  0.50       22.0 (19.0 to 22.0)  10
a dict of 10 with 2 to cast         23.00  1.00             23.0 (19.0 to 22.0)  2.5
1 tensor to cast                    24.00  1.00             24.0 (19.0 to 22.0)  1.2
32 FSDP2 layers, 3 arguments each, nothing to cast: 120 us a layer, of which casting takes 25.0 (20.0 to 30.0); with the series 100, of which 3.0 (2.0 to 4.0) (goal: 5)
100 tensors to cast: 150 us one by one, as it is done; 120 with _foreach_copy_, without autograd
the profiler sees no operator, launch or wait where nothing is cast""",
        )

    def test_goals(self) -> None:
        good = found({})
        assert good.met
        slow = replace(good.rows[0], ratio=Spread(9.9, 9, 11))
        assert not replace(good, rows=[slow, *good.rows[1:]]).met
        assert good.share is not None
        heavy = replace(good, share=replace(good.share, ours_share=Spread(5.1, 4, 6)))
        assert not heavy.met
        busy = replace(good, device_work=["cudaLaunchKernel"])
        assert not busy.met
        text = "\n".join(report.text_lines(replace(busy, rows=[slow], share=heavy.share)))
        assert text.count("MISSED") == 2 and "sees cudaLaunchKernel where nothing is cast" in text
        unmeasured = replace(
            good, share=None, no_share="in this release it does not run on the CPU"
        )
        assert unmeasured.met
        assert "FSDP2: not measured, in this release" in "\n".join(report.text_lines(unmeasured))

    def test_json(self) -> None:
        value = json.loads(json.dumps(report.to_json(found({"list": {}}))))
        assert value["met"] and value["rows"][0]["met"]
        assert value["rows"][0]["ratio"]["median"] == 20
        assert value["share"]["ours_share"]["median"] == 3

    def test_plot(self) -> None:
        picture = ElementTree.fromstring(report.plot(found({})))
        texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
        assert {"stock", "the series", "the bare loop over dtypes", "128"} <= set(texts)
        lines = [
            path.get("d", "")
            for path in picture.iter("{http://www.w3.org/2000/svg}path")
            if path.get("stroke-width")
        ]
        assert [line.count("L") + 1 for line in lines] == [len(COUNTS)] * 3


def run(*arguments: object, code: int) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_wrong_use(tmp_path: Path, torch_copy: Callable[[], Path]) -> None:
    text = run("bench", "cast", "--json", "--markdown", code=2)
    assert "--json and --markdown are two ways" in text
    text = run("bench", "cast", "--plot", tmp_path / "none" / "plot.svg", code=2)
    assert "there is no folder" in text
    venv = torch_copy()
    text = run("bench", "cast", "--torch", venv, "--device", "cuda", code=2)
    assert "finds no CUDA device; use --device cpu" in text
    operations.apply(find_target(str(venv)), load_series(own_series()))
    text = run("bench", "cast", "--torch", venv, code=2)
    assert "has the series already" in text
