"""The bytes that structure a CSV text: quotes and comment characters."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Marks:
    """`quote` encloses values that may contain newlines; `comment` begins a comment that ends with its line."""

    quote: int | None = ord('"')
    comment: int | None = None

    def find_comments(self, data: bytes, is_within_quotes: bool = False) -> list[tuple[int, int]]:
        """(first byte, byte after the last) of each comment; `is_within_quotes`: whether `data` begins so."""
        if self.comment is None or self.comment not in data:
            return []
        search_start = 0
        if is_within_quotes:
            search_start = -1 if self.quote is None else data.find(self.quote)
            if search_start < 0:
                return []  # all of `data` is within quotes
            search_start += 1
        pattern, comments = _compile_pattern(self), []
        while match := pattern.match(data, search_start):
            comments.append(match.span(1))
            search_start = match.end()
        return comments

    def fills_line(self, data: bytes, comment: int) -> bool:
        """Whether the comment at the offset `comment` has only spaces before it in its line."""
        return not data[_find_line(data, comment) : comment].strip(b" ")

    def drop_quoted(self, data: bytes) -> bytes:
        """Remove quoted values from `data`, which begins outside of quotes."""
        if self.quote is None:
            return data
        quote = re.escape(bytes([self.quote]))
        return re.sub(rb"%b[^%b]*%b" % (quote, quote, quote), b"", data)

    def remove_comments(self, data: bytes) -> bytes:
        """Remove comments from `data`, which begins outside of quotes. The number of lines does not change."""
        pieces, copied_end = [], 0
        for start, end in self.find_comments(data):
            pieces.append(data[copied_end : _find_line(data, start) if self.fills_line(data, start) else start])
            copied_end = end
        return b"".join([*pieces, data[copied_end:]]) if pieces else data


def _find_line(data: bytes, offset: int) -> int:
    """The offset at which the line of the byte at `offset` begins."""
    return data.rfind(b"\n", 0, offset) + 1


@functools.lru_cache
def _compile_pattern(marks: Marks) -> re.Pattern[bytes]:
    """A pattern that matches from outside of quotes up to the end of the next comment, which is its group 1."""
    assert marks.comment is not None
    comment = re.escape(bytes([marks.comment]))
    if marks.quote is None:
        return re.compile(rb"[^%b]*(%b[^\n]*)" % (comment, comment))
    quote = re.escape(bytes([marks.quote]))
    # `free`: bytes that are neither a quote nor a comment character. The pattern is free bytes, any number of quoted
    # values with free bytes after each, and the comment.
    free = rb"[^%b%b]*" % (comment, quote)
    return re.compile(rb"%b(?:%b[^%b]*%b%b)*(%b[^\n]*)" % (free, quote, quote, quote, free, comment))
