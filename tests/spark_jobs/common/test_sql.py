"""Texts in SQL."""

from __future__ import annotations

import pytest

from pcaplake.spark_jobs.common.sql import text_literal


@pytest.mark.unit
def test_texts() -> None:
    assert text_literal("${x}") == "'\\u0024{x}'", "Spark would take it for a variable"
    assert text_literal("a\\'") == "'a\\\\\\''"
