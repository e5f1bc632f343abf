"""What the extension is made of: writes build.json, and the C++ that puts its hash into it.

    record.py --json FILE --cpp FILE --root CHECKOUT --set NAME=VALUE ... -- SOURCE ...

build.json holds each setting, the hash of each source by its path within the checkout, and as its
`fingerprint` the hash of all that. CMake runs this whenever a source or a setting changes. Standard
library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--cpp", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("sources", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    record = {
        "settings": dict(setting.split("=", 1) for setting in options.settings),
        "sources": {
            Path(os.path.relpath(path, options.root)).as_posix(): hashlib.sha256(
                path.read_bytes()
            ).hexdigest()
            for path in sorted(options.sources)
        },
    }
    fingerprint = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:32]
    options.json.write_text(json.dumps({"fingerprint": fingerprint, **record}, indent=1) + "\n")
    options.cpp.write_text(
        f'#include "build.h"\n\nconst char kernelmint::kBuildFingerprint[] = "{fingerprint}";\n'
    )


if __name__ == "__main__":
    main(sys.argv[1:])
