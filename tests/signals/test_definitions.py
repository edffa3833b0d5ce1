"""What a new version of the databases changes."""

from __future__ import annotations

import pytest

from pcaplake.signals.definitions import DefinitionState

pytestmark = pytest.mark.unit


def test_changes_and_their_marks() -> None:
    old = DefinitionState(buses={"*": {("can", 1): "a", ("lin", 1): "l"}, "it's": {("can", 1): "b"}}, wide={"M": "1"})
    new = DefinitionState(buses={"*": {("can", 1): "a", ("can", 2): "c"}, "B": {}}, wide={"M": "2", "N": "1"})
    changes = old.find_changes(new)
    assert changes.named == ("B", "it's")
    assert dict(changes.ids) == {
        "*": {("can", 2), ("lin", 1)},
        "B": {("can", 1), ("lin", 1)},
        "it's": {("can", 1), ("can", 2)},
    }
    assert changes.wide == ("M", "N")
    marked = old.with_pending_changes(changes)
    for one in (old, new):
        assert marked.find_changes(one).ids.keys() >= changes.ids.keys()
    assert DefinitionState.from_json(marked.to_json()) == marked
    assert not new.find_changes(new)
    with pytest.raises(ValueError, match="format"):
        DefinitionState.from_json(b"{}")
