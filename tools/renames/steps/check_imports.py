"""Imports every module of the package and every name of its facades; prints failures and their number."""

import importlib
import pkgutil
import traceback

import bayplan

bad = 0
for m in pkgutil.walk_packages(bayplan.__path__, "bayplan."):
    if m.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(m.name)
    except BaseException as e:
        bad += 1
        if bad < 8:
            print(m.name, repr(e)[:200], traceback.extract_tb(e.__traceback__)[-1])
import bayplan.batch
import bayplan.framework
import bayplan.testing

for mod in (bayplan, bayplan.batch, bayplan.testing, bayplan.framework, bayplan.app):
    for n in mod.__all__:
        try:
            getattr(mod, n)
        except BaseException as e:
            print(mod.__name__, n, repr(e)[:200])
print(bad)
