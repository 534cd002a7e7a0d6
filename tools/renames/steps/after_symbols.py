"""Manual fixes after `rename_symbols.py`, then docs, imports, format and lines that became too long.

Run in the root of the worktree with an interpreter that has ruff, before the symbols are committed.
"""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from tables import BUILD, ruff


def ed(f, *pairs):
    p = Path(f)
    t = p.read_text()
    for a, b in pairs:
        if a not in t:
            print("FIX MISSING", f, a[:60])
            continue
        t = t.replace(a, b)
    p.write_text(t)


def fixes():
    """Uses without a type and names that collide."""
    ed(
        "src/bayplan/cel/regex/syntax.py",
        (
            '"CharSet | Assertion | Sequence | Choice | Repeat"',
            '"CharSet | Assertion | Sequence | Alternation | Repeat"',
        ),
    )
    ed(
        "src/bayplan/scheduler/cycle/scheduling_cycle.py",
        ('ExtenderReplies, "Decision"]', 'ExtenderReplies, "SchedulingDecision"]'),
    )
    p = Path("src/bayplan/apiserver/tables/object_parts.py")
    t = p.read_text()
    t = t.replace("def age_cell(item", "def object_age_cell(item").replace(
        "[name_of(item), age_cell(item, now)]", "[name_of(item), object_age_cell(item, now)]"
    )
    p.write_text(t)
    for f in ("workloads", "core_kinds", "network_storage_kinds", "pods", "custom_resources"):
        p = Path(f"src/bayplan/apiserver/tables/{f}.py")
        t = p.read_text()
        t = re.sub(
            r"(from bayplan.apiserver.tables.object_parts import (?:\([^)]*|[^\n]*))\bage_cell\b",
            r"\1object_age_cell",
            t,
        )
        if "object_age_cell" in t:
            t = re.sub(r"\bage_cell\((?=item|\w+, now)(?!now)", r"object_age_cell(", t)
        p.write_text(t)
    ed(
        "src/bayplan/framework/equivalence/class_evaluation.py",
        ("leaders.put(row,", "leaders.set_total(row,"),
        ("self._top_rows.put(row,", "self._top_rows.set_total(row,"),
    )
    for f in (
        "src/bayplan/framework/equivalence/class_evaluation.py",
        "src/bayplan/framework/equivalence/top_rows.pxd",
        "src/bayplan/framework/equivalence/top_rows.py",
        "tests/property/test_class_evaluation.py",
        "tests/property/test_top_rows.py",
    ):
        p = Path(f)
        p.write_text(p.read_text().replace("set_row_local", "set_total"))
    if "`requested_names_greater`, `relevant" in Path("src/bayplan/batch/model/amounts.py").read_text():
        ed(
            "src/bayplan/batch/model/amounts.py",
            (
                "| `requested_names_greater`, `relevant_names_greater` | GreaterPartlyWithDimension, GreaterPartlyWithRelevantDimensions |",
                "| `requested_names_greater` | GreaterPartlyWithDimension |\n| `relevant_names_greater` | GreaterPartlyWithRelevantDimensions |",
            ),
            (
                "| `requested_names_within`, `used_names_within` | LessEqualPartlyWithDimension, LessEqualPartlyWithDimensionZeroFiltered |",
                "| `requested_names_within` | LessEqualPartlyWithDimension |\n| `used_names_within` | LessEqualPartlyWithDimensionZeroFiltered |",
            ),
        )
    ed(
        "tests/e2e/test_scheduler_features.py",
        (
            'for number, node_name in enumerate(corner.nodes[:VOLUMES]):\n        bound = volume(corner, f"v{number}", node_name, kind)',
            'for number, target in enumerate(corner.nodes[:VOLUMES]):\n        bound = volume(corner, f"v{number}", target, kind)',
        ),
    )
    p = Path("src/bayplan/apiserver/admission/limit_ranger.py")
    t = p.read_text()
    i = t.index("def _max_request_violation(")
    t = t[:i] + re.sub(
        r"limits: Quantities,?(?:  # noqa: ARG001)?\n\)", "limits: Quantities,  # noqa: ARG001\n)", t[i:], count=1
    )
    p.write_text(t)
    for f in ("vc_scheduler_flags", "kube_scheduler_flags", "kube_controller_manager_flags", "vc_manager_flags"):
        p = Path(f"src/bayplan/cli/flags/{f}.py")
        t = p.read_text()
        p.write_text(re.sub(r"\bshown=", "displayed_default=", re.sub(r"\bmany=True", "repeatable=True", t)))
    p = Path("src/bayplan/bind_requests/tracker.py")
    t = p.read_text()
    p.write_text(
        t.replace('"then": partial', '"on_deleted": partial').replace(
            'for {age_s:.0f} s", unchanged=True)', 'for {age_s:.0f} s", only_if_unchanged=True)'
        )
    )
    p = Path("src/bayplan/cli/commands/processes/binder.py")
    t = p.read_text()
    p.write_text(t.replace("        takes_all=", "        handles_all_requests="))


def wrap():
    """Wraps docstrings and comments that are too long."""
    out = ruff("check", ".", "--select", "E501", "--output-format", "concise")
    by = {}
    for l in out.splitlines():
        m = re.match(r"(.+?):(\d+):\d+: E501", l)
        if m:
            by.setdefault(m[1], []).append(int(m[2]))
    for f, ls in by.items():
        t = Path(f).read_text()
        lines = t.split("\n")
        docs = [
            (n.value.lineno, n.value.end_lineno)
            for n in ast.walk(ast.parse(t))
            if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str)
        ]
        for ln in sorted(ls, reverse=True):
            d = next(((a, b) for a, b in docs if a <= ln <= b), None)
            s = lines[ln - 1]
            if d:
                a, b = d
                i = ln - 1
                ind = re.match(r"\s*", lines[a - 1])[0]
                lo = i
                while lo > a - 1 and lines[lo - 1].strip() and not re.match(r"\s*([|*-]|\d+\.) ", lines[lo]):
                    lo -= 1
                hi = i
                while hi < b - 1 and lines[hi + 1].strip() and not re.match(r"\s*([|*-]|\d+\.) ", lines[hi + 1]):
                    hi += 1
                if re.match(r"\s*\|", s):
                    print("table", f, ln)
                    continue
                para = lines[lo : hi + 1]
                text = " ".join(x.strip() for x in para)
                w = textwrap.wrap(text, 120 - len(ind), break_long_words=False, break_on_hyphens=False)
                lines[lo : hi + 1] = [ind + x for x in w]
            elif s.lstrip().startswith("#"):
                ind = re.match(r"\s*", s)[0]
                w = textwrap.wrap(s.strip().lstrip("# "), 118 - len(ind))
                lines[ln - 1 : ln] = [ind + "# " + x for x in w]
            else:
                print("code", f, ln)
        Path(f).write_text("\n".join(lines))


def split_strings():
    """Splits string literals that are too long and stand on a line of their own."""
    out = ruff("check", ".", "--select", "E501", "--output-format", "concise")
    for l in out.splitlines():
        m = re.match(r"(.+?):(\d+):\d+: E501", l)
        if not m:
            continue
        p = Path(m[1])
        lines = p.read_text().split("\n")
        s = lines[int(m[2]) - 1]
        k = re.match(r"(\s*)((?:return |yield |message=)?)(f?)(['\"])(.*)\4(,?)$", s)
        if not k:
            print("skip", l)
            continue
        ind, head, fpre, q, body, comma = k.groups()
        depth = 0
        cut = None
        for i, c in enumerate(body):
            if c == "{":
                depth += 1
            elif c == "}":
                depth -= 1
            elif c == " " and depth == 0 and i < 95:
                cut = i
        if cut is None:
            print("nocut", l)
            continue
        a, b = body[: cut + 1], body[cut + 1 :]
        fa = "f" if "{" in a and fpre else ""
        fb = "f" if "{" in b and fpre else ""
        la, lb = f"{fa}{q}{a}{q}", f"{fb}{q}{b}{q}"
        if head:
            new = [f"{ind}{head}(", f"{ind}    {la}", f"{ind}    {lb}", f"{ind}){comma}"]
        else:
            new = [ind + la, ind + lb + comma]
        lines[int(m[2]) - 1 : int(m[2])] = new
        p.write_text("\n".join(lines))


if __name__ == "__main__":
    fixes()
    ruff("check", "--select", "I,F401,RUF022,RUF023", "--unsafe-fixes", "--fix", "-q", ".")
    with (BUILD / "docs.log").open("w") as log:
        subprocess.run([sys.executable, Path(__file__).with_name("rename_in_docs.py")], stdout=log, check=True)
    ruff("format", "-q", ".")
    for _ in range(2):
        wrap()
    ruff("format", "-q", ".")
    for _ in range(3):
        split_strings()
    ruff("check", "--fix", "-q", ".")
    ruff("format", "-q", ".")
