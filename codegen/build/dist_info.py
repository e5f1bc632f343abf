"""Files in the .dist-info folder of a wheel. Standard library only."""

from __future__ import annotations

import base64
import hashlib
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

# The bill of materials, and the names of its properties.
BILL = "sboms/kernelmint.cdx.json"
EPOCH, FOLDER = "kernelmint:source-date-epoch", "kernelmint:folder"
SETTING, VARIABLE = "kernelmint:setting:", "kernelmint:environment:"


def folder_of(archive: zipfile.ZipFile) -> str:
    """Returns the name of a wheel's .dist-info folder."""
    (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    return metadata.partition("/")[0]


def add(wheel: Path, files: Mapping[str, bytes]) -> None:
    """Adds files to the .dist-info folder of a wheel, by their names in it, or replaces them there.

    The modes of all files become those that any user would give them.
    """
    partial = wheel.with_name(f".{wheel.name}")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(partial, "w") as new:
        infos = {info.filename: info for info in old.infolist()}
        folder = folder_of(old)
        metadata, record = infos[f"{folder}/METADATA"], f"{folder}/RECORD"
        changed = {f"{folder}/{name}": content for name, content in files.items()}
        lines = [line for line in old.read(record).decode().splitlines() if line]
        kept = [line for line in lines if line.rsplit(",", 2)[0] not in (*changed, record)]
        added = []
        for name, content in changed.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            added.append(f"{name},sha256={digest.decode()},{len(content)}")
        changed[record] = "\n".join([*kept, *added, f"{record},,", ""]).encode()
        names = dict.fromkeys((*infos, *changed))
        for name in sorted(names, key=lambda name: name == record):  # RECORD comes last
            if (info := infos.get(name)) is None:
                info = zipfile.ZipInfo(name, metadata.date_time)
                info.compress_type = metadata.compress_type
                info.external_attr = metadata.external_attr
            is_executable = info.external_attr >> 16 & stat.S_IXUSR
            info.external_attr = (stat.S_IFREG | (0o755 if is_executable else 0o644)) << 16
            new.writestr(info, changed[name] if name in changed else old.read(name))
    partial.replace(wheel)
