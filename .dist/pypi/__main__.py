import os
import subprocess
import sys

from . import program

command = [program(), *sys.argv[1:]]
if os.name != "nt":
    os.execv(command[0], command)
sys.exit(subprocess.call(command))
