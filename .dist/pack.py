"""Files that are packed the same way twice: archives, bills of materials, licences, and each platform's packages.

Owns: formats and names of everything in target/dist. Never: builds a program.
"""
import base64
import gzip
import hashlib
import io
import json
import lzma
import re
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LICENCE_FILES = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)")
SUMMARY = "An Agent Host Protocol host that a parent process spawns and speaks to over stdin and stdout"
EXECUTABLE = 0o755


def mode_of(name):
    return EXECUTABLE if name.rsplit("/", 1)[-1] in ("ahp-sidecar", "ahp-sidecar.exe", "ahp-sidecar.js") else 0o644


def tar(files, epoch):
    """Returns a tar file of {name: bytes}: sorted, of one time, and of no owner."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(content), epoch, mode_of(name)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def tar_xz(files, epoch):
    return lzma.compress(tar(files, epoch), preset=9 | lzma.PRESET_EXTREME)


def tar_gz(files, epoch):
    return gzip.compress(tar(files, epoch), compresslevel=9, mtime=epoch)


def zipped(files, epoch):
    """Returns a zip file of {name: bytes}, in the order of `files`. Its times begin in 1980."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, time.gmtime(max(epoch, 315532800))[:6])
            info.external_attr = (0o100000 | mode_of(name)) << 16
            info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return out.getvalue()


def dependencies(triple):
    """Returns (the program's package, the packages that are linked into it, {id: ids of its dependencies})."""
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", triple]
    said = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    packages = {package["id"]: package for package in said["packages"]}
    nodes = {node["id"]: node for node in said["resolve"]["nodes"]}

    def is_linked(dependency):
        kinds = packages[dependency["pkg"]]["targets"][0]["kind"]
        return "proc-macro" not in kinds and any(kind["kind"] is None for kind in dependency["dep_kinds"])

    root, graph = said["resolve"]["root"], {}
    waiting = [root]
    while waiting:
        package = waiting.pop()
        if package not in graph:
            graph[package] = sorted(other["pkg"] for other in nodes[package]["deps"] if is_linked(other))
            waiting += graph[package]
    linked = [packages[package] for package in sorted(graph) if package != root]
    return packages[root], sorted(linked, key=lambda package: (package["name"], package["version"])), graph


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def checksums():
    """Returns {(name, version): SHA-256 of the crate}, from Cargo.lock."""
    entry = re.compile(r'name = "(.+)"\nversion = "(.+)"\nsource = .*\nchecksum = "(.+)"')
    return {(name, version): digest for name, version, digest in entry.findall((ROOT / "Cargo.lock").read_text())}


def bill_of_materials(triple, program, epoch):
    """Returns a CycloneDX 1.5 document that names what is linked into a program, as JSON text."""
    own, linked, graph = dependencies(triple)
    sums = checksums()
    reference = {package["id"]: purl(package) for package in [own, *linked]}

    def component(package, kind="library"):
        said = {"type": kind, "bom-ref": purl(package), "name": package["name"], "version": package["version"],
                "purl": purl(package), "licenses": [{"expression": package["license"].replace("/", " OR ")}]}
        digest = sums.get((package["name"], package["version"]))
        return said | ({"hashes": [{"alg": "SHA-256", "content": digest}]} if digest else {})

    program_component = component(own, "application") | {
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(program).hexdigest()}],
        "properties": [{"name": "target", "value": triple}],
    }
    edges = [{"ref": reference[package], "dependsOn": [reference[other] for other in others]}
             for package, others in sorted(graph.items())]
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
                "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
                             "component": program_component},
                "components": [component(package) for package in linked], "dependencies": edges}
    return json.dumps(document, indent=1).encode() + b"\n"


def licences(triple, beside):
    """Returns the licences of everything in a program: of the crates, and {name: text} of what is `beside` them."""
    _, linked, _ = dependencies(triple)
    texts = {}
    for package in linked:
        folder = Path(package["manifest_path"]).parent
        files = [path for path in sorted(folder.rglob("*"))
                 if path.is_file() and LICENCE_FILES.match(path.name) and path.suffix not in (".rs", ".c", ".h", ".py")]
        title = f"{package['name']} {package['version']} ({package['license']})"
        if not files:
            note = f"{package['license']}; its authors ship no text: {package['repository'] or package['name']}"
            texts.setdefault(note, []).append(title)
        for path in files:
            texts.setdefault(path.read_text(errors="replace").strip(), []).append(title)
    for name, text in beside.items():
        texts.setdefault(text.strip(), []).append(name)
    rule = "\n" + "-" * 80 + "\n"
    parts = [f"{chr(10).join(dict.fromkeys(titles))}\n\n{text}\n"
             for text, titles in sorted(texts.items(), key=lambda entry: entry[1])]
    return ("ahp-sidecar contains the following software.\n" + rule + rule.join(parts)).encode()


def repository():
    """Returns the URL of the repository, from Cargo.toml; `None` before it has one."""
    found = re.search(r'(?m)^repository = "(.+)"', (ROOT / "Cargo.toml").read_text())
    return found and found[1]


def with_absolute_links(text, version):
    """Returns a README for where the repository's other files are not, once the repository is known."""
    if not repository():
        return text
    return re.sub(rb"\]\((?![a-z]+:|#)", f"]({repository()}/blob/v{version}/".encode(), text)


def npm_manifest(name, version, **more):
    manifest = {"name": name, "version": version, "description": SUMMARY, "license": "MIT"}
    if repository():  # npm compares it with the provenance
        manifest["repository"] = {"type": "git", "url": f"git+{repository()}.git"}
    return manifest | more


def as_json(value):
    return json.dumps(value, indent=2).encode() + b"\n"


def npm_of_platform(name, version, program, papers):
    """Returns the files of the npm package that holds one platform's program, and that npm skips on others."""
    os_name, cpu = name.split("-")
    manifest = npm_manifest(f"@ahp-sidecar/{name}", version, os=[os_name], cpu=[cpu], preferUnplugged=True)
    files = {"package.json": as_json(manifest), f"bin/{program[0]}": program[1], **papers}
    return {f"package/{path}": content for path, content in files.items()}


def npm_main(version, names, papers):
    """Returns the files of the npm package that people install."""
    source = ROOT / ".dist/npm"
    manifest = npm_manifest(
        "ahp-sidecar", version, keywords=["ahp", "agent", "json-rpc"], main="index.js", types="index.d.ts",
        bin={"ahp-sidecar": "ahp-sidecar.js"}, engines={"node": ">=18"},
        optionalDependencies={f"@ahp-sidecar/{name}": version for name in names},
        # `index.d.ts` names its types if they are there.
        peerDependencies={"@types/node": ">=18"}, peerDependenciesMeta={"@types/node": {"optional": True}})
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    files |= {"package.json": as_json(manifest), **papers}
    return {f"package/{path}": content for path, content in files.items()}


def wheel(version, tag, program, papers, readme):
    """Returns the files of a wheel that puts the program beside `python`, and a module that finds it."""
    info = f"ahp_sidecar-{version}.dist-info"
    headers = {"Metadata-Version": "2.1", "Name": "ahp-sidecar", "Version": version, "Summary": SUMMARY,
               "License": "MIT", "Requires-Python": ">=3.10", "Description-Content-Type": "text/markdown"}
    if repository():
        headers["Project-URL"] = f"Repository, {repository()}"
    metadata = "".join(f"{key}: {value}\n" for key, value in headers.items())
    tags = "".join(f"Tag: py3-none-{part}\n" for part in tag.split("."))
    files = {f"ahp_sidecar/{path.name}": path.read_bytes() for path in sorted((ROOT / ".dist/pypi").glob("*.py"))}
    files |= {f"ahp_sidecar-{version}.data/scripts/{program[0]}": program[1]}
    files |= {f"{info}/{path}": content for path, content in papers.items()}
    files |= {f"{info}/METADATA": metadata.encode() + b"\n" + readme,
              f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: ahp-sidecar\nRoot-Is-Purelib: false\n{tags}".encode()}
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},"
        f"{len(content)}\n" for path, content in files.items())
    return files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}
