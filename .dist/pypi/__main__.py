import os
import subprocess
import sys

from . import program

try:
    command = [program(), *sys.argv[1:]]
    if os.name != "nt":
        os.execv(command[0], command)
    sys.exit(subprocess.call(command))
except FileNotFoundError as error:
    sys.exit(f"ahp-sidecar: {error}")
except OSError as error:
    sys.exit(f"ahp-sidecar: `{command[0]}` cannot be started: {error.strerror}")
