"""VS Code's server and a browser: where they come from, and how they are started."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(HERE, "..", "agents"), os.path.join(HERE, "..", "..", ".dist")]
import build
from installing import Missing, install, path_with_node, platform_name

# The release of code-server, and so of VS Code, that the scenes were written for, and the Node that it runs on.
CODE_SERVER = "code-server@4.139.1"
NODE = range(24, 25)
# What drives the browser, and what the WebSocket client of the scenes is.
LIBRARIES = ["playwright==1.65.2", "websockets==17.4"]
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
# Modules of VS Code's server that are built here; the others that could be are for the desktop.
NATIVE = ["@vscode/spdlog", "@vscode/sqlite3", "@vscode/fs-copyfile", "node-pty", "@vscode/deviceid"]
# How long the server may take to listen, in seconds.
STARTED = 60

SETTINGS = {
    "security.workspace.trust.enabled": False,
    "telemetry.telemetryLevel": "off",
    "workbench.startupEditor": "none",
    # Both sides of a difference are seen, however narrow the window is.
    "diffEditor.useInlineViewWhenSpaceIsLimited": False,
    # Without an account agents can be used all the same.
    "chat.agentHost.allowSignedOutWhenUsable": True,
}


def run(*command, **options):
    """Runs a program of the installation to its end."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, **options)
    except OSError as error:
        raise Missing(f"{command[0]}: {error}") from error
    if done.returncode:
        raise Missing(f"{' '.join(command[:4])}: {done.stderr[-2000:]}")
    return done.stdout


def chromium():
    """A browser's program; where it may be installed, Debian's package is."""
    def found():
        return next(filter(None, map(shutil.which, filter(None, [os.environ.get("CHROMIUM"), *BROWSERS]))), None)

    if not found() and os.geteuid() == 0 and shutil.which("apt-get"):
        print("installing Debian's package chromium", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", env=environment)
        run("apt-get", "install", "-y", "--no-install-recommends", "chromium", env=environment)
    if not found():
        raise Missing("there is no Chromium (the variable CHROMIUM may name one)")
    return found()


def libraries(folder):
    """Makes a Python environment with the libraries, once; gives back its program."""
    python, mark = os.path.join(folder, "bin", "python"), os.path.join(folder, "installed.json")
    if not (os.path.exists(mark) and json.load(open(mark)) == LIBRARIES):
        shutil.rmtree(folder, ignore_errors=True)
        print("installing", *LIBRARIES, flush=True)
        run(sys.executable, "-m", "venv", folder)
        run(python, "-m", "pip", "install", "--quiet", *LIBRARIES)
        with open(mark, "w") as opened:
            json.dump(LIBRARIES, opened)
    return python


def code_server(folder, path):
    """Installs VS Code's server, once; gives back its folder."""
    server, mark = os.path.join(folder, "package", "lib", "vscode"), os.path.join(folder, "installed.json")
    if os.path.exists(mark) and json.load(open(mark)) == CODE_SERVER:
        return server
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    print("installing", CODE_SERVER, flush=True)
    node = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("node", path=path))))
    environment = {**os.environ, "PATH": path}
    if os.path.isdir(os.path.join(node, "include", "node")):
        environment["npm_config_nodedir"] = node
    run("npm", "pack", "--silent", CODE_SERVER, cwd=folder, env=environment)
    run("tar", "xzf", CODE_SERVER.replace("@", "-") + ".tgz", cwd=folder)
    quiet = ["--no-audit", "--no-fund"]
    run("npm", "install", "--omit=dev", "--ignore-scripts", *quiet, cwd=server, env=environment)
    run("npm", "rebuild", *NATIVE, cwd=server, env=environment)
    with open(mark, "w") as opened:
        json.dump(CODE_SERVER, opened)
    return server


def extension(program, file):
    """Packs the example extension around the program; gives back the file."""
    print("packing the example extension", flush=True)
    try:
        tools = build.extension_tools()
        with open(program, "rb") as opened:
            content = ("ahp-sidecar", opened.read())
        papers = dict.fromkeys(("LICENSE", "THIRD-PARTY.txt"), b"Not to be given away.\n")
        build.extension_of(tools, file, platform_name(), content, "0.0.1", papers, 0)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Missing(f"the example extension cannot be packed: {error}") from error
    return file


def node_path(folder):
    """A search path with a Node that VS Code's server runs on."""
    return path_with_node(folder, NODE)


class Server:
    """VS Code's server, with a host behind it."""

    def __init__(self, program, folder, path, address, token, extension):
        """`folder` is where it keeps what it keeps; `address` and `token` are those of the host; `extension` is installed."""
        for place in ("User", "Machine"):
            os.makedirs(os.path.join(folder, "data", place), exist_ok=True)
            with open(os.path.join(folder, "data", place, "settings.json"), "w") as opened:
                json.dump(SETTINGS, opened)
        home = os.path.join(folder, "home")
        os.makedirs(home, exist_ok=True)
        host, port = address
        command = [
            "node", os.path.join("out", "server-main.js"), "--accept-server-license-terms", "--telemetry-level", "off",
            "--server-data-dir", folder,
        ]
        environment = {**os.environ, "PATH": path, "HOME": home}
        run(*command, "--install-extension", extension, cwd=program, env=environment)
        command += [
            "--host", "127.0.0.1", "--port", "0", "--without-connection-token",
            "--agent-host-bridge-host", host, "--agent-host-bridge-port", str(port),
        ]
        if token:
            environment["VSCODE_AGENT_HOST_BRIDGE_CONNECTION_TOKEN"] = token
        self.log = os.path.join(folder, "log.txt")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, cwd=program, env=environment, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)
        self.url = self.listening()

    def listening(self):
        """Waits until it listens; gives back where."""
        limit = time.monotonic() + STARTED
        while time.monotonic() < limit and self.process.poll() is None:
            with open(self.log) as opened:
                found = re.search(r"listening on (\d+)", opened.read())
            if found:
                return f"http://127.0.0.1:{found.group(1)}/"
            time.sleep(0.1)
        self.stop()
        with open(self.log) as opened:
            raise AssertionError(f"VS Code's server does not listen: {opened.read()[-2000:]}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
