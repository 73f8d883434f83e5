"""Registries that map names to code: built in, registered by a program, or provided by a plug-in.

There is one `Registry` for each extensible kind (methods, networks, data sets, scores, predictors):

| how to add one | example |
|---|---|
| decorator | `@clom.register_method("mine")` |
| a file, a module | `--method my_file.py:Mine`, `--method package.module:Mine`, `--plugin my_file.py` |
| an installed package | an entry point of the group `clom.methods` |

Code is imported on first use, and never because a model file or a run folder names it: only if it is installed, or
if the caller names it on the command line or in an experiment's file. Files that depend on a plug-in record where it
came from (`origins`), so that reading one without the plug-in tells the user what is missing (`require`).
"""

from clom.plugins.loading import load_code, load_plugin, loaded, why
from clom.plugins.origins import origins, require
from clom.plugins.registry import BUILT_IN, Entry, Registry

__all__ = ["BUILT_IN", "Entry", "Registry", "load_code", "load_plugin", "loaded", "origins", "require", "why"]
