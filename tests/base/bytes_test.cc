#include "base/bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace thinpipe {
namespace {

template <class T>
std::string written(T value) {
  const auto bytes = le_bytes<T>(value);
  return {bytes.data(), bytes.size()};
}

TEST(Bytes, TheLowestByteComesFirst) {
  EXPECT_EQ(written<uint8_t>(0xfe), "\xfe");
  EXPECT_EQ(written<uint16_t>(0x0102), "\x02\x01");
  EXPECT_EQ(written<uint32_t>(0x03040506), "\x06\x05\x04\x03");
  EXPECT_EQ(written<uint64_t>(0x0708090a0b0c0d0e), "\x0e\x0d\x0c\x0b\x0a\x09\x08\x07");
  EXPECT_EQ(written<float>(1.0f), std::string("\0\0\x80\x3f", 4));
  EXPECT_EQ(written<double>(-2.0), std::string("\0\0\0\0\0\0\0\xc0", 8));
}

TEST(Bytes, GetReadsWhatWasWrittenAtAnyOffset) {
  const std::string out =
      "abc" + written<uint64_t>(0xfffefdfcfbfaf9f8) + written(-0.15625f) + written<uint16_t>(0x8001);
  EXPECT_EQ(get_le<uint64_t>(out, 3), 0xfffefdfcfbfaf9f8);
  EXPECT_EQ(get_le<float>(out, 11), -0.15625f);
  EXPECT_EQ(get_le<uint16_t>(out, 15), 0x8001);
  static_assert(get_le<uint32_t>(std::string_view("\1\2\3\4", 4)) == 0x04030201);
}

TEST(BytesDeath, GetStopsBehindTheEnd) {
  EXPECT_DEATH(get_le<uint32_t>("123"), "4 bytes at 0 of 3");
  EXPECT_DEATH(get_le<uint16_t>("123", 2), "2 bytes at 2 of 3");
  EXPECT_DEATH(get_le<uint16_t>("123", static_cast<size_t>(-1)), "2 bytes at");
}

}  // namespace
}  // namespace thinpipe
