"""The reports of a run of upstream's tests."""

from __future__ import annotations

import html.parser
import io
import json
import re
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

import click
import pytest
from expecttest import assert_expected_inline
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml
from markdown_it import MarkdownIt
from rich.console import Console

import upstream_run
from overlay.bases import find_base
from overlay.cli import main
from overlay.upstream import events, report
from overlay.upstream.results import SOMETIMES, Outcome, Problem, Run, Side, Status
from upstream_run import outcome

WORKFLOW = Path(__file__).parents[1] / ".github" / "workflows" / "gpu.yml"


def as_text(run: Run, width: int = 100) -> str:
    stream = io.StringIO()
    report.terminal(run, Console(file=stream, width=width))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def test_terminal() -> None:
    assert_expected_inline(
        as_text(upstream_run.every_verdict()),
        """\
v1.13.1: torch 1.13.1+cu117, Python 3.11.2, Linux x86_64, on cpu, CUDA stand-in
before: import fix alone: 10 tests in 62 s
after: with the series: 11 tests in 64 s
test/distributed/fsdp/  tests
test_core.py                5  2 broken, 1 still fails, 1 known failure, 1 fixed
test_wrap.py                5  1 newly skipped, 1 newly run, 2 still skipped, 1 still passes
test_nested.py              2  1 newly failing, 1 newly run
all                        12  2 broken, 1 newly failing, 1 newly skipped, 1 still fails, 1 known
                               failure, 1 fixed, 2 newly run, 2 still skipped, 1 still passes
broken: test/distributed/fsdp/test_core.py::TestCore::test_step
  passed -> failed: AssertionError: float32 is not bfloat16
broken: test/distributed/fsdp/test_core.py::TestCore::test_gone
  passed -> not there
newly failing: test/distributed/fsdp/test_nested.py::TestNested::test_dies
  not there -> died: rank 0 died: SIGKILL
newly skipped: test/distributed/fsdp/test_wrap.py::TestWrap::test_a[torch.float16|<None>-`x*y`]
  passed -> skipped: not @here #1
still fails: test/distributed/fsdp/test_core.py::TestCore::test_hangs
  failed -> timed out: longer than 120 s
problem: test/distributed/fsdp/test_comm.py
  cannot be imported: ModuleNotFoundError: No module named 'x'
known failures: 1: memory figures: the CPU has none
still skipped: 1: CUDA <-> NCCL only
still skipped: 1: Need at least 4 CUDA devices
Not green on cpu, CUDA stand-in: 2 broken, 1 newly failing, 1 newly skipped, 1 still fails, 1 problem (exit status 1)""",
    )


def test_terminal_green() -> None:
    assert_expected_inline(
        as_text(upstream_run.green()),
        """\
v1.13.1: torch 1.13.1+cu117, Python 3.11.2, Linux x86_64, on cpu, CUDA stand-in
before: stock: 2 tests in 62 s
after: with the series: 2 tests in 64 s
test/distributed/fsdp/  tests
test_wrap.py                2  2 still pass
all                         2  2 still pass
Green on cpu, CUDA stand-in: nothing is broken, 2 still pass (exit status 0)""",
    )


def test_markdown() -> None:
    assert_expected_inline(
        report.markdown(upstream_run.every_verdict()),
        """\
## Not green on cpu, CUDA stand-in: 2 broken, 1 newly failing, 1 newly skipped, 1 still fails, 1 problem

Base `v1.13.1`: torch 1.13.1+cu117, Python 3.11.2, Linux x86_64, on **cpu, CUDA stand-in**. Tests: `test/distributed/fsdp`.

- Before: import fix alone: 10 tests in 62 s
- After: with the series: 11 tests in 64 s

| file | tests | broken | newly failing | newly skipped | still fails | known failure | fixed | newly run | still skipped | still passes |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| **all** | 12 | 2 | 1 | 1 | 1 | 1 | 1 | 2 | 2 | 1 |
| `test/distributed/fsdp/test_core.py` | 5 | 2 | 0 | 0 | 1 | 1 | 1 | 0 | 0 | 0 |
| `test/distributed/fsdp/test_wrap.py` | 5 | 0 | 0 | 1 | 0 | 0 | 0 | 1 | 2 | 1 |
| `test/distributed/fsdp/test_nested.py` | 2 | 0 | 1 | 0 | 0 | 0 | 0 | 1 | 0 | 0 |

### 1 problem

`test/distributed/fsdp/test_comm.py`<br>`cannot be imported: ModuleNotFoundError: No module named 'x'`

<details><summary>Last lines</summary>

```text
import x
ModuleNotFoundError: No module named 'x'
```

</details>

### 5 tests not green on cpu, CUDA stand-in

**broken** `test/distributed/fsdp/test_core.py::TestCore::test_step`<br>passed -> failed: `AssertionError: float32 is not bfloat16`

<details><summary>Last lines</summary>

```text
Traceback (most recent call last):
  File "test_core.py", line 7, in test_step
AssertionError: float32 is not bfloat16
```

</details>

**broken** `test/distributed/fsdp/test_core.py::TestCore::test_gone`<br>passed -> not there

**newly failing** `test/distributed/fsdp/test_nested.py::TestNested::test_dies`<br>not there -> died: `rank 0 died: SIGKILL`

**newly skipped** <code>test/distributed/fsdp/test&#95;wrap.py::TestWrap::test&#95;a&#91;torch.float16&#124;&#60;None&#62;-&#96;x&#42;y&#96;&#93;</code><br>passed -> skipped: `not @here #1`

**still fails** `test/distributed/fsdp/test_core.py::TestCore::test_hangs`<br>failed -> timed out: `longer than 120 s`

<details><summary>Last lines</summary>

```text
rank 1: ...
```

</details>

### 1 known failure

<details><summary>1: <code>memory figures: the CPU has none</code></summary>

- `test/distributed/fsdp/test_core.py::TestCore::test_memory`

</details>

### 2 tests still skipped

<details><summary>1: <code>CUDA &lt;-&gt; NCCL only</code></summary>

- `test/distributed/fsdp/test_wrap.py::TestWrap::test_e`

</details>

<details><summary>1: <code>Need at least 4 CUDA devices</code></summary>

- `test/distributed/fsdp/test_wrap.py::TestWrap::test_d`

</details>
""",
    )


def test_markdown_green() -> None:
    assert_expected_inline(
        report.markdown(upstream_run.green()),
        """\
## Green on cpu, CUDA stand-in: nothing is broken, 2 still pass

Base `v1.13.1`: torch 1.13.1+cu117, Python 3.11.2, Linux x86_64, on **cpu, CUDA stand-in**. Tests: `test/distributed/fsdp`.

- Before: stock: 2 tests in 62 s
- After: with the series: 2 tests in 64 s

| file | tests | broken | still passes |
| --- | ---: | ---: | ---: |
| **all** | 2 | 0 | 2 |
| `test/distributed/fsdp/test_wrap.py` | 2 | 0 | 2 |
""",
    )


def test_short() -> None:
    assert_expected_inline(
        report.short(upstream_run.every_verdict()),
        """\
Tests: torch 1.13.1+cu117, cpu, CUDA stand-in: not green, 2 broken, 1 newly failing, 1 newly skipped, 1 still fails, 1 known failure, 1 fixed, 2 newly run, 2 still skipped, 1 still passes, 1 problem
Before: import fix alone; after: with the series; test/distributed/fsdp
Not green: `test_core.py::TestCore::test_step`, `test_core.py::TestCore::test_gone`, `test_nested.py::TestNested::test_dies` and 3 more
""",
    )
    assert_expected_inline(
        report.short(upstream_run.green()),
        """\
Tests: torch 1.13.1+cu117, cpu, CUDA stand-in: green, 0 broken, 2 still pass
Before: stock; after: with the series; test/distributed/fsdp
""",
    )


def test_junit() -> None:
    tree = ElementTree.fromstring(report.junit(upstream_run.every_verdict()))
    suites = tree.findall("testsuite")
    assert len({ElementTree.tostring(suite.find("properties")) for suite in suites}) == 1  # type: ignore[arg-type]
    for suite in suites[1:]:
        suite.remove(suite.find("properties"))  # type: ignore[arg-type]
    ElementTree.indent(tree)
    assert_expected_inline(
        ElementTree.tostring(tree, encoding="unicode"),
        """\
<testsuites name="torch-overlay test v1.13.1" tests="13" failures="5" errors="1" skipped="3" time="133.25">
  <testsuite name="test/distributed/fsdp/test_core.py" timestamp="2024-01-02T03:04:05+00:00" tests="5" errors="0" failures="3" skipped="1" time="124.75">
    <properties>
      <property name="base" value="v1.13.1" />
      <property name="torch" value="1.13.1+cu117" />
      <property name="python" value="3.11.2" />
      <property name="platform" value="Linux x86_64" />
      <property name="device" value="cpu, CUDA stand-in" />
      <property name="selection" value="test/distributed/fsdp" />
      <property name="tree" value="0123456789abcdef" />
      <property name="before" value="import fix alone" />
      <property name="after" value="with the series" />
    </properties>
    <testcase name="test_step" classname="test.distributed.fsdp.test_core.TestCore" time="2.25">
      <failure message="broken, passed -&gt; failed: AssertionError: float32 is not bfloat16" type="broken">Traceback (most recent call last):
  File "test_core.py", line 7, in test_step
AssertionError: float32 is not bfloat16
</failure>
    </testcase>
    <testcase name="test_cast" classname="test.distributed.fsdp.test_core.TestCore" time="1.5" />
    <testcase name="test_hangs" classname="test.distributed.fsdp.test_core.TestCore" time="120.0">
      <failure message="still fails, failed -&gt; timed out: longer than 120 s" type="still fails">rank 1: ...
</failure>
    </testcase>
    <testcase name="test_memory" classname="test.distributed.fsdp.test_core.TestCore" time="1.0">
      <skipped message="memory figures: the CPU has none" type="known failure">0 != 4096
</skipped>
    </testcase>
    <testcase name="test_gone" classname="test.distributed.fsdp.test_core.TestCore" time="0.0">
      <failure message="broken, passed -&gt; not there" type="broken" />
    </testcase>
  </testsuite>
  <testsuite name="test/distributed/fsdp/test_wrap.py" timestamp="2024-01-02T03:04:05+00:00" tests="5" errors="0" failures="1" skipped="2" time="5.0">
    <testcase name="test_a[torch.float16|&lt;None&gt;-`x*y`]" classname="test.distributed.fsdp.test_wrap.TestWrap" time="1.0">
      <failure message="newly skipped, passed -&gt; skipped: not @here #1" type="newly skipped" />
    </testcase>
    <testcase name="test_b" classname="test.distributed.fsdp.test_wrap.TestWrap" time="1.0" />
    <testcase name="test_c" classname="test.distributed.fsdp.test_wrap.TestWrap" time="1.0" />
    <testcase name="test_d" classname="test.distributed.fsdp.test_wrap.TestWrap" time="1.0">
      <skipped message="Need at least 4 CUDA devices" type="still skipped" />
    </testcase>
    <testcase name="test_e" classname="test.distributed.fsdp.test_wrap.TestWrap" time="1.0">
      <skipped message="CUDA &lt;-&gt; NCCL only" type="still skipped" />
    </testcase>
  </testsuite>
  <testsuite name="test/distributed/fsdp/test_nested.py" timestamp="2024-01-02T03:04:05+00:00" tests="2" errors="0" failures="1" skipped="0" time="3.5">
    <testcase name="test_new" classname="test.distributed.fsdp.test_nested.TestNested" time="3.0" />
    <testcase name="test_dies" classname="test.distributed.fsdp.test_nested.TestNested" time="0.5">
      <failure message="newly failing, not there -&gt; died: rank 0 died: SIGKILL" type="newly failing" />
    </testcase>
  </testsuite>
  <testsuite name="test/distributed/fsdp/test_comm.py" timestamp="2024-01-02T03:04:05+00:00" tests="1" errors="1" failures="0" skipped="0" time="0.0">
    <testcase name="problem" classname="test/distributed/fsdp/test_comm.py" time="0.0">
      <error message="cannot be imported: ModuleNotFoundError: No module named 'x'" type="problem">import x
ModuleNotFoundError: No module named 'x'
</error>
    </testcase>
  </testsuite>
</testsuites>""",
    )


def test_table() -> None:
    kept = replace(
        upstream_run.green(),
        base="v2.6.0",
        before=replace(upstream_run.green().before, kept=("test_wrap.py",)),
    )
    assert_expected_inline(
        report.table([upstream_run.every_verdict(), kept]),
        """\
| base | torch | on | half | collected | passed | known | other failures | skipped | share passed | seconds |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| v1.13.1 | 1.13.1+cu117 | cpu, CUDA stand-in | import fix alone | 10 | 4 | 1 | 2 | 3 | 57.1% | 62 |
| v1.13.1 | 1.13.1+cu117 | cpu, CUDA stand-in | with the series | 11 | 4 | 1 | 3 | 3 | 50.0% | 64 |
| v2.6.0 | 1.13.1+cu117 | cpu, CUDA stand-in | stock | 2 | 2 | 0 | 0 | 0 | 100.0% | - |
| v2.6.0 | 1.13.1+cu117 | cpu, CUDA stand-in | with the series | 2 | 2 | 0 | 0 | 0 | 100.0% | 64 |

| known failures | v1.13.1, cpu, CUDA stand-in | v2.6.0, cpu, CUDA stand-in |
| --- | ---: | ---: |
| memory figures | 1 | 0 |
""",
    )


# What any test, reason or tail may be called; the names have what each form gives a meaning to.
texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["a|b", "`", "``x`", "<b>", "</script>", "*x*", "\x1b[1m", "]]>", "\\|", "&lt;"]
    ),
)
sides = st.lists(
    st.builds(
        Outcome,
        st.tuples(st.sampled_from(["a.py::T::x", "a.py::y", "b.py::z"]), texts).map(
            lambda parts: f"{parts[0]}[{parts[1]}]"
        ),
        st.sampled_from(Status),
        st.floats(0, 100),
        texts,
        texts,
    ),
    max_size=4,
    unique_by=lambda outcome: outcome.test,
)


@st.composite
def runs(draw: Callable[[Any], Any]) -> Run:
    before, after = draw(sides), draw(sides)
    if draw(st.booleans()):  # Else hardly a test would be on both sides.
        tests = [each.test for each in after]
        statuses = draw(st.lists(st.sampled_from(Status), min_size=4, max_size=4))
        before = [Outcome(test, status, 1.0) for test, status in zip(tests, statuses)]
    problems = draw(st.lists(st.builds(Problem, texts, texts, texts), max_size=1))
    tests = [each.test for each in before]
    reasons = st.one_of(texts, texts.map(SOMETIMES.__add__))
    known = draw(st.dictionaries(st.sampled_from(tests), reasons, max_size=4)) if tests else {}
    return upstream_run.a_run(before, after, problems, known)


@given(runs())
def test_all_reports_agree_on_green(run: Run) -> None:
    assert report.markdown(run).startswith("## Green" if run.is_green else "## Not green")
    assert (": green," in report.short(run)) is run.is_green
    xml = JUnitXml.fromstring(report.junit(run))
    assert (xml.failures + xml.errors == 0) is run.is_green
    assert as_text(run).endswith("(exit status 0)" if run.is_green else "(exit status 1)")
    assert f'<h1 class="{"green" if run.is_green else "red"}">' in report.html(run)
    for text in (report.markdown(run), report.short(run), as_text(run), report.html(run)):
        assert run.device in text


@given(runs())
def test_junit_has_every_test_and_no_green_one_that_did_not_pass(run: Run) -> None:
    passed = {each.test for each in run.after.outcomes if each.status is Status.PASSED}
    xml = JUnitXml.fromstring(report.junit(run))
    cases = [case for suite in xml for case in suite]
    assert len(cases) >= len(run.changes) + len(run.problems)
    assert sum(case.is_passed for case in cases) == len(passed)


def test_a_new_test_can_be_a_known_failure() -> None:
    test = "test_a.py::test_new"
    known = {f"{upstream_run.FSDP}/{test}": "needs a compiler"}
    for after in Status:
        (change,) = upstream_run.a_run([], [outcome(test, after)], known=known).changes
        assert change.is_known_failure is (after not in (Status.PASSED, Status.SKIPPED))
        assert not change.is_bad


@pytest.mark.parametrize("before", Status)
@pytest.mark.parametrize("after", Status)
def test_a_race_proves_nothing_and_hides_no_skip(before: Status, after: Status) -> None:
    test = "test_a.py::test_race"
    sides = [outcome(test, before)], [outcome(test, after)]
    known = {f"{upstream_run.FSDP}/{test}": SOMETIMES + "a race"}
    (change,) = upstream_run.a_run(*sides, known=known).changes
    if Status.SKIPPED in (before, after):
        assert not change.is_known_failure
        (plain,) = upstream_run.a_run(*sides).changes
        assert change.is_bad is plain.is_bad
    else:
        assert change.is_known_failure is (before is not Status.PASSED or after is not before)
        assert not change.is_bad


class Texts(html.parser.HTMLParser):
    """The text of each element with a tag."""

    def __init__(self, tag: str, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tag = tag
        self.found: list[str] = []
        self._inside = False
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        if tag == self.tag:
            self.found.append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != self.tag

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found[-1] += data


@given(texts)
def test_markdown_keeps_names(text: str) -> None:
    name = " ".join("".join(c for c in f"a[{text}]" if c.isprintable()).split())
    red = [outcome(f"test_a.py::{name}", Status.FAILED, reason=name)]
    run = upstream_run.a_run([], red, [Problem(name, name, name)])
    page = MarkdownIt("commonmark").enable("table").render(report.markdown(run))
    shown = Texts("code", page).found
    # The test, its reason, and both halves of the problem.
    assert shown.count(f"{upstream_run.FSDP}/test_a.py::{name}") == 1
    assert shown.count(name) == 3
    assert Texts("script", page).found == []


@pytest.mark.parametrize("kib", [512, 64, 4])
def test_markdown_says_what_it_leaves_out(kib: int) -> None:
    run = upstream_run.large()
    run = replace(
        run,
        after=replace(
            run.after,
            outcomes=tuple(
                replace(each, tail="\n".join(["a line"] * 500) if each.failed else "")
                for each in run.after.outcomes
            ),
        ),
    )
    whole = report.markdown(run, limit=10**9)
    assert len(whole) > 512 * 1024 and "left out" not in whole
    text = report.markdown(run, limit=kib * 1024)
    assert len(text.encode()) <= kib * 1024
    assert text.splitlines()[0] == whole.splitlines()[0]
    said = text.splitlines()[-1]
    assert f"left out: a summary may have no more than {kib} KiB" in said
    assert said.startswith("**The failures' last lines are" if kib == 512 else "**Some of these")


def test_page_holds_the_run_and_nothing_from_outside() -> None:
    run = upstream_run.large()
    page = report.html(run)
    data, code = Texts("script", page).found
    tests = json.loads(data)["tests"]
    assert [each["test"] for each in tests] == [change.test for change in run.changes]
    assert "</script>" in tests[1]["after"]["reason"] + tests[2]["after"]["reason"]
    assert "default-src 'none'" in page
    for outside in ("http:", "https:", "//cdn", "@import", "url("):
        assert outside not in code + Texts("style", page).found[0]


def shown_live(happened: Sequence[tuple[float, events.Event]], terminal: bool = False) -> str:
    """What stays on the screen after events, each at its second."""
    stream = io.StringIO()
    now = [0.0]
    console = Console(file=stream, width=120, force_terminal=terminal, color_system=None)
    with report.LiveView(console, clock=lambda: now[0]) as view:
        for now[0], event in happened:
            view.on_event(event)
    return stream.getvalue()


CORE = "test/distributed/fsdp/test_core.py"
TESTS = tuple(f"{CORE}::TestCore::test_{number}[x]" for number in range(4))
FAILED = Outcome(TESTS[1], Status.FAILED, 40.0, "AssertionError: 1 != 2")
HAPPENED: list[tuple[float, events.Event]] = [
    (0, events.Told("weaving the series")),
    (1, events.SideStarted("stock", (CORE, "test_b.py"), 100.0)),
    (2, events.FileStarted(CORE)),
    (3, events.Collected(CORE, TESTS)),
    (4, events.TestStarted(TESTS[0])),
    (10, events.TestFinished(Outcome(TESTS[0], Status.PASSED, 6.0))),
    (11, events.TestStarted(TESTS[1])),
    (50, events.TestFinished(FAILED)),
    (51, events.TestStarted(TESTS[2])),
    (52, events.TestStarted(TESTS[3])),
    (90, events.TestFinished(Outcome(TESTS[2], Status.SKIPPED, 39.0, "no GPU"))),
]
END: list[tuple[float, events.Event]] = [
    (95, events.ProblemFound(Problem("test_b.py", "cannot be imported: SyntaxError"))),
    (170, events.TestFinished(Outcome(TESTS[3], Status.PASSED, 118.0))),
    (171, events.FileFinished(CORE)),
    (172, events.SideFinished(Side("stock", (), (FAILED,), (), 171.0))),
]


def test_live_lines_of_a_log() -> None:
    assert_expected_inline(
        shown_live(HAPPENED + END),
        """\
weaving the series
stock: 2 files to run, takes about 1:40
stock: failed: test/distributed/fsdp/test_core.py::TestCore::test_1[x]: AssertionError: 1 != 2
stock: 0 of 2 files, 3 of 4 tests: 1 passed, 1 failed, 1 skipped; 1:29, about 0:11 left; runs test/distributed/fsdp/test_core.py::TestCore::test_3[x]
stock: problem: test_b.py: cannot be imported: SyntaxError
stock: 0 of 2 files, 4 of 4 tests: 2 passed, 1 failed, 1 skipped; 2:49, 1:09 longer than last time
stock: 1 test in 171 s: 1 failed
""",
    )


def test_live_view_of_a_terminal() -> None:
    stream = io.StringIO()
    now = [0.0]
    view = report.LiveView(Console(file=stream), clock=lambda: now[0])
    for now[0], event in HAPPENED:
        view.on_event(event)
    screen = io.StringIO()
    Console(file=screen, width=90).print(view)
    text = "\n".join(line.rstrip() for line in screen.getvalue().splitlines())
    text = text.replace("━", "=").replace("╸", "-")
    assert_expected_inline(
        text,
        """\
stock =========
0 of 2 files, 3 of 4 tests: 1 passed, 1 failed, 1 skipped; 1:29, about 0:11 left
  0:38  test/distributed/fsdp/test_core.py::TestCore::test_3[x]""",
    )


def test_live_view_keeps_failures_above_and_leaves_a_clean_terminal() -> None:
    text = shown_live(HAPPENED + END, terminal=True)
    assert text.count("stock: failed: " + TESTS[1]) == 1
    assert text.count("problem: test_b.py") == 1
    # The cursor is back, and what moved is erased.
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_live_view_takes_events_of_several_threads() -> None:
    view = report.LiveView(Console(file=io.StringIO()), clock=lambda: 0.0)
    view.on_event(events.SideStarted("stock", (CORE,), None))
    view.on_event(events.Collected(CORE, TESTS * 250))

    def finish() -> None:
        for test in TESTS * 50:
            view.on_event(events.TestStarted(test))
            view.on_event(events.TestFinished(Outcome(test, Status.PASSED, 0.0)))

    threads = [threading.Thread(target=finish) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    screen = io.StringIO()
    Console(file=screen, width=90).print(view)
    assert "1000 of 1000 tests: 1000 passed" in screen.getvalue()


def kept(folder: Path, run: Run, name: str = "run.json") -> str:
    file = folder / name
    file.write_text(json.dumps(run.as_json()), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("form", ["markdown", "short", "junit", "html"])
def test_report_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], form: str) -> None:
    run = upstream_run.every_verdict()
    with pytest.raises(SystemExit, match="0"):
        main(["report", kept(tmp_path, run), "--as", form])
    assert capfd.readouterr().out.strip() == getattr(report, form)(run).strip()


def test_report_command_on_several_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    both = [upstream_run.every_verdict(), upstream_run.green()]
    files = [kept(tmp_path, run, f"{number}.json") for number, run in enumerate(both)]
    with pytest.raises(SystemExit, match="0"):
        main(["report", *files, "--as", "table"])
    assert capfd.readouterr().out == report.table(both)
    with pytest.raises(SystemExit, match="0"):
        main(["report", *files])
    assert capfd.readouterr().out.count("exit status") == 2


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"before": 1, "after": 2}'])
def test_report_command_on_something_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str
) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(file)])
    assert capfd.readouterr().err == (
        f"torch-overlay: {file} is not a run of upstream's tests; "
        "'torch-overlay test --json' writes one\n"
    )


def test_report_command_refuses_two_pages(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = kept(tmp_path, upstream_run.green())
    with pytest.raises(SystemExit, match="2"):
        main(["report", file, file, "--as", "html"])
    assert capfd.readouterr().err == (
        "torch-overlay: --as html is of one run: name one file, not 2\n"
    )


def test_the_workflow_runs_commands_that_a_person_can_type() -> None:
    text = re.sub(r"\$\{\{ matrix\.(\w+) \}\}", r"\1", WORKFLOW.read_text(encoding="utf-8"))
    text = text.replace("base fetch base", "base fetch v2.6.0").replace("test base", "test v2.6.0")
    commands = re.findall(r"- run: \.venv/bin/torch-overlay (.+)", text.replace("shard/4", "1/4"))
    assert [command.split()[0] for command in commands] == ["base", "test"]
    for command in commands:
        words = command.split()
        found: click.Command = main
        while isinstance(found, click.Group):
            found = found.commands[words.pop(0)]
        # Raises on an option or a value that the command does not know.
        found.make_context(found.name, words)
    for base in re.search(r"base: \[(.+)\]", text)[1].split(", "):  # type: ignore[index]
        assert find_base(base).runtime is not None
