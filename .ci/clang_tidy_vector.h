// Put before every file that clang-tidy reads. Debian's libtorch keeps vectors of types that are not yet complete, and
// libstdc++ 12 makes vector constexpr in C++20: clang then instantiates its members at once, and refuses. g++ waits.
// Read so, vector is what it was in C++17. Nothing is built from it.
#pragma once

#include <string>
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR
#define __fill_a1 __fill_bits  // declared constexpr before, and not to be declared again without it
#include <vector>
#undef __fill_a1
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR constexpr
