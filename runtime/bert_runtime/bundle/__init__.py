"""The bundle on disk: its manifest, the JSON schema of it, and files written whole or not at all."""
