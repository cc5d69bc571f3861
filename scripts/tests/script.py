"""Loads a script of this project, whose name has no `.py`, as a module, so that its functions can be tested."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent


def load(name):
    """The script `scripts/NAME` as a module; its `main` is not run. It finds the modules beside it, as when run."""
    folder = str((SCRIPTS / name).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module_name = name.replace("-", "_").replace("/", "_")
    loader = importlib.machinery.SourceFileLoader(module_name, str(SCRIPTS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(module_name, loader))
    sys.modules[module_name] = module  # dataclasses look their module up by name
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module
