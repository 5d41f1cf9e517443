"""Programs from npm, each set of packages in a folder of its own."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys


class Missing(Exception):
    """Something is not to be had."""


def install(folder, packages, path):
    """Installs packages into a folder of their own, once; gives back where their programs are."""
    binaries = os.path.join(folder, "node_modules", ".bin")
    mark = os.path.join(folder, "installed.json")
    if os.path.exists(mark) and json.load(open(mark)) == packages:
        return binaries
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    print("installing", *packages, flush=True)
    command = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", *packages]
    # Their install scripts fetch the programs; older versions of npm know no such flag and run them anyway.
    command.append("--dangerously-allow-all-scripts")
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
    if done.returncode:
        raise Missing(f"npm cannot install {' '.join(packages)}:\n{done.stderr}")
    with open(mark, "w") as opened:
        json.dump(packages, opened)
    return binaries


def platform_name():
    """The name that npm and VS Code have for this platform."""
    return f"{sys.platform}-{ {'x86_64': 'x64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"


def path_with_node(folder, releases=range(22, 100)):
    """A search path on which node is one of these releases; some agents need 22."""
    path = os.environ["PATH"]
    for tool in ("node", "npm"):
        if not shutil.which(tool):
            raise Missing(f"{tool} is not installed")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout
    found = re.match(r"v(\d+)", version)
    if found and int(found.group(1)) in releases:
        return path
    package = f"node-{platform_name()}"
    install(os.path.join(folder, "node"), [f"{package}@24"], path)
    return os.pathsep.join([os.path.join(folder, "node", "node_modules", package, "bin"), path])
