"""A submit that is cut short, and what the next one makes of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Optional

import pytest
from expecttest import assert_expected_inline

from checkouts import real_git
from fake_github import Answer
from stacks import KILLER, Stacked, github, stacked, user

__all__ = ["github", "stacked", "user"]

GHSTACK = "kill -9 $PPID"
BOTH = "kill -9 $(ps -o ppid= -p $PPID) $PPID"


def kill_at(stacked: Stacked, monkeypatch: pytest.MonkeyPatch, push: int, kill: str) -> None:
    folder = stacked.folder / "bin"
    folder.mkdir(exist_ok=True)
    script = folder / "git"
    (folder / "count").unlink(missing_ok=True)
    script.write_text(KILLER.format(count=folder / "count", number=push, kill=kill, git=real_git()))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def refuse(pattern: str, count: int, answer: Answer) -> Callable[[str, str], Optional[Answer]]:
    """An answer to the requests from one on that are like this."""
    seen = 0

    def before(method: str, path: str) -> Optional[Answer]:
        nonlocal seen
        seen += bool(re.fullmatch(pattern, f"{method} {path}"))
        return answer if seen >= count and re.fullmatch(pattern, f"{method} {path}") else None

    return before


def test_killed_between_two_pushes(stacked: Stacked, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked.overlay("apply", str(stacked.tree))
    with monkeypatch.context() as patch:
        kill_at(stacked, patch, 2, GHSTACK)
        assert_expected_inline(stacked.submit(code=2), """\
patch         title         pull request                                      on           changed              labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  submitted by halves
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   submitted by halves
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   submitted by halves
ok       series: FOLDER/series takes the names of the pull requests
ok       patches: 3 applied as the series has them, on ID
ok       work tree: clean
ok       ghstack: 0.18.0
ok       configuration: ada on github.example, in FOLDER/.ghstackrc
ok       remote: origin is pytorch/pytorch
ok       repository: pytorch/pytorch, main is its default branch
ok       write access: ada may push
ok       base: ID is on origin/main, 0 commits below its tip
ok       landed: none
ok       pull requests: 0 to update, 3 to open
ok       verify: 0 calls and 0 names hold, 0 unresolved
note     lint: not run: FOLDER/pytorch has no .lintrunner.toml, so there is nothing to run
ok       lint of the series: nothing
note     tests: none on this tree: 'torch-overlay test' makes them
torch-overlay: ghstack ended with exit code -9: 0 of 3 are submitted, not one.apatch (#500), two.apatch (#501), three.apatch (#502); what there is of pull requests is noted in the patches: run it again, and it goes on from there
""")
    assert_expected_inline(stacked.identities(), """\
one.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/500
two.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/501
three.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/502
""")
    assert_expected_inline(stacked.plan(), """\
patch         title         pull request                                      on           changed              labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  submitted by halves
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   submitted by halves
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   submitted by halves
""")
    stacked.submit()
    assert_expected_inline(stacked.github.shown(bodies=True), """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
  | Stack from [ghstack](https://github.com/ezyang/ghstack/tree/VERSION) (oldest at bottom):
  | * #502
  | * #501
  | * __->__ #500
  |
  | Why, with a mention of @grace.
  |
  | Origin: https://github.com/pytorch/pytorch/pull/90523
  | Torch-Version: >=2.1
#501 open [FSDP] Two (gh/ada/2/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
  | Stack from [ghstack](https://github.com/ezyang/ghstack/tree/VERSION) (oldest at bottom):
  | * #502
  | * __->__ #501
  | * #500
  |
  | Why, with a mention of @grace.
  |
  | Origin: https://github.com/pytorch/pytorch/pull/90523
  | Torch-Version: >=2.1
#502 open [FSDP] Three (gh/ada/3/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
  | Stack from [ghstack](https://github.com/ezyang/ghstack/tree/VERSION) (oldest at bottom):
  | * __->__ #502
  | * #501
  | * #500
  |
  | Why, with a mention of @grace.
  |
  | Origin: https://github.com/pytorch/pytorch/pull/90523
  | Torch-Version: >=2.1
""")


def test_killed_with_the_tool(stacked: Stacked, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked.overlay("apply", str(stacked.tree))
    with monkeypatch.context() as patch:
        kill_at(stacked, patch, 2, BOTH)
        stacked.overlay("submit", str(stacked.tree), code=-9)
    assert "none" in stacked.identities()
    # Edited since, it is still known by its title.
    stacked.edit("two.apatch", "+ 'two'", "+ 'TWO'")
    assert_expected_inline(stacked.plan(), """\
patch         title         pull request                                      on           changed              labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  submitted by halves
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   submitted by halves
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   submitted by halves
note     pull requests: one.apatch is #500, found there
note     pull requests: two.apatch is #501, found there
note     pull requests: three.apatch is #502, found there
""")
    stacked.submit()
    assert_expected_inline(stacked.github.shown(), """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/2/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
""")
    assert_expected_inline(stacked.identities(), """\
one.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/500
two.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/501
three.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/502
""")


def test_killed_before_the_first_pull_request(
    stacked: Stacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacked.overlay("apply", str(stacked.tree))
    with monkeypatch.context() as patch:
        kill_at(stacked, patch, 1, GHSTACK)
        stacked.submit(code=2)
    assert stacked.github.shown() == "\n"
    stacked.submit()
    assert_expected_inline(stacked.github.shown(), """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/2/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
""")


def test_an_update_that_fails(stacked: Stacked) -> None:
    stacked.start()
    stacked.edit("two.apatch", "+ 'two'", "+ 'TWO'")
    stacked.github.before = refuse("PATCH .*/pulls/501", 1, (502, {"message": "Bad gateway"}))
    assert_expected_inline(stacked.submit(code=2), """\
patch         title         pull request                                      on           changed  labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  nothing
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   nothing
ok       series: FOLDER/series takes the names of the pull requests
ok       patches: 3 applied as the series has them, on ID
ok       work tree: clean
ok       ghstack: 0.18.0
ok       configuration: ada on github.example, in FOLDER/.ghstackrc
ok       remote: origin is pytorch/pytorch
ok       repository: pytorch/pytorch, main is its default branch
ok       write access: ada may push
ok       base: ID is on origin/main, 0 commits below its tip
ok       landed: none
ok       pull requests: 3 to update, 0 to open
ok       verify: 0 calls and 0 names hold, 0 unresolved
note     lint: not run: FOLDER/pytorch has no .lintrunner.toml, so there is nothing to run
ok       lint of the series: nothing
note     tests: none on this tree: 'torch-overlay test' makes them
torch-overlay: ghstack ended with exit code 1: 3 of 3 are submitted, not ; what there is of pull requests is noted in the patches: run it again, and it goes on from there
""")
    stacked.github.before = lambda method, path: None
    assert_expected_inline(stacked.plan(), """\
patch         title         pull request                                      on           changed  labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  nothing
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   nothing
""")
    stacked.submit()
    assert_expected_inline(stacked.github.shown(), """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/2/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
""")


def test_github_gone_for_good(stacked: Stacked) -> None:
    stacked.overlay("apply", str(stacked.tree))
    before = stacked.identities()
    opens = refuse("POST .*/pulls", 2, (500, {}))
    gone: list[str] = []

    def before_each(method: str, path: str) -> Optional[Answer]:
        found = (0, None) if gone else opens(method, path)
        if found:
            gone.append(path)
        return found

    stacked.github.before = before_each
    assert_expected_inline(stacked.submit(code=2), """\
ok       series: FOLDER/series takes the names of the pull requests
ok       patches: 3 applied as the series has them, on ID
ok       work tree: clean
ok       ghstack: 0.18.0
ok       configuration: ada on github.example, in FOLDER/.ghstackrc
ok       remote: origin is pytorch/pytorch
ok       repository: pytorch/pytorch, main is its default branch
ok       write access: ada may push
ok       base: ID is on origin/main, 0 commits below its tip
ok       landed: none
ok       pull requests: 0 to update, 3 to open
ok       verify: 0 calls and 0 names hold, 0 unresolved
note     lint: not run: FOLDER/pytorch has no .lintrunner.toml, so there is nothing to run
ok       lint of the series: nothing
note     tests: none on this tree: 'torch-overlay test' makes them
torch-overlay: ghstack ended with exit code 1, and what it had submitted by then cannot be looked up (github.example does not answer (Remote end closed connection without response): try again later): run it again, and it goes on from there
""")
    assert stacked.identities() == before
    stacked.github.before = lambda method, path: None
    stacked.submit()
    assert_expected_inline(stacked.github.shown(), """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/4/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/5/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
""")
