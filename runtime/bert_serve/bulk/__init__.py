"""Bulk work on Arrow data: a batch function for other engines, and files in, files out."""
