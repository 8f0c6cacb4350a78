// Chooses the build of cpu_kernels.cc for this machine.
#include "model/kernels/cpu_kernels.h"

namespace thinpipe {
namespace kernels_portable {
const CpuKernels<float>& float_kernels();
const CpuKernels<double>& double_kernels();
}  // namespace kernels_portable
#ifdef THINPIPE_X86_64
namespace kernels_x86_64_v3 {
const CpuKernels<float>& float_kernels();
const CpuKernels<double>& double_kernels();
}  // namespace kernels_x86_64_v3
namespace kernels_x86_64_v4 {
const CpuKernels<float>& float_kernels();
const CpuKernels<double>& double_kernels();
}  // namespace kernels_x86_64_v4

static bool has_x86_64_v3() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi2") != 0;
}
static bool has_x86_64_v4() {
  return has_x86_64_v3() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}
#endif

template <>
const CpuKernels<float>& cpu_kernels<float>() {
#ifdef THINPIPE_X86_64
  if (has_x86_64_v4()) return kernels_x86_64_v4::float_kernels();
  if (has_x86_64_v3()) return kernels_x86_64_v3::float_kernels();
#endif
  return kernels_portable::float_kernels();
}

template <>
const CpuKernels<double>& cpu_kernels<double>() {
#ifdef THINPIPE_X86_64
  if (has_x86_64_v4()) return kernels_x86_64_v4::double_kernels();
  if (has_x86_64_v3()) return kernels_x86_64_v3::double_kernels();
#endif
  return kernels_portable::double_kernels();
}

}  // namespace thinpipe
