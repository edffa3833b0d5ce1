"""What IAM would say, for the little that our policies use of it: effects, resources, conditions on keys and headers."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from pcaplake.worker.admin.setup.policies import Document

IF_ABSENT, IF_UNCHANGED = "if-none-match", "if-match"
VERSION_FILE = re.compile(r"/_delta_log/\d{20}\.json$")


def allows(
    documents: Document | Sequence[Document], action: str, resource: str, key: str = "", headers: Collection[str] = ()
) -> bool:
    """Of a role that has these policies.

    `key`: the partition key of an item, where the request is about one; `headers`: names in lower case of those it has.
    """
    statements = [
        statement
        for document in ([documents] if isinstance(documents, dict) else documents)
        for statement in document["Statement"]
    ]
    said = [
        statement["Effect"]
        for statement in statements
        if action in statement["Action"] and any(_matches(pattern, resource) for pattern in statement["Resource"])
        if all(_holds(operator, said, key, headers) for operator, said in statement.get("Condition", {}).items())
    ]
    return "Allow" in said and "Deny" not in said


def _holds(operator: str, said: Document, key: str, headers: Collection[str]) -> bool:
    ((name, wanted),) = said.items()
    if (operator, name) == ("ForAllValues:StringLike", "dynamodb:LeadingKeys"):
        return any(_matches(pattern, key) for pattern in wanted)
    assert operator == "Null"
    assert name in (f"s3:{IF_ABSENT}", f"s3:{IF_UNCHANGED}")
    assert wanted == "false"
    return name.removeprefix("s3:") in headers


def _matches(pattern: str, text: str) -> bool:
    parts = re.split(r"(\$\{[$*?]\}|[*?])", pattern)
    expression = "".join(
        {"*": ".*", "?": "."}.get(part, re.escape(part[2] if part[:2] == "${" else part)) for part in parts
    )
    return re.fullmatch(expression, text, re.DOTALL) is not None
