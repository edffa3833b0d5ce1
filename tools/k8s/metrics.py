"""Serves external.metrics.k8s.io from the length of SQS queues: the minimum that an HPA needs.

    python -m tools.k8s.metrics --pki DIR --port N --register KUBECONFIG     # SQS as the environment says

Any metric name; the selector names the queue: `queue=captures`. The value is visible and in flight messages, as KEDA's
scaler counts them. Only the aggregator, which has the front proxy's certificate, may ask.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import ssl
from pathlib import Path
from typing import Any

import boto3
from aiohttp import web

from tools.local.engines import LOOPBACK

from .api import KubernetesApi, second_timestamp

VERSION = "external.metrics.k8s.io/v1beta1"
METRIC = "pcaplake_queue_messages"
SERVICE = "external-metrics"
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


async def register_external_metrics(api: KubernetesApi, pki: Path, port: int) -> None:
    """Create Service and APIService. The aggregator connects to an ExternalName without a proxy on the node."""
    spec: dict[str, Any] = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    path = "/api/v1/namespaces/kube-system/services"
    await api.send_request("POST", path, {"metadata": {"name": SERVICE}, "spec": spec}, ok=(409,))
    group, version = VERSION.split("/")
    spec = {
        "group": group,
        "version": version,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"name": SERVICE, "namespace": "kube-system", "port": port},
        "caBundle": base64.b64encode((pki / "ca.crt").read_bytes()).decode(),
    }
    body = {"metadata": {"name": f"{version}.{group}"}, "spec": spec}
    await api.send_request("POST", "/apis/apiregistration.k8s.io/v1/apiservices", body, ok=(409,))


async def _create_api_service(kubeconfig: Path, pki: Path, port: int) -> None:
    api = KubernetesApi(kubeconfig)
    try:
        await register_external_metrics(api, pki, port)
    finally:
        await api.close()


def _create_application() -> web.Application:
    sqs = boto3.client("sqs")

    def queue_depth(queue: str) -> int:
        url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(_COUNTS))["Attributes"]
        return sum(int(value) for value in attributes.values())

    async def list_resources(_: web.Request) -> web.Response:
        one = {"name": METRIC, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList"}
        doc = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION}
        return web.json_response({**doc, "resources": [{**one, "verbs": ["get"]}]})

    async def metric_value(request: web.Request) -> web.Response:
        labels = dict(part.split("=", 1) for part in request.query.get("labelSelector", "").split(",") if "=" in part)
        count = await asyncio.to_thread(queue_depth, labels["queue"])
        item = {"metricName": request.match_info["metric"], "metricLabels": labels, "value": str(count)}
        doc = {"kind": "ExternalMetricValueList", "apiVersion": VERSION, "metadata": {}}
        return web.json_response({**doc, "items": [{**item, "timestamp": second_timestamp()}]})

    app = web.Application()
    app.router.add_get(f"/apis/{VERSION}", list_resources)
    app.router.add_get(f"/apis/{VERSION}/namespaces/{{namespace}}/{{metric}}", metric_value)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serves external.metrics.k8s.io from SQS.")
    parser.add_argument("--pki", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--register", type=Path, metavar="KUBECONFIG", help="also register with the API server")
    given = parser.parse_args()
    if given.register:
        asyncio.run(_create_api_service(given.register, given.pki, given.port))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(given.pki / "front-ca.crt"))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(given.pki / "serving.crt", given.pki / "serving.key")
    web.run_app(_create_application(), host=LOOPBACK, port=given.port, ssl_context=tls, print=None)
