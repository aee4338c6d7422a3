from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from fake_github import TOKEN
from overlay.operations import standing
from overlay.targets import find_target
from overlay.upstream import store
from overlay.upstream.results import Outcome, Run, Side, Status
from stacks import Stacked, github, hunk, stacked, user

__all__ = ["github", "stacked", "user"]


def test_first_submit(stacked: Stacked) -> None:
    stacked.overlay("apply", str(stacked.tree))
    assert_expected_inline(
        stacked.submit("--dry-run"),
        """\
patch         title         pull request  on           changed  labels
one.apatch    [FSDP] One    new           origin/main
two.apatch    [FSDP] Two    new           one.apatch
three.apatch  [FSDP] Three  new           two.apatch

--- one.apatch: [FSDP] One
Why, with a mention of @grace.

Origin: https://github.com/pytorch/pytorch/pull/90523
Torch-Version: >=2.1

--- two.apatch: [FSDP] Two
Why, with a mention of @grace.

Origin: https://github.com/pytorch/pytorch/pull/90523
Torch-Version: >=2.1

--- three.apatch: [FSDP] Three
Why, with a mention of @grace.

Origin: https://github.com/pytorch/pytorch/pull/90523
Torch-Version: >=2.1
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
""",
    )
    assert_expected_inline(
        stacked.submit(),
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
ok       pull requests: 0 to update, 3 to open
ok       verify: 0 calls and 0 names hold, 0 unresolved
note     lint: not run: FOLDER/pytorch has no .lintrunner.toml, so there is nothing to run
ok       lint of the series: nothing
note     tests: none on this tree: 'torch-overlay test' makes them
""",
    )
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
    assert_expected_inline(
        stacked.identities(),
        """\
one.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/500
two.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/501
three.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/502
""",
    )
    assert stacked.github.tokens == {TOKEN}


def test_a_repository_that_wants_direct_ones(stacked: Stacked) -> None:
    stacked.write(".github/ghstack_direct", "")
    stacked.git("add", "--all")
    stacked.git("commit", "--quiet", "--message", "Direct")
    stacked.git("push", "--quiet", "origin", "main")
    stacked.start()
    # All that is found again, and told of landing, goes by the branches of the ordinary ones.
    assert [pull.baseRefName for pull in stacked.github.pulls] == [
        f"gh/ada/{number}/base" for number in (1, 2, 3)
    ]


def test_edit_of_one_in_the_middle(stacked: Stacked) -> None:
    stacked.start()
    before = stacked.identities()
    stacked.edit("two.apatch", "+ 'two'", "+ 'TWO'")
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on           changed           labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  nothing
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   torch/runtime.py
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   what is below it
""",
    )
    stacked.submit("-m", "Louder")
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
    assert stacked.identities() == before
    # And nothing at all.
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


def test_added_removed_and_in_another_order(stacked: Stacked) -> None:
    stacked.start()
    stacked.add("zero", hunk("four", "x + 'zero'"))
    stacked.add("half", hunk("one", "x - 'half'").replace("return x\n", "return x + 'one'\n", 1))
    stacked.order("zero", "one", "half", "two", "three")
    stacked.overlay("apply", str(stacked.tree))
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on           changed           labels
zero.apatch   [FSDP] Zero   new                                               origin/main
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  zero.apatch  what is below it
half.apatch   [FSDP] Half   new                                               one.apatch
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  half.apatch  what is below it
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   what is below it
""",
    )
    stacked.submit()
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/2/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
#503 open [FSDP] Zero (gh/ada/4/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#504 open [FSDP] Half (gh/ada/5/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
""",
    )
    stacked.order("three", "zero", "one", "half")
    stacked.overlay("apply", str(stacked.tree))
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on            changed           labels
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  origin/main   what is below it
zero.apatch   [FSDP] Zero   https://github.example/pytorch/pytorch/pull/503  three.apatch  what is below it
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  zero.apatch   what is below it
half.apatch   [FSDP] Half   https://github.example/pytorch/pytorch/pull/504  one.apatch    what is below it
note     pull requests: #501 '[FSDP] Two' is in this stack, and no patch names it: if its patch was dropped, or is a part of another now, close it at https://github.example/pytorch/pytorch/pull/501
""",
    )
    stacked.submit()
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 3: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/2/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 3: 1 file changed, 1 insertion(+), 1 deletion(-)
#503 open [FSDP] Zero (gh/ada/4/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
#504 open [FSDP] Half (gh/ada/5/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
""",
    )
    assert_expected_inline(
        stacked.identities(),
        """\
three.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/502
zero.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/503
one.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/500
half.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/504
""",
    )


def test_a_fresh_clone_and_the_series_alone(stacked: Stacked) -> None:
    stacked.start()
    stacked.git("commit", "--quiet", "--allow-empty", "-m", "Meanwhile on main")
    stacked.git(
        "push",
        "--quiet",
        "origin",
        f"{stacked.git('commit-tree', 'origin/main^{tree}', '-p', 'origin/main', '-m', 'Newer')}:refs/heads/main",
    )
    clone = stacked.clone()
    clone.edit("three.apatch", "+ 'three'", "+ 'THREE'")
    assert_expected_inline(
        clone.plan(),
        """\
patch         title         pull request                                      on           changed           labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  nothing
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   torch/runtime.py
""",
    )
    clone.submit()
    assert_expected_inline(
        clone.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#501 open [FSDP] Two (gh/ada/2/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
""",
    )


def test_landed(stacked: Stacked) -> None:
    stacked.start()
    stacked.land(500, "Number one (#500)")
    assert_expected_inline(
        stacked.plan(code=2),
        """\
patch         title         pull request                                      on           changed  labels
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  origin/main  nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   nothing
PROBLEM  landed: one.apatch: landed, the change is on origin/main: 'torch-overlay revert FOLDER/pytorch', remove it and its line in patches/series (or end its Torch-Version there), 'git rebase origin/main', and apply again
torch-overlay: nothing was submitted: a check found a problem
  one.apatch: landed, the change is on origin/main: 'torch-overlay revert FOLDER/pytorch', remove it and its line in patches/series (or end its Torch-Version there), 'git rebase origin/main', and apply again
""",
    )
    assert_expected_inline(
        stacked.overlay("status", str(stacked.tree)),
        """\
torch 2.13.0a0 in FOLDER/pytorch
applied       [FSDP] One
              https://github.example/pytorch/pytorch/pull/500
              landed on origin/main: remove it and its line in patches/series, or end its Torch-Version there
applied       [FSDP] Two
              https://github.example/pytorch/pytorch/pull/501
applied       [FSDP] Three
              https://github.example/pytorch/pytorch/pull/502
""",
    )
    stacked.overlay("revert", str(stacked.tree))
    stacked.order("two", "three")
    stacked.git("rebase", "--quiet", "origin/main")
    stacked.overlay("apply", str(stacked.tree))
    assert_expected_inline(
        stacked.overlay("status", str(stacked.tree)),
        """\
torch 2.13.0a0 in FOLDER/pytorch
applied       [FSDP] Two
              https://github.example/pytorch/pytorch/pull/501
applied       [FSDP] Three
              https://github.example/pytorch/pytorch/pull/502
""",
    )
    assert_expected_inline(
        stacked.plan(),
        """\
patch         title         pull request                                      on           changed  labels
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  origin/main  nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   nothing
""",
    )
    stacked.submit()
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 closed [FSDP] One (gh/ada/1/head)
  its branches are deleted
#501 open [FSDP] Two (gh/ada/2/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
#502 open [FSDP] Three (gh/ada/3/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
""",
    )


def test_a_part(stacked: Stacked) -> None:
    stacked.overlay("apply", str(stacked.tree))
    assert_expected_inline(
        stacked.submit("--only", "three", code=2),
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
torch-overlay: one.apatch, two.apatch: no pull request yet, and ghstack would open one too: leave --only and --from out
""",
    )
    stacked.submit("--draft", "--reviewer", "grace,alan", "--label", "fsdp")
    assert [opened["draft"] for opened in stacked.github.opened] == [True] * 3
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
  asked for a review: grace, alan
  labels: fsdp
#501 open [FSDP] Two (gh/ada/2/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
  asked for a review: grace, alan
  labels: fsdp
#502 open [FSDP] Three (gh/ada/3/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
  asked for a review: grace, alan
  labels: fsdp
""",
    )
    stacked.edit("two.apatch", "+ 'two'", "+ 'TWO'")
    stacked.edit("one.apatch", "+ 'one'", "+ 'ONE'")
    assert_expected_inline(
        stacked.plan("--only", "two"),
        """\
patch         title         pull request                                      on           changed                      labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  torch/runtime.py (left out)
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   torch/runtime.py
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   what is below it (left out)
""",
    )
    stacked.submit("--only", "two")
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
  asked for a review: grace, alan
  labels: fsdp
#501 open [FSDP] Two (gh/ada/2/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
  asked for a review: grace, alan
  labels: fsdp
#502 open [FSDP] Three (gh/ada/3/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
  asked for a review: grace, alan
  labels: fsdp
""",
    )
    assert_expected_inline(
        stacked.plan("--from", "two"),
        """\
patch         title         pull request                                      on           changed                      labels
one.apatch    [FSDP] One    https://github.example/pytorch/pytorch/pull/500  origin/main  torch/runtime.py (left out)
two.apatch    [FSDP] Two    https://github.example/pytorch/pytorch/pull/501  one.apatch   nothing
three.apatch  [FSDP] Three  https://github.example/pytorch/pytorch/pull/502  two.apatch   what is below it
""",
    )
    stacked.submit("--from", "two")
    assert_expected_inline(
        stacked.github.shown(),
        """\
#500 open [FSDP] One (gh/ada/1/head)
  version 1: 1 file changed, 1 insertion(+), 1 deletion(-)
  asked for a review: grace, alan
  labels: fsdp
#501 open [FSDP] Two (gh/ada/2/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
  asked for a review: grace, alan
  labels: fsdp
#502 open [FSDP] Three (gh/ada/3/head)
  version 2: 1 file changed, 1 insertion(+), 1 deletion(-)
  asked for a review: grace, alan
  labels: fsdp
""",
    )


def test_the_last_result_on_this_tree_is_told(
    stacked: Stacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_OVERLAY_CACHE", str(tmp_path / "cache"))
    stacked.overlay("apply", str(stacked.tree))
    found = standing(find_target(str(stacked.tree)), stacked.patches)
    passed = Side("", (), (Outcome("test/test_x.py::TestX::test_y", Status.PASSED, 1.0),))
    words = ("v2.6.0", "2.6.0", "3.11.7", "Linux", "cpu, CUDA stand-in", "test/test_x.py")
    made = Run(
        *words,
        tree=store.fingerprint_of(found.changes),
        started="2026-12-01T10:00:00Z",
        before=passed,
        after=passed,
    )
    store.keep_run(made)
    store.keep_run(replace(made, tree="another", started="2026-12-02T10:00:00Z"))
    said = stacked.submit("--dry-run")
    told = [line for line in said.splitlines() if " tests: " in line or line.startswith("Tests:")]
    assert_expected_inline(
        "\n".join(told),
        """\
Tests: torch 2.6.0, cpu, CUDA stand-in: green, 0 broken, 1 still passes
Tests: torch 2.6.0, cpu, CUDA stand-in: green, 0 broken, 1 still passes
Tests: torch 2.6.0, cpu, CUDA stand-in: green, 0 broken, 1 still passes
ok       tests: torch 2.6.0 on cpu, CUDA stand-in, 1 tests, 2026-12-01T10:00:00Z""",
    )
    stacked.edit("three.apatch", "x + 'three'", "x + 'four'")
    assert "none on this tree" in stacked.submit("--dry-run")
