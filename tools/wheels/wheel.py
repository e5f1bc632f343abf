"""The contents of a wheel, and its records: pack.json and the bill of materials."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path

from codegen.build import dist_info
from codegen.build.dist_info import BILL
from codegen.core import as_json
from codegen.core.packs import PACK_JSON, PackJson
from codegen.core.ptxas_rows import ReportError

from ..ptx_report.binary.fatbin import BinaryError, Budget


@dataclass(frozen=True)
class Bill:
    """The build of a wheel, by its bill of materials.

    Attributes:
        revision: the commit of its sources; None if they were no clean checkout.
        properties: by name, in the order of the file.
        tools: versions of compilers and programs.
        packages: versions of the Python packages of the build.
    """

    revision: str | None
    properties: Mapping[str, str]
    tools: Mapping[str, str]
    packages: Mapping[str, str]

    def named(self, prefix: str) -> dict[str, str]:
        """Returns the properties below a prefix, without it."""
        return {
            name.removeprefix(prefix): value
            for name, value in self.properties.items()
            if name.startswith(prefix)
        }


_NO_BILL = Bill(None, {}, {}, {})


class Wheel:
    """A wheel's files. Raises ReportError if it cannot be read.

    Attributes:
        path: its file.
        name: the distribution's, as its metadata has it.
        version: the distribution's.
        packs: its packs by folder; their names end with a slash.
        bill: its bill of materials; None if it has none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
            self._infos = {info.filename: info for info in self._archive.infolist()}
            budget = Budget.of(path.stat().st_size)
            for info in self._infos.values():
                budget.take(info.file_size)
            self.dist_info = dist_info.folder_of(self._archive)
            metadata = HeaderParser().parsestr(self.read(f"{self.dist_info}/METADATA").decode())
            self.name, self.version = str(metadata["Name"]), str(metadata["Version"])
            self.packs = {
                name.removesuffix(PACK_JSON): as_json.read(
                    PackJson, as_json.parse(self.read(name).decode())
                )
                for name in self._infos
                if name.endswith(f"_pack/{PACK_JSON}")
            }
            bill = f"{self.dist_info}/{BILL}"
            self.bill = _bill(self.read(bill)) if bill in self._infos else None
        except OSError as error:
            raise ReportError(f"{path}: cannot be read: {error.strerror or error}") from None
        except BinaryError as error:
            raise ReportError(f"{path}: {error}") from None
        except (ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise ReportError(f"{path}: not a whole wheel: {error!r:.200}") from None

    @property
    def names(self) -> list[str]:
        """Returns the names of its files."""
        return [name for name in self._infos if not name.endswith("/")]

    def read(self, name: str) -> bytes:
        """Returns a file's content. Raises ReportError."""
        try:
            return self._archive.read(self._infos[name])
        except OSError:
            raise
        except Exception as error:  # each way of compressing has its own
            raise ReportError(f"{self.path}: {name}: damaged: {error!r:.100}") from None

    @property
    def libraries(self) -> list[str]:
        """Returns the names of its shared libraries."""
        return [name for name in self.names if ".so" in Path(name).suffixes]

    @cached_property
    def sha256(self) -> str:
        """Returns the hash of its file."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @property
    def build(self) -> Bill:
        """Returns its bill of materials, empty if it has none."""
        return self.bill or _NO_BILL

    @property
    def identities(self) -> list[str]:
        """Returns the texts by which its libraries name their builds."""
        return [i for p in self.packs.values() for i in (p.fingerprint, *p.generated.values())]

    @property
    def isas(self) -> list[str]:
        """Returns the instruction sets of its packs."""
        return list(dict.fromkeys(isa for pack in self.packs.values() for isa in pack.isas))

    @property
    def architectures(self) -> list[str]:
        """Returns the architectures of its packs."""
        return list(dict.fromkeys(a for pack in self.packs.values() for a in pack.architectures))

    @property
    def settings(self) -> dict[str, str]:
        """Returns compilers and flags of its packs."""
        return {name: value for p in self.packs.values() for name, value in p.settings.items()}


def _bill(text: bytes) -> Bill:
    """Reads a bill of materials. Raises ValueError, LookupError, TypeError, AttributeError."""
    bill = json.loads(text)
    about = bill["metadata"]
    commits = about["component"].get("pedigree", {}).get("commits", [])
    components = [c for formula in bill["formulation"] for c in formula["components"]]
    tools = {c.get("description") or c["name"]: c for c in components if c["type"] != "library"}
    return Bill(
        next((str(commit["uid"]) for commit in commits), None),
        {str(p["name"]): str(p["value"]) for p in about["properties"]},
        {name: f"{c['name']} {c['version']}".removeprefix(f"{name} ") for name, c in tools.items()},
        {str(c["name"]): str(c["version"]) for c in components if c["type"] == "library"},
    )
