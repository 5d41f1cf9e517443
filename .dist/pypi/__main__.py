import errno
import os
import platform
import subprocess
import sys

from . import program

try:
    command = [program(), *sys.argv[1:]]
except FileNotFoundError as error:
    sys.exit(f"ahp-sidecar: {error}")
try:
    if os.name != "nt":
        os.execv(command[0], command)
    sys.exit(subprocess.call(command))
except OSError as error:
    advice = ""
    if error.errno == errno.ENOEXEC or getattr(error, "winerror", None) in (193, 216):
        advice = (f"; it is not a program for {platform.system()} on {platform.machine()}: install the wheel of this "
                  "platform (`pip install --force-reinstall ahp-sidecar`), or set AHP_SIDECAR_PATH")
    sys.exit(f"ahp-sidecar: `{command[0]}` cannot be started: {error.strerror}{advice}")
