"""codegen in process: it generates a family, or one kernel of it. This is the runtime's only module
that imports codegen's rooms, and so mako, pydantic and yaml; it is imported for a build."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from codegen.core import manifest
from codegen.core.manifest import Selection
from codegen.core.packs import Pack
from codegen.core.problems import SpecError, UsageError
from codegen.core.staleness import MANIFEST
from codegen.emit.manifest import Inputs
from codegen.emit.tree import emit
from codegen.space import explain
from codegen.space.expand import FamilySpace, TargetSpace, configured, exclusions, expand
from codegen.spec import keys
from codegen.spec.load import load
from codegen.spec.model import Family
from runtime.errors import BuildError, InvalidArgument, KernelNotFound
from runtime.ondemand.specs import Source


@dataclass(frozen=True)
class Generated:
    """The files that codegen writes for some kernels of a family, and their manifest."""

    files: dict[str, str]
    family: manifest.Family  # in the form of their manifest
    header: str  # the last target's, below the folder of specs

    def write(self, folder: Path) -> None:
        """Writes the files below a folder."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def fingerprint(self, key: str, root: Path) -> str | None:
        """Returns the fingerprint of a kernel's source, as the table of toolkits has it; `root` is
        the folder of specs."""
        from codegen.ptxas.fingerprints import Manifest, SourceFingerprint  # a slow import

        with TemporaryDirectory() as folder:
            self.write(Path(folder))
            return SourceFingerprint(Manifest(Path(folder, MANIFEST)), [root]).of(key)


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except SpecError as error:
        raise BuildError("\n".join(map(str, error.problems))) from None


class Spec:
    """A family's spec, which is read. Raises BuildError with every problem of the spec."""

    def __init__(self, source: Source) -> None:
        self._source = source
        with _reported():
            (self._family,) = load([source.root], only=source.family)

    @property
    def family(self) -> Family:
        """Returns the family that was read."""
        return self._family

    def whole(self) -> Generated:
        """Returns the family with all its targets, and the kernels of their default sets."""
        return self._emit(self._spaces("default"))

    def kernel(self, key: str) -> Generated:
        """Returns the family with one kernel, which may be in no set. Raises KernelNotFound,
        saying what excludes it, for an invalid key."""
        try:
            target, values = explain.parse(key, [self._family])
        except UsageError as error:
            raise KernelNotFound(str(error)) from None
        if exclusions(target, values):
            raise KernelNotFound(explain.explain(key, [self._family], {}).text)
        with _reported():
            chosen = TargetSpace(target, (configured(target, values),))
        return self._emit([chosen])

    def explain(self, key: str, built: Mapping[str, str], pack: Pack | None) -> tuple[str, str]:
        """Returns what `kernelmint explain` says of a key; and why it cannot be built, or "".

        `built` is the file of each generated key, `pack` the installed pack of the spec."""
        try:
            explanation = explain.explain(
                key, [self._family], built, () if pack is None else (pack,)
            )
        except explain.UnknownKeyError as error:
            explanation = error.explanation
        excluded = explanation.status in ("unknown", "excluded")
        return explanation.text, "; ".join(explanation.details["reasons"]) if excluded else ""

    def with_parameters(
        self,
        target: str,
        configurations: Iterable[Mapping[str, Any]],
        parameters: Mapping[str, Any],
    ) -> tuple[list[str], list[str]]:
        """Returns the keys of valid configurations of a target that have these parameters, and
        the others as known configurations have them; and why there are no more."""
        chosen = next(t for t in self._family.targets if t.name == target)
        names = [parameter.name for parameter in chosen.parameters]
        if absent := [name for name in parameters if name not in names]:
            return [], [f"target {target} has no parameter {', '.join(absent)}"]
        checked = (p.check(parameters[p.name]) for p in chosen.parameters if p.name in parameters)
        if wrong := list(filter(None, checked)):
            return [], wrong
        key_of = keys.tokens_of(chosen.parameters)
        allowed: dict[str, None] = {}
        reasons: dict[str, None] = {}
        for configuration in configurations:
            values = tuple({**configuration, **parameters}[name] for name in names)
            if excluded := exclusions(chosen, values):
                reasons |= dict.fromkeys(excluded)
            else:
                allowed[keys.key_prefix(chosen) + key_of(values)] = None
        return list(allowed), list(reasons)

    def _spaces(self, set_name: str) -> list[TargetSpace]:
        chosen = {}
        if any(s.name == set_name for target in self._family.targets for s in target.sets):
            with _reported():
                spaces = expand([self._family], Selection(set_name))
            chosen = {t.target.name: t for space in spaces for t in space.targets}
        return [chosen.get(t.name, TargetSpace(t, ())) for t in self._family.targets]

    def _emit(self, targets: list[TargetSpace]) -> Generated:
        name = self._source.root.name
        inputs = Inputs(Selection(), (name,), (name,), ())  # no tree that may become stale
        files = emit([FamilySpace(self._family, tuple(targets))], inputs)
        (family,) = manifest.parse(files[MANIFEST]).families
        return Generated(files, family, targets[-1].target.header)


def keys_of(families: Sequence[Family], set_name: str, where: str | None) -> list[str]:
    """Returns the keys of a set that a filter leaves. Raises InvalidArgument if there are none."""
    try:
        with _reported():
            spaces = expand(families, Selection(set_name, where))
    except UsageError as error:
        raise InvalidArgument(str(error)) from None
    return [c.key for space in spaces for t in space.targets for c in t.configurations]
