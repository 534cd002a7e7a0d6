"""OpenAPI documents, cached by their hash.

kubectl caches documents by the hash in the path that the index returns. A document is built at its first request and
kept as bytes until its kinds change. Cost: some 10 ms for the largest document, once.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.apiserver.http.responses import ApiResponse, json_response, not_found_response
from bayplan.apiserver.resources.kinds import ResourceRegistry, ServedResource
from bayplan.apiserver.schema.openapi import V2, document, etag, index
from bayplan.apiserver.storage.stored_objects import encode

_V2_JSON = {"swagger": "2.0", "info": {"title": "Kubernetes", "version": "1.36"}, "paths": {}}
"""As little as the protobuf form contains; the schemas are in version 3."""
_V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


class OpenApiDocuments:
    def __init__(self, resources: ResourceRegistry) -> None:
        self._resources = resources
        self._documents: dict[str, bytes] = {}

    def respond(self, path: str, requested_hash: str, accept: str = "") -> ApiResponse:
        if path == "/openapi/v2":
            return ApiResponse(V2, content_type=_V2_TYPE) if "proto" in accept else json_response(_V2_JSON)
        groups = self._groups()
        if path == "/openapi/v3":
            return json_response(index(groups))
        name = path.removeprefix("/openapi/v3/")
        if name not in groups:
            return not_found_response()
        current = etag(groups[name])
        if requested_hash and requested_hash != current:
            redirect = ApiResponse(b"", 301)
            redirect.headers["Location"] = f"{path}?hash={current}"
            return redirect
        response = ApiResponse(self._document(current, groups[name]))
        response.headers["Etag"] = f'"{current}"'
        if requested_hash:
            response.headers["Cache-Control"] = "public, immutable"
            response.headers["Expires"] = "Thu, 31 Dec 2099 23:59:59 GMT"
        return response

    def _groups(self) -> dict[str, Sequence[ServedResource]]:
        return {
            f"apis/{group}/{version}" if group else f"api/{version}": self._resources.of_group(group, version)
            for group, versions in self._resources.groups().items()
            for version in versions
        }

    def _document(self, key: str, resources: Sequence[ServedResource]) -> bytes:
        if key not in self._documents:
            if len(self._documents) > 200:
                self._documents.clear()
            self._documents[key] = encode(document(resources)) + b"\n"
        return self._documents[key]
