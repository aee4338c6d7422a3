from __future__ import annotations

from expecttest import assert_expected_inline

from fake_github import TOKEN
from stacks import Stacked, github, stacked, user

__all__ = ["github", "stacked", "user"]


def test_first_submit(stacked: Stacked) -> None:
    stacked.overlay("apply", str(stacked.tree))
    assert_expected_inline(stacked.submit("--dry-run"), """\
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
""")
    assert_expected_inline(stacked.submit(), """\
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
ok       pull requests: 0 to update, 3 to open
ok       verify: 0 calls and 0 names hold, 0 unresolved
note     lint: not run: FOLDER/pytorch has no .lintrunner.toml, so there is nothing to run
ok       lint of the series: nothing
note     tests: none on this tree: 'torch-overlay test' makes them
    ghimport -s https://github.example/pytorch/pytorch/pull/502
    ghstack checkout https://github.example/pytorch/pytorch/pull/502
""")
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
    assert_expected_inline(stacked.identities(), """\
one.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/500
two.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/501
three.apatch: ghstack-source-id, https://github.example/pytorch/pytorch/pull/502
""")
    assert stacked.github.tokens == {TOKEN}
