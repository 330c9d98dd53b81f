"""HTTP servers under load: ours and its peers, driven by locust."""
