"""Builds and packs the program for the platforms of .dist/targets: `build.py OUT [NAME …]`.

The cross toolchain must be on the PATH (.ci/cross). The same source gives the same bytes, wherever it lies.
AHP_DIST_PROFILE is cargo's profile, `release` unless set; packages of another one are for tests.
"""
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pack

ROOT = pack.ROOT
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
PROFILE = os.environ.get("AHP_DIST_PROFILE", "release")


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, **options)


def platforms():
    """Returns {name: (rustc's target, platform tags of the wheel)}."""
    lines = [line.split() for line in (ROOT / ".dist/targets").read_text().splitlines() if line[:1] not in ("", "#")]
    return {name: (triple, tag) for name, triple, tag in lines}


def time_of_source():
    """Returns the time that every packed file gets, in seconds: of the last commit, where git knows it."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    said = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    return int(said.stdout) if said.returncode == 0 and said.stdout.strip() else 315532800


def zig_library():
    """Returns the folder of zig's C libraries and headers."""
    said = run("python-zig", "env", stdout=subprocess.PIPE, text=True).stdout
    return Path(re.search(r'\.lib_dir = "(.+)"', said)[1])


def build(triple):
    """Builds the program, without a trace of where, and returns its name and bytes."""
    cargo_home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    # rustc leaves out its own paths by itself; C's `__FILE__` follows these.
    maps = [f"-ffile-prefix-map={folder}={name}" for folder, name in
            ((ROOT, "."), (TARGET, "target"), (cargo_home, "cargo"), (zig_library(), "zig"))]
    # musl: zig has the start files that rustc would bring itself. The Makefile says why the address is fixed.
    flags = ["-Clink-self-contained=no", "-Crelocation-model=static"] if triple.endswith("-musl") else []
    if "-apple-" in triple and not shutil.which("xcrun"):
        # Names are enough to link: the system has the frameworks.
        flags += [f"-Clink-arg=-F{ROOT / '.dist/frameworks'}"]
    # mimalloc has the time of its compilation in a message.
    maps += ["-Wno-builtin-macro-redefined", '-D__DATE__=""', '-D__TIME__=""']
    env = os.environ | {
        "CARGO_TARGET_DIR": str(TARGET / "shipped"), "CARGO_INCREMENTAL": "0", "RUSTFLAGS": " ".join(flags),
        f"CFLAGS_{triple.replace('-', '_')}": " ".join(maps), "CARGO_PROFILE_RELEASE_TRIM_PATHS": "all",
        "CARGO_PROFILE_DEV_TRIM_PATHS": "all",
    }
    run("cargo-zigbuild", "build", "--profile", PROFILE, "--locked", "--bin", "ahp-sidecar", "--target", triple,
        "-Zbuild-std=std,panic_abort", "-Ztrim-paths", cwd=ROOT, env=env)
    name = "ahp-sidecar.exe" if "-windows-" in triple else "ahp-sidecar"
    folder = {"dev": "debug"}.get(PROFILE, PROFILE)
    return name, (TARGET / "shipped" / triple / folder / name).read_bytes()


def licences_beside(triple):
    """Returns {name: licence} of what the toolchain links in: the standard library, and the C library's parts."""
    mit = re.sub("Copyright .*", "Copyright (c) The Rust Project Contributors", (ROOT / "LICENSE").read_text())
    parts = "addr2line, gimli, hashbrown, memchr, miniz_oxide, object and rustc-demangle"
    found = {f"The Rust standard library, with {parts} (MIT OR Apache-2.0)": mit}
    if "-apple-" not in triple:
        unwinder = zig_library() / "libunwind/LICENSE.TXT"
        found["libunwind of the LLVM project (Apache-2.0 WITH LLVM-exception)"] = unwinder.read_text()
    if triple.endswith("-musl"):
        found["musl, the C library (MIT)"] = (zig_library() / "libc/musl/COPYRIGHT").read_text()
    elif "-windows-" in triple:
        found["mingw-w64, start files of the C library"] = (zig_library() / "libc/mingw/COPYING").read_text()
    return found


def pages():
    """Returns the man pages and the completions of shells, made from the definition of the command line."""
    folder = TARGET / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if name != "RUSTC_BOOTSTRAP"}
    run("cargo", "run", "--quiet", "--locked", "--example", "pages", "--", folder, cwd=ROOT, env=env)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def extension_of(tools, file, target, program, version, papers, epoch):
    """Packs the example extension with a program, for one target of VS Code."""
    folder = TARGET / "vsix" / target
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / program[0]).write_bytes(program[1])
    (folder / "bin" / program[0]).chmod(pack.EXECUTABLE)
    for path, content in papers.items():
        (folder / path).write_bytes(content)
    manifest = pack.json.loads((ROOT / ".dist/vscode/package.json").read_text()) | {"version": version}
    (folder / "package.json").write_bytes(pack.as_json(manifest))
    shutil.copy(tools / "extension.js", folder)
    run(tools / "node_modules/.bin/vsce", "package", "--target", target, "--no-dependencies", "--out", file,
        "--allow-missing-repository", cwd=folder, stdout=subprocess.DEVNULL,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)})


def extension_tools():
    """Checks and bundles the example extension; returns the folder of its tools. `None` where npm is missing."""
    if not (shutil.which("npm") and shutil.which("node")):
        print("skipped: npm is not installed, so no extension is packed")
        return None
    tools = TARGET / "vsix/tools"
    tools.mkdir(parents=True, exist_ok=True)
    for path in (ROOT / ".dist/vscode/tools").iterdir():
        shutil.copy(path, tools)
    source = tools / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / ".dist/vscode", source, ignore=shutil.ignore_patterns("tools"))
    main, lock = tools / "node_modules", (tools / "package-lock.json").read_bytes()
    installed = main / "installed.json"
    if not (installed.exists() and installed.read_bytes() == lock):
        run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefer-offline", cwd=tools)
        installed.write_bytes(lock)
    shutil.copytree(ROOT / ".dist/npm", main / "ahp-sidecar", dirs_exist_ok=True)
    (main / "ahp-sidecar/package.json").write_bytes(
        pack.as_json({"name": "ahp-sidecar", "version": "0.0.0", "main": "index.js", "types": "index.d.ts"}))
    run(main / ".bin/tsc", "-p", source)
    run(main / ".bin/esbuild", source / "extension.ts", "--bundle", "--platform=node", "--target=node20",
        "--external:vscode", f"--outfile={tools / 'extension.js'}", "--log-level=warning")
    return tools


def main(out, *wanted):
    known = platforms()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: not among the platforms {', '.join(known)}")
    out = Path(out).resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    version = re.search(r'(?m)^version = "(.+)"', (ROOT / "Cargo.toml").read_text())[1]
    epoch = time_of_source()
    readme = pack.with_absolute_links((ROOT / "README.md").read_bytes(), version)
    papers = {"LICENSE": (ROOT / "LICENSE").read_bytes()}
    shown = papers | {"README.md": readme, "CHANGELOG.md": (ROOT / ".dist/CHANGELOG.md").read_bytes()}
    made_from_command_line = pages()
    tools = extension_tools()
    for name in wanted or known:
        triple, tag = known[name]
        print(f"{name}: {triple}", flush=True)
        program = build(triple)
        bill = pack.bill_of_materials(triple, program[1], epoch)
        bound = papers | {"THIRD-PARTY.txt": pack.licences(triple, licences_beside(triple))}
        stem = f"ahp-sidecar-{version}-{triple}"
        files = shown | bound | made_from_command_line | {program[0]: program[1], "ahp-sidecar.cdx.json": bill}
        files = {f"{stem}/{path}": content for path, content in files.items()}
        if "-windows-" in triple:
            (out / f"{stem}.zip").write_bytes(pack.zipped(files, epoch))
        else:
            (out / f"{stem}.tar.xz").write_bytes(pack.tar_xz(files, epoch))
        (out / f"{stem}.cdx.json").write_bytes(bill)
        (out / f"npm-{name}-{version}.tgz").write_bytes(
            pack.tar_gz(pack.npm_of_platform(name, version, program, bound), epoch))
        (out / f"ahp_sidecar-{version}-py3-none-{tag}.whl").write_bytes(
            pack.zipped(pack.wheel(version, tag, program, bound, readme), epoch))
        # VS Code has targets of its own for musl; a static program serves both kinds.
        for target in [name, name.replace("linux", "alpine")] if name.startswith("linux") else [name]:
            if tools:
                file = out / f"ahp-sidecar-example-{version}-{target}.vsix"
                extension_of(tools, file, target, program, version, bound, epoch)
    (out / f"npm-main-{version}.tgz").write_bytes(pack.tar_gz(pack.npm_main(version, known, shown), epoch))
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(out.iterdir()))
    (out / "SHA256SUMS").write_text(sums)


if __name__ == "__main__":
    main(*sys.argv[1:])
