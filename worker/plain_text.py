"""Text from captures, keys and people, made safe to show: on a terminal, in logs and on pages.

What is shown goes through here at the one place where it leaves: `console.py`, `stderr.py`, `telemetry/logs.py`, the pages of
`spark_jobs`. Knows nothing of where that is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any, Final

_HOSTILE: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters, among them those that begin a terminal's commands (ECMA-48)
    "\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # unseen, or turn or end a line
    "\ud800-\udfff"  # no text: bytes of a file's name that are not UTF-8
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
    "]"
)
"""Unicode's categories Cc, Cs, Zl, Zp and Cf; of the last, letters need the joiners of Persian and Indic words and the signs
that are drawn around Arabic numbers."""


def visible(text: str, *, keep: str = "") -> str:
    """One line in which every character can be seen, the others as Python writes them: \\x1b, \\n, \\u202e.

    `keep`: characters that are left as they are.
    """
    return _HOSTILE.sub(lambda found: found[0] if found[0] in keep else _python(found[0]), text)


def to_json(value: Any, *, default: Callable[[Any], Any] | None = None, ensure_ascii: bool = True) -> str:
    """JSON on one line, in which the same characters are escaped: readers get them as they were."""
    text = json.dumps(value, default=default, ensure_ascii=ensure_ascii)
    return _HOSTILE.sub(lambda found: json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f", text)


def shell_word(text: str) -> str:
    """One word of a command line that can be shown and pasted into bash or zsh: 'a b', or $'a\\U0000001bb'."""
    if not _HOSTILE.search(text):
        return shlex.quote(text)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _HOSTILE.sub(lambda found: f"\\U{ord(found[0]):08x}", quoted) + "'"


def _python(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")
