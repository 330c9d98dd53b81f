"""Loaded bundles behind their names, and the queue that joins the requests of many callers."""
