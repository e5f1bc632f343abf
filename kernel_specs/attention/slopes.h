// The gradient of ALiBi's slopes: the sum of -dS times the distance, of all that a head's queries
// see, dS the gradient of a score after the softcap.
#pragma once

namespace kernelmint::attention {

// The arguments of a family that gives this gradient.
template <class Args>
concept GivesSlopes = requires(const Args& args) { args.dalibi_slopes; };

}  // namespace kernelmint::attention
