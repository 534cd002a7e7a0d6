"""Renames symbols and members as `*.symbols.tsv` lists them, resolved with mypy's types.

Run in the root of the worktree, after moves and splits, with Python 3.12 or later (the parser of 3.11 gives wrong
positions inside f-strings) and the mypy that the project pins. Builds the whole tree with mypy in memory, groups
members that override each other or satisfy a protocol, so that they get one name, and edits each use by its position.
"""

import argparse
import ast
import pickle
import re
import sys
from collections import defaultdict
from pathlib import Path

from mypy import build as mb
from mypy.nodes import (
    Argument,
    ClassDef,
    Decorator,
    FuncDef,
    MypyFile,
    NameExpr,
    Node,
    OverloadedFuncDef,
    RefExpr,
    SymbolNode,
    TypeAlias,
    TypeInfo,
    Var,
)
from mypy.options import Options
from mypy.subtypes import is_subtype
from mypy.typevars import fill_typevars_with_any
from mypy.types import (
    CallableType,
    Instance,
    LiteralType,
    Overloaded,
    TupleType,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)
from tables import BUILD, MAPS, ROOT, rows, tracked

if sys.version_info < (3, 12):
    sys.exit("needs Python 3.12 or later: positions inside f-strings")
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument(
    "--python", default=sys.executable, help="interpreter with the project's dependencies, for mypy to find their types"
)
parser.add_argument("--dry-run", action="store_true", help="change nothing in the tree")
parser.add_argument("--reports", action="store_true", help="write mypy.errors and report.* below build/renames/")
arguments = parser.parse_args()
EXTRA = {s: b for _, s, b in rows("*.splits.tsv")}
SYM, MEM = {}, {}
for mod, old, new, kind, *_ in rows("*.symbols.tsv"):
    if old == new:
        continue
    if ":" in kind:
        MEM[(mod, kind.split(":", 1)[1], old)] = new
    else:
        SYM[(mod, old)] = new
files = tracked("*.py")
sources, modof = [], {}
for f in files:
    parts = list(Path(f).with_suffix("").parts)
    if parts[0] == "src":
        parts = parts[1:]
    elif parts[0] == "tests":
        parts = parts[1:]
    elif parts[0] == "tools":
        parts = parts[1:]
    elif parts[0] in ("benchmarks", "scripts"):
        pass
    else:
        continue
    if parts[-1] == "__init__":
        parts = parts[:-1]
    if not parts:
        continue
    if not all(p.isidentifier() for p in parts):
        continue
    m = ".".join(parts)
    if m in modof.values():
        print("dup", m, f)
        continue
    modof[f] = m
    sources.append(mb.BuildSource(f, m, None))
o = Options()
o.mypy_path = ["src", "tests", "tools"]
o.python_executable = arguments.python
o.python_version = (3, 11)
o.incremental = False
o.export_types = True
o.preserve_asts = True
o.check_untyped_defs = True
o.ignore_missing_imports = True
o.namespace_packages = True
o.explicit_package_bases = True
o.follow_imports = "normal"
o.hide_error_codes = True
o.allow_redefinition = False
o.implicit_reexport = True
o.warn_unreachable = False
o.native_parser = False
try:
    o.fine_grained_incremental = False
except Exception:
    pass
try:
    res = mb.build(sources, o)
except Exception as e:
    print("BUILD", type(e), getattr(e, "messages", e))
    raise
print("mypy errors:", len(res.errors))
if arguments.reports:
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "mypy.errors").write_text("\n".join(res.errors))

sys.setrecursionlimit(20000)
PICK = {"_written": "_container_amounts", "tell": "record_core_event"}

SKIP = {
    "node",
    "info",
    "type",
    "unanalyzed_type",
    "def_var",
    "definition",
    "type_alias",
    "expanded",
    "original_def",
    "names",
    "var",
    "variable",
    "target",
    "analyzed",
    "types",
    "metadata",
    "dataclass_transform_spec",
    "deco_line",
    "ret_type",
    "unanalyzed_ret_type",
    "original_first_arg",
    "method_types",
    "left_operand",
    "as_type",
    "expr_analyzed",
    "type_guard",
    "alias_tvars",
    "callee_analyzed",
    "method_type",
    "imports",
    "alias_deps",
    "ignored_lines",
    "plugin_deps",
    "future_import_flags",
    "unreachable_lines",
    "tvars",
    "type_vars",
    "type_args",
    "max_pos",
    "local_definitions",
    "dunder_all",
    "bases",
    "mro",
    "_fullname",
}
_ATTRS = {}


def attrs_of(n):
    c = type(n)
    if c not in _ATTRS:
        out = []
        for k in c.__mro__:
            for a, d in vars(k).items():
                if (
                    not a.startswith("__")
                    and a not in SKIP
                    and type(d).__name__ in ("getset_descriptor", "member_descriptor")
                    and a not in out
                ):
                    out.append(a)
        _ATTRS[c] = out
    return _ATTRS[c]


class TraverserVisitor:
    def go(self, n, depth=0):
        m = getattr(self, "visit_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(n).__name__).lower(), None)
        if m is not None:
            m(n)
        else:
            self.children(n)

    def children(self, n):
        for a in attrs_of(n):
            try:
                x = getattr(n, a)
            except AttributeError:
                continue
            self.value(x)

    def value(self, x):
        if (
            isinstance(x, (Node, Argument))
            and not isinstance(x, (TypeInfo, Var, SymbolNode))
            or isinstance(x, (FuncDef, OverloadedFuncDef, Decorator, ClassDef))
        ):
            self.go(x)
        elif isinstance(x, (list, tuple)):
            for y in x:
                self.value(y)

    visit_class_def = visit_member_expr = visit_super_expr = visit_call_expr = visit_class_pattern = None


TREES = {m: res.files[m] for m in modof.values() if m in res.files}
types = res.types
# ---- classes
classes = {}


def collect(names, mod):
    for n, s in list(names.items()):
        node = s.node
        if (
            isinstance(node, TypeInfo)
            and node.module_name == mod
            and node.fullname not in classes
            and not n.startswith("__")
        ):
            if node.fullname.rsplit(".", 1)[-1] != n:
                continue
            classes[node.fullname] = node
            collect(node.names, mod)


for m, t in TREES.items():
    collect(t.names, m)


class LocalClasses(TraverserVisitor):
    def visit_class_def(self, o):
        if o.info is not None and o.info.fullname not in classes:
            classes[o.info.fullname] = o.info
        self.children(o)


for t in TREES.values():
    try:
        LocalClasses().go(t)
    except Exception as e:
        print("visit", t.fullname, e)
# ---- validate table
SY = {}
for (mod, old), new in SYM.items():
    m = mod
    if m not in TREES or old not in TREES[m].names:
        m2 = EXTRA.get(old)
        if m2 and m2 in TREES and old in TREES[m2].names:
            m = m2
        else:
            print("no symbol", mod, old)
            continue
    SY[f"{m}.{old}"] = new
R = {}
CONTRACT = {
    "cured_by",
    "looks_at_pods",
    "sits_out",
    "signs_anew",
    "filters_where_it_binds",
    "reserves_what_it_filters",
    "post_filter_asking",
    "depends_on",
    "compares_candidates",
    "scores_depend_on",
    "score_groups",
    "binds_every_pod",
}
for (mod, cls, old), new in MEM.items():
    if old in CONTRACT:
        continue
    full = f"{mod}.{cls}"
    if full not in classes and EXTRA.get(cls):
        full = f"{EXTRA[cls]}.{cls}"
    if full not in classes:
        print("no class", mod, cls, old)
        continue
    info = classes[full]
    base = next((b for b in info.mro if old in b.names), None)
    if base is None:
        print("no member", full, old)
        continue
    if base.fullname not in classes:
        print("foreign member", full, old, base.fullname)
        continue
    R.setdefault((base.fullname, old), new)
# ---- groups
names_interesting = {n for _, n in R}
parent = {}


def find(x):
    parent.setdefault(x, x)
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x


def union(a, b):
    a, b = find(a), find(b)
    if a != b:
        parent[a] = b


for full, info in classes.items():
    for n in names_interesting:
        bases = [b for b in info.mro if n in b.names]
        if len(bases) > 1:
            foreign = [b for b in bases if b.fullname not in classes]
            if foreign:
                for b in bases:
                    if b.fullname in classes:
                        union((b.fullname, n), ("FOREIGN", n))
            proj = [b for b in bases if b.fullname in classes]
            # private names are still overrides in Python
            for b in proj[1:]:
                union((proj[0].fullname, n), (b.fullname, n))
protos = [i for i in classes.values() if i.is_protocol]
for p in protos:
    pm = {n for b in p.mro if b.fullname in classes for n in b.names if not n.startswith("__")}
    if not pm & names_interesting:
        continue
    pi = fill = None
    pt = fill_typevars_with_any(p)
    for full, c in classes.items():
        if c is p:
            continue
        have = all(any(n in b.names for b in c.mro) for n in pm)
        if not have:
            continue
        try:
            ok = is_subtype(fill_typevars_with_any(c), pt)
        except Exception:
            ok = False
        if not ok and len(pm) < 2:
            continue
        if not ok and not full.startswith(("support", "naive", "zz_")):
            continue
        for n in pm & names_interesting:
            a = next(b for b in p.mro if n in b.names)
            b = next(b for b in c.mro if n in b.names)
            if b.fullname in classes:
                union((a.fullname, n), (b.fullname, n))
            else:
                union((a.fullname, n), ("FOREIGN", n))
groups = defaultdict(list)
for k in set(parent) | set(R):
    groups[find(k)].append(k)
FINAL = {}
for g, ks in groups.items():
    news = {R[k] for k in ks if k in R}
    if not news:
        continue
    if any(k[0] == "FOREIGN" for k in ks):
        print("foreign override, skipped:", ks[:4], news)
        continue
    if len(news) > 1:
        # prefer the one most used among protocols/bases
        cnt = defaultdict(int)
        for k in ks:
            if k in R:
                cnt[R[k]] += 1 + 3 * (k[0] in classes and classes[k[0]].is_protocol)
        pick = max(sorted(cnt), key=lambda x: cnt[x])
        print("conflict", ks[0][1], dict(cnt), "->", pick, [k[0].split(".")[-1] for k in ks][:6])
    else:
        pick = next(iter(news))
    pick = PICK.get(ks[0][1], pick) if len(news) > 1 else pick
    for k in ks:
        FINAL[k] = pick
# collisions
for (c, n), new in list(FINAL.items()):
    info = classes.get(c)
    if info is None:
        continue
    for b in info.mro:
        if new in b.names and b.fullname != "builtins.object" and (b.fullname, new) not in FINAL:
            print("COLLISION", c, n, "->", new, "exists in", b.fullname)
for full, new in list(SY.items()):
    m = full.rsplit(".", 1)[0]
    if new in TREES[m].names and f"{m}.{new}" not in SY:
        print("COLLISION symbol", full, "->", new)
print("symbols", len(SY), "members", len(FINAL))


def infos(t):
    t = get_proper_type(t)
    if isinstance(t, Instance):
        return [t.type]
    if isinstance(t, UnionType):
        return [i for x in t.items for i in infos(x)]
    if isinstance(t, TypeVarType):
        return infos(t.upper_bound) + [i for v in t.values for i in infos(v)]
    if isinstance(t, TypeType):
        return infos(t.item)
    if isinstance(t, TupleType):
        return [t.partial_fallback.type]
    if isinstance(t, LiteralType):
        return [t.fallback.type]
    if isinstance(t, Overloaded):
        return infos(t.items[0])
    if isinstance(t, CallableType):
        if t.is_type_obj():
            return [t.type_object()]
        return []
    return []


def member_new(t, name):
    out = set()
    for i in infos(t):
        b = next((b for b in i.mro if name in b.names), None)
        if b is not None:
            out.add(FINAL.get((b.fullname, name)))
    return out


def fieldlike(i):
    for b in i.mro:
        if (
            "dataclass" in b.metadata
            or "dataclass_tag" in b.metadata
            or b.is_named_tuple
            or b.fullname == "msgspec.Struct"
            or b.dataclass_transform_spec is not None
        ):
            return True
    return False


class V(TraverserVisitor):
    def __init__(self):
        self.members = {}
        self.calls = {}
        self.patterns = []
        self.getattrs = {}
        self.cls = []

    def visit_class_def(self, o):
        self.cls.append(o.info)
        self.children(o)
        self.cls.pop()

    def visit_member_expr(self, e):
        t = types.get(e.expr)
        key = (e.end_line, e.end_column, e.name)
        if t is not None:
            self.members.setdefault(key, set()).update(member_new(t, e.name) or {"?"} if infos(t) else {"?"})
        elif isinstance(e.expr, RefExpr) and isinstance(e.expr.node, TypeInfo):
            b = next((b for b in e.expr.node.mro if e.name in b.names), None)
            self.members.setdefault(key, set()).add(FINAL.get((b.fullname, e.name)) if b else "?")
        elif isinstance(e.expr, NameExpr) and e.expr.name in ("self", "cls") and self.cls:
            b = next((b for b in self.cls[-1].mro if e.name in b.names), None)
            self.members.setdefault(key, set()).add(FINAL.get((b.fullname, e.name)) if b else "?")
        elif not (isinstance(e.expr, RefExpr) and isinstance(e.expr.node, MypyFile)):
            self.members.setdefault(key, set()).add("?")
        self.children(e)

    def visit_super_expr(self, e):
        if e.info is not None:
            b = next((b for b in e.info.mro[1:] if e.name in b.names), None)
            self.members.setdefault((e.end_line, e.end_column, e.name), set()).add(
                FINAL.get((b.fullname, e.name)) if b else None
            )
        self.children(e)

    def visit_call_expr(self, e):
        key = (e.line, e.column, e.end_line, e.end_column)
        target = []
        ct = types.get(e.callee)
        name = e.callee.name if isinstance(e.callee, RefExpr) and hasattr(e.callee, "name") else ""
        if ct is not None:
            p = get_proper_type(ct)
            if isinstance(p, (CallableType, Overloaded, TypeType)) and (
                not isinstance(p, CallableType) or p.is_type_obj()
            ):
                target = infos(ct)
        if isinstance(e.callee, RefExpr) and isinstance(e.callee.node, TypeInfo):
            target = [e.callee.node]
        if name in ("replace", "partial", "asdict", "__replace__") and e.args:
            at = types.get(e.args[0])
            if at is not None:
                target = infos(at)
            if isinstance(e.args[0], RefExpr) and isinstance(e.args[0].node, TypeInfo):
                target = [e.args[0].node]
        if target:
            self.calls[key] = [i for i in target if fieldlike(i)]
        if (
            name
            in ("getattr", "setattr", "hasattr", "delattr", "object", "__setattr__", "__delattr__", "__getattribute__")
            and len(e.args) > 1
        ):
            a = e.args[0]
            tgt = types.get(a)
            if isinstance(a, RefExpr) and isinstance(a.node, MypyFile):
                self.getattrs[key] = ("mod", a.node.fullname)
            elif isinstance(a, RefExpr) and isinstance(a.node, TypeInfo):
                self.getattrs[key] = ("info", [a.node])
            elif tgt is not None:
                self.getattrs[key] = ("info", infos(tgt))
        self.children(e)

    def visit_class_pattern(self, p):
        n = p.class_ref.node
        if isinstance(n, TypeAlias):
            n = (infos(n.target) or [None])[0]
        if isinstance(n, TypeInfo):
            self.patterns.append((p.line, p.column, p.end_line, n, list(p.keyword_keys)))
        self.children(p)


def bindings(fn):
    out = {}
    if isinstance(fn, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        a = fn.args
        for x in [
            *a.posonlyargs,
            *a.args,
            *a.kwonlyargs,
            *([a.vararg] if a.vararg else []),
            *([a.kwarg] if a.kwarg else []),
        ]:
            out[x.arg] = "local"
        body = fn.body if isinstance(fn.body, list) else [fn.body]
    else:
        body = [fn]
    glob = set()

    def walk(n):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            out[n.name] = "local"
            for d in n.decorator_list:
                walk(d)
            return
        if isinstance(n, ast.Lambda):
            return
        if isinstance(n, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)) and n is not fn:
            for x in ast.walk(n):
                if isinstance(x, ast.NamedExpr):
                    out[x.target.id] = "local"
            return
        if isinstance(n, ast.Global) or isinstance(n, ast.Nonlocal):
            glob.update(n.names)
            return
        if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
            out[n.id] = "local"
        if isinstance(n, ast.ExceptHandler) and n.name:
            out[n.name] = "local"
        if isinstance(n, (ast.MatchAs, ast.MatchStar)) and n.name:
            out[n.name] = "local"
        if isinstance(n, ast.MatchMapping) and n.rest:
            out[n.rest] = "local"
        if isinstance(n, ast.ImportFrom):
            for al in n.names:
                out[al.asname or al.name] = ("from", n.module, al.name)
        elif isinstance(n, ast.Import):
            for al in n.names:
                out[(al.asname or al.name).split(".")[0]] = ("import", al.name if al.asname else al.name.split(".")[0])
        for c in ast.iter_child_nodes(n):
            walk(c)

    for n in body:
        walk(n)
    for g in glob:
        out.pop(g, None)
    return out


REPORT = defaultdict(list)
ALLMEM = defaultdict(set)
for (c, n), new in FINAL.items():
    ALLMEM[n].add(new)


def full_of(module, name):
    t = res.files.get(module)
    if t is None:
        return None
    s = t.names.get(name)
    if s is None or s.node is None:
        return ("mod", f"{module}.{name}") if f"{module}.{name}" in res.files else None
    if isinstance(s.node, MypyFile):
        return ("mod", s.node.fullname)
    if isinstance(s.node, TypeAlias) or hasattr(s.node, "fullname"):
        return ("sym", s.node.fullname)
    return None


LEARN, LEARNF = defaultdict(set), defaultdict(set)
STAYS = (
    {n for c, i in classes.items() for n in i.names if (c, n) not in FINAL}
    | set(dir(str))
    | set(dir(dict))
    | set(dir(list))
    | set(dir(int))
    | {"kind", "item", "requests", "line", "read", "clear", "live", "text"}
)
PASS = 1


class Rename(ast.NodeVisitor):
    def __init__(self, path, mod, text, v):
        self.path, self.mod, self.v = path, mod, v
        self.lines = text.splitlines(keepends=True)
        self.raw = [l.encode() for l in self.lines]
        self.edits = set()
        self.scopes = []
        self.clsstack = []
        self.func = 0

    def edit(self, line, col, old, new):
        have = self.raw[line - 1][col : col + len(old.encode())].decode(errors="replace")
        if have != old:
            REPORT["badpos"].append(f"{self.path}:{line}:{col} {old}->{new} have {have!r}")
            return
        if old != new:
            self.edits.add((line, col, old, new))

    def resolve(self, name):
        """-> ('sym', fullname)|('mod', fullname)|('member', cls)|None"""
        for kind, b in reversed(self.scopes):
            if kind == "class" and b is not self.scopes[-1][1]:
                continue
            if name in b:
                x = b[name]
                if kind == "class":
                    return (
                        ("member", self.clsnames[id(b)])
                        if x == "local"
                        else (full_of(x[1], x[2]) if x[0] == "from" else ("mod", x[1]))
                    )
                if x == "local":
                    return None
                if x[0] == "from":
                    return full_of(x[1], x[2])
                return ("mod", x[1])
        return full_of(self.mod, name)

    clsnames = {}

    def visit_Name(self, n):
        r = self.resolve(n.id)
        if r is None:
            return
        if r[0] == "sym" and r[1] in SY and r[1].rsplit(".", 1)[1] == n.id:
            self.edit(n.lineno, n.col_offset, n.id, SY[r[1]])
        elif r[0] == "member" and (r[1], n.id) in FINAL:
            self.edit(n.lineno, n.col_offset, n.id, FINAL[(r[1], n.id)])

    def modname(self, n):
        if isinstance(n, ast.Name):
            r = self.resolve(n.id)
            return r[1] if r and r[0] == "mod" else None
        if isinstance(n, ast.Attribute):
            m = self.modname(n.value)
            if m is None:
                return None
            r = full_of(m, n.attr)
            return r[1] if r and r[0] == "mod" else None
        return None

    def visit_Attribute(self, n):
        col = n.end_col_offset - len(n.attr.encode())
        m = self.modname(n.value)
        if m is not None:
            r = full_of(m, n.attr)
            if r and r[0] == "sym" and r[1] in SY and r[1].rsplit(".", 1)[1] == n.attr:
                self.edit(n.end_lineno, col, n.attr, SY[r[1]])
        elif n.attr in ALLMEM:
            got = self.v.members.get((n.end_lineno, n.end_col_offset, n.attr))
            recv = (
                n.value.id
                if isinstance(n.value, ast.Name)
                else n.value.attr
                if isinstance(n.value, ast.Attribute)
                else n.value.func.attr + "()"
                if isinstance(n.value, ast.Call) and isinstance(n.value.func, ast.Attribute)
                else n.value.func.id + "()"
                if isinstance(n.value, ast.Call) and isinstance(n.value.func, ast.Name)
                else ""
            )
            if got is not None and got - {"?"}:
                for x in got - {"?"}:
                    LEARN[recv, n.attr].add(x)
                    LEARNF[self.path, recv, n.attr].add(x)
            if got is None:
                REPORT["nopos"].append(f"{self.path}:{n.lineno} .{n.attr} -> {sorted(ALLMEM[n.attr])}")
                got = {"?"}
            g = got - {"?"}
            if len(g) == 1 and None not in g:
                self.edit(n.end_lineno, col, n.attr, next(iter(g)))
            elif len(g) > 1:
                real = g - {None}
                REPORT["ambiguous"].append(f"{self.path}:{n.lineno} .{n.attr} -> {g}")
                if len(real) == 1:
                    self.edit(n.end_lineno, col, n.attr, next(iter(real)))
            elif not g and PASS == 2 and (guess := self.guess(recv, n.attr)):
                self.edit(n.end_lineno, col, n.attr, guess)
                REPORT["guessed"].append(f"{self.path}:{n.end_lineno} {recv}.{n.attr} -> {guess}")
            elif not g:
                REPORT["untyped"].append(f"{self.path}:{n.end_lineno}:{col} .{n.attr} -> {sorted(ALLMEM[n.attr])}")
        self.generic_visit(n)

    def guess(self, recv, attr):
        for have in (LEARNF.get((self.path, recv, attr)), LEARN.get((recv, attr)) if recv else None):
            if have and len(have) == 1:
                return next(iter(have))
            if have:
                return None
        if len(ALLMEM[attr]) == 1 and attr not in STAYS:
            return next(iter(ALLMEM[attr]))
        return None

    def defname(self, n, kw, new):
        for ln in range(n.lineno, n.lineno + 3):
            m = re.search(rb"\b" + kw + rb"\s+" + n.name.encode() + rb"\b", self.raw[ln - 1])
            if m:
                self.edit(ln, m.end() - len(n.name.encode()), n.name, new)
                return
        REPORT["badpos"].append(f"{self.path}:{n.lineno} def {n.name}")

    def func_like(self, n):
        for d in n.decorator_list:
            self.visit(d)
        a = n.args
        for x in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]:
            if x is not None and x.annotation:
                self.visit(x.annotation)
        for d in [*a.defaults, *a.kw_defaults]:
            if d is not None:
                self.visit(d)
        if n.returns:
            self.visit(n.returns)
        incls = bool(self.scopes) and self.scopes[-1][0] == "class"
        if incls:
            k = (self.clsnames[id(self.scopes[-1][1])], n.name)
            if k in FINAL:
                self.defname(n, b"def", FINAL[k])
        elif not self.scopes and f"{self.mod}.{n.name}" in SY:
            self.defname(n, b"def", SY[f"{self.mod}.{n.name}"])
        b = bindings(n)
        self.scopes.append(("func", b))
        for s in n.body:
            self.visit(s)
        self.scopes.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = func_like

    def visit_Lambda(self, n):
        for d in [*n.args.defaults, *n.args.kw_defaults]:
            if d is not None:
                self.visit(d)
        self.scopes.append(("func", bindings(n)))
        self.visit(n.body)
        self.scopes.pop()

    def comp(self, n):
        names = {x.id: "local" for g in n.generators for x in ast.walk(g.target) if isinstance(x, ast.Name)}
        self.scopes.append(("func", names))
        self.generic_visit(n)
        self.scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comp

    def visit_ClassDef(self, n):
        for d in [*n.decorator_list, *n.bases, *[k.value for k in n.keywords]]:
            self.visit(d)
        if not self.scopes and f"{self.mod}.{n.name}" in SY:
            self.defname(n, b"class", SY[f"{self.mod}.{n.name}"])
        self.clsstack.append(n.name)
        if self.scopes and self.scopes[-1][0] == "func":
            cand = [
                c
                for c in classes
                if c.startswith(self.mod + ".") and re.search(rf"(^|\.){re.escape(n.name)}(@{n.lineno})?$", c)
            ]
            full = cand[0] if cand else f"{self.mod}.{n.name}"
        else:
            full = f"{self.mod}." + ".".join(self.clsstack)
        fake = ast.Module(body=n.body, type_ignores=[])
        b = bindings(fake)
        b = {k: v for k, v in b.items()}
        self.clsnames[id(b)] = full
        self.scopes.append(("class", b))
        for s in n.body:
            if isinstance(s, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id in ("__slots__", "__match_args__") for t in s.targets
            ):
                for c in ast.walk(s.value):
                    if isinstance(c, ast.Constant) and isinstance(c.value, str) and (full, c.value) in FINAL:
                        self.edit(c.lineno, c.col_offset + 1, c.value, FINAL[(full, c.value)])
            self.visit(s)
        self.scopes.pop()
        self.clsstack.pop()

    def visit_ImportFrom(self, n):
        for al in n.names:
            if not n.module:
                continue
            r = full_of(n.module, al.name)
            if r and r[0] == "sym" and r[1] in SY and r[1].rsplit(".", 1)[1] == al.name:
                self.edit(al.lineno, al.col_offset, al.name, SY[r[1]])

    def visit_Global(self, n):
        for x in n.names:
            f = f"{self.mod}.{x}"
            if f in SY:
                m = re.search(rb"\b" + x.encode() + rb"\b", self.raw[n.lineno - 1])
                self.edit(n.lineno, m.start(), x, SY[f])

    def visit_Call(self, n):
        key = (n.lineno, n.col_offset, n.end_lineno, n.end_col_offset)
        for i in self.v.calls.get(key, ()):
            for k in n.keywords:
                if k.arg:
                    b = next((b for b in i.mro if k.arg in b.names), None)
                    if b is not None and (b.fullname, k.arg) in FINAL:
                        self.edit(k.lineno, k.col_offset, k.arg, FINAL[(b.fullname, k.arg)])
        fn = n.func.attr if isinstance(n.func, ast.Attribute) else n.func.id if isinstance(n.func, ast.Name) else ""
        if (
            fn
            in ("getattr", "setattr", "hasattr", "delattr", "object", "__setattr__", "__delattr__", "__getattribute__")
            and len(n.args) > 1
            and isinstance(n.args[1], ast.Constant)
            and isinstance(n.args[1].value, str)
        ):
            c = n.args[1]
            s = c.value
            g = self.v.getattrs.get(key)
            new = None
            m = self.modname(n.args[0])
            if m is not None:
                r = full_of(m, s)
                if r and r[0] == "sym":
                    new = SY.get(r[1])
            elif g and g[0] == "mod":
                new = SY.get(f"{g[1]}.{s}")
            elif g:
                for i in g[1]:
                    b = next((b for b in i.mro if s in b.names), None)
                    if b is not None:
                        new = new or FINAL.get((b.fullname, s))
            if new:
                self.edit(c.lineno, c.col_offset + 1, s, new)
            elif s in ALLMEM:
                REPORT["getattr"].append(f"{self.path}:{n.lineno} {fn} {s} -> {sorted(ALLMEM[s])}")
        if fn in ("cast", "TypeVar", "NewType"):
            for c in ast.walk(n):
                if isinstance(c, ast.Constant) and isinstance(c.value, str):
                    for m in re.finditer(r"[A-Za-z_]\w*", c.value):
                        r = self.resolve(m[0])
                        if r and r[0] == "sym" and r[1] in SY:
                            self.edit(c.lineno, c.col_offset + 1 + m.start(), m[0], SY[r[1]])
        self.generic_visit(n)

    def visit_keyword(self, n):
        self.visit(n.value)

    def visit_Assign(self, n):
        if not self.scopes and any(isinstance(t, ast.Name) and t.id in ("__all__", "_MODULES") for t in n.targets):
            for c in ast.walk(n.value):
                if isinstance(c, ast.Constant) and isinstance(c.value, str):
                    r = full_of(self.mod, c.value)
                    if r and r[0] == "sym" and r[1] in SY and r[1].rsplit(".", 1)[1] == c.value:
                        self.edit(c.lineno, c.col_offset + 1, c.value, SY[r[1]])
        self.generic_visit(n)

    def visit_Constant(self, n):
        if (
            isinstance(n.value, str)
            and re.fullmatch(r"\w+", n.value)
            and n.value in ALLMEM
            and ("_" in n.value.strip("_"))
        ):
            REPORT["strings"].append(f"{self.path}:{n.lineno} {n.value!r} -> {sorted(ALLMEM[n.value])}")

    def visit_AnnAssign(self, n):
        self.generic_visit(n)


DOT = re.compile(r"(?<![\w./-])(?:bayplan|support|naive)(?:\.\w+)+")


def dotted(m):
    s = m.group(0)
    parts = s.split(".")
    for i in range(len(parts) - 1, 0, -1):
        mod = ".".join(parts[:i])
        if mod in TREES:
            rest = parts[i:]
            r = full_of(mod, rest[0])
            if r and r[0] == "sym" and r[1] in SY and r[1].rsplit(".", 1)[1] == rest[0]:
                orig = r[1]
                new = [SY[orig]]
            else:
                orig = r[1] if r and r[0] == "sym" else None
                new = [rest[0]]
            if len(rest) > 1 and orig in classes:
                b = next((b for b in classes[orig].mro if rest[1] in b.names), None)
                if b is not None:
                    new.append(FINAL.get((b.fullname, rest[1]), rest[1]))
                    rest = rest[:1] + rest[1:]
                else:
                    new.append(rest[1])
                new += rest[2:]
            else:
                new += rest[1:]
            return ".".join([mod, *new])
    return s


VS = {}
for f, m in modof.items():
    if m not in TREES:
        continue
    v = V()
    try:
        v.go(TREES[m])
    except Exception as e:
        REPORT["visit"].append(f"{f} {e!r}")
    VS[m] = v
    Rename(f, m, (ROOT / f).read_text(), v).visit(ast.parse((ROOT / f).read_text()))
REPORT.clear()
PASS = 2
total = 0
newtexts = {}
for f, m in modof.items():
    if m not in TREES:
        REPORT["notree"].append(f)
        continue
    text = (ROOT / f).read_text()
    v = VS[m]
    r = Rename(f, m, text, v)
    tree = ast.parse(text)
    r.visit(tree)
    # match patterns
    pats = {(p[0], p[1]): p for p in v.patterns}
    for n in ast.walk(tree):
        if isinstance(n, ast.MatchClass) and n.kwd_attrs:
            p = pats.get((n.lineno, n.col_offset))
            if not p:
                REPORT["pattern"].append(f"{f}:{n.lineno} {n.kwd_attrs}")
                continue
            for a in n.kwd_attrs:
                b = next((b for b in p[3].mro if a in b.names), None)
                if b is not None and (b.fullname, a) in FINAL:
                    for ln in range(n.lineno, n.end_lineno + 1):
                        for mm in re.finditer(rb"\b" + a.encode() + rb"(?==)", r.raw[ln - 1]):
                            if (ln, mm.start()) >= (n.lineno, n.col_offset) and (ln, mm.start()) < (
                                n.end_lineno,
                                n.end_col_offset,
                            ):
                                r.edit(ln, mm.start(), a, FINAL[(b.fullname, a)])
    raw = r.raw[:]
    total += len(r.edits)
    for ln, col, old, new in sorted(r.edits, reverse=True):
        raw[ln - 1] = raw[ln - 1][:col] + new.encode() + raw[ln - 1][col + len(old.encode()) :]
    out = b"".join(raw).decode()
    out = "".join(l if re.match(r"\s*(from|import) ", l) else DOT.sub(dotted, l) for l in out.splitlines(keepends=True))
    if out != text:
        newtexts[f] = out
print("edits", total, "files", len(newtexts))
# pxd
for f in tracked("*.pxd"):
    mod = ".".join(Path(f).with_suffix("").parts[1:])
    text = (ROOT / f).read_text()
    out = []
    cls = None
    cnames = {}
    for m in re.finditer(r"from ([\w.]+) cimport (.+)", text):
        for it in m[2].split(","):
            nm = it.split()[0]
            if f"{m[1]}.{nm}" in SY:
                cnames[nm] = SY[f"{m[1]}.{nm}"]
    for line in text.splitlines(keepends=True):
        if m := re.match(r"from ([\w.]+) cimport", line):
            head, tail = line.split(" cimport ")
            line = (
                head
                + " cimport "
                + re.sub(
                    r"\b[A-Za-z_]\w*\b",
                    lambda w: SY.get(
                        f"{m[1]}.{w[0]}",
                        ("C" + cnames[w[0][1:]]) if w[0].startswith("C") and w[0][1:] in cnames else w[0],
                    ),
                    tail,
                )
            )
        else:
            if m := re.match(r"cdef class (\w+)", line):
                cls = m[1]
            elif line[:1] not in (" ", "\n", "#", "@"):
                cls = None

            def w(mm, cls=cls):
                x = mm[0]
                if x.startswith("C") and x[1:] in cnames:
                    return "C" + cnames[x[1:]]
                if f"{mod}.{x}" in SY:
                    return SY[f"{mod}.{x}"]
                if cls and f"{mod}.{cls}" in classes:
                    return FINAL.get((f"{mod}.{cls}", x), x)
                return x

            if line.startswith("@cython.locals") or line.strip().startswith("@cython.locals"):
                line = re.sub(r"=(\w+)", lambda mm: "=" + w(re.match(r"\w+", mm[1])), line)
            elif "(" in line:
                head, _, tail = line.partition("(")
                line = re.sub(r"\b[A-Za-z_]\w*\b", w, head) + "(" + re.sub(r"\b(C?[A-Z]\w*)\b", w, tail)
            else:
                line = re.sub(r"\b[A-Za-z_]\w*\b", w, line)
        out.append(line)
    if "".join(out) != text:
        newtexts[f] = "".join(out)
BUILD.mkdir(parents=True, exist_ok=True)
for k, v in REPORT.items():
    print(k, len(v))
    if arguments.reports:
        (BUILD / f"report.{k}").write_text("\n".join(v) + "\n")
with MAPS.open("wb") as maps:
    pickle.dump((SY, FINAL), maps)
if not arguments.dry_run:
    for f, t in newtexts.items():
        (ROOT / f).write_text(t)
