"""Manual fixes after `move_modules.py`: docstrings, paths relative to `__file__`, lazy imports, layers, imports in strings.

Run in the root of the worktree, before the moves are committed.
"""

import ast
import re
import subprocess
from pathlib import Path

from tables import modules, tracked

M = modules()


def sub(f, a, b):
    p = Path(f)
    t = p.read_text()
    assert a in t, (f, a)
    p.write_text(t.replace(a, b))


def newname(old):
    parts = old.split(".")
    for i in range(len(parts), 1, -1):
        pre = ".".join(parts[:i])
        if pre in M:
            return ".".join([M[pre], *parts[i:]])
    return old


def docstrings():
    """Shorter docstrings where the tables or new paths have too long lines."""
    fix = {
        "src/bayplan/apiserver/admission/__init__.py": "Admission plugins of the API server: priorities, limit ranges, quotas, Pod Security and Volcano's webhooks.",
        "src/bayplan/apiserver/schema/crd/__init__.py": "CustomResourceDefinitions: checks their schemas, and defaults, prunes and validates custom resources.",
        "src/bayplan/batch/diagnostics/__init__.py": "Messages about broken plugins, invalid annotations and misconfigured objects, and the dump of the cluster state.",
        "src/bayplan/batch/model/__init__.py": "Jobs, tasks, queues, nodes and resource amounts of the batch engine, as in Volcano's scheduler API package.",
        "src/bayplan/cli/commands/simulation/__init__.py": "Commands on files and recordings: place, record, replay, whatif, simulate, sweep and conformance.",
    }
    for f, d in fix.items():
        Path(f).write_text(f'"""{d}"""\n')
    p = Path("scripts/types/make_go_forms.py")
    t = p.read_text()
    t = t.replace(
        '"""Makes `src/bayplan/apiserver/validation/go_struct_text.json.gz`: the fields of the API server\'s own structs, in their order.',
        '"""Makes `src/bayplan/apiserver/validation/go_struct_text.json.gz`: fields of the API server\'s structs, in their order.',
    )
    p.write_text(t)


def relative_paths(st):
    """Numbers of parents in `Path(__file__).parents[n]` of files that moved to another depth."""
    for line in st.splitlines():
        p = line.split("\t")
        if p[0].startswith("R") and p[2].endswith(".py"):
            a, b = p[1], p[2]
            d = b.count("/") - a.count("/")
            if d:
                t = Path(b).read_text()
                n = re.sub(
                    r"(Path\(__file__\)(?:\.resolve\(\))?)\.parents\[(\d+)\]",
                    lambda m: f"{m[1]}.parents[{int(m[2]) + d}]",
                    t,
                )
                n = (
                    re.sub(
                        r"(Path\(__file__\)(?:\.resolve\(\))?)\.parent(?![s\w])", lambda m: f"{m[1]}.parents[{d}]", n
                    )
                    if a.startswith("tests/") and a.count("/") == 1
                    else n
                )
                if n != t:
                    print(b, d)
                    Path(b).write_text(n)


def lazy_imports():
    """Tables of lazily imported modules and commands."""
    for f, pk in (
        ("src/bayplan/batch/__init__.py", "bayplan.batch"),
        ("src/bayplan/testing/__init__.py", "bayplan.testing"),
    ):
        t = Path(f).read_text()
        i = t.index("_MODULES = {")
        j = t.index("}\n", i)
        blk = re.sub(
            r'"([a-z_]+)": \(',
            lambda m: '"%s": (' % (M.get(f"{pk}.{m[1]}", f"{pk}.{m[1]}").removeprefix(pk + ".")),
            t[i:j],
        )
        Path(f).write_text(t[:i] + blk + t[j:])
    g = {
        "processes": "admission batch binder controllers kubelet run scheduler",
        "objects": "apply delete get top crds why",
        "volcano": "job podgroup queue",
        "embedded": "cluster kubeconfig demo",
        "simulation": "place record replay whatif simulate sweep conformance",
        "configuration": "config plugin",
    }
    p = Path("src/bayplan/cli/__init__.py")
    t = p.read_text()
    t = t.replace(
        '        command = importlib.import_module(f"bayplan.cli.{name}").command\n',
        "        command = importlib.import_module(f\"bayplan.cli.commands.{_PACKAGES.get(name, '')}{name}\").command\n",
    )
    pk = (
        '\n_PACKAGES = {\n    name: f"{package}."\n    for package, names in {\n'
        + "".join(f'        "{k}": "{v}",\n' for k, v in g.items())
        + "    }.items()\n    for name in names.split()\n}\n"
    )
    j2 = t.index("}\n", t.index("_VERBS = {")) + 2
    p.write_text(t[:j2] + pk + t[j2:])


def layers():
    """Import contracts with the target layers."""
    t = Path(".importlinter").read_text()
    i = t.index("layers =\n")
    j = t.index("\n\n", i)
    new = """layers =
    bayplan.cli
    bayplan.sim | bayplan.testing
    bayplan.app
    bayplan.explain
    bayplan.scheduler | bayplan.batch | bayplan.binder | bayplan.controllers | bayplan.apiserver | bayplan.server
    bayplan.bind_requests
    bayplan.api_writes | bayplan.plugins | bayplan.queue | bayplan.cache
    bayplan.framework | bayplan.client
    bayplan.snapshot | bayplan.config | bayplan.telemetry | bayplan.volumes | bayplan.devices | bayplan.admission | bayplan.intents
    bayplan.objects
    bayplan.codec | bayplan.cel
    bayplan.clock | bayplan.errors | bayplan.memory"""
    t = t[:i] + new + t[j:]
    t = t.replace("bayplan.queueing", "bayplan.queue")
    t = t.replace(
        """    bayplan.apiserver.rules
    bayplan.apiserver.schema
    bayplan.apiserver.tables
""",
        """    bayplan.apiserver.admission
    bayplan.apiserver.defaulting
    bayplan.apiserver.resources
    bayplan.apiserver.schema
    bayplan.apiserver.tables
    bayplan.apiserver.validation
    bayplan.apiserver.warnings
""",
    )
    Path(".importlinter").write_text(t)


def paths():
    """File names that code joins from parts."""
    for f in ("tests/support/builders/recorded_objects.py", "tests/support/builders/schema_requests.py"):
        sub(f, '"unit" / "cluster"', '"unit" / "apiserver"')
    sub("tests/e2e/test_scheduler_faults.py", '"shifted_clock.py"', '"support" / "fakes" / "shifted_clock.py"')
    sub("src/bayplan/objects/volcano/definitions.py", "volcano_definitions.json.gz", "definitions.json.gz")
    sub("src/bayplan/apiserver/validation/go_struct_text.py", '"go_forms.json.gz"', '"go_struct_text.json.gz"')
    sub(
        "src/bayplan/apiserver/validation/go_struct_text.py",
        "`go_forms.json.gz` lists them (made by",
        "`go_struct_text.json.gz` lists them (from",
    )
    sub(
        "Makefile",
        "cache cluster framework objects plugins queueing scheduler snapshot testing",
        "cache apiserver framework objects plugins queue scheduler snapshot testing",
    )


def imports_in_strings():
    """Import statements inside string literals."""
    for f in tracked("*.py"):
        p = Path(f)
        t = p.read_text()
        if "bayplan." not in t:
            continue
        real = {n.lineno for n in ast.walk(ast.parse(t)) if isinstance(n, (ast.ImportFrom, ast.Import))}
        lines = t.splitlines(keepends=True)
        ch = False
        for k, l in enumerate(lines):
            if k + 1 in real:
                continue

            def r(m):
                new = newname(m[2])
                mod = Path("src") / m[2].replace(".", "/")
                if mod.with_suffix(".py").exists():
                    return m[0]
                if mod.is_dir() and m[2] not in M:
                    return m[0]
                return m[1] + new + m[3]

            n = re.sub(r"(from )(bayplan(?:\.\w+)+)( import )", r, l)
            if n != l:
                lines[k] = n
                ch = True
        if ch:
            p.write_text("".join(lines))
            print("string import", f)
    sub(
        "tests/docs/test_batch_plugins_page.py",
        'sys.modules[Extender.__module__ + "_bodies"]',
        'sys.modules[Extender.__module__.removesuffix("plugin") + "bodies"]',
    )
    sub(
        "tests/unit/cli/commands/embedded/test_cluster.py",
        "from bayplan.cli import cluster; cluster._start_detached",
        "from bayplan.cli.commands.embedded import cluster; cluster._start_detached",
    )


def own_names(st):
    """Tests that name their own file."""
    for line in st.splitlines():
        q = line.split("\t")
        if q[0].startswith("R") and q[2].endswith(".py") and q[2].startswith("tests/"):
            a, b = Path(q[1]).stem, Path(q[2]).stem
            if a != b:
                t = Path(q[2]).read_text()
                n = re.sub(rf"\b{a}(?=(\\?\.py)|\)?['\"])", b, t)
                if n != t:
                    print("own name", q[2])
                    Path(q[2]).write_text(n)


if __name__ == "__main__":
    docstrings()
    subprocess.run(["git", "add", "-A"], check=True)
    command = ["git", "diff", "--cached", "-M30", "--name-status", "HEAD"]
    renamed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    relative_paths(renamed)
    lazy_imports()
    layers()
    paths()
    imports_in_strings()
    own_names(renamed)
