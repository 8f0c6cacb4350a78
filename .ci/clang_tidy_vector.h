// Included before every file that clang-tidy reads. Debian's libtorch has vectors of incomplete types, and libstdc++ 12
// makes vector constexpr in C++20: clang then instantiates its members immediately and fails; g++ does not. With this
// header vector is as in C++17. Nothing is built with it.
#pragma once

#include <string>
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR
#define __fill_a1 __fill_bits  // was declared constexpr before and must not be declared again without it
#include <vector>
#undef __fill_a1
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR constexpr
