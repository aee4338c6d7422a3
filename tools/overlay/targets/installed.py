"""A torch that was installed from a wheel, by pip, uv or conda."""

from __future__ import annotations

import ast
import base64
import csv
import io
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from overlay.errors import TargetError
from overlay.targets.base import Record, Target
from overlay.targets.compiling import compile_errors
from overlay.targets.journal import digest, read_file


@dataclass(frozen=True)
class _Row:
    sha256: str
    size: int


class Installed(Target):
    """The site-packages folder that holds torch/ and its dist-info."""

    kind = "installed"

    def __init__(self, root: Path, python: Optional[Path] = None) -> None:
        super().__init__(root)
        self.python = python or _interpreter_of(root)
        self.version = _version(root / "torch" / "version.py")
        self._dist_info, self._no_dist_info = self._find_dist_info()
        self._state = f"{self._dist_info}/torch-overlay" if self._dist_info else None
        self._hashes: Optional[dict[str, str]] = None

    def carries(self, path: str) -> bool:
        return path.startswith("torch/")

    def refusal(self) -> Optional[str]:
        if self._dist_info is None:
            return self._no_dist_info
        direct = read_file(self.root / self._dist_info / "direct_url.json")
        if direct and b'"editable": true' in re.sub(rb"\s*:\s*", b": ", direct):
            return f"torch in {self.root} is an editable install: name its source tree instead"
        if not any("=" in value for value in self._record_hashes().values()):
            return (
                f"{self.root / self._dist_info / 'RECORD'} has no hashes, so that nothing proves"
                f" what torch's files were; {self._reinstall()}"
            )
        return None

    def record(self) -> Optional[Record]:
        if self._state is None:
            return None
        record = super().record()
        # A RECORD that does not list it is from a later installation over the top.
        path = f"{self._state}/record.json"
        if f"{path},".encode() not in (self.tree.read(self._record_path) or b""):
            return None
        if record is None and not self.interrupted:
            raise TargetError(f"{self.root / path} is missing; {self._reinstall()}")
        return record

    def is_pristine(self, path: str) -> bool:
        """Whether the wheel's RECORD proves that the file is the wheel's own."""
        content = digest(self.tree.read(path))
        if content is None or self._dist_info is None:
            return False
        record = self.record()
        if record and path in record.files:
            return content == record.files[path].before
        return content == self._hash_of(path)

    def local_changes(self, paths: Iterable[str]) -> list[str]:
        """Files that are not what RECORD says, nor what this tool wrote.

        Also a file that RECORD does not know, or whose hash it does not have: nothing proves it.
        """
        record = self.record()
        changed = []
        for path in paths:
            if record and path in record.files:
                known = self._known(path, record.files[path])
            else:
                known = digest(self.tree.read(path)) == self._hash_of(path)
            if not known:
                changed.append(path)
        return changed

    def compile_errors(self, files: Mapping[str, bytes]) -> list[tuple[str, int, str]]:
        return compile_errors(files, str(self.python))

    def _reinstall(self) -> str:
        return (
            f"install it anew (pip install --force-reinstall --no-deps torch=={self.version})"
            " and try again"
        )

    def _find_dist_info(self) -> tuple[Optional[str], str]:
        """The name of torch's dist-info folder, or None and why there is none."""
        found = {}
        for folder in sorted(self.root.glob("torch-*.dist-info")):
            metadata = read_file(folder / "METADATA")
            if metadata is None or not (folder / "RECORD").is_file():
                continue
            header = metadata.split(b"\n\n")[0].replace(b"\r", b"").decode("utf-8", "replace")
            fields = dict(re.findall(r"^(Name|Version): *(.*?) *$", header, re.M))
            if fields.get("Name", "").lower() == "torch":
                found[folder.name] = fields.get("Version")
        if len(found) > 1:
            found = {n: v for n, v in found.items() if v == self.version} or found
        if len(found) == 1:
            return next(iter(found)), ""
        if found:
            return None, (
                f"{self.root} has several dist-info folders of torch ({', '.join(found)}):"
                " uninstall torch until none is left, then install it anew"
            )
        return None, (
            f"torch in {self.root} has no torch-*.dist-info with a RECORD, so that its files"
            " cannot be proven: use a torch from a wheel, in a venv (pip install torch)"
        )

    def _refresh(self) -> None:
        self._hashes = None

    @property
    def _record_path(self) -> str:
        return f"{self._dist_info}/RECORD"

    def _hash_of(self, path: str) -> Optional[str]:
        """What RECORD says is the file's SHA-256, in hexadecimal."""
        if self._dist_info is None:
            return None
        algorithm, _, value = self._record_hashes().get(path, "").partition("=")
        if algorithm != "sha256":
            return None
        return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()

    def _record_hashes(self) -> dict[str, str]:
        if self._hashes is None:
            text = (self.root / self._record_path).read_text(encoding="utf-8")
            rows = csv.reader(io.StringIO(text))
            self._hashes = {row[0]: row[1] for row in rows if len(row) > 1}
        return self._hashes

    def _wheel_record(self, record: Optional[Record]) -> Optional[bytes]:
        if record is not None and record.wheel_record is not None:
            return self._original(record.wheel_record)
        return self.tree.read(self._record_path)

    def _bare_files(self, wheel_record: Optional[bytes]) -> dict[str, bytes]:
        assert wheel_record is not None
        return {self._record_path: wheel_record}

    def _own_files(self, record: Record, state: Mapping[str, bytes]) -> dict[str, bytes]:
        assert record.wheel_record is not None
        return {
            self._record_path: _with_rows(
                state[self._kept(record.wheel_record)], _rows(record, state)
            )
        }

    def _edited_outside(self, record: Record) -> list[str]:
        original = self._wheel_record(record)
        assert original is not None
        state = {path: self.tree.read(path) or b"" for path in self._present_state()}
        expected = _with_rows(original, _rows(record, state))
        return [] if self.tree.read(self._record_path) == expected else [self._record_path]


def _rows(record: Record, state: Mapping[str, bytes]) -> dict[str, Optional[_Row]]:
    rows: dict[str, Optional[_Row]] = {}
    for path, entry in sorted(record.files.items()):
        rows[path] = None if entry.after is None else _Row(entry.after, entry.size)
    for path, content in sorted(state.items()):
        sha256 = digest(content)
        assert sha256 is not None
        rows[path] = _Row(sha256, len(content))
    return rows


def _with_rows(record: bytes, rows: Mapping[str, Optional[_Row]]) -> bytes:
    """A RECORD with other rows for some files; all other lines stay as they are."""
    rest = dict(rows)
    gone = {path for path, row in rows.items() if row is None}
    lines = [line.decode("utf-8") for line in record.splitlines(keepends=True)]
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    result = []
    for line in lines:
        path = next(csv.reader([line]))[0] if line.startswith('"') else line.split(",", 1)[0]
        if path in rest:
            row = rest.pop(path)
            if row is not None:
                result.append(_line(path, row, end))
        elif not (gone and _source_of(path) in gone):
            result.append(line)
    if result and not result[-1].endswith("\n"):
        result[-1] += end
    result += [_line(path, row, end) for path, row in rest.items() if row is not None]
    return "".join(result).encode("utf-8")


def _line(path: str, row: _Row, end: str) -> str:
    value = base64.urlsafe_b64encode(bytes.fromhex(row.sha256)).rstrip(b"=").decode()
    out = io.StringIO()
    csv.writer(out, lineterminator=end).writerow([path, f"sha256={value}", row.size])
    return out.getvalue()


def _source_of(path: str) -> Optional[str]:
    """The source file of a bytecode file."""
    found = re.fullmatch(r"(.*/)__pycache__/([^./]+)\.[^/]*\.pyc", path)
    return f"{found[1]}{found[2]}.py" if found else None


def _version(path: Path) -> str:
    """``__version__`` in torch/version.py, which is read, not run."""
    content = read_file(path)
    try:
        module = ast.parse(content or b"")
    except (SyntaxError, ValueError) as error:
        raise TargetError(f"{path} cannot be read: {error}") from error
    for node in module.body:
        names = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            names = [node.target]
        if (
            any(isinstance(name, ast.Name) and name.id == "__version__" for name in names)
            and isinstance(node, (ast.Assign, ast.AnnAssign))
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            return node.value.value
    raise TargetError(f"{path} does not say torch's version; install torch anew")


def _interpreter_of(root: Path) -> Path:
    """The interpreter that goes with a site-packages folder; else the running one."""
    if root.parent.name.startswith("python"):
        for name in (root.parent.name, "python3", "python"):
            python = root.parents[2] / "bin" / name
            if python.is_file():
                return python
    windows = root.parent.parent / "Scripts" / "python.exe"
    return windows if windows.is_file() else Path(sys.executable)
