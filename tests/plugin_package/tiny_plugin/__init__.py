"""What tests/test_plugin_package.py installs: see pyproject.toml."""
