// A configuration's `reduce` as upstream's ReductionType, which is defined before.

// A template, since no family has all of them.
template <class Config>
constexpr ReductionType reduction_of() {
  using Reduce = typename Config::reduce_type;
  if constexpr (requires { Reduce::sum; }) {
    if (Config::reduce == Reduce::sum) return SUM;
    if (Config::reduce == Reduce::mean) return MEAN;
  } else {
    if (Config::reduce == Reduce::mul) return MUL;
  }
  return Config::reduce == Reduce::min ? MIN : MAX;
}
