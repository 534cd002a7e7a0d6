"""Types of API objects: decoding, patches, server-side apply, custom resources and OpenAPI documents."""
