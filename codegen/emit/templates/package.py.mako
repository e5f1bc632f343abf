"""The families of this build: their modules, by name."""

from types import ModuleType

from . import ${", ".join(families)}

FAMILIES: dict[str, ModuleType] = {
% for family in families:
    "${family}": ${family},
% endfor
}
