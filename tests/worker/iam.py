"""What IAM would say, for the little that our policies use of it: effects, resources, and keys of DynamoDB's items."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pcaplake.worker.admin.setup.policies import Document


def allows(documents: Document | Sequence[Document], action: str, resource: str, key: str = "") -> bool:
    """Of a role that has these policies. `key`: the partition key of an item, where the request is about one."""
    statements = [
        statement
        for document in ([documents] if isinstance(documents, dict) else documents)
        for statement in document["Statement"]
    ]
    said = [
        statement["Effect"]
        for statement in statements
        if action in statement["Action"] and any(_matches(pattern, resource) for pattern in statement["Resource"])
        if _holds(statement.get("Condition"), key)
    ]
    return "Allow" in said and "Deny" not in said


def _holds(condition: Document | None, key: str) -> bool:
    if condition is None:
        return True
    ((operator, said),) = condition.items()
    ((name, patterns),) = said.items()
    assert (operator, name) == ("ForAllValues:StringLike", "dynamodb:LeadingKeys")
    return any(_matches(pattern, key) for pattern in patterns)


def _matches(pattern: str, text: str) -> bool:
    parts = re.split(r"(\$\{[$*?]\}|[*?])", pattern)
    expression = "".join(
        {"*": ".*", "?": "."}.get(part, re.escape(part[2] if part[:2] == "${" else part)) for part in parts
    )
    return re.fullmatch(expression, text, re.DOTALL) is not None
