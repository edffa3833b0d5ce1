"""What a container of a pod receives: its environment and the files of its volumes, as the kubelet's documentation specifies."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path

from tools.local.engines import LOOPBACK

from .api import Doc, KubernetesApi, parse_quantity

ACCOUNT = "default"


def expand_variables(text: str, env: Mapping[str, str]) -> str:
    """Expand $(NAME) and $$ as in the fields of a pod."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)


class ContainerView:
    """The environment and volumes of one pod's containers. `image`: the map that replaces the container's image."""

    def __init__(self, api: KubernetesApi, doc: Doc, *, ip: str, folder: Path, capacity: Mapping[str, float]) -> None:
        self.doc, self.ip = doc, ip
        self._api, self._folder, self._capacity = api, folder, capacity
        self._namespace = f"/api/v1/namespaces/{doc['metadata']['namespace']}"

    @property
    def _pod_spec(self) -> Doc:
        spec: Doc = self.doc["spec"]
        return spec

    def _resolve_field_ref(self, path: str) -> str:
        meta = self.doc["metadata"]
        flat = {
            "metadata.name": meta["name"],
            "metadata.namespace": meta["namespace"],
            "metadata.uid": meta["uid"],
            "spec.nodeName": self._pod_spec["nodeName"],
            "spec.serviceAccountName": self._pod_spec.get("serviceAccountName", ACCOUNT),
            "status.podIP": self.ip,
            "status.podIPs": self.ip,
            "status.hostIP": LOOPBACK,
        }
        if path in flat:
            return str(flat[path])
        items: dict[str, str] = meta.get(path.split(".")[1].split("[")[0], {})
        key = re.search(r"\['(.*)'\]", path)
        return items.get(key[1], "") if key else "\n".join(f'{k}="{v}"' for k, v in sorted(items.items()))

    def _resolve_resource_field(self, ref: Doc, container: Doc) -> str:
        if name := ref.get("containerName"):
            container = next(spec for spec in self._pod_spec["containers"] if spec["name"] == name)
        which, what = ref["resource"].split(".", 1)
        resource_value = (container.get("resources", {}).get(which) or {}).get(what)
        value = self._capacity[what] if resource_value is None else parse_quantity(resource_value)
        divisor = ref.get("divisor", "0")
        return str(int(-(-value // parse_quantity(divisor if divisor != "0" else 1))))

    async def _read_object_data(self, kind: str, name: str, optional: bool) -> dict[str, bytes]:
        doc = await self._api.send_request("GET", f"{self._namespace}/{kind}/{name}", ok=(404,) if optional else ())
        plain = kind == "configmaps"
        data = {k: v.encode() if plain else base64.b64decode(v) for k, v in (doc.get("data") or {}).items()}
        return data | {k: base64.b64decode(v) for k, v in (doc.get("binaryData") or {}).items()}

    async def build_environment(self, container: Doc, image: Doc, server: tuple[str, str]) -> dict[str, str]:
        """Raises RuntimeError if a referenced object or key does not exist. `server`: host and port of the API server."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": "/",
            "HOSTNAME": self.doc["metadata"]["name"],
            "KUBERNETES_SERVICE_HOST": server[0],
            "KUBERNETES_SERVICE_PORT": server[1],
            **image.get("env", {}),
        }
        for source in container.get("envFrom", []):
            for key, kind in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
                if ref := source.get(key):
                    data = await self._read_object_data(kind, ref["name"], ref.get("optional", False))
                    env |= {source.get("prefix", "") + k: v.decode() for k, v in data.items()}
        for variable in container.get("env", []):
            value = await self._resolve_variable(variable, container)
            if value is not None:
                env[variable["name"]] = expand_variables(value, env)
        override = {k: expand_variables(v, {**env, "POD_IP": self.ip}) for k, v in image.get("override", {}).items()}
        return env | override

    async def _resolve_variable(self, variable: Doc, container: Doc) -> str | None:
        source = variable.get("valueFrom")
        if not source:
            return str(variable.get("value", ""))
        if ref := source.get("fieldRef"):
            return self._resolve_field_ref(ref["fieldPath"])
        if ref := source.get("resourceFieldRef"):
            return self._resolve_resource_field(ref, container)
        kind, ref = next(
            (kind, source[key])
            for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets"))
            if key in source
        )
        data = await self._read_object_data(kind, ref["name"], ref.get("optional", False))
        if ref["key"] in data:
            return data[ref["key"]].decode()
        if ref.get("optional"):
            return None
        raise RuntimeError(f"no key {ref['key']} in {ref['name']}")

    async def prepare_volumes(self) -> dict[str, Path]:
        """Write the files of all volumes, and return the folder of each volume by name."""
        folders = {}
        for volume in self._pod_spec.get("volumes", []):
            where = self._folder / "volumes" / volume["name"]
            where.mkdir(parents=True, exist_ok=True)
            await self._fill_volume(where, volume)
            if "emptyDir" in volume:
                where.chmod(0o777)
            folders[volume["name"]] = Path(volume["hostPath"]["path"]) if "hostPath" in volume else where
        return folders

    async def _fill_volume(self, where: Path, source: Doc) -> None:
        for key, kind in (("configMap", "configmaps"), ("secret", "secrets")):
            if ref := source.get(key):
                name = ref.get("secretName") or ref["name"]
                data = await self._read_object_data(kind, name, ref.get("optional", False))
                _write_data_files(where, data, ref.get("items"))
        for item in (source.get("downwardAPI") or {}).get("items", []):
            first = self._pod_spec["containers"][0]
            ref = item.get("resourceFieldRef")
            text = (
                self._resolve_resource_field(ref, first)
                if ref
                else self._resolve_field_ref(item["fieldRef"]["fieldPath"])
            )
            (where / item["path"]).parent.mkdir(parents=True, exist_ok=True)
            (where / item["path"]).write_text(text)
        if token := source.get("serviceAccountToken"):
            (where / token["path"]).write_text(await self._request_token(token))
        for projection in (source.get("projected") or {}).get("sources", []):
            await self._fill_volume(where, projection)

    async def _request_token(self, token: Doc) -> str:
        meta = self.doc["metadata"]
        account = self._pod_spec.get("serviceAccountName", ACCOUNT)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        spec = {
            "audiences": [token["audience"]] if token.get("audience") else None,
            "expirationSeconds": token.get("expirationSeconds", 3600),
            "boundObjectRef": bound,
        }
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        doc = await self._api.send_request("POST", f"{self._namespace}/serviceaccounts/{account}/token", body)
        return str(doc["status"]["token"])


def _write_data_files(where: Path, data: Mapping[str, bytes], items: list[Doc] | None) -> None:
    paths = [(item["key"], item["path"]) for item in items] if items else [(key, key) for key in data]
    for key, path in paths:
        (where / path).parent.mkdir(parents=True, exist_ok=True)
        (where / path).write_bytes(data[key])
