"""The server's HTTP side: the application, its limits, and a module for each format that clients speak."""
