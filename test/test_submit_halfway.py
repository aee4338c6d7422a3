"""A submit that is cut short, and what the next one makes of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from threading import Event
from typing import Optional

import pytest
from expecttest import assert_expected_inline

from checkouts import real_git
from fake_github import TOKEN, Answer
from overlay.stack.config import read_config
from overlay.stack.github import GitHub, GitHubError
from stacks import KILLER, Stacked, github, hunk, stacked, user

__all__ = ["github", "stacked", "user"]

GHSTACK = "kill -9 $PPID"
BOTH = "kill -9 $(ps -o ppid= -p $PPID) $PPID"


def kill_at(
    stacked: Stacked,
    monkeypatch: pytest.MonkeyPatch,
    branch: str,
    kill: str,
    killer: str = KILLER,
) -> None:
    folder = stacked.folder / "bin"
    folder.mkdir(exist_ok=True)
    script = folder / "git"
    script.write_text(killer.format(branch=branch, kill=kill, git=real_git()))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def opened(stacked: Stacked) -> list[tuple[int, str]]:
    return [(pull.number, pull.title) for pull in stacked.github.pulls if not pull.closed]


ALL = [(500, "[FSDP] One"), (501, "[FSDP] Two"), (502, "[FSDP] Three")]


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
        kill_at(stacked, patch, "orig", GHSTACK)
        assert_expected_inline(
            stacked.submit(code=2),
            """\
patch         title         pull request                                      on           changed              labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  submitted by halves
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   submitted by halves
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   submitted by halves
ok       series: FOLDER/series takes the names of the pull requests
ok       patches: 3 applied as the series has them, on ID
ok       work tree: clean
ok       ghstack: VERSION
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
""",
        )
    assert_expected_inline(
        stacked.identities(),
        """\
one.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/500
two.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/501
three.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/502
""",
    )
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on           changed              labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  submitted by halves
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   submitted by halves
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   submitted by halves
""",
    )
    stacked.submit()
    assert_expected_inline(
        stacked.github.shown(bodies=True),
        """\
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
""",
    )


def test_killed_with_the_tool(stacked: Stacked, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked.overlay("apply", str(stacked.tree))
    with monkeypatch.context() as patch:
        kill_at(stacked, patch, "orig", BOTH)
        stacked.overlay("submit", str(stacked.tree), code=-9)
    assert "none" in stacked.identities()
    # Edited since, it is still known by its title.
    stacked.edit("two.apatch", "+ 'two'", "+ 'TWO'")
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on           changed              labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  submitted by halves
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   submitted by halves
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   submitted by halves
note     pull requests: one.apatch is #500, found there
note     pull requests: two.apatch is #501, found there
note     pull requests: three.apatch is #502, found there
""",
    )
    stacked.submit()
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/2/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
""",
    )
    assert_expected_inline(
        stacked.identities(),
        """\
one.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/500
two.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/501
three.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/502
""",
    )


# Lets ghstack do all that it does, and ends it and the tool before the patches are written.
AFTER_ALL = """\
#!/bin/sh
{git} "$@" || exit
case "$*" in
    reset*) {kill} ;;
esac
"""


def test_killed_before_it_is_noted(stacked: Stacked, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked.start()
    stacked.edit("two.apatch", "+ 'two'", "+ 'TWO'")
    stacked.add("four", hunk("four", "x + 'four'"))
    stacked.order("one", "two", "three", "four")
    stacked.overlay("apply", str(stacked.tree))
    before = stacked.identities()
    with monkeypatch.context() as patch:
        kill_at(stacked, patch, "", BOTH, AFTER_ALL)
        stacked.overlay("submit", str(stacked.tree), code=-9)
    assert stacked.identities() == before
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on            changed  labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main   nothing
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch    nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch    nothing
four.apatch   [FSDP] Four   https://github.example/pytorch/pytorch/pull/503  three.apatch  nothing
note     pull requests: two.apatch is #501, found there
note     pull requests: three.apatch is #502, found there
note     pull requests: four.apatch is #503, found there
""",
    )
    stacked.submit()
    assert [number for number, _ in opened(stacked)] == [500, 501, 502, 503]
    assert "none" not in stacked.identities()
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on            changed  labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main   nothing
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch    nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch    nothing
four.apatch   [FSDP] Four   https://github.example/pytorch/pytorch/pull/503  three.apatch  nothing
""",
    )


def test_edited_while_ghstack_runs(stacked: Stacked) -> None:
    stacked.overlay("apply", str(stacked.tree))

    def before(method: str, path: str) -> None:
        if method == "PATCH":
            place = stacked.folder / "series" / "patches" / "one.apatch"
            place.write_text(place.read_text().replace("Why,", "Because,"))

    stacked.github.before = before
    assert_expected_inline(
        stacked.submit(code=2).split("torch-overlay: ")[1],
        """\
all is submitted, but cannot be noted in the patches (FOLDER/series/patches/one.apatch was edited meanwhile: run it again): put that right and run it again, which finds the pull requests by their branches
""",
    )
    stacked.overlay("revert", str(stacked.tree))
    stacked.overlay("apply", str(stacked.tree))
    stacked.submit()
    assert opened(stacked) == ALL


def test_killed_before_the_first_pull_request(
    stacked: Stacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacked.overlay("apply", str(stacked.tree))
    with monkeypatch.context() as patch:
        kill_at(stacked, patch, "head", GHSTACK)
        stacked.submit(code=2)
    assert stacked.github.shown() == "\n"
    stacked.submit()
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/2/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
""",
    )


def test_an_update_that_fails(stacked: Stacked) -> None:
    stacked.start()
    stacked.edit("two.apatch", "+ 'two'", "+ 'TWO'")
    stacked.github.before = refuse("PATCH .*/pulls/501", 1, (502, {"message": "Bad gateway"}))
    assert_expected_inline(
        stacked.submit(code=2),
        """\
patch         title         pull request                                      on           changed  labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  nothing
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   nothing
ok       series: FOLDER/series takes the names of the pull requests
ok       patches: 3 applied as the series has them, on ID
ok       work tree: clean
ok       ghstack: VERSION
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
torch-overlay: ghstack ended with exit code 1: all is pushed, but some pull requests' texts may be old: run it again
""",
    )
    stacked.github.before = lambda method, path: None
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on           changed  labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  nothing
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   nothing
""",
    )
    stacked.submit()
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/2/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
""",
    )


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
    assert_expected_inline(
        stacked.submit(code=2),
        """\
ok       series: FOLDER/series takes the names of the pull requests
ok       patches: 3 applied as the series has them, on ID
ok       work tree: clean
ok       ghstack: VERSION
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
""",
    )
    assert stacked.identities() == before
    stacked.github.before = lambda method, path: None
    stacked.submit()
    assert opened(stacked) == ALL


REFUSALS: list[Answer] = [
    (401, {"message": "Bad credentials"}),
    (403, {"message": "Resource not accessible by personal access token"}),
    (403, {"message": "API rate limit exceeded"}),
    (404, {"message": "Not Found"}),
    (422, {"message": "Validation Failed"}),
    (301, {"message": "Moved Permanently"}),
    (503, "<html>Unicorn!</html>"),
    (0, None),
]


def test_refused_at_once(stacked: Stacked) -> None:
    stacked.overlay("apply", str(stacked.tree))
    out = ""
    for answer in REFUSALS:
        stacked.github.before = lambda method, path, answer=answer: answer  # type: ignore[misc]
        out += stacked.problems()
    stacked.github.stop()
    out += stacked.problems()
    assert_expected_inline(
        out,
        """\
PROBLEM  repository: github.example says 401 (Bad credentials): the token has ended or is wrong: make a new one at https://github.example/settings/tokens and write it into FOLDER/.ghstackrc
PROBLEM  repository: github.example says 403 (Resource not accessible by personal access token): the token may not do this: give it the right public_repo at https://github.example/settings/tokens, and allow it for pytorch
PROBLEM  repository: github.example says 403 (API rate limit exceeded): try again later
PROBLEM  repository: github.example says 404 (Not Found): the token cannot see pytorch/pytorch: give it the right public_repo (repo for a private one) at https://github.example/settings/tokens
PROBLEM  repository: github.example says 422 (Validation Failed): https://github.example/api/v3/repos/pytorch/pytorch
PROBLEM  repository: github.example says 301 (Moved Permanently): pytorch/pytorch has moved: set the address of origin anew
PROBLEM  repository: github.example says 503: GitHub has a problem of its own: try again later
PROBLEM  repository: github.example does not answer (Remote end closed connection without response): try again later
PROBLEM  repository: github.example does not answer (Connection refused): try again later
""",
    )


def test_refused_when_it_opens_them(stacked: Stacked) -> None:
    stacked.overlay("apply", str(stacked.tree))
    said = set()
    for answer in REFUSALS:
        if "rate limit" in str(answer):
            continue  # ghstack waits for a minute then.
        stacked.github.before = refuse("POST .*/pulls", 1, answer)
        said.add(stacked.submit(code=2).splitlines()[-1])
    assert_expected_inline(
        "\n".join(said),
        """torch-overlay: ghstack ended with exit code 1: 0 of 3 are submitted, not one.apatch (no pull request), two.apatch (no pull request), three.apatch (no pull request); what there is of pull requests is noted in the patches: run it again, and it goes on from there""",
    )
    stacked.github.before = lambda method, path: None
    stacked.submit()
    assert opened(stacked) == ALL


def test_no_answer_in_time(stacked: Stacked) -> None:
    release = Event()
    stacked.github.before = lambda method, path: (200 if release.wait(10) else 500, {})
    github = GitHub(read_config(stacked.tree), "pytorch/pytorch", timeout=0.2)
    with pytest.raises(GitHubError) as error:
        github.repository()
    release.set()
    assert_expected_inline(
        stacked.shown(error.value.message),
        """github.example does not answer (The read operation timed out): try again later""",
    )


def test_the_token_is_told_to_no_one_else(
    stacked: Stacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on a command line, in no file but its own, and in no output, whatever goes wrong."""
    folder = stacked.folder / "bin"
    folder.mkdir()
    for name in ("git", "gh"):
        script = folder / name
        script.write_text(
            f'#!/bin/sh\necho "$0 $@" >>{folder}/said\n'
            f'tr "\\0" " " </proc/$PPID/cmdline >>{folder}/said\nexec {real_git()} "$@"\n'
        )
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    stacked.start()
    stacked.edit("two.apatch", "+ 'two'", "+ 'TWO'")
    # Git would tell the address, and ghstack the answer.
    place = stacked.tree / ".git" / "config"
    config = place.read_text()
    address = f"https://ada:{TOKEN}@{stacked.github.host}/pytorch/pytorch"
    place.write_text(config.replace(f"= {stacked.github.repository}", f"= {address}"))
    stacked.submit(code=2)
    assert "git cannot push" in stacked.said
    place.write_text(config)
    stacked.github.before = refuse("PATCH .*", 1, (403, {"message": f"No, {TOKEN}"}))
    stacked.submit(code=2)
    stacked.github.before = lambda method, path: (401, {"message": f"No, {TOKEN}"})
    stacked.submit(code=2)
    assert "<token>" in stacked.said
    with_token = [
        path.relative_to(stacked.folder).as_posix()
        for path in stacked.folder.rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]
    assert with_token == [".ghstackrc"]
    assert "ghstack" in (folder / "said").read_text()
