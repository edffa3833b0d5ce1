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
staged_modules = [each for each in module["Replace"] or [] if each["New"]["Path"].startswith("./staging")]
names = sorted({each["Old"]["Path"] for each in staged_modules})
print("module k8slab\n")
print(f"go {module['Go']}\n")
for setting in module.get("Godebug") or []:
    print(f"godebug {setting['Key']}={setting['Value']}")
print(f"\nrequire (\n\tk8s.io/kubernetes v{version}")
for requirement in module["Require"]:
    print(f"\t{requirement['Path']} {staged if requirement['Path'] in names else requirement['Version']}")
print(")\n\nreplace (")
for name in names:
    print(f"\t{name} => {name} {staged}")
print(")")
