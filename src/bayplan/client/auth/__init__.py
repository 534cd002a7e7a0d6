"""Connection configuration and credentials: kubeconfig, service account, tokens and exec plugins."""
