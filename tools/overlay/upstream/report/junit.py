"""A run as JUnit's XML, for the tools that read it."""

from __future__ import annotations

from typing import Optional, Union

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from overlay.upstream.report import words
from overlay.upstream.results import Change, Problem, Run, Status


def junit(run: Run) -> str:
    """The tests as they are after the series, a suite for each file.

    Without failures and errors it is exactly a green run. A test that got worse, that fails and is
    not known to, or that is not there any more is a failure, also where it is now skipped. A known
    failure is skipped, with its reason, as pytest writes expected failures: it is neither green nor
    red. Problems are errors. The time is that of the run after the series.
    """
    suites: dict[str, TestSuite] = {}

    def suite(name: str) -> TestSuite:
        if name not in suites:
            suites[name] = _suite(run, name)
        return suites[name]

    for change in run.changes:
        suite(change.file).add_testcase(_case(change))
    for problem in run.problems:
        suite(problem.where).add_testcase(_problem_case(problem))
    if not run.after.outcomes and not run.problems:
        suite(run.selection).add_testcase(_problem_case(Problem(run.selection, "no test ran")))

    xml = JUnitXml(f"torch-overlay test {run.base}")
    for each in suites.values():
        xml.add_testsuite(each)
    xml.update_statistics()
    written: str = xml.tostring().decode()
    return written


def _suite(run: Run, name: str) -> TestSuite:
    suite = TestSuite(words.one_line(name))
    suite.timestamp = run.started
    for key, value in (
        ("base", run.base),
        ("torch", run.torch),
        ("python", run.python),
        ("platform", run.platform),
        ("device", run.device),
        ("selection", run.selection),
        ("tree", run.tree),
        ("before", run.before.name),
        ("after", run.after.name),
    ):
        suite.add_property(key, words.one_line(value))
    return suite


def _case(change: Change) -> TestCase:
    file, _, rest = change.test.partition("::")
    # What stands in a parametrized test's brackets can have any separator in it.
    path, bracket, parameters = rest.partition("[")
    *classes, name = path.split("::")
    case = TestCase(
        words.one_line(name + bracket + parameters),
        classname=".".join([file.removesuffix(".py").replace("/", "."), *classes]),
        time=change.after.seconds if change.after else 0.0,
    )
    result = _result(change)
    if result is not None:
        result.text = words.tail_of(change)
        case.result = [result]
    return case


def _result(change: Change) -> Optional[Union[Failure, Skipped]]:
    label = words.label(change)
    reason = words.one_line(words.reason_of(change))
    if change.is_bad:
        message = f"{label}, {words.before_and_after(change)}"
        return Failure(f"{message}: {reason}" if reason else message, label)
    if change.after and change.after.status is not Status.PASSED:
        return Skipped(reason or label, label)
    return None


def _problem_case(problem: Problem) -> TestCase:
    case = TestCase("problem", classname=words.one_line(problem.where), time=0.0)
    error = Error(words.one_line(problem.what), "problem")
    error.text = words.plain(problem.tail)
    case.result = [error]
    return case
