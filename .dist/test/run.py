"""Installs what `make dist` made, each kind into an empty folder and offline, and holds a conversation through it.

`run.py DIST TOOLS`: the folder of the packages, and the folder of the extension's tools (for tsc). Each check prints a
line; what a missing program prevents is said to be skipped.
"""
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
WITHIN = 120  # seconds until a command is taken to hang
CPU = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower(), platform.machine().lower())
NAME = f"{ {'linux': 'linux', 'darwin': 'darwin', 'win32': 'win32'}[sys.platform] }-{CPU}"
CHAT = "ahp-chat://default/YWhwLXNlc3Npb246L2Np"
MESSAGES = [
    {"id": 1, "method": "initialize",
     "params": {"channel": "ahp-root://", "clientId": "test", "protocolVersions": ["1.0.0"]}},
    {"id": 2, "method": "createSession", "params": {"channel": "ahp-session:/ci"}},
    {"id": 3, "method": "subscribe", "params": {"channel": CHAT}},
    {"method": "dispatchAction", "params": {"channel": CHAT, "clientSeq": 1, "action": {
        "type": "chat/turnStarted", "turnId": "t", "startedAt": "2026-01-01T00:00:00Z",
        "message": {"text": "Hello", "origin": {"kind": "user"}}}}},
]


def run(*command, status=0, **options):
    """Runs a command to its end; returns its stdout, and its stderr where it is to fail."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=WITHIN, **options)
    assert (done.returncode == 0) == (status == 0), f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if status == 0 else done.stderr + done.stdout


def clean_environment(**more):
    """Returns an environment in which no ahp-sidecar is found but the one that is installed."""
    env = {name: value for name, value in os.environ.items() if name != "AHP_SIDECAR_PATH"}
    return env | more


def converse(*command, options=("--ephemeral",)):
    """Holds a conversation with a program over its pipes."""
    lines = "".join(json.dumps({"jsonrpc": "2.0"} | message) + "\n" for message in MESSAGES)
    said = run(*command, *options, input=lines, env=clean_environment())
    actions = [json.loads(line).get("params", {}).get("action", {}) for line in said.splitlines()]
    assert any(action.get("type") == "chat/turnComplete" for action in actions), said
    assert any("Hello" in action.get("content", "") for action in actions), said


def check_sums(dist, _):
    lines = [line.split("  ") for line in (dist / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in lines} == {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    for digest, name in lines:
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest, name
    # Where somebody built is nobody's business, and would make the bytes differ.
    for path in [*dist.glob("*.tar.xz"), *dist.glob("*.zip")]:
        for name, mode, content in packed(path):
            assert mode == (0o755 if name.endswith(("/ahp-sidecar", "/ahp-sidecar.exe")) else 0o644), name
            for place in (Path.home() / ".cargo", Path.home() / ".rustup", ROOT):
                assert f"{place}/".encode() not in content, f"{name} in {path.name} names {place}"


def packed(path):
    """Yields name, mode and bytes of each file in an archive."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                yield info.filename, info.external_attr >> 16 & 0o7777, archive.read(info)
    else:
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                yield member.name, member.mode, archive.extractfile(member).read()


def check_archive(dist, folder):
    [path] = dist.glob(f"ahp-sidecar-*-{triple()}.tar.xz")
    with tarfile.open(path) as archive:
        archive.extractall(folder)
    [inside] = folder.iterdir()
    wanted = {"ahp-sidecar", "README.md", "LICENSE", "CHANGELOG.md", "THIRD-PARTY.txt", "ahp-sidecar.cdx.json",
              "man/man1/ahp-sidecar.1", "completions/_ahp-sidecar", "completions/ahp-sidecar.bash",
              "completions/ahp-sidecar.fish"}
    missing = [name for name in wanted if not (inside / name).is_file()]
    assert not missing, missing
    converse(inside / "ahp-sidecar")
    for page in (inside / "man/man1").iterdir():
        [title] = re.findall(r"(?m)^\.TH .+", page.read_text())
        assert f'"ahp-sidecar {inside.name.split("-")[2]}"' in title, title
    version = run(inside / "ahp-sidecar", "--version").split()[1]
    assert inside.name == f"ahp-sidecar-{version}-{triple()}"
    bill = json.loads((inside / "ahp-sidecar.cdx.json").read_text())
    assert bill["metadata"]["component"]["version"] == version and len(bill["components"]) > 50
    third_party = (inside / "THIRD-PARTY.txt").read_text()
    absent = [part["name"] for part in bill["components"] if f"{part['name']} {part['version']} (" not in third_party]
    assert not absent, absent
    if sys.platform == "linux":
        script = (f"source {inside}/completions/ahp-sidecar.bash; set -- $(complete -p ahp-sidecar); "
                  "while [ $1 != -F ]; do shift; done; COMP_WORDS=(ahp-sidecar %s) COMP_CWORD=%s; "
                  "$2 ahp-sidecar '%s' %s; echo ${COMPREPLY[@]}")
        for words, wanted in [(["ses"], "sessions"), (["sessions", "pu"], "purge"), (["--assume-version", "0.4"], "0.4.0")]:
            before = ["ahp-sidecar", *words][-2]
            completed = run("bash", "-c", script % (" ".join(words), len(words), words[-1], before))
            assert completed.split() == [wanted], (words, completed)


def check_emulated(dist, folder):
    """The other processor's program: a conversation, an agent under its guard, and sessions that are kept.

    No terminal: the emulator lacks a call of theirs (TCGETS2).
    """
    [path] = dist.glob(f"ahp-sidecar-*-{triple('linux-arm64')}.tar.xz")
    with tarfile.open(path) as archive:
        archive.extractall(folder)
    [inside] = folder.iterdir()
    program = [EMULATOR, inside / "ahp-sidecar"]
    state = ["--state-dir", folder / "state"]
    converse(*program)
    agent = f"a=python3 -B {ROOT / 'tests/it/acp/agent.py'}"
    assert "The tests' agent" in run(*program, "agents", "check", "--agent", agent, "--ephemeral", env=clean_environment())
    converse(*program, options=state)
    listed = run(*program, "sessions", "list", *state, env=clean_environment())
    assert "ahp-session:/ci" in listed, listed


def check_wine(dist, folder):
    """The program of Windows: a conversation, and sessions that are kept. `make test-windows` has more."""
    [path] = dist.glob(f"ahp-sidecar-*-{triple('win32-x64')}.zip")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    [inside] = folder.iterdir()
    program = [WINE, inside / "ahp-sidecar.exe"]
    state = ["--exclusive", "--state-dir", f"Z:{folder}/state".replace("/", "\\")]
    converse(*program, options=state)
    listed = run(*program, "sessions", "list", *state[1:], env=clean_environment())
    assert "ahp-session:/ci" in listed, listed


def triple(name=None):
    lines = [line.split() for line in (ROOT / ".dist/targets").read_text().splitlines() if line[:1] not in ("", "#")]
    return next(words[1] for words in lines if words[0] == (name or NAME))


def check_binstall(dist, _):
    """cargo-binstall downloads archives by these names."""
    manifest = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'(?m)^version = "(.+)"', manifest)[1]
    [url, folder] = (re.search(f'(?m)^{key} = "(.+)"', manifest)[1] for key in ("pkg-url", "bin-dir"))
    values = {"name": "ahp-sidecar", "version": version, "target": triple(), "bin": "ahp-sidecar", "binary-ext": ""}
    fill = lambda text: re.sub(r"\{ ([a-z-]+) \}", lambda found: values.get(found[1], ""), text)
    with tarfile.open(dist / fill(url).rsplit("/", 1)[1]) as archive:
        assert fill(folder) in archive.getnames()


def check_release(_, folder):
    """A release waits for its version, its notes and its repository."""
    (folder / ".dist").mkdir()
    for name in ("version.py", "pack.py"):
        shutil.copy(ROOT / ".dist" / name, folder / ".dist")
    where = 'repository = "https://github.com/owner/name"\n'
    for more, notes, tag, complaint in [
            ("", "## 1.2.3, today", "v1.2.3", "`repository` of Cargo.toml is `None`"),
            (where.replace("owner", "OWNER"), "## 1.2.3, today", "v1.2.3", "must be `https://github.com/owner/name`"),
            (where, "## Unreleased", "v1.2.3", "no section of 1.2.3"), (where, "## 1.2.3, today", "v1.2.4", "the tag is"),
            (where, "## 1.2.3, today", "v1.2.3", "")]:
        (folder / "Cargo.toml").write_text(f'version = "1.2.3"\n{more}')
        (folder / ".dist/CHANGELOG.md").write_text(f"\n{notes}\n")
        said = run(sys.executable, "-B", folder / ".dist/version.py", "--check", tag, status=1 if complaint else 0,
                   env=clean_environment(GITHUB_REPOSITORY="owner/name"))
        assert complaint in said, said
    (folder / ".dist/CHANGELOG.md").write_text("# C\n\n## Unreleased\n\n## 1.2.3, today\n\n- New.\n\n## 1.2.2, before\n")
    assert run(sys.executable, "-B", folder / ".dist/version.py", "--notes", "v1.2.3") == "- New.\n"
    # What the packages show elsewhere leads to the repository.
    links = ("import pack; print(pack.with_absolute_links(b'[a](src/a.md#b) [c](#c) [d](https://d)', '1.2.3').decode())")
    said = run(sys.executable, "-B", "-c", links, cwd=folder / ".dist")
    assert said == "[a](https://github.com/owner/name/blob/v1.2.3/src/a.md#b) [c](#c) [d](https://d)\n", said


def check_publishing(dist, folder):
    """Publishing to npm goes on where it has failed. A stand-in for npm fails at its second package, once."""
    packages, registry = folder / "dist", folder / "registry"
    packages.mkdir(), registry.mkdir()
    [main] = dist.glob("npm-main-*.tgz")
    shutil.copy(main, packages)
    for name in ("linux-x64", "win32-x64"):
        manifest = json.dumps({"name": f"@ahp-sidecar/{name}", "version": "0.1.0"}).encode()
        with tarfile.open(packages / f"npm-{name}-0.1.0.tgz", "w:gz") as archive:
            info = tarfile.TarInfo("package/package.json")
            info.size = len(manifest)
            archive.addfile(info, io.BytesIO(manifest))
    npm = folder / "npm"
    npm.write_text(f"""#!{sys.executable}
import base64, hashlib, pathlib, sys
registry = pathlib.Path({str(registry)!r})
if sys.argv[1] == "view":
    entry = registry / sys.argv[2].rpartition("@")[0].split("/")[-1].replace("ahp-sidecar", "main")
    sys.exit(print(entry.read_text()) if entry.exists() else "npm error code E404")
path = pathlib.Path(sys.argv[-1])
if "win32" in path.name and not (registry / "failed").exists():
    (registry / "failed").touch()
    sys.exit("no connection")
entry = registry / path.name.removeprefix("npm-").rpartition("-")[0]
assert not entry.exists(), "cannot publish over the previously published versions"
entry.write_text("sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode())
print("published", path.name)
""")
    npm.chmod(0o755)
    env = clean_environment(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    publish = lambda status=0: run(ROOT / ".dist/publish-npm", packages, status=status, env=env)
    assert "published npm-linux-x64" in publish(status=1) and not (registry / "main").exists()
    again = publish().splitlines()
    assert again[0] == "@ahp-sidecar/linux-x64@0.1.0 is published already" and again[-1].startswith("published npm-main"), again
    assert all(line.endswith("is published already") for line in publish().splitlines())
    (registry / "linux-x64").write_text("sha512-other")
    assert "raise the version" in publish(status=1)


def foreign_programs(folder):
    """Returns {platform: a file that has the header of its programs, and writes the file `ran` if a shell runs it}."""
    elf = lambda machine: b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + machine.to_bytes(2, "little")
    headers = {"linux-x64": elf(62), "linux-arm64": elf(183), "win32-x64":
               b"MZ".ljust(60, b"\0") + (64).to_bytes(4, "little") + b"PE\0\0\x64\x86",
               "darwin-arm64": b"\xcf\xfa\xed\xfe\x0c\0\0\1"}
    programs = {}
    for made, header in headers.items():
        if made != NAME and not (made.startswith("darwin") and sys.platform == "darwin"):
            programs[made] = folder / f"for-{made}"
            programs[made].write_bytes(header + f"\n: >{folder}/ran\n".encode())
            programs[made].chmod(0o755)
    return programs


def npm_install(folder, *packages, status=0):
    (folder / "package.json").write_text('{"private": true}')
    return run("npm", "install", "--offline", "--no-audit", "--no-fund", "--loglevel=error", *packages, cwd=folder,
               status=status, env=clean_environment(npm_config_cache=str(folder / "cache")))


def check_npm(dist, folder):
    [main], [own] = dist.glob("npm-main-*.tgz"), dist.glob(f"npm-{NAME}-*.tgz")
    npm_install(folder, main, own)
    for script in HERE.glob("conversation.*"):
        shutil.copy(script, folder)
    for script in ("conversation.mjs", "conversation.cjs"):
        said = run("node", script, cwd=folder, env=clean_environment())
        assert "Hello" in said, said
    converse(folder / "node_modules/.bin/ahp-sidecar")
    run(folder / "node_modules/.bin/ahp-sidecar", "--no-such-option", status=2)
    # Each way to be without a program says what to do.
    find = "try { console.log(require('ahp-sidecar').programPath()) } catch (error) { console.log(error.message) }"
    node = lambda code, **env: run("node", "-e", code, cwd=folder, env=clean_environment(**env))
    assert node(find).strip().endswith("/bin/ahp-sidecar")
    assert node(find, AHP_SIDECAR_PATH="/bin/sh") == "/bin/sh\n"
    assert node(find, AHP_SIDECAR_PATH="/not/there") == "AHP_SIDECAR_PATH names `/not/there`, which does not exist\n"
    elsewhere = "Object.defineProperty(process, 'platform', { value: 'sunos' });"
    assert f"has no program for `sunos-{CPU}`, only for" in node(elsewhere + find)
    # A program for another platform is not started: a shell would run its bytes.
    for made, program in foreign_programs(folder).items():
        found = node(find, AHP_SIDECAR_PATH=str(program))
        launched = run(folder / "node_modules/.bin/ahp-sidecar", status=1,
                       env=clean_environment(AHP_SIDECAR_PATH=str(program)))
        for said in (found, launched):
            assert f"`{program}` is a program for `{made}`" in said and f"npm install @ahp-sidecar/{NAME}@" in said, said
        assert launched.count("\n") == 1 and not (folder / "ran").exists(), launched
        foreign = {"path": str(program)}, f"`{program}` is a program for `{made}`"
    # A transport that fails says why, and takes nobody along.
    receive = ("const { spawn } = require('ahp-sidecar'); const say = (it) => console.log(it?.message ?? it); "
               "try { spawn(%s).recv().then(say, say) } catch (error) { say(error) }")
    for options, said in [({"path": "/bin/true"}, "ahp-sidecar exited with status 0"),
                          ({"cwd": "/not/there"}, "there is no folder `/not/there`"),
                          foreign,
                          ({"path": "/etc/passwd/x"}, "`/etc/passwd/x` cannot be started: ")]:
        assert said in node(receive % json.dumps(options)), (options, said)
    shutil.rmtree(folder / "node_modules/@ahp-sidecar")
    said = node(find)
    assert f"`@ahp-sidecar/{NAME}`" in said and f"npm install @ahp-sidecar/{NAME}@" in said and said.count("\n") == 1
    said = run(folder / "node_modules/.bin/ahp-sidecar", status=1)
    assert said.startswith("ahp-sidecar: the package"), said
    for other in dist.glob("npm-*.tgz"):
        if other not in (main, own):
            refused = tempfile.mkdtemp(dir=folder)
            assert "EBADPLATFORM" in npm_install(Path(refused), other, status=1), other


def check_types(dist, folder):
    """Nothing but the package is required; with `@types/node`, its types are Node's."""
    [main] = dist.glob("npm-main-*.tgz")
    with tarfile.open(main) as archive:
        archive.extractall(folder)
    modules = TOOLS / "node_modules"
    (folder / "node_modules").mkdir()
    (folder / "package").rename(folder / "node_modules/ahp-sidecar")
    shutil.copy(HERE / "types.mts", folder)
    compiler = [modules / ".bin/tsc", "--strict", "--noEmit", "--module", "nodenext", "--target", "es2022", "--types"]
    run(*compiler, "", folder / "types.mts", cwd=folder)
    (folder / "node_modules/@types").symlink_to(modules / "@types")
    shutil.copy(HERE / "node.mts", folder)
    run(*compiler, "node", folder / "types.mts", folder / "node.mts", cwd=folder)


def check_wheel(dist, folder):
    """pip takes the one of this platform among all."""
    run(sys.executable, "-m", "venv", folder)
    env = clean_environment(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(dist), PIP_DISABLE_PIP_VERSION_CHECK="1",
                            PATH=f"{folder}/bin:{os.environ['PATH']}")
    run(folder / "bin/pip", "install", "ahp-sidecar", env=env)
    converse(folder / "bin/ahp-sidecar")
    converse(folder / "bin/python", "-m", "ahp_sidecar")
    find = "import ahp_sidecar; print(ahp_sidecar.program())"
    assert run(folder / "bin/python", "-c", find, env=env).strip() == str(folder / "bin/ahp-sidecar")
    for made, program in foreign_programs(folder).items():
        said = run(folder / "bin/python", "-m", "ahp_sidecar", env=env | {"AHP_SIDECAR_PATH": str(program)}, status=1)
        assert f"`{program}` cannot be started: " in said and "pip install" in said and said.count("\n") == 1, (made, said)
    for path in ("/not/there", "/dev/null"):
        said = run(folder / "bin/python", "-m", "ahp_sidecar", env=env | {"AHP_SIDECAR_PATH": path}, status=1)
        assert path in said and said.count("\n") == 1, said
    run(folder / "bin/pip", "check", env=env)
    run(folder / "bin/pip", "uninstall", "--yes", "ahp-sidecar", env=env)
    said = run(folder / "bin/python", "-c", find, env=env, status=1)
    assert "No module named" in said and not (folder / "bin/ahp-sidecar").exists(), said


def check_extension(dist, folder):
    """The extension's own code, with a stand-in for the editor's interface."""
    found = sorted(dist.glob(f"*-{NAME}.vsix"))
    assert found, "no extension was packed"
    with zipfile.ZipFile(found[0]) as archive:
        archive.extractall(folder)
        program = next(info for info in archive.infolist() if info.filename.startswith("extension/bin/"))
        assert {"extension/LICENSE.txt", "extension/THIRD-PARTY.txt"} <= set(archive.namelist()), archive.namelist()
        mode = program.external_attr >> 16
        assert mode & 0o111, f"{program.filename} has mode {mode:o}"
        (folder / program.filename).chmod(mode & 0o777)
    editor = folder / "node_modules/vscode"
    editor.mkdir(parents=True)
    shutil.copy(HERE / "vscode.cjs", editor / "index.js")
    ending = folder / "ending"
    answers = 'for id in 1 2 3; do read -r line; echo "{\\"id\\":$id,\\"result\\":{}}"; done'
    ending.write_text(f"#!/bin/sh\n{answers}\nread -r line; exit 7\n")
    ending.chmod(0o755)
    said = run("node", HERE / "extension.cjs", folder / "extension", ending, env=clean_environment())
    # Each question is followed by its answer, those asked at once as well.
    for text in ("Hello again", "Hello at once"):
        assert re.search(rf"(?m)^> {text}\n+[^>]*{text}", said) and said.count(text) == 2, said
    failures = [line for line in said.splitlines() if line.startswith("error: ")]
    assert [line.rsplit(" ", 1)[1] for line in failures] == ["1", "1", "7", "7"], said


def check_cargo(dist, folder):
    """Installs what a registry would get, unoptimised, from what was compiled for the tests."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    run("cargo", "package", "--offline", "--locked", "--no-verify", "--allow-dirty", "--target-dir", target, cwd=ROOT)
    [crate] = (target / "package").glob("ahp-sidecar-*.crate")
    with tarfile.open(crate) as archive:
        archive.extractall(folder)
    [source] = folder.iterdir()
    subprocess.run(["cargo", "install", "--quiet", "--offline", "--locked", "--debug", "--path", source, "--root",
                    folder / "root", "--target-dir", target], check=True)
    converse(folder / "root/bin/ahp-sidecar")


def main():
    dist = Path(sys.argv[1]).resolve()
    checks = [("sums, and no paths of the builder", check_sums, ()), ("archive", check_archive, ()),
              ("names for cargo binstall", check_binstall, ()), ("release", check_release, ()),
              ("publishing, repeated", check_publishing, ("bash", "openssl")),
              ("npm", check_npm, ("node", "npm")),
              ("types", check_types, ("node", "tsc")), ("wheel", check_wheel, ()),
              ("extension", check_extension, ("node", "npm")), ("cargo install", check_cargo, ("cargo",))]
    if NAME == "linux-x64" and any(dist.glob(f"*-{triple('linux-arm64')}.tar.xz")):
        checks.append(("arm64, by emulation", check_emulated, (EMULATOR,)))
    if NAME == "linux-x64" and any(dist.glob(f"*-{triple('win32-x64')}.zip")):
        checks.append(("Windows, by wine", check_wine, (WINE,)))
    failed = []
    for name, check, needs in checks:
        missing = [program for program in needs if not shutil.which(program, path=SEARCHED)]
        if missing:
            print(f"skipped: {name}: {' and '.join(missing)} cannot be found", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(dist, Path(folder).resolve())
                print(f"ok: {name}", flush=True)
            except Exception as error:  # each kind is tried, whatever happens to the others
                failed.append(name)
                print(f"FAILED: {name}: {type(error).__name__}: {error}", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


TOOLS = Path(sys.argv[2]).resolve()
EMULATOR = str(Path(os.environ.get("QEMU_DIR", ROOT / "target/qemu")).resolve() / "run")
WINE = str(Path(os.environ.get("WINE_DIR", ROOT / "target/wine")).resolve() / "wine")
SEARCHED = f"{os.environ['PATH']}{os.pathsep}{TOOLS / 'node_modules/.bin'}"
main()
