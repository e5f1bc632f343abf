// The names that generated/<family>/library.cpp and the build define for library.cpp.
#pragma once

#include "registry.h"

namespace kernelmint {

extern const FamilyEntry* const kFamily;
extern const char kGenerated[];  // LibraryEntry::generated
extern const char kBuild[];      // LibraryEntry::build

}  // namespace kernelmint
