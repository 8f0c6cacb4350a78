// metrics.jsonl and timing.jsonl as a table and as TensorBoard's event file, which is read here by another road: bit by
// bit for the checksums, and field by field.
#include "dashboard/metrics_files.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <map>

#include "base/files.h"
#include "support/scratch.h"
#include "support/user_error.h"

namespace thinpipe {
namespace {

class MetricsFiles : public ::testing::Test {
 protected:
  void write(const char* name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  // Two steps, of which the second was done by another coordinator and is not finite; a last line without times.
  void write_run() {
    write("metrics.jsonl",
          "{\"step\":1,\"loss\":4.5,\"grad_norm\":2.0,\"lr\":0.01,\"tokens\":64,\"bytes\":[{\"forward\":10,"
          "\"backward\":20},{\"forward\":1,\"backward\":2}],\"validation_loss\":4.25}\n"
          "{\"step\":2,\"loss\":null,\"grad_norm\":null,\"lr\":0.01,\"tokens\":128,\"skipped\":true}\n"
          "{\"step\":2,\"final_validation_loss\":4.0}\n");
    write(
        "timing.jsonl",
        "{\"step\":1,\"seconds\":2.5,\"stages\":[{\"total_s\":1.0,\"wait_s\":0.5},{\"total_s\":1.0,\"wait_s\":0.0}]}\n"
        "{\"step\":2,\"seconds\":1.5,\"stages\":[],\"socket_bytes\":99}\nhalf a li");
  }

  const test::ScratchFolder folder_;
};

TEST_F(MetricsFiles, Csv_HasALinePerStep) {
  write_run();
  EXPECT_EQ(metrics_csv(folder_.path()),
            "step,loss,validation_loss,final_validation_loss,lr,grad_norm,skipped,tokens,bytes_forward,bytes_backward,"
            "socket_bytes,seconds,step_seconds,wait_share\n"
            "1,4.5,4.25,,0.01,2,,64,11,22,,2.5,2.5,0.25\n"
            "2,nan,,4,0.01,nan,1,128,,,99,4,1.5,\n");
}

TEST_F(MetricsFiles, RunWithoutSteps_IsRefused) {
  for (const auto& make : {metrics_csv, metrics_events}) {
    EXPECT_NE(test::user_error([&] { (void)make(folder_.path()); }).find("has made no step yet"), std::string::npos);
  }
}

TEST(Crc32c, IsThatOfTheStandards) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(masked(0), 0xa282ead8U);
}

// ---- a reader of event files ----

uint32_t slow_crc(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool odd = ((crc ^ static_cast<unsigned char>(byte) >> bit) & 1) != 0;
      crc = crc >> 1 ^ (odd ? 0x82f63b78U : 0U);
    }
  }
  return ~crc;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// The records of a file, checked.
std::vector<std::string> records_in(std::string_view file) {
  std::vector<std::string> records;
  const auto take = [&](size_t count) {
    EXPECT_LE(count, file.size());
    const auto part = file.substr(0, count);
    file.remove_prefix(part.size());
    return part;
  };
  const auto checked = [&](std::string_view bytes) {
    const auto crc = slow_crc(bytes);
    EXPECT_EQ(little_endian(take(4)), std::rotr(crc, 15) + 0xa282ead8U);
    return bytes;
  };
  while (!file.empty()) {
    const auto length = little_endian(checked(take(8)));
    records.emplace_back(checked(take(length)));
  }
  return records;
}

// The fields of a message: numbers as they stand there, and bytes.
struct Field {
  uint64_t number = 0;
  std::string bytes;
};
std::multimap<int, Field> fields_of(std::string_view message) {
  std::multimap<int, Field> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  const auto bytes = [&](size_t count) {
    const auto part = message.substr(at, count);
    at += count;
    return part;
  };
  while (at < message.size()) {
    const auto tag = varint();
    Field field;
    if (tag % 8 == 0) field.number = varint();
    if (tag % 8 == 1) field.number = little_endian(bytes(8));
    if (tag % 8 == 2) field.bytes = bytes(varint());
    if (tag % 8 == 5) field.number = little_endian(bytes(4));
    fields.emplace(static_cast<int>(tag / 8), field);
  }
  return fields;
}

TEST_F(MetricsFiles, Events_AreThoseOfTensorBoard) {
  write_run();
  const auto records = records_in(metrics_events(folder_.path()));
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(fields_of(records[0]).find(3)->second.bytes, "brain.Event:2");
  std::map<std::string, float> values;
  double times[3];
  for (size_t i = 0; i < 3; ++i) {
    const auto event = fields_of(records[i]);
    times[i] = std::bit_cast<double>(event.find(1)->second.number);
    EXPECT_EQ(event.find(2)->second.number, i);
    if (i == 0) continue;
    for (const auto& [number, value] : fields_of(event.find(5)->second.bytes)) {
      EXPECT_EQ(number, 1);
      const auto parts = fields_of(value.bytes);
      values[std::to_string(i) + " " + parts.find(1)->second.bytes] =
          std::bit_cast<float>(static_cast<uint32_t>(parts.find(2)->second.number));
    }
  }
  EXPECT_NEAR(times[1] - times[0], 2.5, 1e-3);
  EXPECT_NEAR(times[2] - times[0], 4.0, 1e-3);
  EXPECT_EQ(values.at("1 loss/train"), 4.5F);
  EXPECT_EQ(values.at("1 loss/validation"), 4.25F);
  EXPECT_EQ(values.at("1 bytes/backward"), 22.0F);
  EXPECT_TRUE(std::isnan(values.at("2 loss/train")));
  EXPECT_EQ(values.at("2 loss/final_validation"), 4.0F);
  EXPECT_EQ(values.at("2 optim/skipped"), 1.0F);
  EXPECT_FALSE(values.contains("2 bytes/forward"));
}

}  // namespace
}  // namespace thinpipe
