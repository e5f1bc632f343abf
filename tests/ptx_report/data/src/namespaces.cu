// Kernels of one configuration, in every namespace: how the ABI compresses the configuration's name
// depends on what the symbol named before it.
namespace kernelmint {
struct Tag {};
template <class T>
struct Box {};
namespace configs {
struct Loose {};
namespace fam::sm80 {
struct bf16_d64 {};
}  // namespace fam::sm80
template <class Config>
__global__ void among_the_configurations() {}
}  // namespace configs
namespace fam {
template <class Config>
__global__ void at_home() {}
}  // namespace fam
}  // namespace kernelmint

using Config = kernelmint::configs::fam::sm80::bf16_d64;
using kernelmint::Box;
using kernelmint::Tag;
using kernelmint::configs::Loose;

namespace other {
struct Own {};
template <class T>
struct Holder {};
template <class C>
__global__ void first() {}
template <class T, class C>
__global__ void second() {}
template <class T, class C>
__global__ void with_parameters(T*, const C*) {}
template <class... C>
__global__ void pack() {}
enum class Kind { one, two };
template <class C, int N, bool B, class T, Kind K>
__global__ void instance(T*) {}
namespace deep::deeper {
template <class A, class B, class C>
__global__ void third(A*, B) {}
}  // namespace deep::deeper
}  // namespace other

template <class C>
__global__ void in_no_namespace() {}
template <class T, class C>
__global__ void in_no_namespace_second() {}
namespace {
template <class C>
__global__ void hidden() {}
}  // namespace

template <int>
struct Number {};
template <class...>
struct Many {};
// More than 36 types are named before the namespace: its number has two digits.
using Crowd = Many<Number<0>, Number<1>, Number<2>, Number<3>, Number<4>, Number<5>, Number<6>,
                   Number<7>, Number<8>, Number<9>, Number<10>, Number<11>, Number<12>, Number<13>,
                   Number<14>, Number<15>, Number<16>, Number<17>, Number<18>, Number<19>,
                   Number<20>, Number<21>, Number<22>, Number<23>, Number<24>, Number<25>,
                   Number<26>, Number<27>, Number<28>, Number<29>, Number<30>, Number<31>,
                   Number<32>, Number<33>, Number<34>, Number<35>, Number<36>, Number<37>, Tag>;

template __global__ void kernelmint::fam::at_home<Config>();
template __global__ void kernelmint::configs::among_the_configurations<Config>();
template __global__ void other::first<Config>();
template __global__ void other::first<other::Holder<Config>>();
template __global__ void other::second<Tag, Config>();
template __global__ void other::second<Box<other::Own>, Config>();
template __global__ void other::second<Loose, Config>();
template __global__ void other::second<Crowd, Config>();
template __global__ void other::with_parameters<other::Own, Config>(other::Own*, const Config*);
template __global__ void other::pack<Config, Tag>();
template __global__ void other::instance<Config, 3, true, float, other::Kind::two>(float*);
template __global__ void other::instance<Config, -12, false, Box<Tag>, other::Kind::one>(Box<Tag>*);
template __global__ void other::deep::deeper::third<Tag, other::Holder<Box<float*>>, Config>(
    Tag*, other::Holder<Box<float*>>);
template __global__ void in_no_namespace<Config>();
template __global__ void in_no_namespace_second<Tag, Config>();
void use() { hidden<Config><<<1, 1>>>(); }
