"""Controllers of Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs and ResourceClaims."""
