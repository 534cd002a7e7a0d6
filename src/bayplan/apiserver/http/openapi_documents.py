"""Which OpenAPI document is asked for, and does the client have it already?

kubectl keeps documents by their hash, which is in the path that the index gives, so a document is made when it is first
asked for and then kept as bytes until its kinds change. Cost: some 10 ms for the largest, once.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.apiserver.http.responses import ApiResponse, json_response, not_found_response
from bayplan.apiserver.resources.kinds import ResourceRegistry, ServedResource
from bayplan.apiserver.schema.openapi import (
    V2,
    document,
    etag,
    index,
)
from bayplan.apiserver.storage.stored_objects import encode

_V2_JSON = {"swagger": "2.0", "info": {"title": "Kubernetes", "version": "1.36"}, "paths": {}}
"""As little as the protobuf form says: what is in the kinds, the third version tells."""
_V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


class OpenApiDocuments:
    """The documents for the kinds as they are now."""

    def __init__(self, resources: ResourceRegistry) -> None:
        self._resources = resources
        self._made: dict[str, bytes] = {}

    def respond(self, path: str, asked_hash: str, accept: str = "") -> ApiResponse:
        if path == "/openapi/v2":
            return ApiResponse(V2, content_type=_V2_TYPE) if "proto" in accept else json_response(_V2_JSON)
        groups = self._groups()
        if path == "/openapi/v3":
            return json_response(index(groups))
        name = path.removeprefix("/openapi/v3/")
        if name not in groups:
            return not_found_response()
        current = etag(groups[name])
        if asked_hash and asked_hash != current:
            moved = ApiResponse(b"", 301)
            moved.headers["Location"] = f"{path}?hash={current}"
            return moved
        reply = ApiResponse(self._document(current, groups[name]))
        reply.headers["Etag"] = f'"{current}"'
        if asked_hash:
            reply.headers["Cache-Control"] = "public, immutable"
            reply.headers["Expires"] = "Thu, 31 Dec 2099 23:59:59 GMT"
        return reply

    def _groups(self) -> dict[str, Sequence[ServedResource]]:
        return {
            f"apis/{group}/{version}" if group else f"api/{version}": self._resources.of_group(group, version)
            for group, versions in self._resources.groups().items()
            for version in versions
        }

    def _document(self, key: str, resources: Sequence[ServedResource]) -> bytes:
        if key not in self._made:
            if len(self._made) > 200:
                self._made.clear()
            self._made[key] = encode(document(resources)) + b"\n"
        return self._made[key]
