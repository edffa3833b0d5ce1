"""What each client of AWS reads when it is made, read once by a process: most of the time that a client takes."""

from __future__ import annotations

import functools
import ssl

import aiobotocore.httpsession
import botocore.session
import pytest


def share_what_clients_read(patch: pytest.MonkeyPatch) -> None:
    """Descriptions of services, and the certificates of authorities, which no server on loopback shows.

    Clients only read both. Each client would parse megabytes of JSON, and 140 certificates.
    """
    patch.setattr(botocore.session, "create_loader", functools.cache(botocore.session.create_loader))
    build = aiobotocore.httpsession.AIOHTTPSession._build_verify_context
    built: dict[object, ssl.SSLContext] = {}

    def shared(session: aiobotocore.httpsession.AIOHTTPSession) -> ssl.SSLContext:
        if session._verify not in built:
            built[session._verify] = build(session)
        return built[session._verify]

    patch.setattr(aiobotocore.httpsession.AIOHTTPSession, "_build_verify_context", shared)
