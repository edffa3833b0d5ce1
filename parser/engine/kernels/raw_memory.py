"""Raw access to buffers for the kernels: unaligned loads and stores, and array items without wrap-around.

Nothing here checks a bound: `walk.walk_records` proves every address before it is used, in one place. The tests run the
kernels a second time with checked stand-ins for these names, and on buffers that end at an inaccessible page.
"""

from __future__ import annotations

from typing import Any

from pcaplake.parser.engine.kernel import Intrinsic

SLACK = 8  # bytes that every buffer has past its end, so that an 8-byte load of the last byte stays inside

load: Any = Intrinsic("load")
are_zero: Any = Intrinsic("are_zero")
swap: Any = Intrinsic("swap")
get: Any = Intrinsic("get")
put: Any = Intrinsic("put")
copy: Any = Intrinsic("copy")
store8: Any = Intrinsic("store8")
store16: Any = Intrinsic("store16")
store32: Any = Intrinsic("store32")
store64: Any = Intrinsic("store64")
