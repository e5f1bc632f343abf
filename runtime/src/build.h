#pragma once

namespace kernelmint {

// The hash of the sources, compilers and flags that this extension is made of; the `fingerprint` of
// the build.json beside it. Defined by what tools/build/record.py writes.
extern const char kBuildFingerprint[];

}  // namespace kernelmint
