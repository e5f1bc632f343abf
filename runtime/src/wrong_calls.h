// What Python says of a call that does not suit a function's parameters, in the runtime's words.
#pragma once

#include <nanobind/nanobind.h>

namespace kernelmint {

namespace nb = nanobind;

// Where a call of an instance of `type`, a class with a __call__ in Python, fails since an argument
// is missing, unknown or one too many, the message of its TypeError becomes what
// `explain(instance, arguments, options)` returns. A call that suits costs nothing more.
void explain_wrong_calls(nb::type_object type, nb::callable explain);

}  // namespace kernelmint
