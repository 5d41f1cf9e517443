import subprocess
import sys

from . import program

sys.exit(subprocess.call([program(), *sys.argv[1:]]))
