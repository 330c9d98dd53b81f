"""The bundle on disk: its manifest, the manifest's JSON schema, and atomic writes."""
