"""go.mod of the lab: Kubernetes' own requirements, its staged modules by their published versions.

python3 mkmod.py 1.37.1 > go.mod      # outside of any module
"""

import json
import subprocess
import sys

version = sys.argv[1]
staged = f"v0.{version.split('.', 1)[1]}"
found = json.loads(subprocess.check_output(["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"]))
module = json.loads(subprocess.check_output(["go", "mod", "edit", "-json", found["GoMod"]]))
names = sorted({one["Old"]["Path"] for one in module["Replace"] or [] if one["New"]["Path"].startswith("./staging")})
print("module k8slab\n")
print(f"go {module['Go']}\n")
for one in module.get("Godebug") or []:
    print(f"godebug {one['Key']}={one['Value']}")
print(f"\nrequire (\n\tk8s.io/kubernetes v{version}")
for one in module["Require"]:
    print(f"\t{one['Path']} {staged if one['Path'] in names else one['Version']}")
print(")\n\nreplace (")
for name in names:
    print(f"\t{name} => {name} {staged}")
print(")")
