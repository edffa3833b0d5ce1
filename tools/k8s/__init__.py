"""Kubernetes without containers, for tests: a real control plane, and pods that run as processes.

    binaries/     builds etcd, kube-apiserver, kube-controller-manager and kube-scheduler into one binary, and Helm
    plane.py      starts and stops the control plane on loopback, with its own certificates (pki.py)
    kubelet.py    a node that runs the pods bound to it (pod.py, container.py, view.py)
    metrics.py    serves external.metrics.k8s.io from the length of an SQS queue, for an HPA

Real: scheduling, admission, RBAC with the pods' own tokens, controllers, HPA, PDB, Helm, probes, SIGTERM to process 1
with its grace period, exit codes, memory limits, read-only roots, users, volumes, logs. Simulated: images (a map from image to
command), the pods' network (the host's; each pod has its own address on `lo`). Missing: NetworkPolicy.
Needs root on Linux, kubectl, openssl, unshare, setpriv, nsenter, ip.
"""
