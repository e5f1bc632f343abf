#include "registry.h"

namespace kernelmint {

% for family in families:
namespace ${family} {
extern const FamilyEntry kFamily;
}
% endfor

const FamilyEntry* const kFamilies[] = {
% for family in families:
    &${family}::kFamily,
% endfor
};
const int kNumFamilies = ${len(families)};
const char kFingerprint[] = "${fingerprint}";

}  // namespace kernelmint
