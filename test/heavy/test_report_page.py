"""The page of a run in the Chromium that PyQt6-WebEngine brings, which needs no screen."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import axe_core_python
import pytest
from PyQt6 import sip
from PyQt6.QtCore import QEventLoop, QPoint, QPointF, Qt, QTimer, QUrl
from PyQt6.QtTest import QTest
from PyQt6.QtWebEngineCore import (
    QWebEnginePage,
    QWebEngineProfile,
    QWebEngineUrlRequestInfo,
    QWebEngineUrlRequestInterceptor,
)
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

import upstream_run
from overlay.upstream.report import html
from overlay.upstream.results import Run

WIDTHS = [1280, 390]
HEIGHT = 900
SECONDS = 30


class Requests(QWebEngineUrlRequestInterceptor):
    """Every address that anything in the browser asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def interceptRequest(self, info: QWebEngineUrlRequestInfo) -> None:
        self.seen.append(info.requestUrl().toString())


class Page(QWebEnginePage):
    def __init__(self, profile: QWebEngineProfile) -> None:
        super().__init__(profile)
        self.messages: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: Any, line: Any, source: Any) -> None:
        self.messages.append(f"{source}:{line}: {message}")


class Browser:
    """One page, used by mouse and keyboard."""

    def __init__(self, file: Path, width: int) -> None:
        self.requests = Requests()
        self.profile = QWebEngineProfile()
        self.profile.setUrlRequestInterceptor(self.requests)
        self.page = Page(self.profile)
        self.view = QWebEngineView()
        self.view.setPage(self.page)
        self.view.resize(width, HEIGHT)
        self.view.show()
        self.address = QUrl.fromLocalFile(str(file))
        assert self._wait(self.page.loadFinished.connect, lambda: self.page.load(self.address))

    def close(self) -> None:
        # Chromium wants them to go in this order.
        for each in (self.view, self.page, self.profile):
            sip.delete(each)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, which must be able to go through JSON."""
        script = f"JSON.stringify({expression})"
        answer = self._wait(lambda done: self.page.runJavaScript(script, done), lambda: None)
        return json.loads(answer) if answer else None

    def _wait(self, listen: Callable[[Any], Any], start: Callable[[], None]) -> Any:
        loop, answers = QEventLoop(), []

        def done(answer: Any) -> None:
            answers.append(answer)
            loop.quit()

        listen(done)
        start()
        if not answers:
            QTimer.singleShot(SECONDS * 1000, loop.quit)
            loop.exec()
        assert answers, f"Chromium did not answer for {SECONDS} s"
        return answers[0]

    def wait_for(self, expression: str) -> None:
        """Until a JavaScript expression is true."""
        end = time.monotonic() + SECONDS
        while not self.evaluate(f"!!({expression})"):
            assert time.monotonic() < end, f"never became true: {expression}"
            QTest.qWait(20)

    def click(self, selector: str) -> None:
        place = self.evaluate(
            "(function () {"
            f"  const element = document.querySelector({json.dumps(selector)});"
            "  element.scrollIntoView({block: 'center'});"
            "  const box = element.getBoundingClientRect();"
            "  return [box.left + Math.min(box.width / 2, 30), box.top + box.height / 2];"
            "}())"
        )
        QTest.qWait(50)  # Until what was scrolled is drawn; Chromium drops clicks before that.
        point = QPointF(*place).toPoint()
        QTest.mouseClick(self._input(), Qt.MouseButton.LeftButton, pos=QPoint(point))

    def type(self, text: str) -> None:
        QTest.keyClicks(self._input(), text)

    def press(self, key: Qt.Key) -> None:
        QTest.keyClick(self._input(), key)

    def _input(self) -> Any:
        return self.view.focusProxy()

    def shown(self) -> list[str]:
        """The labels of the tests that are shown."""
        return list(
            self.evaluate(
                "Array.from(document.querySelectorAll('#tests > li'))"
                ".filter((row) => row.offsetParent).map((row) => row.querySelector('.badge').textContent)"
            )
        )

    def count(self) -> str:
        return str(self.evaluate("document.getElementById('count').textContent"))


@pytest.fixture(scope="module")
def application() -> Iterator[QApplication]:
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    # As root, Chromium starts only without its sandbox.
    os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = "--no-sandbox --disable-gpu"
    yield QApplication(["test"])


@pytest.fixture
def open_page(application: QApplication, tmp_path: Path) -> Iterator[Callable[[Run, int], Browser]]:
    opened: list[Browser] = []

    def open_it(run: Run, width: int = WIDTHS[0], dark: bool = False) -> Browser:
        text = html(run)
        if dark:  # Without a desktop nobody tells Chromium to prefer it.
            assert "(prefers-color-scheme: dark)" in text
            text = text.replace("(prefers-color-scheme: dark)", "all")
        file = tmp_path / "run.html"
        file.write_text(text, encoding="utf-8")
        opened.append(Browser(file, width))
        return opened[-1]

    yield open_it
    for browser in opened:
        messages = list(browser.page.messages)
        browser.close()
        assert messages == []
        assert set(browser.requests.seen) == {browser.address.toString()}


Open = Callable[..., Browser]


def test_the_verdict_and_every_test_are_there(open_page: Open) -> None:
    run = upstream_run.every_verdict()
    browser = open_page(run)
    assert browser.evaluate("document.querySelector('h1').textContent").startswith("Not green on")
    assert "cpu, CUDA stand-in" in browser.evaluate("document.querySelector('h1').textContent")
    assert browser.count() == "12 of 12 tests shown"
    names = browser.evaluate(
        "Array.from(document.querySelectorAll('#tests .name')).map((each) => each.textContent)"
    )
    assert sorted(names) == sorted(change.test.split("::", 1)[1] for change in run.changes)
    # The worst comes first.
    assert browser.shown()[:3] == ["broken", "broken", "newly failing"]


def test_verdicts_filter(open_page: Open) -> None:
    browser = open_page(upstream_run.every_verdict())
    browser.click("#verdicts button:nth-child(1)")
    browser.wait_for("document.getElementById('count').textContent.startsWith('2 of')")
    assert browser.shown() == ["broken", "broken"]
    browser.click("#verdicts button:nth-child(6)")
    browser.wait_for("document.getElementById('count').textContent.startsWith('3 of')")
    assert browser.shown() == ["broken", "broken", "fixed"]
    pressed = (
        "Array.from(document.querySelectorAll('[aria-pressed=true]')).map((b) => b.textContent)"
    )
    assert browser.evaluate(pressed) == ["broken 2", "fixed 1"]
    browser.click("#clear")
    browser.wait_for("document.getElementById('count').textContent.startsWith('12 of')")
    assert browser.evaluate(pressed) == []


@pytest.mark.parametrize(
    ("typed", "labels"),
    [
        ("TEST_STEP", ["broken"]),
        ("test_wrap.py", ["newly skipped", "newly run", *["still skipped"] * 2, "still passes"]),
        ("sigkill", ["newly failing"]),  # a reason
        ("memory figures", ["known failure"]),
        ("line 7, in test_step", ["broken"]),  # last lines
        ("[torch.float16|<None>", ["newly skipped"]),
        ("no such test", []),
    ],
)
def test_text_filters(open_page: Open, typed: str, labels: list[str]) -> None:
    browser = open_page(upstream_run.every_verdict())
    browser.click("#text")
    browser.type(typed)
    browser.wait_for(f"document.getElementById('text').value === {json.dumps(typed)}")
    assert browser.shown() == labels
    assert browser.count() == f"{len(labels)} of 12 tests shown"


def test_a_file_filters_by_keyboard(open_page: Open) -> None:
    browser = open_page(upstream_run.every_verdict())
    browser.click("#text")
    browser.press(Qt.Key.Key_Tab)
    browser.type("test_w")
    browser.wait_for("document.getElementById('file').value.endsWith('/test_wrap.py')")
    browser.wait_for("document.getElementById('count').textContent.startsWith('5 of')")


def test_a_count_of_the_matrix_shows_its_tests(open_page: Open) -> None:
    browser = open_page(upstream_run.every_verdict())
    browser.click("#matrix button[aria-label='2 broken in test_core.py']")
    browser.wait_for("document.getElementById('count').textContent.startsWith('2 of')")
    assert browser.shown() == ["broken", "broken"]
    browser.wait_for("document.activeElement.id === 'tests-head'")


@pytest.mark.parametrize("width", WIDTHS)
def test_last_lines_unfold(open_page: Open, width: int) -> None:
    browser = open_page(upstream_run.every_verdict(), width)
    lines = "document.querySelector('#tests pre')"
    assert browser.evaluate(f"{lines}.checkVisibility()") is False
    browser.click("#tests summary")
    browser.wait_for(f"{lines}.checkVisibility()")
    assert browser.evaluate(f"{lines}.textContent").endswith("float32 is not bfloat16\n")
    browser.press(Qt.Key.Key_Space)  # It has the focus.
    browser.wait_for(f"!{lines}.checkVisibility()")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows(open_page: Open, width: int) -> None:
    browser = open_page(upstream_run.large(), width)
    assert browser.count() == "1500 of 1500 tests shown"
    browser.evaluate(
        "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
    )
    # Rows that are out of sight are laid out too, so that none can hide what it needs.
    browser.evaluate(
        "document.head.insertAdjacentHTML('beforeend',"
        " '<style>li { content-visibility: visible !important; }</style>')"
    )
    assert browser.evaluate("document.documentElement.clientWidth") > width - 20
    root = "document.documentElement"
    assert browser.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    beyond = browser.evaluate(
        "Array.from(document.querySelectorAll('main *'))"
        ".filter((each) => !each.closest('thead') && each.getBoundingClientRect().right >"
        f" {root}.clientWidth + 0.5).map((each) => each.outerHTML.slice(0, 80))"
    )
    assert beyond == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_accessible(open_page: Open, width: int, dark: bool) -> None:
    browser = open_page(upstream_run.every_verdict(), width, dark)
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background != "rgb(255, 255, 255)") is dark
    browser.evaluate(
        "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
    )
    axe = Path(axe_core_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    browser.evaluate(f"(function () {{ {axe}; window.axe = axe; return 1; }}())")
    browser.evaluate("axe.run().then((found) => { window.found = found; })")
    browser.wait_for("window.found")
    assert browser.evaluate("found.passes.length") > 10
    assert browser.evaluate("found.violations.map((each) => [each.id, each.nodes[0].html])") == []
