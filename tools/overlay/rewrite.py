"""Put a hunk's new lines where it matched, in the layout of their place.

Whole statements go to lines of their own, with the indentation of the block that they
come into; anything else goes exactly where the tokens stand that it replaces.
Nothing else in the file changes by a byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from overlay.match import Match, Site
from overlay.pattern import BlockEnd, BlockStart, Edit, Literal, Pattern, Wild, indent_width
from overlay.source import (
    CLOSING,
    NEWLINE,
    OPENING,
    Brackets,
    Region,
    Source,
    SourceError,
    Token,
    line_of,
    tokens_of,
    without_comments,
    words_of,
)

HUNK_INDENT = 4
"""The columns that a block is indented by in a hunk."""

_BRANCHES = {"if", "elif", "else", "try", "except", "finally", "case"}
_HEADERS = _BRANCHES | {"for", "while", "with", "class", "def"}
_ONE_LINE_BODY = (
    "that body begins on its header's line, where no other statement fits: replace the whole line"
)
_TIGHT_BEFORE = tuple(CLOSING | {",", ":", ".", ";"})
_TIGHT_AFTER = (*OPENING, ".")


class RewriteError(ValueError):
    """An edit that cannot be written where it matched; the message says why."""


class Replacement(NamedTuple):
    """Text that replaces what stands between two offsets."""

    start: int
    stop: int
    text: str


def rewrite(
    source: Source,
    region: Region,
    pattern: Pattern,
    match: Match,
    expected: Optional[Source] = None,
) -> Source:
    """The source with a matched pattern's edits made; ``expected``, if given, or an error.

    Raises RewriteError where an edit has no good place, or where what was written does
    not read back as what was meant: the same tokens in the same blocks, and the new ones.
    """
    layout = _DocstringLayout if region.is_text else _CodeLayout
    writer: _Layout = layout(source, region, pattern, match)
    text = source.text
    try:
        for edit, site in reversed(list(zip(pattern.edits, match.sites))):
            start, stop, new = writer.replacement(edit, site, [line.text for line in edit.lines])
            text = text[:start] + NEWLINE.sub(source.newline, new) + text[stop:]
        if expected is not None and expected.text != text:
            raise RewriteError("what it makes there is not what is expected")
        result = expected or Source(text, source.encoding, source.bom)
        same = writer.reads_back(result, pattern, match)
    except SourceError as error:
        raise RewriteError(f"what it makes is not Python: {error}") from None
    if not same:
        raise RewriteError("what it makes there does not read back as what it says")
    return result


class _Layout:
    """Common to code and docstrings."""

    def __init__(self, source: Source, region: Region, pattern: Pattern, match: Match) -> None:
        self.source = source
        self.text = source.text
        self.tokens = region.tokens
        self.region = region
        self.elements = pattern.elements
        self.spans = match.spans

    def replacement(self, edit: Edit, site: Site, lines: list[str]) -> Replacement:
        """An edit's change of the text."""
        raise NotImplementedError

    def reads_back(self, result: Source, pattern: Pattern, match: Match) -> bool:
        """Whether a result has what stayed, where it stood, and what is new; nothing else."""
        raise NotImplementedError

    def neighbours(self, edit: Edit) -> tuple[object, object]:
        """The elements before and after an edit."""
        before = self.elements[edit.start - 1] if edit.start else None
        after = self.elements[edit.stop] if edit.stop < len(self.elements) else None
        return before, after

    def goes_after(self, edit: Edit) -> bool:
        """Whether an insertion goes right after what stands before it."""
        before, after = self.neighbours(edit)
        return isinstance(before, (Literal, BlockStart)) or not isinstance(after, Literal)

    def after_line(self, offset: int) -> int:
        """The offset after an offset's line and its line ending."""
        end = self.source.line_end(offset)
        for newline in ("\r\n", "\n", "\r"):
            if self.text.startswith(newline, end):
                return end + len(newline)
        return end

    def is_first_on_line(self, offset: int) -> bool:
        return not self.text[self.source.line_start(offset) : offset].strip()

    def is_last_on_line(self, offset: int) -> bool:
        return not self.text[offset : self.source.line_end(offset)].strip()

    def breaks_between(self, index: int) -> bool:
        """Whether a line ends between a token and the one before it."""
        gap = self.text[self.tokens[index - 1].end : self.tokens[index].start]
        return "\n" in gap or "\r" in gap

    def columns(self, width: int) -> str:
        """White space of a hunk's width, as the file indents."""
        blocks, rest = divmod(max(width, 0), HUNK_INDENT)
        return self.source.indent_unit * blocks + " " * rest

    def indented(self, lines: Sequence[str], indent: str, width: int) -> list[str]:
        """Lines with the indentation ``indent`` where the hunk has ``width`` columns."""
        return [
            indent + self.columns(indent_width(line) - width) + line.lstrip()
            if line.strip()
            else ""
            for line in lines
        ]

    def with_blank_lines(self, edit: Edit, start: int, stop: int) -> tuple[int, int]:
        """A range of whole lines with the blank lines around it that go with an edit."""
        for _ in range(edit.blank_before):
            above = self.source.line_start(start - (2 if self.text[:start].endswith("\r\n") else 1))
            if not start or self.text[above:start].strip():
                break
            start = above
        for _ in range(edit.blank_after):
            if stop == len(self.text) or not self.is_last_on_line(stop):
                break
            stop = self.after_line(stop)
        return start, stop

    def whole_lines(self, start: int, stop: int, lines: Sequence[str]) -> Replacement:
        """Put lines in the place of whole lines; the file's end stays as it is."""
        if not lines:
            return Replacement(start, stop, "")
        text = "\n".join(lines)
        ends_open = bool(self.text) and self.text[-1] not in "\r\n"
        if stop == len(self.text) and ends_open:
            return Replacement(start, stop, text if start < stop else "\n" + text)
        return Replacement(start, stop, text + "\n")

    def removal(self, edit: Edit, first: Token, last: Token) -> Replacement:
        """Take tokens away with the white space that they would leave behind."""
        if self.is_first_on_line(first.start) and self.is_last_on_line(last.end):
            lines = self.source.line_start(first.start), self.after_line(last.end)
            return Replacement(*self.with_blank_lines(edit, *lines), "")
        start, stop = first.start, last.end
        before = self.text[start - 1 : start]
        if not before or before.isspace() or before in _TIGHT_AFTER:
            while self.text[stop : stop + 1] in (" ", "\t"):
                stop += 1
            if self.text[stop : stop + 1] in ("", "\r", "\n", *_TIGHT_BEFORE):
                while self.text[start - 1 : start] in (" ", "\t"):
                    start -= 1
        return Replacement(start, stop, "")

    def spaced(self, offset: int, text: str) -> Replacement:
        """Insert text at an offset, with a space on either side where one belongs."""
        left, right = self.text[max(offset - 1, 0) : offset], self.text[offset : offset + 1]
        if left and not left.isspace() and left not in _TIGHT_AFTER:
            text = text if text.startswith(_TIGHT_BEFORE) else " " + text
        if right and not right.isspace() and right not in _TIGHT_BEFORE:
            text = text if text.endswith(_TIGHT_AFTER) else text + " "
        return Replacement(offset, offset, text)


class _CodeLayout(_Layout):
    def replacement(self, edit: Edit, site: Site, lines: list[str]) -> Replacement:
        lines = _strings_joined(lines)
        if self._at_line_edge(site.start) and self._at_line_edge(site.stop):
            return self._statements(edit, site, lines)
        lines = [line for line in lines if line.strip()]
        if site.start == site.stop:
            return self._insertion(edit, site.start, lines)
        return self._exchange(edit, site, lines)

    def _at_line_edge(self, index: int) -> bool:
        return index == len(self.tokens) or self.tokens[index].starts_line

    # Whole statements

    def _statements(self, edit: Edit, site: Site, lines: list[str]) -> Replacement:
        written = [line for line in lines if line.strip()]
        width = indent_width(written[0]) if written else 0
        depth = self._depth(edit, site, width)
        if self.region.symbol < 0 and site.start == site.stop and depth and not width:
            raise RewriteError(
                "the line beside it stands in a block (some 'if' of the module), and what comes"
                " stands in the hunk's first column: quote both with the block's indentation"
            )
        indents = {width: self._indentation(depth, site.start)}
        for line in written:
            column = indent_width(line)
            if column < width:
                shallower = depth + (column - width) // HUNK_INDENT
                indents[column] = self._indentation(max(shallower, 0), site.start)
        block = []
        for line in lines:
            base = max(
                column for column in indents if column <= max(indent_width(line), min(indents))
            )
            block += self.indented([line], indents[base], base)
        if site.start < site.stop:
            start = self.source.line_start(self.tokens[site.start].start)
            stop = self.after_line(self.tokens[site.stop - 1].end)
            return self.whole_lines(*self.with_blank_lines(edit, start, stop), block)
        at = self._offset_of_insertion(edit, site.start, depth)
        return self.whole_lines(at, at, block)

    def _offset_of_insertion(self, edit: Edit, index: int, depth: int) -> int:
        if index == 0:
            return self.source.line_start(self.tokens[0].start) if self.tokens else len(self.text)
        after_previous = self.after_line(self.tokens[index - 1].end)
        at_end = index == len(self.tokens)
        after = self.goes_after(edit) and not self._begins_body(edit, index)
        if at_end or after or depth > self.tokens[index].depth:
            return after_previous
        # Comments right above a statement belong to it.
        at = self.source.line_start(self.tokens[index].start)
        indent = self.source.indentation(at)
        while at > after_previous:
            above = self.source.line_start(at - 1)
            if self.text.startswith("\r\n", at - 2):
                above = self.source.line_start(at - 2)
            if above < after_previous or not self.text.startswith(indent + "#", above):
                break
            at = above
        return at

    def _begins_body(self, edit: Edit, index: int) -> bool:
        """Whether an insertion goes before a body's first statement, below what is above it."""
        return isinstance(self.neighbours(edit)[0], BlockStart) and index < self.region.end

    def _depth(self, edit: Edit, site: Site, width: int) -> int:
        """In how many blocks an edit's first line goes, by how the hunk lays it out."""
        column, depth = self._reference(edit, site, width)
        above, _ = self.neighbours(edit)
        if isinstance(above, Wild) and site.start == site.stop and width > above.column:
            raise RewriteError(
                "its lines are indented deeper than the '...' above them: put them in one column,"
                " or quote the header of the block that they go to"
            )
        difference = width - column
        if 0 < abs(difference) < HUNK_INDENT:
            difference = HUNK_INDENT if difference > 0 else -HUNK_INDENT
        return max(depth + difference // HUNK_INDENT, 0)

    def _reference(self, edit: Edit, site: Site, width: int) -> tuple[int, int]:
        """A column of the hunk and the depth in the source that it stands for."""
        if site.start < site.stop:
            removed = self.elements[edit.start]
            assert isinstance(removed, Literal)
            return removed.column, self.tokens[site.start].depth
        for index in range(edit.start - 1, -1, -1):
            element, span = self.elements[index], self.spans[index]
            if span.start == span.stop or isinstance(element, (BlockStart, BlockEnd)):
                continue
            token = self.tokens[span.start]
            if isinstance(element, Wild):
                if element.own_line and token.starts_line:
                    return element.column, token.depth
            elif token.starts_line or index == 0:
                if self._is_one_line_body(span.start):
                    raise RewriteError(_ONE_LINE_BODY)
                return element.column, token.depth
        for index in range(edit.stop, len(self.elements)):
            element, span = self.elements[index], self.spans[index]
            if not isinstance(element, Literal) or span.start == span.stop:
                continue
            if self.tokens[span.start].starts_line:
                return element.column, self.tokens[span.start].depth
        if not self.tokens or self.region.symbol < 0:
            return width, 0
        return width, self.source.symbols[self.region.symbol].depth + 1

    def _indentation(self, depth: int, index: int) -> str:
        """The white space of a block's lines near a token."""
        for at in range(index - 1, -1, -1):
            token = self.tokens[at]
            if token.starts_line and token.depth <= depth:
                if token.depth == depth:
                    return self.source.indentation(token.start)
                if index < len(self.tokens) and self.tokens[index].depth == depth:
                    return self.source.indentation(self.tokens[index].start)
                indent = self.source.indentation(token.start)
                return indent + self.source.indent_unit * (depth - token.depth)
        return self.source.indent_unit * depth

    # Parts of statements

    def _exchange(self, edit: Edit, site: Site, lines: list[str]) -> Replacement:
        first, last = self.tokens[site.start], self.tokens[site.stop - 1]
        if self._comma_is_missing(edit.stop - 1):
            if not lines:
                first = self.tokens[site.start - 1] if self._text(site.start - 1) == "," else first
            else:
                lines = _without_last_comma(lines)
        if not lines:
            return self.removal(edit, first, last)
        in_brackets = self.source.brackets.level[site.start] > 0
        if in_brackets and not self.is_first_on_line(first.start):
            return Replacement(first.start, last.end, self._joined(lines, last.end))
        if not in_brackets and self._is_one_line_body(site.start) and _statements_in(lines) > 1:
            raise RewriteError(_ONE_LINE_BODY)
        self._check_comments([], lines[-1], last.end)
        indent = self.source.indentation(first.start)
        laid_out = self.indented(lines, indent, indent_width(lines[0]))
        text = "\n".join(laid_out)
        return Replacement(first.start, last.end, text[len(indent) :])

    def _insertion(self, edit: Edit, index: int, lines: list[str]) -> Replacement:
        in_brackets = self.source.brackets.level_before(index) > 0
        if self._text(index - 1) == ":" and not in_brackets and self._is_one_line_body(index):
            raise RewriteError(_ONE_LINE_BODY)
        own_lines = in_brackets and self.breaks_between(index)
        comma = ""
        if self._needs_comma(edit, index, lines):
            comma = ","
            lines = _without_last_comma(lines)
        elif not own_lines and self._is_empty_call(index):
            lines = _without_last_comma(lines)
        if self.goes_after(edit) or self._text(index) in ("", *CLOSING):
            previous = self.tokens[index - 1]
            if own_lines:
                beside = index - 1 if self._text(index) in CLOSING else index
                indent = self.source.indentation(self.tokens[beside].start)
                if self._text(beside) in OPENING:
                    indent += self.source.indent_unit
                laid_out = self.indented(lines, indent, indent_width(lines[0]))
                end = self.source.line_end(previous.end)
                text = "".join("\n" + line for line in laid_out)
                kept = self.text[previous.end : end]
                return Replacement(previous.end, end, comma + kept + text)
            text = comma + " " * bool(comma) + self._joined(lines, previous.end)
            return self.spaced(previous.end, text)
        start = self.tokens[index].start
        if own_lines:
            indent = self.source.indentation(start)
            laid_out = self.indented(lines, indent, indent_width(lines[0]))
            at = self.source.line_start(start)
            return self.whole_lines(at, at, laid_out)
        return self.spaced(start, self._joined(lines, start))

    def _joined(self, lines: Sequence[str], stop: int) -> str:
        """Lines put into one, before what stands at an offset."""
        self._check_comments(lines[:-1], lines[-1], stop)
        return " ".join(line.strip() for line in lines)

    def _check_comments(self, joined: Sequence[str], last: str, stop: int) -> None:
        """Refuse comments that would swallow the code after them."""
        checked = [*joined] if self.is_last_on_line(stop) else [*joined, last]
        if checked and without_comments(checked) != checked:
            raise RewriteError("a comment cannot stand there: code follows in the same line")

    def _is_one_line_body(self, index: int) -> bool:
        """Whether a token stands in a body that begins on its header's line."""
        start = index
        while not self.tokens[start].starts_line:
            start -= 1
        first = self.tokens[start + (self.tokens[start].text == "async")].text
        return first in _HEADERS and any(
            self.tokens[at].text == ":" and self.source.brackets.level[at] == 0
            for at in range(start, index)
        )

    def _needs_comma(self, edit: Edit, index: int, lines: list[str]) -> bool:
        """Whether an element put last in brackets needs a comma before it."""
        if self._text(index) not in CLOSING or self._text(index - 1) in ("", ",", *OPENING):
            return False
        return (edit.start > 0 and self._comma_is_missing(edit.start - 1)) or (
            _without_last_comma(lines) != lines
        )

    def _is_empty_call(self, index: int) -> bool:
        """Whether a token closes brackets with nothing in them that need no last comma."""
        around = self._text(index - 1) in OPENING and self._text(index) in CLOSING
        return around and not self.source.brackets.comma_matters(index)

    def _text(self, index: int) -> str:
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def _comma_is_missing(self, index: int) -> bool:
        """Whether an element is a comma that the source does not write out."""
        element, span = self.elements[index], self.spans[index]
        return isinstance(element, Literal) and element.text == "," and span.start == span.stop

    def reads_back(self, result: Source, pattern: Pattern, match: Match) -> bool:
        expected: list[Token] = []
        origins: list[Optional[int]] = []
        at = 0
        for edit, site in zip(pattern.edits, match.sites):
            lines = _strings_joined([line.text for line in edit.lines])
            comma = site.start == site.stop and self._needs_comma(edit, site.start, lines)
            new = tokens_of("," * comma + "\n".join(lines) + "\n")
            expected += [*self.tokens[at : site.start], *new]
            origins += [*range(at, site.start), *[None] * len(new)]
            at = site.stop
        expected += self.tokens[at:]
        origins += range(at, len(self.tokens))
        wanted, found = _significant(expected), _significant(result.tokens)
        if len(wanted) != len(found):
            return False
        after_new = False
        first, written = result.tokens[:1], expected[:1]
        for index, other in zip(wanted, found):
            have, want = result.tokens[other], expected[index]
            if have.key != want.key:
                return False
            if origins[index] is not None:
                moved = have.depth != want.depth or have.starts_line != want.starts_line
                if moved and not after_new:
                    return False
                after_new = False
                continue
            if not after_new:
                first, written = [have], [want]
            elif result.brackets.level[other] == 0 and (
                have.starts_line != want.starts_line
                or max(have.depth - first[0].depth, -1) != max(want.depth - written[0].depth, -1)
            ):
                return False
            after_new = True
        self._check_clauses(result, {f: origins[w] for w, f in zip(wanted, found)}, match)
        return True

    def _check_clauses(
        self, result: Source, origins: Mapping[int, Optional[int]], match: Match
    ) -> None:
        """Refuse to make an ``else`` and the like, which the hunk does not quote, another's."""
        quoted = {
            span.start
            for element, span in zip(self.elements, self.spans)
            if isinstance(element, Literal) and element.mark == " " and span.start < span.stop
        }
        places = {origin: index for index, origin in origins.items() if origin is not None}
        for clause, head in self.source.clauses.items():
            if clause in quoted or clause not in places:
                continue
            new_head = result.clauses.get(places[clause])
            replaced = any(site.start <= head < site.stop for site in match.sites)
            if new_head is not None and replaced and origins.get(new_head) is None:
                same = result.tokens[new_head].text == self.tokens[head].text
            else:
                same = new_head is not None and origins.get(new_head) == head
            if not same:
                line = self.source.line(self.tokens[clause].start)
                owner = self.source.line(self.tokens[head].start)
                raise RewriteError(
                    f"the '{self.tokens[clause].text}' in line {line} would no longer belong to"
                    f" the '{self.tokens[head].text}' in line {owner}: put the change elsewhere,"
                    " or quote that line too if this is meant"
                )


class _DocstringLayout(_Layout):
    def replacement(self, edit: Edit, site: Site, lines: list[str]) -> Replacement:
        if not self.tokens:
            raise RewriteError("the docstring is empty")
        if site.start < site.stop:
            return self._exchange(edit, site, lines)
        return self._insertion(edit, site.start, lines)

    def _token(self) -> int:
        """The index of the docstring's token."""
        ends = (token.end for token in self.source.tokens)
        return next(index for index, end in enumerate(ends) if end > self.tokens[0].start)

    def _exchange(self, edit: Edit, site: Site, lines: list[str]) -> Replacement:
        first, last = self.tokens[site.start], self.tokens[site.stop - 1]
        if not any(line.strip() for line in lines):
            return self.removal(edit, first, last)
        indent = self.source.indentation(first.start)
        laid_out = self.indented(lines, indent, indent_width(lines[0]))
        return Replacement(first.start, last.end, "\n".join(laid_out)[len(indent) :])

    def _insertion(self, edit: Edit, index: int, lines: list[str]) -> Replacement:
        before, after = self.neighbours(edit)
        written = next(line for line in lines if line.strip())
        at_end = index == len(self.tokens)
        own_lines = at_end or (index > 0 and self.breaks_between(index))
        joined = " ".join(line.strip() for line in lines if line.strip())
        if index and (self.goes_after(edit) or at_end):
            previous = self.tokens[index - 1]
            if not own_lines:
                return self.spaced(previous.end, joined)
            if isinstance(before, Literal):
                column, indent = before.column, self.source.indentation(previous.start)
            else:
                # After ``...`` there is no line to go by: the docstring's own indentation is meant.
                statement = self.source.tokens[self._token()].start
                column, indent = indent_width(written), self.source.indentation(statement)
            text = "".join("\n" + line for line in self.indented(lines, indent, column))
            return Replacement(previous.end, previous.end, text)
        following = self.tokens[index]
        if not own_lines:
            return self.spaced(following.start, joined)
        column = after.column if isinstance(after, Literal) else indent_width(written)
        at = self.source.line_start(following.start)
        laid_out = self.indented(lines, self.source.indentation(following.start), column)
        return self.whole_lines(at, at, laid_out)

    def reads_back(self, result: Source, pattern: Pattern, match: Match) -> bool:
        expected: list[str] = []
        at = 0
        for edit, site in zip(pattern.edits, match.sites):
            new = "\n".join(line.text for line in edit.lines)
            expected += [word.text for word in self.tokens[at : site.start]]
            expected += [word.text for word in words_of(new, 0, len(new))]
            at = site.stop
        expected += [word.text for word in self.tokens[at:]]
        docstring = self._token()
        if len(result.tokens) != len(self.source.tokens):
            return False
        for index, (before, after) in enumerate(zip(self.source.tokens, result.tokens)):
            if index == docstring:
                continue
            if (before.key, before.depth, before.starts_line) != (
                after.key,
                after.depth,
                after.starts_line,
            ):
                return False
        changed = result.docstring_words(docstring)
        return [word.text for word in changed] == expected


def _strings_joined(lines: list[str]) -> list[str]:
    """Lines with those of one string as one, so that none of it is indented; not docstrings."""
    text = "\n".join(lines)
    rows = {
        row
        for token in tokens_of(text)
        if not token.starts_line and isinstance(token.key, tuple)
        for row in range(line_of(text, token.start), line_of(text, token.end))
    }
    joined: list[str] = []
    for row, line in enumerate(lines):
        if row in rows:
            joined[-1] += "\n" + line
        else:
            joined.append(line)
    return joined


def _without_last_comma(lines: list[str]) -> list[str]:
    """Lines without the comma that their code ends with, if it does."""
    text = "\n".join(lines)
    last = next(reversed(tokens_of(text)), None)
    if last is None or last.text != ",":
        return lines
    return _strings_joined((text[: last.start] + text[last.end :]).split("\n"))


def _statements_in(lines: Sequence[str]) -> int:
    """How many logical lines some lines are."""
    return sum(token.starts_line for token in tokens_of("\n".join(lines) + "\n"))


def _significant(tokens: Sequence[Token]) -> list[int]:
    """The tokens' indices without commas that change nothing before a closing bracket."""
    brackets = Brackets.of(tokens)
    return [index for index in range(len(tokens)) if not brackets.is_trailing_comma(index)]
