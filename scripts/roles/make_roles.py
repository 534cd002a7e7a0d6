"""Writes src/bayplan/apiserver/first_roles.json.gz: the roles and bindings of a new cluster of a release.

    kubectl get clusterroles,clusterrolebindings -o json -l kubernetes.io/bootstrapping=rbac-defaults > cluster.json
    kubectl get roles,rolebindings -A -o json -l kubernetes.io/bootstrapping=rbac-defaults > namespaced.json
    python scripts/roles/make_roles.py cluster.json namespaced.json

Both files come from a real API server of that release, unchanged since its start. The output has names, labels, rules,
subjects and role references; an aggregated role has its aggregation rule.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).resolve().parents[2] / "src" / "bayplan" / "cluster" / "first_roles.json.gz"
KEPT = ("aggregationRule", "rules", "roleRef", "subjects")


def kept(item: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: item["metadata"][key] for key in ("name", "namespace", "labels") if key in item["metadata"]}
    return {"kind": item["kind"], "metadata": metadata} | {key: item[key] for key in KEPT if item.get(key)}


def main(paths: list[str]) -> None:
    items = [item for path in paths for item in json.loads(Path(path).read_text(encoding="utf-8"))["items"]]
    ordered = sorted(map(kept, items), key=lambda each: (each["kind"], each["metadata"]["name"]))
    text = json.dumps(ordered, separators=(",", ":")).encode()
    OUTPUT.write_bytes(gzip.compress(text, mtime=0))
    sys.stdout.write(f"{len(ordered)} objects, {OUTPUT.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
