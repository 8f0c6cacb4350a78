// How many threads a thread computes with.
#pragma once

#include <ATen/Parallel.h>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace thinpipe {

// For the calling thread only. at::set_num_threads() would be for new threads too, and then each of them makes libtorch
// build a second pool, which nothing here uses and whose threads spin.
inline void use_threads(int count) {
#ifdef _OPENMP
  at::get_num_threads();  // the first use in a thread sets libtorch's default
  omp_set_num_threads(count);
#else  // the thread sanitizer's build: always one
  if (at::get_num_threads() != 1) at::set_num_threads(1);
  (void)count;
#endif
}

// While it exists, the calling thread computes alone.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { use_threads(1); }
  ~OneThread() { use_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

}  // namespace thinpipe
