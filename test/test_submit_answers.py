"""What submit says of a stack that is not plainly new or to be updated; nothing is ever opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
from expecttest import assert_expected_inline

from checkouts import real_git
from stacks import Stacked, github, hunk, stacked, user

__all__ = ["github", "stacked", "user"]


def forget(stacked: Stacked, name: str) -> None:
    """Take ghstack's lines out of a patch."""
    place = stacked.folder / "series" / "patches" / name
    place.write_text(
        re.sub(r"^(ghstack-\S+|Pull-Request): .*\n", "", place.read_text(), flags=re.M)
    )


def test_closed(stacked: Stacked) -> None:
    stacked.start()
    stacked.github.pull(501).closed = True
    stacked.github.pull(502).closed = stacked.github.pull(502).merged = True
    assert_expected_inline(
        stacked.problems(),
        """\
PROBLEM  pull requests: two.apatch: #501 was closed: reopen it at https://github.example/pytorch/pytorch/pull/501, or take the patch out of the series; to open a new one, take ghstack's lines out of the header of two.apatch
PROBLEM  pull requests: three.apatch: #502 was merged: reopen it at https://github.example/pytorch/pytorch/pull/502, or take the patch out of the series; to open a new one, take ghstack's lines out of the header of three.apatch
""",
    )
    # On purpose, it is a new one.
    for name in ("two.apatch", "three.apatch"):
        forget(stacked, name)
    stacked.overlay("apply", str(stacked.tree))
    stacked.submit()
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 closed [FSDP] Two (gh/ada/2/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 closed [FSDP] Three (gh/ada/3/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#503 open [FSDP] Two (gh/ada/4/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#504 open [FSDP] Three (gh/ada/5/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
""",
    )


def test_other_branches(stacked: Stacked) -> None:
    stacked.start()
    # Set by hand, or by a ghstack that was told --direct.
    stacked.github.pull(501).baseRefName = "main"
    forget(stacked, "three.apatch")
    stacked.github.pull(502).baseRefName = "gh/ada/2/head"
    stacked.overlay("apply", str(stacked.tree))
    stacked.git("push", "--quiet", "origin", ":refs/heads/gh/ada/1/base")
    assert_expected_inline(
        stacked.problems(),
        """\
PROBLEM  pull requests: one.apatch: #500 has lost its branch gh/ada/1/base: restore it at https://github.example/pytorch/pytorch/pull/500, or close that and take ghstack's lines out of the header of one.apatch
PROBLEM  pull requests: two.apatch: #501 would be merged into main, where ghstack has gh/ada/2/base: make that its base again at https://github.example/pytorch/pytorch/pull/501, or, if 'ghstack --direct' opened it, close it and take ghstack's lines out of the header of two.apatch
PROBLEM  pull requests: three.apatch: #502 would be merged into gh/ada/2/head, where ghstack has gh/ada/3/base: make that its base again at https://github.example/pytorch/pytorch/pull/502, or, if 'ghstack --direct' opened it, close it and take ghstack's lines out of the header of three.apatch
""",
    )


def test_split_in_two(stacked: Stacked) -> None:
    stacked.start()
    folder = stacked.folder / "series" / "patches"
    half = (folder / "two.apatch").read_text()
    stacked.edit("two.apatch", "+ 'two'", "+ 'tw'")
    (folder / "rest.apatch").write_text(
        half.replace("Two", "Rest").replace("-return x\n", "-'tw'\n").replace("+return x + ", "+")
    )
    stacked.order("one", "two", "rest", "three")
    stacked.overlay("apply", str(stacked.tree))
    assert_expected_inline(
        stacked.problems(),
        """\
PROBLEM  pull requests: two.apatch and rest.apatch both name https://github.example/pytorch/pytorch/pull/501: leave it in the header of the one that goes on with it, and take ghstack's lines out of the other's
""",
    )
    forget(stacked, "rest.apatch")
    stacked.overlay("apply", str(stacked.tree))
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on           changed           labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  nothing
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   torch/runtime.py
rest.apatch   [FSDP] Rest   new                                               two.apatch
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  rest.apatch  nothing
""",
    )


def test_squashed_into_one(stacked: Stacked) -> None:
    stacked.start()
    stacked.order("one", "two")
    stacked.edit(
        "two.apatch",
        hunk("two", "x + 'two'"),
        hunk("two", "x + 'two'") + "@@ three\n-return x\n+return x + 'three'\n",
    )
    assert_expected_inline(
        stacked.plan(),
        """\
patch       title       pull request                                      on           changed           labels
one.apatch  [FSDP] One  https://github.example/pytorch/pytorch/pull/500  origin/main  nothing
two.apatch  [FSDP] Two  https://github.example/pytorch/pytorch/pull/501  one.apatch   torch/runtime.py
note     pull requests: #502 '[FSDP] Three' is in this stack, and no patch names it: if its patch was dropped, or is a part of another now, close it at https://github.example/pytorch/pytorch/pull/502
""",
    )
    stacked.submit()
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/2/head)
  version 2: 1 file changed, 2 insertions(+), 2 deletions(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
""",
    )


def test_edited_on_another_machine(stacked: Stacked) -> None:
    stacked.start()
    patches = stacked.folder / "series" / "patches"
    mine = {place: place.read_text() for place in patches.iterdir()}
    stacked.edit("one.apatch", "+ 'one'", "+ 'ONE'")
    stacked.submit()
    for place, text in mine.items():
        place.write_text(text)
    stacked.edit("three.apatch", "+ 'three'", "+ 'THREE'")
    assert_expected_inline(
        stacked.problems(),
        """\
PROBLEM  pull requests: one.apatch: #500 was updated from elsewhere: get the series as it was submitted there, or take its change over ('git diff OID OID') and write 'ghstack-source-id: OID' into the patch
PROBLEM  pull requests: two.apatch: #501 was updated from elsewhere: get the series as it was submitted there, or take its change over ('git diff OID OID') and write 'ghstack-source-id: OID' into the patch
PROBLEM  pull requests: three.apatch: #502 was updated from elsewhere: get the series as it was submitted there, or take its change over ('git diff OID OID') and write 'ghstack-source-id: OID' into the patch
""",
    )


def test_the_names_are_lost(stacked: Stacked) -> None:
    stacked.start()
    for name in ("one.apatch", "two.apatch", "three.apatch"):
        forget(stacked, name)
    stacked.overlay("apply", str(stacked.tree))
    # What is the same there is known again.
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on           changed  labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  nothing
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   nothing
note     pull requests: one.apatch is #500, found there
note     pull requests: two.apatch is #501, found there
note     pull requests: three.apatch is #502, found there
""",
    )
    stacked.edit("two.apatch", "+ 'two'", "+ 'TWO'")
    assert_expected_inline(
        stacked.problems(),
        """\
PROBLEM  pull requests: two.apatch names no pull request, and #501 has its title: if it is that one, write 'ghstack-source-id: OID' and 'Pull-Request: https://github.example/pytorch/pytorch/pull/501' into its header; if not, give it another title, or close that one
PROBLEM  pull requests: three.apatch names no pull request, and #502 has its title: if it is that one, write 'ghstack-source-id: OID' and 'Pull-Request: https://github.example/pytorch/pytorch/pull/502' into its header; if not, give it another title, or close that one
""",
    )


def test_a_commit_does_not_say_it(stacked: Stacked) -> None:
    stacked.start()
    message = stacked.git("log", "-1", "--format=%B")
    stacked.git("commit", "--quiet", "--amend", "--message", message.split("\nghstack-")[0])
    stacked.submit()
    assert [pull.number for pull in stacked.github.pulls] == [500, 501, 502]
    assert stacked.git("log", "-1", "--format=%B").split() == message.split()


def name_pull(stacked: Stacked, url: str) -> None:
    forget(stacked, "one.apatch")
    place = stacked.folder / "series" / "patches" / "one.apatch"
    place.write_text(place.read_text().replace("---\n", f"Pull-Request: {url}\n---\n", 1))


def test_it_names_another_pull_request(stacked: Stacked) -> None:
    stacked.start()
    stacked.github.pull(502).headRefName = "grace:fix"
    out = ""
    for url in (
        "https://github.com/pytorch/pytorch/pull/1",
        f"https://{stacked.github.host}/pytorch/pytorch/pull/7",
        f"https://{stacked.github.host}/pytorch/pytorch/pull/501",
        f"https://{stacked.github.host}/pytorch/pytorch/pull/502",
    ):
        name_pull(stacked, url)
        stacked.overlay("apply", str(stacked.tree))
        out += stacked.problems()
    assert_expected_inline(
        out,
        """\
PROBLEM  pull requests: one.apatch names https://github.com/pytorch/pytorch/pull/1, which is not of pytorch/pytorch: submit it there, or take ghstack's lines out of the header of one.apatch
PROBLEM  pull requests: three.apatch: #502 is not ghstack's, it comes from grace:fix: take ghstack's lines out of the header of three.apatch
PROBLEM  pull requests: one.apatch names https://github.example/pytorch/pytorch/pull/7, which is not there: take ghstack's lines out of the header of one.apatch
PROBLEM  pull requests: three.apatch: #502 is not ghstack's, it comes from grace:fix: take ghstack's lines out of the header of three.apatch
PROBLEM  pull requests: one.apatch and two.apatch both name https://github.example/pytorch/pytorch/pull/501: leave it in the header of the one that goes on with it, and take ghstack's lines out of the other's
PROBLEM  pull requests: one.apatch: #501 was updated from elsewhere: get the series as it was submitted there, or take its change over ('git diff OID OID') and write 'ghstack-source-id: OID' into the patch
PROBLEM  pull requests: three.apatch: #502 is not ghstack's, it comes from grace:fix: take ghstack's lines out of the header of three.apatch
PROBLEM  pull requests: one.apatch and three.apatch both name https://github.example/pytorch/pytorch/pull/502: leave it in the header of the one that goes on with it, and take ghstack's lines out of the other's
PROBLEM  pull requests: one.apatch: #502 is not ghstack's, it comes from grace:fix: take ghstack's lines out of the header of one.apatch
""",
    )


def test_their_lines_are_swapped(stacked: Stacked) -> None:
    stacked.start()
    folder = stacked.folder / "series" / "patches"
    texts = {name: (folder / f"{name}.apatch").read_text() for name in ("one", "two")}
    lines = {name: re.findall(r"^(?:ghst|Pull-).*\n", text, re.M) for name, text in texts.items()}
    for name, other in (("one", "two"), ("two", "one")):
        text = texts[name].replace("".join(lines[name]), "".join(lines[other]))
        (folder / f"{name}.apatch").write_text(text)
    stacked.overlay("apply", str(stacked.tree))
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on           changed           labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/501  origin/main  torch/runtime.py
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/500  one.apatch   torch/runtime.py
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   nothing
note     pull requests: one.apatch is #501, whose title is '[FSDP] Two': --update-fields changes it, if it is the one
note     pull requests: two.apatch is #500, whose title is '[FSDP] One': --update-fields changes it, if it is the one
""",
    )


def test_it_quotes_another_pull_request(stacked: Stacked) -> None:
    """As a commit that has landed does, and ghstack goes by the first one in a message."""
    for name, line in (
        ("one", "Pull Request resolved: https://{host}/pytorch/pytorch/pull/7"),
        ("two", "This is like Pull-Request: https://{host}/pytorch/pytorch/pull/8, but better."),
        ("three", "Pull Request resolved: https://o.org/a/b/pull/9\n\nghstack-source-id: 0123"),
    ):
        place = stacked.folder / "series" / "patches" / f"{name}.apatch"
        line = line.format(host=stacked.github.host)
        place.write_text(place.read_text().replace("Why,", f"{line}\n\nWhy,"))
    stacked.overlay("apply", str(stacked.tree))
    assert_expected_inline(
        stacked.problems(),
        """\
PROBLEM  pull requests: one.apatch says 'Pull Request resolved: https://github.example/pytorch/pytorch/pull/7', which ghstack takes for the patch's own wherever it stands: take it out, or write it otherwise
PROBLEM  pull requests: two.apatch says 'Pull-Request: https://github.example/pytorch/pytorch/pull/8', which ghstack takes for the patch's own wherever it stands: take it out, or write it otherwise
PROBLEM  pull requests: three.apatch says 'ghstack-source-id: 0123', which ghstack takes for the patch's own wherever it stands: take it out, or write it otherwise
""",
    )
    # With one of its own, too.
    for name in ("one", "two", "three"):
        place = stacked.folder / "series" / "patches" / f"{name}.apatch"
        place.write_text(re.sub(r"\n.*(Request|ghstack-).*\n", "\n", place.read_text()))
    stacked.start()
    stacked.edit("two.apatch", "Why,", "gh-metadata: pytorch pytorch 500 gh/ada/1/head\n\nWhy,")
    stacked.edit("three.apatch", "ghstack-source-id", "ghstack-source-id: 0123\nghstack-source-id")
    assert_expected_inline(
        stacked.problems(),
        """\
PROBLEM  pull requests: two.apatch says 'gh-metadata: pytorch pytorch 500 gh/ada/1/head', which ghstack takes for the patch's own wherever it stands: take it out, or write it otherwise
PROBLEM  pull requests: three.apatch says 'ghstack-source-id: 0123', which ghstack takes for the patch's own wherever it stands: take it out, or write it otherwise
""",
    )


# The checks before all that


def no_series(case: Stacked) -> None:
    case.overlay("revert", str(case.tree))


def an_edit(case: Stacked) -> None:
    case.write("torch/runtime.py", (case.tree / "torch/runtime.py").read_text() + "# more\n")


def an_edited_commit(case: Stacked) -> None:
    an_edit(case)
    case.git("commit", "--quiet", "--all", "--amend", "--no-edit")


def a_commit_above(case: Stacked) -> None:
    case.git("commit", "--quiet", "--allow-empty", "--message", "Mine")


def an_edited_patch(case: Stacked) -> None:
    place = case.folder / "series" / "patches" / "two.apatch"
    place.write_text(place.read_text().replace("Why,", "Because,"))


def a_squash(case: Stacked) -> None:
    case.git("reset", "--soft", "HEAD~2")
    case.git("commit", "--quiet", "--amend", "--no-edit")


def commits_below(case: Stacked) -> None:
    case.overlay("revert", str(case.tree))
    case.git("commit", "--quiet", "--allow-empty", "--message", "Mine")
    case.overlay("apply", str(case.tree))


def a_merge_below(case: Stacked) -> None:
    case.overlay("revert", str(case.tree))
    case.git("checkout", "--quiet", "-b", "side")
    case.git("commit", "--quiet", "--allow-empty", "--message", "Mine")
    case.git("checkout", "--quiet", "main")
    case.git("merge", "--quiet", "--no-ff", "side")
    case.overlay("apply", str(case.tree))


def no_remote(case: Stacked) -> None:
    case.git("remote", "remove", "origin")


def another_host(case: Stacked) -> None:
    case.git("remote", "set-url", "origin", "https://ada:secret@example.com/pytorch/pytorch")


def a_fork(case: Stacked) -> None:
    case.github.is_fork = True


def no_right(case: Stacked) -> None:
    case.github.may_push = False


def no_push(case: Stacked) -> None:
    case.git(
        "remote",
        "set-url",
        "--push",
        "origin",
        f"/gone/{case.github.host}/pytorch/pytorch",
    )


def no_configuration(case: Stacked) -> None:
    (case.folder / ".ghstackrc").unlink()


def no_token(case: Stacked) -> None:
    place = case.folder / ".ghstackrc"
    place.write_text(re.sub("github_oauth.*\n", "", place.read_text()))


def no_name(case: Stacked) -> None:
    place = case.folder / ".ghstackrc"
    place.write_text(re.sub("github_username.*\n", "", place.read_text()))


def an_address_for_a_host(case: Stacked) -> None:
    place = case.folder / ".ghstackrc"
    place.write_text(place.read_text().replace("github_url = ", "github_url = https://"))


def a_name_that_is_none(case: Stacked) -> None:
    place = case.folder / ".ghstackrc"
    place.write_text(place.read_text().replace("= ada", "= Ada Example"))


def a_broken_configuration(case: Stacked) -> None:
    place = case.folder / ".ghstackrc"
    place.write_text(place.read_text() + "ghp_and_no_more\n")


def a_fault_of_the_series(case: Stacked) -> None:
    (case.folder / "series" / "patches" / "stray.apatch").write_text("")


Wrong = Callable[[Stacked], None]


def found(stacked: Stacked, *wrongs: Wrong, code: int = 2) -> str:
    """What a dry run finds if one thing is wrong, for each of some."""
    stacked.overlay("apply", str(stacked.tree))
    commit = stacked.head
    saved = {
        path: path.read_bytes()
        for path in (
            *(stacked.folder / "series" / "patches").iterdir(),
            stacked.folder / ".ghstackrc",
            stacked.tree / ".git" / "config",
        )
    }
    out = ""
    for wrong in wrongs:
        wrong(stacked)
        problems = stacked.problems(code=code)
        out += f"{wrong.__name__.replace('_', ' ')}\n{problems}"
        assert stacked.github.pulls == []
        (stacked.folder / "series" / "patches" / "stray.apatch").unlink(missing_ok=True)
        for path, content in saved.items():
            path.write_bytes(content)
        stacked.git("reset", "--quiet", "--hard", commit)
        stacked.github.is_fork, stacked.github.may_push = False, True
    return out


def test_what_is_wrong_with_the_checkout(stacked: Stacked) -> None:
    wrongs = (no_series, an_edit, an_edited_commit, a_commit_above, an_edited_patch, a_squash)
    assert_expected_inline(
        found(stacked, *wrongs, commits_below, a_merge_below),
        """\
no series
PROBLEM  patches: the series is not applied: 'torch-overlay apply FOLDER/pytorch' does it first
an edit
PROBLEM  work tree: torch/runtime.py has uncommitted changes: commit or stash them first
an edited commit
PROBLEM  patches: the commits are not what the series makes: 'torch-overlay import FOLDER/pytorch COMMIT -o DIR' turns one into a patch to take its place in the series, 'git rebase -i' takes one out
PROBLEM  patches: ID '[FSDP] Three' is not as three.apatch makes it
a commit above
PROBLEM  patches: the commits above ID are not one a patch: 'torch-overlay revert FOLDER/pytorch', then 'torch-overlay apply FOLDER/pytorch' makes them anew
an edited patch
PROBLEM  patches: the commit of two.apatch does not say what the patch says: 'torch-overlay revert FOLDER/pytorch', then 'torch-overlay apply FOLDER/pytorch' makes it anew
a squash
PROBLEM  patches: the commits above ID are not one a patch: 'torch-overlay revert FOLDER/pytorch', then 'torch-overlay apply FOLDER/pytorch' makes them anew
commits below
PROBLEM  base: 1 commits below the series are not on origin/main, and ghstack would submit them too: 'git rebase --onto origin/main ID' leaves them out
a merge below
PROBLEM  base: ID is a merge, which ghstack refuses: 'git rebase origin/main' takes it out (never merge into a stack)
""",
    )


def test_what_is_wrong_with_the_remote(stacked: Stacked) -> None:
    wrongs = (no_remote, another_host, a_fork, no_right, no_push)
    assert_expected_inline(
        found(stacked, *wrongs),
        """\
no remote
PROBLEM  remote: no remote is named origin: 'git remote add origin ADDRESS' names the repository to submit to, or remote_name in FOLDER/.ghstackrc another remote
another host
PROBLEM  remote: the remote origin is https://example.com/pytorch/pytorch, which is not on github.example: let remote_name in FOLDER/.ghstackrc name the one that is
a fork
PROBLEM  repository: pytorch/pytorch is a fork, and ghstack takes none: let origin be the repository that it was forked from
no right
PROBLEM  write access: ada may not push to pytorch/pytorch: ghstack pushes its branches to pytorch/pytorch itself: ask there for the right to push, or 'torch-overlay export FOLDER/pytorch -o DIR' and open one pull request from a fork (docs/submitting.md)
no push
PROBLEM  write access: git cannot push to origin: fatal: '/gone/github.example/pytorch/pytorch' does not appear to be a git repository: ghstack pushes its branches to pytorch/pytorch itself: ask there for the right to push, or 'torch-overlay export FOLDER/pytorch -o DIR' and open one pull request from a fork (docs/submitting.md)
""",
    )


def test_what_is_wrong_with_the_configuration(
    stacked: Stacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrongs = (no_configuration, no_token, no_name, an_address_for_a_host, a_name_that_is_none)
    monkeypatch.setenv("PATH", os.path.dirname(real_git()))
    assert_expected_inline(
        found(stacked, *wrongs, a_broken_configuration),
        """\
no configuration
PROBLEM  configuration: ghstack is not configured: write [ghstack] and github_url = github.com into FOLDER/.ghstackrc, see docs/submitting.md
no token
PROBLEM  configuration: ghstack has no token for github.example: write github_oauth into FOLDER/.ghstackrc, or log in with 'gh auth login', see docs/submitting.md
no name
PROBLEM  configuration: ghstack does not know your name on github.example: write github_username into FOLDER/.ghstackrc
an address for a host
PROBLEM  configuration: FOLDER/.ghstackrc: github_url is https://github.example: write the host alone, as in github.com
a name that is none
PROBLEM  configuration: FOLDER/.ghstackrc: github_username is Ada Example: write your name as addresses on github.example have it
a broken configuration
PROBLEM  configuration: FOLDER/.ghstackrc cannot be read: mend it, see docs/submitting.md
""",
    )


def test_what_is_wrong_with_the_series(stacked: Stacked) -> None:
    assert_expected_inline(
        found(stacked, a_fault_of_the_series, code=1),
        """\
a fault of the series
PROBLEM  lint of the series: patches/stray.apatch: not listed in patches/series: list or remove it
""",
    )
    (stacked.folder / "series" / "patches" / "stray.apatch").write_text("")
    stacked.submit("--despite", "lint")
    assert len(stacked.github.pulls) == 3


def test_the_series_of_an_installed_tool(stacked: Stacked) -> None:
    stacked.overlay("apply", str(stacked.tree))
    (stacked.folder / "series").rename(stacked.folder / "_series")
    (stacked.folder / "series").symlink_to("_series")
    done = stacked.overlay(
        "--series", str(stacked.folder / "_series"), "submit", str(stacked.tree), code=2
    )
    assert_expected_inline(
        done.splitlines()[0] + "\n",
        """\
PROBLEM  series: FOLDER/_series belongs to the installed tool, and the next install replaces it: name a series of your own with --series
""",
    )
    assert stacked.github.pulls == []
