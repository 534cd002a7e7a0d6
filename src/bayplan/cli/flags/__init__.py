"""Flags of kube-scheduler, Volcano and kube-controller-manager, and options that several commands share."""
