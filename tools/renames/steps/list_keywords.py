"""Lists keywords that types cannot resolve, for a check by hand after the symbols step.

First, calls of functions with `**` parameters with a keyword that is also the old name of a member; then constructors
that are called with `**`. Needs `build/renames/maps.pickle` of `rename_symbols.py`.
"""

import ast
import pickle
from collections import defaultdict

from tables import MAPS, tracked


def keywords():
    SY, FINAL = pickle.load(MAPS.open("rb"))
    ALL = defaultdict(set)
    for (c, n), new in FINAL.items():
        ALL[n].add(new)
    files = tracked("*.py")
    kwf = set()
    params = defaultdict(set)
    trees = {}
    for f in files:
        t = ast.parse(open(f).read())
        trees[f] = t
        for n in ast.walk(t):
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if n.args.kwarg:
                    kwf.add(n.name)
                for a in [*n.args.args, *n.args.kwonlyargs, *n.args.posonlyargs]:
                    params[n.name].add(a.arg)
    for f, t in trees.items():
        for n in ast.walk(t):
            if isinstance(n, ast.Call):
                name = (
                    n.func.attr
                    if isinstance(n.func, ast.Attribute)
                    else n.func.id
                    if isinstance(n.func, ast.Name)
                    else ""
                )
                if name in kwf:
                    for k in n.keywords:
                        if k.arg in ALL and k.arg not in params[name]:
                            print(f"{f}:{k.lineno} {name}({k.arg}=) -> {sorted(ALL[k.arg])}")


def stars():
    for f in tracked("src/*.py"):
        t = ast.parse(open(f).read())
        for n in ast.walk(t):
            if isinstance(n, ast.Call) and any(k.arg is None for k in n.keywords):
                name = ast.unparse(n.func)
                if name.split(".")[-1][:1].isupper() or name in ("cls", "replace", "partial", "made", "type(self)"):
                    print(f"{f}:{n.lineno} {ast.unparse(n)[:150]}")


if __name__ == "__main__":
    keywords()
    stars()
