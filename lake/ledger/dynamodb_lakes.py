"""The lakes that share a ledger table in DynamoDB. dynamodb.py has the ledger of one lake."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pcaplake.lake.dynamodb_table import DynamoClient

from .dynamodb_items import LAKES, Scope, delete_action, lake_key
from .dynamodb_requests import Requests, gather_limited


async def find_lakes_at(dynamo: DynamoClient, uri: str) -> list[str]:
    """The ids of the lakes that this table has recorded at a URI."""
    return [lake["sk"] for lake in await Requests(dynamo).query_partition(LAKES) if lake["uri"] == uri]


async def forget_lake(dynamo: DynamoClient, lake_id: str) -> None:
    """Remove a lake from the list of this table's lakes, so that another one can be created at its place.

    Its other items stay. They belong to its id, which no other lake gets.
    """
    await Requests(dynamo).write_item(delete_action(lake_key(lake_id)))


async def find_lakes_with_pending_stages(dynamo: DynamoClient, but: Collection[str] = ()) -> list[str]:
    """URIs of this table's lakes, except `but`, that have a pending stage; sorted."""
    requests = Requests(dynamo)

    async def uri_if_pending(lake: Mapping[str, Any]) -> str | None:
        scope = Scope(lake_id=lake["sk"], generation=lake["generation"], shards=lake["shards"])
        for shard in range(scope.shards):
            if await requests.query_partition(scope.work_list_partition(shard), 1):
                return str(lake["uri"])
        return None

    others = [lake for lake in await requests.query_partition(LAKES) if lake["uri"] not in but]
    return sorted({uri for uri in await gather_limited(uri_if_pending, others) if uri is not None})
