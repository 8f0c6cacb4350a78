#include "base/bytes.h"

#include <gtest/gtest.h>

namespace thinpipe {
namespace {

TEST(Bytes, PutWritesTheLowestByteFirst) {
  std::string out = "x";
  put_le<uint8_t>(out, 0xfe);
  put_le<uint16_t>(out, 0x0102);
  put_le<uint32_t>(out, 0x03040506);
  put_le<uint64_t>(out, 0x0708090a0b0c0d0e);
  EXPECT_EQ(out, "x\xfe\x02\x01\x06\x05\x04\x03\x0e\x0d\x0c\x0b\x0a\x09\x08\x07");
  out.clear();
  put_le<float>(out, 1.0f);
  put_le<double>(out, -2.0);
  EXPECT_EQ(out, std::string("\0\0\x80\x3f\0\0\0\0\0\0\0\xc0", 12));
}

TEST(Bytes, GetReadsBackAnyOffset) {
  std::string out = "abc";
  put_le<uint64_t>(out, 0xfffefdfcfbfaf9f8);
  put_le<float>(out, -0.15625f);
  put_le<uint16_t>(out, 0x8001);
  EXPECT_EQ(get_le<uint64_t>(out, 3), 0xfffefdfcfbfaf9f8);
  EXPECT_EQ(get_le<float>(out, 11), -0.15625f);
  EXPECT_EQ(get_le<uint16_t>(out, 15), 0x8001);
  static_assert(get_le<uint32_t>(std::string_view("\1\2\3\4", 4)) == 0x04030201);
}

TEST(BytesDeath, GetPastTheEndStopsTheProgram) {
  EXPECT_DEATH(get_le<uint32_t>("123"), "4 bytes at 0 of 3");
  EXPECT_DEATH(get_le<uint16_t>("123", 2), "2 bytes at 2 of 3");
  EXPECT_DEATH(get_le<uint16_t>("123", static_cast<size_t>(-1)), "2 bytes at");
}

}  // namespace
}  // namespace thinpipe
