"""Documentation from data: tables of the registries and of bench/results, in README.md and docs."""
