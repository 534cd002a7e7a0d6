"""Manual fixes after `split_symbols.py`: imports that are left over, the facade of `bayplan.app`."""

import re
from pathlib import Path


def ed(f, *pairs):
    p = Path(f)
    t = p.read_text()
    for a, b in pairs:
        assert a in t, (f, a)
        t = t.replace(a, b)
    p.write_text(t)


ed("src/bayplan/codec/quantity.py", ("from bayplan.objects.meta import QuantityText\n", ""))
ed("src/bayplan/cli/flags/connection_options.py", ("from bayplan.cli.connection import F\n", ""))
ed(
    "src/bayplan/objects/field_checks.py",
    ("get_args(meta.QuantityText)", "get_args(QuantityText)"),
    ("import Quantity, QuantityError, parse_quantity", "import Quantity, QuantityError, QuantityText, parse_quantity"),
)
p = Path("src/bayplan/app/__init__.py")
t = p.read_text()
i = t.index("__all__ = [")
names = re.findall(r'"(\w+)"', t[i : t.index("]", i)])
tail = t[i : t.index("]", i) + 2]
imps = []
for l in re.findall(r"^from [\w.]+ import (?:\([^)]*\)|[^\n]+)", t[:i], re.M):
    mod = re.match(r"from ([\w.]+)", l)[1]
    items = re.findall(r"(\w+)(?: as \w+)?", l.split(" import ", 1)[1])
    k = [x for x in items if x in names]
    if k:
        imps.append(f"from {mod} import {', '.join(k)}")
p.write_text(
    '"""Composition root: turns configuration, cluster and clock into a running engine. Wiring and nothing else."""\n\n'
    + "\n".join(imps)
    + "\n\n"
    + tail
)
p = Path("src/bayplan/app/batch.py")
t = p.read_text()
for a, b in (
    ("from bayplan.app import build_batch_engine, usage_collector\n", ""),
    ("from bayplan.batch.config.scheduler_conf import load_default as load_default_batch\n", ""),
    ("from bayplan.config.load import load, load_default\n", ""),
    ("from bayplan.config.load import load_default\n", ""),
    ("load_default_batch()", "load_default()"),
    ("    Kind,\n", ""),
    (
        "from bayplan.framework.runtime.registry import Registry\n",
        "from bayplan.framework.runtime.registry import Registry as PluginRegistry\n",
    ),
    ("    framework_plugins: Registry | None", "    framework_plugins: PluginRegistry | None"),
    ("from bayplan.scheduler.live.bind_request_handlers import follow_requests\n", ""),
):
    t = t.replace(a, b)
p.write_text(t)
p = Path("src/bayplan/app/controllers.py")
t = p.read_text()
p.write_text(t.replace("from bayplan.framework.runtime.registry import Registry\n", ""))
p = Path("src/bayplan/framework/runtime/plugin_call.py")
t = p.read_text()
t = re.sub(r"_BAYPLAN = f.*\n", "", t).replace("startswith(_BAYPLAN)", "startswith(PACKAGE_FOLDER)")
t = (
    re.sub(
        r"from bayplan.framework.api.plugin_error import ",
        "from bayplan.framework.api.plugin_error import PACKAGE_FOLDER, ",
        t,
        1,
    )
    if "plugin_error import" in t
    else t
)
p.write_text(t)
p = Path("src/bayplan/framework/api/plugin_error.py")
t = p.read_text()
t = (
    t.replace("from bayplan.framework.runtime.plugin_call import _BAYPLAN\n", "")
    .replace("import sys\n", "import os\nimport sys\n", 1)
    .replace("startswith(_BAYPLAN)", "startswith(PACKAGE_FOLDER)")
)
t = t.replace(
    "\n\nclass PluginFault",
    '\n\nPACKAGE_FOLDER = f"{Path(__file__).parents[2]}{os.sep}"\n"""Prefix of the file names of this package in a traceback."""\n\n\nclass PluginFault',
    1,
)
p.write_text(t)
Path("src/bayplan/framework/equivalence/bounded_cache.pxd").write_text("cimport cython\n")
