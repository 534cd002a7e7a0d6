"""Applies the module and package tables: moves files with git, rewrites imports, dotted names and paths in text.

Run in the root of the worktree. `--dry-run` changes nothing and counts moves and files.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from tables import ROOT, modules, rows, tracked

M = modules()
PK = {a: b for a, b, *_ in rows("*.packages.tsv")}


def modname(path):  # path relative to root
    p = Path(path)
    parts = list(p.with_suffix("").parts)
    if parts[0] == "src":
        parts = parts[1:]
    elif parts[0] == "tests":
        parts = parts[1:]
    elif parts[0] == "benchmarks":
        pass
    else:
        return None
    ispkg = parts[-1] == "__init__"
    if ispkg:
        parts = parts[:-1]
    return ".".join(parts), ispkg, "src" if Path(path).parts[0] == "src" else Path(path).parts[0]


files = tracked()
pyfiles = [f for f in files if f.endswith(".py")]
mods = {}  # old dotted -> (path, ispkg, top)
for f in pyfiles:
    r = modname(f)
    if r and f.split("/")[0] in ("src", "tests"):
        mods[r[0]] = (f, r[1], r[2])


# all package dirs (also without __init__) among tests
def newname(old):
    if old in M:
        return M[old]
    parts = old.split(".")
    for i in range(len(parts) - 1, 0, -1):
        pre = ".".join(parts[:i])
        if pre in M and (pre not in mods or mods[pre][1]):
            return M[pre] + "." + ".".join(parts[i:])
    return old


N = {}
dropped = set()
for old, (f, ispkg, top) in mods.items():
    new = newname(old)
    N[old] = new
# explicit rows that do not exist
for a in M:
    if a not in mods and not any(m.startswith(a + ".") for m in mods):
        print("unknown module in table:", a)
# drop docstring-only packages of the old rules tree
for old in ("bayplan.cluster.rules", "bayplan.cluster.rules.checking", "bayplan.cluster.rules.filling"):
    dropped.add(old)


def path_of(new, ispkg, top):
    base = {"src": "src/", "tests": "tests/"}[top] + new.replace(".", "/")
    return base + ("/__init__.py" if ispkg else ".py")


P = {}
seen = {}
for old, (f, ispkg, top) in mods.items():
    if old in dropped:
        continue
    new = N[old]
    if new in seen:
        print("collision", old, seen[new], new)
    seen[new] = old
    # package __init__ becomes a module of a new package: e.g. bayplan.cluster.rules.warning stays package
    P[f] = path_of(new, ispkg, top)
# data files: directories move with their package
dirmap = {}
for old, (f, ispkg, top) in mods.items():
    if ispkg and old not in dropped:
        dirmap[os.path.dirname(f)] = os.path.dirname(P[f])
for a, b in M.items():
    d = ROOT / "tests" / a.replace(".", "/")
    if not a.startswith("bayplan") and d.is_dir():
        dirmap["tests/" + a.replace(".", "/")] = "tests/" + b.replace(".", "/")
special = {
    "src/bayplan/cluster/rules/go_forms.json.gz": "src/bayplan/apiserver/validation/go_struct_text.json.gz",
    "src/bayplan/objects/volcano_definitions.json.gz": "src/bayplan/objects/volcano/definitions.json.gz",
}
for f in files:
    if f.endswith(".py"):
        continue
    if f in special:
        P[f] = special[f]
        continue
    if f.endswith(".pxd"):
        P[f] = P[f[:-4] + ".py"][:-3] + ".pxd"
        continue
    d = os.path.dirname(f)
    tail = os.path.basename(f)
    while d:
        if d in dirmap:
            P[f] = dirmap[d] + "/" + tail
            break
        tail = os.path.basename(d) + "/" + tail
        d = os.path.dirname(d)
for f in pyfiles:
    if f in P or f.split("/")[0] not in ("src", "tests"):
        continue
    if modname(f)[0] not in dropped:
        print("unmapped", f)
moves = {a: b for a, b in P.items() if a != b}
print(len(moves), "moves")


allmods_old = set(mods)


def is_submodule(x):
    return x in allmods_old


report = []


def rewrite(text, path, oldmod):
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    names_used = (
        {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        | {
            a.arg
            for n in ast.walk(tree)
            if isinstance(n, ast.arguments)
            for a in [
                *n.args,
                *n.kwonlyargs,
                *n.posonlyargs,
                *([n.vararg] if n.vararg else []),
                *([n.kwarg] if n.kwarg else []),
            ]
        }
        | {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))}
    )
    stores = (
        {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        | {
            a.arg
            for n in ast.walk(tree)
            if isinstance(n, ast.arguments)
            for a in [*n.args, *n.kwonlyargs, *n.posonlyargs]
        }
        | {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))}
    )
    imported = set()
    for n in ast.walk(tree):
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            for a in n.names:
                imported.add((a.asname or a.name).split(".")[0])
    edits = []
    renames_local = {}
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and n.level == 0 and n.module:
            X = n.module
            out = {}
            changed = False
            for a in n.names:
                sub = f"{X}.{a.name}"
                if sub in N and is_submodule(sub):
                    new = N[sub]
                    if new == sub:
                        out.setdefault(X, []).append((a.name, a.asname))
                        continue
                    changed = True
                    par, leaf = new.rsplit(".", 1) if "." in new else ("", new)
                    local = a.asname or a.name
                    if a.asname:
                        item = (leaf, a.asname if a.asname != leaf else None)
                    elif leaf == a.name:
                        item = (leaf, None)
                    elif (
                        a.name in stores
                        or leaf in names_used
                        or leaf in imported
                        or leaf in ("plugin", "types", "args", "errors", "values")
                    ):
                        item = (leaf, a.name)
                        report.append(f"{path}: alias {new} as {a.name}")
                    else:
                        item = (leaf, None)
                        renames_local[a.name] = leaf
                    if par:
                        out.setdefault(par, []).append(item)
                    else:
                        out.setdefault("", []).append(item)
                elif X in N:
                    t = N[X]
                    if t != X:
                        changed = True
                    out.setdefault(t, []).append((a.name, a.asname))
                else:
                    out.setdefault(X, []).append((a.name, a.asname))
            if changed:
                ind = " " * n.col_offset
                stm = []
                for mod_, items in out.items():
                    its = ", ".join(i + (f" as {s}" if s else "") for i, s in items)
                    if len(items) > 3 and "*" not in its:
                        its = "(" + its + ",)"
                    stm.append(f"from {mod_} import {its}" if mod_ else f"import {its}")
                # trailing comment
                last = lines[n.end_lineno - 1]
                comment = last.encode()[n.end_col_offset :].decode().rstrip("\n")
                edits.append((n.lineno, n.end_lineno, ("\n" + ind).join(stm) + comment, n.col_offset))
        elif isinstance(n, ast.Import):
            for a in n.names:
                if a.name in N and N[a.name] != a.name:
                    if a.asname or "." not in a.name:
                        new = N[a.name]
                        par, leaf = new.rsplit(".", 1) if "." in new else ("", new)
                        local = a.asname or a.name
                        stm = f"from {par} import {leaf}" + (f" as {local}" if local != leaf else "")
                        if not a.asname and local not in stores and leaf not in names_used and leaf not in imported:
                            stm = f"from {par} import {leaf}"
                            renames_local[local] = leaf
                        if len(n.names) == 1:
                            edits.append((n.lineno, n.end_lineno, stm, n.col_offset))
                            continue
                    report.append(f"{path}:{n.lineno}: MANUAL import {a.name}")
    # name renames
    tok = []
    if renames_local:
        for n in ast.walk(tree):
            if isinstance(n, ast.Name) and n.id in renames_local:
                tok.append((n.lineno, n.col_offset, n.id, renames_local[n.id]))
    for ln, col, a, b in sorted(tok, reverse=True):
        raw = lines[ln - 1].encode()
        assert raw[col : col + len(a)].decode() == a, (path, ln, col, a)
        lines[ln - 1] = (raw[:col] + b.encode() + raw[col + len(a) :]).decode()
    for s, e, stm, col in sorted(edits, reverse=True):
        lead = lines[s - 1][:col]
        lines[s - 1 : e] = [lead + stm + "\n"]
    return "".join(lines)


# regex for dotted strings
olds = sorted((o for o in N if N[o] != o and o.startswith("bayplan.")), key=len, reverse=True)
changed_set = set(olds)


def dotted_sub(m):
    s = m.group(0)
    parts = s.split(".")
    for i in range(len(parts), 1, -1):
        pre = ".".join(parts[:i])
        if pre in mods:
            return ".".join([N[pre], *parts[i:]]) if pre in changed_set else s
    return s


DOT = re.compile(r"(?<![\w./-])bayplan(?:\.[a-z_][a-z0-9_]*)+")
NOT = ("bayplan.dev", "bayplan.io")
pathmap = dict(moves)
for a, b in list(dirmap.items()):
    if a != b:
        pathmap[a + "/"] = b + "/"
        pathmap[a] = b
short = {}
PATHRE = re.compile(r"(?:src/bayplan|tests)(?:/[\w.-]+)*/?")


def path_sub(m):
    s = m.group(0)
    if s in pathmap:
        return pathmap[s]
    # longest directory
    d = s
    tail = ""
    t = s.rstrip("/.")
    if t in pathmap:
        return pathmap[t] + s[len(t) :]
    if t + ".py" in pathmap:
        return pathmap[t + ".py"][:-3] + s[len(t) :]
    d = os.path.dirname(t)
    while d:
        if d in dirmap and dirmap[d] != d:
            return dirmap[d] + s[len(d) :]
        d = os.path.dirname(d)
    return s


# 1. contents
texts = {}
for f in files:
    if f == "CHANGELOG.md":
        continue
    if not re.search(
        r"\.(py|pxd|md|toml|yml|yaml|txt|cfg|json)$|Makefile$|run$|\.importlinter$|Containerfile$", f
    ) or f.endswith("lock"):
        continue
    try:
        text = (ROOT / f).read_text()
    except UnicodeDecodeError:
        continue
    new = text
    if f.endswith(".py"):
        r = modname(f)
        new = rewrite(text, f, r[0] if r else None)
    if f.endswith(".py"):
        # only inside strings/comments/import-x: do regex on everything except import lines already done
        new = "".join(
            l if re.match(r"\s*(from bayplan|import bayplan)", l) else DOT.sub(dotted_sub, l)
            for l in new.splitlines(keepends=True)
        )
    else:
        new = DOT.sub(dotted_sub, new)
    new = PATHRE.sub(path_sub, new)
    if new != text:
        texts[f] = new
if "--dry-run" in sys.argv:
    print(len(texts), "files with new text")
    print("\n".join(report))
    sys.exit()
for f, t in texts.items():
    (ROOT / f).write_text(t)
# 2. moves (two-step for module -> package of the same name)
tmp = {}
for a, b in moves.items():
    t = b + ".moving"
    tmp[b] = t
    (ROOT / t).parent.mkdir(parents=True, exist_ok=True) if not (ROOT / os.path.dirname(t)).is_file() else None
    subprocess.run(["git", "mv", a, t], check=True)
for b, t in tmp.items():
    subprocess.run(["git", "mv", t, b], check=True)
for o in dropped:
    f = mods[o][0]
    if (ROOT / f).exists():
        subprocess.run(["git", "rm", "-qf", f], check=True)
for p, doc in PK.items():
    if p.startswith("bayplan"):
        f = ROOT / "src" / p.replace(".", "/") / "__init__.py"
    else:
        f = ROOT / "tests" / p.replace(".", "/") / "__init__.py"
    if f.exists():
        print("package exists", p)
        continue
    f.parent.mkdir(parents=True, exist_ok=True)
    f.write_text(f'"""{doc}"""\n')
    subprocess.run(["git", "add", str(f)], check=True)
print("\n".join(report))
