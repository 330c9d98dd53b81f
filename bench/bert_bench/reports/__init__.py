"""Reports: the measured values, their JSON, and their text, Markdown and chart renderings."""
