"""Lakes. They rely on guarantees of Linux, so importing this package fails on other systems."""

from pcaplake.common.supported_system import describe_unsupported_system

if (refusal := describe_unsupported_system()) is not None:
    raise ImportError(refusal)
