"""Fake kubelet: registers nodes, renews leases and reports the status of pods that run nothing."""
