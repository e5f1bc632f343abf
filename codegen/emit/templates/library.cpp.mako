#include "generated.h"

#if defined(KERNELMINT_CONFIGURED_FINGERPRINT)
#include <string_view>
static_assert(std::string_view(KERNELMINT_CONFIGURED_FINGERPRINT) == "${fingerprint}",
              "the generated tree is not the one that CMake configured: run cmake again");
#endif

namespace kernelmint {

namespace ${family} {
extern const FamilyEntry kFamily;
}

const FamilyEntry* const kFamily = &${family}::kFamily;
const char kGenerated[] = "${fingerprint}";

}  // namespace kernelmint
