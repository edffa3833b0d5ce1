"""Makes text from captures, object keys and users safe to show on a terminal, in logs and on pages.

Each output calls it in one place: `console.py`, `stderr.py`, `telemetry/logs.py`, and the pages of `spark_jobs`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any, Final

_HOSTILE: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters, including those that begin terminal commands (ECMA-48)
    "\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, bidirectional, line ends
    "\ud800-\udfff"  # surrogates: bytes of a file name that are not UTF-8
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
    "]"
)
"""Unicode's categories Cc, Cs, Zl, Zp and Cf, except those of Cf that text needs: joiners in Persian and Indic words, and
signs around Arabic numbers."""

_COLOR: Final = re.compile(r"\x1b\[[0-9;]*m")


def visible(text: str, *, keep: str = "") -> str:
    """One line with only visible characters; all others are escaped as in Python: \\x1b, \\n, \\u202e.

    `keep`: characters that are not escaped.
    """
    return _HOSTILE.sub(lambda found: found[0] if found[0] in keep else _python(found[0]), text)


def to_json(value: Any, *, default: Callable[[Any], Any] | None = None, ensure_ascii: bool = True) -> str:
    """JSON on one line that escapes the same characters as `visible`, so that a parser gets the original text."""
    text = json.dumps(value, default=default, ensure_ascii=ensure_ascii)
    return _HOSTILE.sub(lambda match: json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f", text)


def shell_word(text: str) -> str:
    """A text as one word for bash or zsh that is safe to show and to paste: 'a b', or $'a\\U0000001bb'."""
    if not _HOSTILE.search(text):
        return shlex.quote(text)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _HOSTILE.sub(lambda found: f"\\U{ord(found[0]):08x}", quoted) + "'"


def counted(count: int, one: str, many: str = "") -> str:
    """A number and what it counts: "1 capture", "1,200 captures". `many`: the plural, by default `one` and an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def describe_library_error(error: BaseException) -> str:
    """The text of an error of a library, without terminal colors and without the stack of its native code."""
    return _COLOR.sub("", str(error)).split("\n   0: ")[0].strip()


def _python(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")
