"""Fault campaign against running Bayplan processes: `python -m chaos --minutes 10 --configuration all --seed 7`.

The driver starts an API server, Bayplan's commands as processes, and one proxy for each process. It creates and deletes
pods, injects faults, watches every object directly at the API server, and checks invariants on every watch event.

It is independent of the code under test: it imports nothing of the package `bayplan`. The HTTP client, the watch record
and the arithmetic of quantities and of fit are its own.

    servers, certificates   etcd and kube-apiserver, or the embedded server
    processes               Bayplan's commands, one slot each: start, signal, restart
    proxy                   HTTP proxy of a slot, with the faults of single requests
    client, kinds           HTTP client of the driver
    watches, record         every version of every object that the watches delivered
    roles                   kubelet, garbage collector, volume binder: parts of a cluster that are not under test
    workload                pools of nodes and the pods for them
    director                which fault comes when
    invariants              what must hold; each violation has the history of its objects
    journal, report         what happened, written as it happens, and the summary of it
    run, campaign           one configuration, and all of them
"""
