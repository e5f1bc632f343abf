#include "registry.h"

#if defined(KERNELMINT_CONFIGURED_FINGERPRINT)
#include <string_view>
static_assert(std::string_view(KERNELMINT_CONFIGURED_FINGERPRINT) == "${fingerprint}",
              "the generated tree is not the one that CMake configured: run cmake again");
#endif

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
