"""Renames identifiers in backticks and code fences of documents, comments and docstrings; prose is not changed.

Needs `build/renames/maps.pickle` of `rename_symbols.py`. Prints the backticks that it leaves as ambiguous.
"""

import ast
import pickle
import re
from collections import defaultdict
from pathlib import Path

from tables import MAPS, tracked

SY, FINAL = pickle.load(MAPS.open("rb"))
uni = defaultdict(set)
for full, new in SY.items():
    uni[full.rsplit(".", 1)[1]].add(new)
for (c, n), new in FINAL.items():
    uni[n].add(new)
# identifiers that still exist in src as definitions
exists = set()
for f in tracked("src/*.py"):
    for n in ast.walk(ast.parse(Path(f).read_text())):
        if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            exists.add(n.name)
        elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            exists.add(n.id)
        elif isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store):
            exists.add(n.attr)
        elif isinstance(n, ast.arg):
            exists.add(n.arg)
safe = {
    o: next(iter(n))
    for o, n in uni.items()
    if len(n) == 1 and o not in exists and (("_" in o.strip("_")) or re.search(r"[a-z][A-Z]", o)) and len(o) >= 5
}
single = {o: n for o, n in uni.items() if o not in safe}
per_mod = defaultdict(dict)
for full, new in SY.items():
    m, n = full.rsplit(".", 1)
    per_mod[m].setdefault(n, set()).add(new)
for (c, n), new in FINAL.items():
    if c == "FOREIGN":
        continue
    per_mod[c].setdefault(n, set()).add(new)
rep = []


def span(text, mapping):
    return re.sub(r"(?<![\w])[A-Za-z_]\w*", lambda m: mapping.get(m[0], m[0]), text)


changed = 0
for f in tracked("docs", "README.md", "CONTRIBUTING.md", "examples", "src", "benchmarks", "tests"):
    if not f or not re.search(r"\.(md|py)$", f):
        continue
    t = Path(f).read_text()
    mapping = dict(safe)
    if f.startswith("src/") and f.endswith(".py"):
        mod = ".".join(Path(f).with_suffix("").parts[1:])
        for c, d in per_mod.items():
            if c == mod or c.startswith(mod + "."):
                for o, n in d.items():
                    if len(n) == 1:
                        mapping[o] = next(iter(n))
    if f.endswith(".md"):
        parts = re.split(r"(```.*?```)", t, flags=re.S)
        for i, p in enumerate(parts):
            if p.startswith("```"):
                parts[i] = span(p, safe)
            else:
                parts[i] = re.sub(r"`[^`\n]+`", lambda m: span(m[0], safe), p)
                for m in re.finditer(r"`([A-Za-z_]\w*)(?:\(\))?`", p):
                    if m[1] in single and m[1] not in exists:
                        rep.append(f"{f}: `{m[1]}` -> {single[m[1]]}")
        n = "".join(parts)
    else:
        n = re.sub(r"`[^`\n]+`", lambda m: span(m[0], mapping), t)
        if f.startswith("examples/"):
            n = span(n, safe)
    if n != t:
        changed += 1
        Path(f).write_text(n)
print("changed", changed)
print("\n".join(rep))
