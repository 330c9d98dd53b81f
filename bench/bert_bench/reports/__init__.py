"""Reports: frozen values, their JSON, and what is made of them as text, Markdown and charts."""
