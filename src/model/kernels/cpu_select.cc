// Chooses the build of cpu_kernels.cc for this machine.
#include "model/kernels/cpu_kernels.h"

namespace thinpipe {
namespace kernels_portable {
const CpuKernels<float>& float_kernels();
const CpuKernels<double>& double_kernels();
}  // namespace kernels_portable
#ifdef THINPIPE_HAVE_X86_64_V3
namespace kernels_x86_64_v3 {
const CpuKernels<float>& float_kernels();
const CpuKernels<double>& double_kernels();
}  // namespace kernels_x86_64_v3

static bool has_x86_64_v3() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi2") != 0;
}
#endif

template <>
const CpuKernels<float>& cpu_kernels<float>() {
#ifdef THINPIPE_HAVE_X86_64_V3
  if (has_x86_64_v3()) return kernels_x86_64_v3::float_kernels();
#endif
  return kernels_portable::float_kernels();
}

template <>
const CpuKernels<double>& cpu_kernels<double>() {
#ifdef THINPIPE_HAVE_X86_64_V3
  if (has_x86_64_v3()) return kernels_x86_64_v3::double_kernels();
#endif
  return kernels_portable::double_kernels();
}

}  // namespace thinpipe
