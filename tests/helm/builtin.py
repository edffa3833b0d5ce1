"""Kubernetes's own kinds, checked as `kubernetes-validate` does, with what it reads kept in memory: there is much to check."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import all_versions
from referencing import Registry, Resource

OLDEST = (1, 29)
VERSIONS = tuple(one for one in all_versions() if tuple(map(int, one.split(".")[:2])) >= OLDEST)
_SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"


def problems(manifest: Mapping[str, Any], version: str) -> list[str]:
    """What a server of this version would not take, unknown fields included; [] is well. FileNotFoundError: no such kind."""
    group, _, api = str(manifest["apiVersion"]).rpartition("/")
    name = f"{manifest['kind'].lower()}-{group.partition('.')[0]}{'-' if group else ''}{api}"
    return [error.message[:300] for error in _validator(version, name).iter_errors(dict(manifest))]


@functools.cache
def _validator(version: str, name: str) -> Draft202012Validator:
    schema = json.loads((_SCHEMAS / f"v{version}-local-strict" / f"{name}.json").read_text())
    return Draft202012Validator(schema, registry=_definitions(version))


@functools.cache
def _definitions(version: str) -> Registry[Any]:
    whole = json.loads((_SCHEMAS / f"v{version}-local-strict" / "_definitions.json").read_text())
    return Resource.from_contents(whole) @ Registry()
