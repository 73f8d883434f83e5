"""Builds the documentation site: `make docs`. `hooks` is what MkDocs calls."""
