"""Commands that read and write API objects with a kubeconfig: get, apply, delete, top, crds and why."""
