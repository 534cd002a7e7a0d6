"""Moves top-level symbols to other modules, as `*.splits.tsv` lists them (by the old name of their module)."""

import ast
import re
import subprocess
from collections import defaultdict

from tables import ROOT, modules, rows, tracked

M = modules()


def path(mod):
    top = "src" if mod.startswith("bayplan") else "tests"
    p = ROOT / top / mod.replace(".", "/")
    return p / "__init__.py" if p.is_dir() and not p.with_suffix(".py").exists() else p.with_suffix(".py")


jobs = defaultdict(dict)
for a, s, b in rows("*.splits.tsv"):
    jobs[M.get(a, a)][s] = b
DOCS = {
    "bayplan.app.scheduler": "Composition of the pod engine: configuration, cluster and clock become a running scheduler.",
    "bayplan.app.configuration": "Reads configurations, plugins and objects from files for the commands.",
    "bayplan.intents.writes": "The protocol `Writes`, which performs intents against the API server.",
    "bayplan.framework.runtime.bind_failures": "Counts failed BindRequests of a pod per node.",
    "bayplan.framework.runtime.bind_request_factory": "Builds the BindRequest of a pod that is placed on a node.",
    "bayplan.framework.api.plugin_error": "Error of a plugin at an extension point.",
    "bayplan.config.suggestions": "Suggestions for misspelt names in error messages.",
    "bayplan.framework.equivalence.bounded_cache": "Cache with a bounded number of entries, oldest first out.",
    "bayplan.framework.api.preemption_extender": "Protocol of an extender that takes part in preemption.",
    "support.harness.async_tests": "Runs asynchronous tests on an event loop.",
}
moved_all = {}
for src, syms in jobs.items():
    p = path(src)
    text = p.read_text()
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    own = {}
    for i, n in enumerate(tree.body):
        names = []
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [n.name]
        elif isinstance(n, ast.Assign):
            for t in n.targets:
                names += [x.id for x in ast.walk(t) if isinstance(x, ast.Name)]
        elif isinstance(n, ast.AnnAssign):
            names = [n.target.id]
        for x in names:
            own[x] = i
    missing = set(syms) - set(own)
    if missing:
        print("MISSING", src, missing)
    bytarget = defaultdict(list)
    spans = {}
    for i, n in enumerate(tree.body):
        start = min([n.lineno] + [d.lineno for d in getattr(n, "decorator_list", [])]) - 1
        # preceding comments
        while start > 0 and lines[start - 1].startswith("#"):
            start -= 1
        end = n.end_lineno
        # trailing string docs
        if i + 1 < len(tree.body):
            m = tree.body[i + 1]
            if (
                isinstance(n, (ast.Assign, ast.AnnAssign))
                and isinstance(m, ast.Expr)
                and isinstance(m.value, ast.Constant)
                and isinstance(m.value.value, str)
            ):
                end = m.end_lineno
        spans[i] = (start, end)
    gone = []
    for s, t in syms.items():
        if s in own:
            if own[s] not in bytarget[t]:
                bytarget[t].append(own[s])
            moved_all[(src, s)] = t
    imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    tc = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    imptext = "".join("".join(lines[n.lineno - 1 : n.end_lineno]) for n in imports) + "".join(
        "".join(lines[n.lineno - 1 : n.end_lineno]) for n in tc
    )
    for t, idx in bytarget.items():
        idx.sort()
        body = "\n\n".join("".join(lines[spans[i][0] : spans[i][1]]).rstrip("\n") for i in idx)
        used = {x.id for i in idx for x in ast.walk(tree.body[i]) if isinstance(x, ast.Name)} | {
            w
            for i in idx
            for x in ast.walk(tree.body[i])
            if isinstance(x, ast.Constant) and isinstance(x.value, str)
            for w in re.findall(r"\w+", x.value)
        }
        back = sorted(x for x in own if x in used and own[x] not in idx)
        extra = ""
        for x in back:
            home = syms.get(x)
            extra += f"from {home or src} import {x}\n"
            if not home and x != "log":
                print("back import", t, "<-", src, x)
        q = path(t)
        if q.exists():
            cur = q.read_text()
            ct = ast.parse(cur)
            cl = cur.splitlines(keepends=True)
            lastimp = max([n.end_lineno for n in ct.body if isinstance(n, (ast.Import, ast.ImportFrom))] + [1])
            new = (
                "".join(cl[:lastimp])
                + imptext.replace("from __future__ import annotations\n", "")
                + extra
                + "".join(cl[lastimp:]).rstrip("\n")
                + "\n\n\n"
                + body
                + "\n"
            )
        else:
            q.parent.mkdir(parents=True, exist_ok=True)
            new = f'"""{DOCS[t]}"""\n\n' + imptext + extra + "\n\n" + body + "\n"
        q.write_text(new)
        subprocess.run(["git", "add", str(q)], check=True)
    allidx = sorted({i for idx in bytarget.values() for i in idx}, reverse=True)
    out = lines[:]
    for i in allidx:
        s, e = spans[i]
        del out[s:e]
    rest = "".join(out)
    if src == "bayplan.app":
        i = rest.index("__all__ = [")
        allnames = re.findall(r'"(\w+)"', rest[i : rest.index("]", i)])
        add = "".join(f"from {syms[x]} import {x}\n" for x in allnames if x in syms)
    else:
        rt = ast.parse(rest)
        usedrest = {x.id for x in ast.walk(rt) if isinstance(x, ast.Name)} | {
            w
            for x in ast.walk(rt)
            if isinstance(x, ast.Constant) and isinstance(x.value, str)
            for w in re.findall(r"\w+", x.value)
        }
        add = "".join(f"from {t} import {s}\n" for s, t in syms.items() if s in usedrest)
    rt = ast.parse(rest)
    rl = rest.splitlines(keepends=True)
    lastimp = max([n.end_lineno for n in rt.body if isinstance(n, (ast.Import, ast.ImportFrom))] + [1])
    p.write_text("".join(rl[:lastimp]) + add + "".join(rl[lastimp:]))
# importers
files = tracked("*.py")
srcs = {s for s, _ in moved_all}
for f in files:
    p = ROOT / f
    text = p.read_text()
    if not any(s in text for s in srcs):
        continue
    if f == "src/bayplan/app/__init__.py":
        continue
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    edits = []
    for n in ast.walk(tree):
        if (
            isinstance(n, ast.ImportFrom)
            and n.module in srcs
            and not (n.module == "bayplan.app" and not f.startswith("src/"))
        ):
            keep, mv = [], []
            for a in n.names:
                t = moved_all.get((n.module, a.name))
                s = a.name + (f" as {a.asname}" if a.asname else "")
                (mv if t and path(t) != p else keep).append((t, s))
            if not mv:
                continue
            ind = " " * n.col_offset
            stm = [f"from {n.module} import {', '.join(s for _, s in keep)}"] if keep else []
            stm += [f"from {t} import {s}" for t, s in mv]
            edits.append((n.lineno, n.end_lineno, ("\n" + ind).join(stm), n.col_offset))
    for s, e, stm, col in sorted(edits, reverse=True):
        lines[s - 1 : e] = [lines[s - 1][:col] + stm + "\n"]
    if edits:
        p.write_text("".join(lines))
