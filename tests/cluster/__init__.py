"""A real cluster for tests: etcd, kube-apiserver, kube-scheduler and kubectl, built from Go modules, on loopback."""
