"""A Kubernetes without containers, for tests: a real control plane, and pods that are real processes.

    binaries/     builds etcd, kube-apiserver, kube-controller-manager and kube-scheduler into one binary, and Helm
    plane.py      starts and stops them on loopback, with certificates of their own (pki.py)
    kubelet.py    a node: runs the pods that are bound to it (pod.py, container.py, view.py)
    metrics.py    external.metrics.k8s.io out of the depth of an SQS queue: what a HPA reads

True: scheduling, admission, RBAC with the pods' own tokens, controllers, HPA, PDB, Helm, probes, SIGTERM to process 1
with its grace, exit codes, memory limits, read-only roots, users, volumes, logs. Not true: images (a map from image to
command stands in), the pods' network (the host's; each pod has an address of its own on `lo`), NetworkPolicy.
Needs root on Linux, kubectl, openssl, unshare, setpriv, nsenter, ip.
"""
