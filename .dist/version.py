"""Raises the version everywhere: `version.py 0.2.0`. All packages take theirs from Cargo.toml.

Changes Cargo.toml, the lock files, what transcripts and the README show of `serverInfo`, and the heading of the
CHANGELOG. `version.py --check v0.2.0` says whether the source is ready to be released as that tag, by the repository
GITHUB_REPOSITORY ("owner/name"); `version.py --notes v0.2.0` prints that version's section of the CHANGELOG.
"""
import datetime
import os
import re
import subprocess
import sys

import pack

ROOT = pack.ROOT
MANIFEST, CHANGES = ROOT / "Cargo.toml", ROOT / ".dist/CHANGELOG.md"
VERSION = re.compile(r'(?m)^version = "(.+)"')
UNRELEASED = "## Unreleased\n"


def check(tag):
    version = VERSION.search(MANIFEST.read_text())[1]
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, and Cargo.toml has {version}: make version VERSION={tag.removeprefix('v')}")
    if f"\n## {version}, " not in CHANGES.read_text():
        sys.exit(f"the CHANGELOG has no section of {version}")
    repository, wanted = pack.repository(), f"https://github.com/{os.environ.get('GITHUB_REPOSITORY', '')}"
    if repository != wanted:
        sys.exit(f"`repository` of Cargo.toml is `{repository}`, and must be `{wanted}`, where the release is made: "
                 "cargo binstall looks for archives there, and npm compares it with the provenance")


def notes(tag):
    section = re.search(rf"(?ms)^## {re.escape(tag.removeprefix('v'))}, .*?\n(.*?)(?=^## |\Z)", CHANGES.read_text())
    if not section:
        sys.exit(f"the CHANGELOG has no section of {tag.removeprefix('v')}")
    print(section[1].strip())


def raise_to(new):
    if not re.fullmatch(r"\d+\.\d+\.\d+", new):
        sys.exit(f"`{new}` is no version: it has the form 1.2.3")
    manifest = MANIFEST.read_text()
    old = VERSION.search(manifest)[1]
    is_lower = [int(part) for part in new.split(".")] < [int(part) for part in old.split(".")]
    if is_lower or f"\n## {new}, " in CHANGES.read_text():
        sys.exit(f"{new} is lower than {old}, or the CHANGELOG has a section of it")
    MANIFEST.write_text(VERSION.sub(f'version = "{new}"', manifest, count=1))
    for folder in (ROOT, *(path.parent for path in sorted(ROOT.glob("tests/*/*/Cargo.toml")))):
        subprocess.run(["cargo", "update", "--quiet", "--workspace", "--offline", "--manifest-path",
                        folder / "Cargo.toml"], check=True)
    shown = '"name":"ahp-sidecar","version":"%s"'
    for path in [ROOT / "README.md", *ROOT.glob("fixtures/**/*.txt")]:
        text = path.read_bytes()
        raised = text.replace((shown % old).encode(), (shown % new).encode())
        if raised != text:
            path.write_bytes(raised)
    today = datetime.date.today().isoformat()
    CHANGES.write_text(CHANGES.read_text().replace(UNRELEASED, f"{UNRELEASED}\n## {new}, {today}\n", 1))
    print(f"{old} is {new} now: read the CHANGELOG, run the tests, commit, and tag the commit v{new}")


if sys.argv[1:2] == ["--check"]:
    check(sys.argv[2])
elif sys.argv[1:2] == ["--notes"]:
    notes(sys.argv[2])
else:
    raise_to(sys.argv[1])
