"""Generates deploy/terraform/definitions/definitions.json.tftpl: what `pcaplake setup` creates, as data for Terraform.

    python -m tools.terraform            # `make docs`

`${name}` is filled in by `templatefile`. What may have several values is expanded in main.tf: `{lake}` of each lake, and
`{bucket}` with `{prefix}` of each place with captures.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from pcaplake.worker.admin.setup import dynamodb_tables, queues
from pcaplake.worker.admin.setup.policies import Scope, policies
from pcaplake.worker.config.s3_prefixes import Place

PATH = Path(__file__).parents[1] / "deploy/terraform/definitions/definitions.json.tftpl"
_SCOPE = Scope(
    queue=queues.Arn(partition="<partition>", region="<region>", account="<account>", name="<queue>"),
    dead_letters="<dead_letters>",
    places=[Place(bucket="{bucket}", prefix="{prefix}")],
    lakes=["s3://{lake}"],
    ledger_table="<ledger_table>",
    lock_table="<lock_table>",
    partition_column="<partition_column>",
)


def render_definitions() -> str:
    """The file."""
    shapes = {"ledger": dynamodb_tables.LEDGER, "locks": dynamodb_tables.LOCKS}
    names = {"ledger": _SCOPE.ledger_table, "locks": _SCOPE.lock_table}
    definitions = {
        "policies": policies(_SCOPE),
        "tables": {
            key: {
                "name": names[key],
                "hash_key": shape.hash_key,
                "range_key": shape.range_key,
                "expires": dynamodb_tables.EXPIRES,
            }
            for key, shape in shapes.items()
        },
        "queue": {
            "name": _SCOPE.queue.name,
            "arn": str(_SCOPE.queue),
            "visibility_timeout_seconds": queues.VISIBILITY_TIMEOUT,
            "message_retention_seconds": queues.RETENTION,
            "max_receive_count": queues.MAX_RECEIVES,
        },
        "dead_letters": {
            "name": _SCOPE.dead_letters,
            "arn": str(_SCOPE.queue).replace(_SCOPE.queue.name, _SCOPE.dead_letters),
            "message_retention_seconds": queues.DEAD_RETENTION,
            "redrive_allow_policy": queues.redrive_allow_policy(_SCOPE.queue),
        },
    }
    text = json.dumps(definitions, indent=1).replace(_SCOPE.data_files, "<data_files>")
    return re.sub(r"<(\w+)>", r"${\1}", text) + "\n"


if __name__ == "__main__":
    PATH.write_text(render_definitions())
