"""Names that lead to code: built in, registered by a program, brought by an installed package, or named on the spot.

There is one `Registry` for each kind of thing a person may bring (methods, networks, data sets, scores, predictors):

| way in | example |
|---|---|
| decorator | `@clom.register_method("mine")` |
| a file, a module | `--method my_file.py:Mine`, `--method package.module:Mine`, `--plugin my_file.py` |
| an installed package | an entry point of the group `clom.methods` |

Code is imported when it is first used. Nothing is ever imported because a model or a run says so: only what is
installed, or what the caller names, on the command line or in an experiment's file. What was made with a plug-in
notes where it came from (`origins`), so that whoever reads it without the plug-in is told what is missing
(`require`).
"""

from clom.plugins.loading import load_code, load_plugin, loaded, why
from clom.plugins.origins import origins, require
from clom.plugins.registry import BUILT_IN, Entry, Registry

__all__ = ["BUILT_IN", "Entry", "Registry", "load_code", "load_plugin", "loaded", "origins", "require", "why"]
