"""What must hold before anything leaves the machine; each check is one line with its finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Optional, TypeVar, Union

from overlay import operations
from overlay.errors import OverlayError, PatchError, TargetError, UsageError
from overlay.git import Git
from overlay.lint import lint_series
from overlay.mails import commit_text
from overlay.series import Series
from overlay.stack import branches, evidence, ghstack, pulls
from overlay.stack.config import Config, read_config
from overlay.stack.entries import Entry, Stack, find_stack
from overlay.stack.github import GitHub, Pull, Repository
from overlay.stack.identity import PatchFiles, misleading
from overlay.stack.landed import landed
from overlay.stack.linting import lint_checkout
from overlay.targets import Checkout
from overlay.upstream.results import Run

PROBE = "refs/heads/gh/{user}/torch-overlay"
"""A branch that is never made: whether it could be is asked."""


@dataclass(frozen=True)
class Note:
    """A finding that stops nothing, and is not all well either."""

    text: str


class _Unknown(Exception):
    """A check that needs what an earlier one did not find."""


_T = TypeVar("_T")
_Finding = Union[str, Note]


def _known(value: Optional[_T], check: str) -> _T:
    if value is None:
        raise _Unknown(check)
    return value


def _plain(title: str) -> str:
    """Without what ghstack takes out of mentions."""
    return title.replace("@", "")


class Checks:
    """All checks of one submit, and what they found out on the way."""

    def __init__(self, target: Checkout, series: Series, despite: tuple[str, ...] = ()) -> None:
        self.target = target
        self.series = series
        self.git = Git(target.root)
        self.problems: list[OverlayError] = []
        self.pulls = pulls.Found()
        self.branch: Optional[str] = None
        self.tests: Optional[Run] = None
        self._despite = despite
        self._stack: Optional[Stack] = None
        self._config: Optional[Config] = None
        self._name: Optional[str] = None
        self._repository: Optional[Repository] = None
        self._named: Mapping[str, Pull] = {}
        self._misnamed: list[str] = []
        self._users: list[str] = []
        self._landed: frozenset[str] = frozenset()

    def run(self, say: Callable[[str], None]) -> None:
        """Make all checks, and say what each finds."""
        for name, check in (
            ("series", self._check_series),
            ("patches", self._check_patches),
            ("work tree", self._check_work_tree),
            ("ghstack", self._check_ghstack),
            ("configuration", self._check_configuration),
            ("remote", self._check_remote),
            ("repository", self._check_repository),
            ("write access", self._check_write_access),
            ("base", self._check_base),
            ("landed", self._check_landed),
            ("pull requests", self._check_pull_requests),
            ("verify", self._check_verify),
            ("lint", self._check_lint),
            ("lint of the series", self._check_series_lint),
            ("tests", self._check_tests),
        ):
            self._run_one(name, check, say)

    def _run_one(
        self, name: str, check: Callable[[], list[_Finding]], say: Callable[[str], None]
    ) -> None:
        try:
            for finding in check():
                if isinstance(finding, Note):
                    say(f"note     {name}: {finding.text}")
                else:
                    say(f"ok       {name}: {finding}")
        except _Unknown as error:
            say(f"unknown  {name}: {error} comes first")
        except OverlayError as error:
            if name.split()[0] in self._despite:
                say(f"despite  {name}: {error.message}")
                return
            self.problems.append(error)
            for line in (error.message, *error.details):
                say(f"PROBLEM  {name}: {self.redact(line)}")

    def redact(self, text: str) -> str:
        """A text without the token."""
        return self._config.redact(text) if self._config else text

    # ---- what is known so far

    @property
    def stack(self) -> Stack:
        """The commits of the series."""
        return _known(self._stack, "patches")

    @property
    def config(self) -> Config:
        """ghstack's configuration."""
        return _known(self._config, "configuration")

    @cached_property
    def github(self) -> GitHub:
        """The repository on GitHub."""
        return GitHub(self.config, _known(self._name, "remote"))

    @property
    def repository(self) -> Repository:
        """What GitHub says of it."""
        return _known(self._repository, "repository")

    def look_up(self, entries: Sequence[Entry]) -> pulls.Found:
        """Which pull requests patches are now."""
        self._fetch(entries)
        submitted = branches.read(self.git, self.config.remote, self._users)
        return pulls.resolve(
            entries, self.series, self._named, submitted, self.github, self.config.user
        )

    def _fetch(self, entries: Sequence[Entry]) -> None:
        self._named, self._misnamed = pulls.named_pulls(entries, self.github)
        heads = (re.match(r"gh/([^/]+)/", pull.head) for pull in self._named.values())
        self._users = sorted({self.config.user, *(head[1] for head in heads if head)})
        branches.fetch(self.git, self.config.remote, self.repository.branch, self._users)

    # ---- the checks

    def _check_series(self) -> list[_Finding]:
        files = PatchFiles(self.series)
        reason = files.refusal()
        if reason is not None:
            raise UsageError(reason)
        return [f"{self.series.root} takes the names of the pull requests"]

    def _check_patches(self) -> list[_Finding]:
        self._stack = find_stack(self.target, self.series)
        count = len(self._stack.entries)
        if not count:
            raise operations.nothing_for(self.target, self.series)
        return [f"{count} applied as the series has them, on {self._stack.base[:12]}"]

    def _check_work_tree(self) -> list[_Finding]:
        refusal = self.target.refusal()
        if refusal is not None:
            raise TargetError(refusal)
        changed = self.git.run(
            *("--no-optional-locks", "status", "--porcelain", "--untracked-files=no"),
            "--ignore-submodules=dirty",
        ).decode("utf-8", "replace")
        if changed:
            raise TargetError(
                f"{changed.splitlines()[0][3:]} has uncommitted changes: commit or stash them first"
            )
        return ["clean"]

    def _check_ghstack(self) -> list[_Finding]:
        return [ghstack.version()]

    def _check_configuration(self) -> list[_Finding]:
        config = self._config = read_config(self.target.root)
        return [f"{config.user} on {config.host}, in {config.place}"]

    def _check_remote(self) -> list[_Finding]:
        remote = self.config.remote
        url = self.git.found("remote", "get-url", "--push", remote)
        if url is None:
            raise TargetError(
                f"no remote is named {remote}: 'git remote add {remote} ADDRESS' names the"
                f" repository to submit to, or remote_name in {self.config.place} another remote"
            )
        found = re.search(rf"{re.escape(self.config.host)}[:/]+([^/]+)/([^/]+?)(?:\.git)?$", url)
        if found is None:
            raise TargetError(
                f"the remote {remote} is {self.redact(url)}, which is not on {self.config.host}:"
                f" let remote_name in {self.config.place} name the one that is"
            )
        self._name = f"{found[1]}/{found[2]}"
        return [f"{remote} is {self._name}"]

    def _check_repository(self) -> list[_Finding]:
        found = self.github.repository()
        if found.is_fork:
            raise TargetError(
                f"{self._name} is a fork, and ghstack takes none: let {self.config.remote} be the"
                " repository that it was forked from"
            )
        self._repository = found
        return [f"{self._name}, {found.branch} is its default branch"]

    def _check_write_access(self) -> list[_Finding]:
        without = (
            f"ghstack pushes its branches to {self._name} itself: ask there for the right to push,"
            f" or 'torch-overlay export {self.target.root} -o DIR' and open one pull request from a"
            " fork (docs/submitting.md)"
        )
        if not self.repository.may_push:
            raise TargetError(f"{self.config.user} may not push to {self._name}: {without}")
        probe = f"HEAD:{PROBE.format(user=self.config.user)}"
        said = Git(self.target.root, environment={"GIT_TERMINAL_PROMPT": "0"}).attempt(
            "push", "--dry-run", "--no-verify", "--quiet", self.config.remote, probe
        )
        if said.returncode:
            lines = said.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
            raise TargetError(f"git cannot push to {self.config.remote}: {lines[0]}: {without}")
        return [f"{self.config.user} may push"]

    def _check_base(self) -> list[_Finding]:
        remote, default = self.config.remote, self.repository.branch
        base, upstream = self.stack.base, f"refs/remotes/{remote}/{default}"
        self._fetch(self.stack.entries)
        self.branch = f"{remote}/{default}"
        merges = self.git.line("rev-list", "--merges", f"{upstream}..HEAD").split()
        if merges:
            raise TargetError(
                f"{merges[0][:12]} is a merge, which ghstack refuses: 'git rebase {self.branch}'"
                " takes it out (never merge into a stack)"
            )
        below = self.git.line("rev-list", f"{upstream}..{base}").split()
        if below:
            raise TargetError(
                f"{len(below)} commits below the series are not on {self.branch}, and ghstack would"
                f" submit them too: 'git rebase --onto {self.branch} {base[:12]}' leaves them out"
            )
        behind = self.git.line("rev-list", "--count", f"{base}..{upstream}")
        return [f"{base[:12]} is on {self.branch}, {behind} commits below its tip"]

    def _check_landed(self) -> list[_Finding]:
        branch = _known(self.branch, "base")
        self._landed = landed(self.target, self.series, branch)
        entries = [e.patch.name for e in self.stack.entries if e.patch.name in self._landed]
        if entries:
            raise TargetError(
                f"{', '.join(entries)}: landed, the change is on {branch}:"
                f" 'torch-overlay revert {self.target.root}', remove it and its line in"
                f" patches/series (or end its Torch-Version there), 'git rebase {branch}', and"
                " apply again"
            )
        lines: list[_Finding] = [
            Note(f"{name}: on {branch}: remove it and its line in patches/series")
            for name in sorted(self._landed)
        ]
        return lines or ["none"]

    def _check_pull_requests(self) -> list[_Finding]:
        _known(self.branch, "base")
        entries = [e for e in self.stack.entries if e.patch.name not in self._landed]
        submitted = branches.read(self.git, self.config.remote, self._users)
        self.pulls = pulls.resolve(
            entries, self.series, self._named, submitted, self.github, self.config.user
        )
        problems = [*self._misleading(), *self._misnamed, *self.pulls.problems]
        if problems:
            raise TargetError(problems[0], problems[1:])
        known = sum(planned.pull is not None for planned in self.pulls.planned)
        lines: list[_Finding] = [f"{known} to update, {len(self.pulls.planned) - known} to open"]
        for planned in self.pulls.planned:
            if planned.pull and not planned.is_noted:
                lines.append(Note(f"{planned.entry.patch.name} is {planned.pull}, found there"))
        lines += [
            Note(
                f"{planned.entry.patch.name} is {planned.pull}, whose title is"
                f" '{planned.pull.title}': --update-fields changes it, if it is the one"
            )
            for planned in self.pulls.planned
            if planned.pull and _plain(planned.pull.title) != _plain(planned.entry.title)
        ]
        return lines + [Note(text) for text in self.pulls.notes]

    def _misleading(self) -> list[str]:
        lines = []
        for entry in self.stack.entries:
            message = commit_text(entry.patch).message
            line = misleading(message, entry.identity, self.config.host)
            if line is not None:
                lines.append(
                    f"{entry.patch.name} says '{line}', which ghstack takes for the patch's own"
                    " wherever it stands: take it out, or write it otherwise"
                )
        return lines

    def _check_verify(self) -> list[_Finding]:
        made = operations.plan(self.target.at(self.stack.base), self.series)
        report = made.report
        return [
            f"{report.calls_checked} calls and {report.names_checked} names hold,"
            f" {len(report.unresolved)} unresolved"
        ]

    def _check_lint(self) -> list[_Finding]:
        base = self.stack.base
        try:
            linted = lint_checkout(self.target.root, base)
        except TargetError as error:
            return [Note(f"not run: {error.message}")]
        if linted.findings:
            raise PatchError(str(linted.findings[0]), [str(f) for f in linted.findings[1:]])
        lines: list[_Finding] = [f"{', '.join(linted.ran)}: nothing"] if linted.ran else []
        return lines + [Note(f"{code} not run: {why}") for code, why in linted.not_run.items()]

    def _check_series_lint(self) -> list[_Finding]:
        findings = [f"{f.path}: {f.message}" for f in lint_series(self.series.root)]
        if findings:
            raise PatchError(findings[0], findings[1:])
        return ["nothing"]

    def _check_tests(self) -> list[_Finding]:
        self.tests = evidence.last_result(self.stack.changes)
        if self.tests is None:
            return [Note("none on this tree: 'torch-overlay test' makes them")]
        return [evidence.in_one_line(self.tests)]
