"""kube-scheduler's benchmarks on a real API server: what exists beforehand, who schedules, and what is seen of it."""
