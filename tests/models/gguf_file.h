// Reads a GGUF file back with an independent reader, written from the format's specification: it shares nothing with
// src/models.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace thinpipe::test {

// Version 3, as its specification says; throws std::out_of_range where the file ends too early.
struct GgufFile {
  struct Tensor {
    std::vector<uint64_t> lengths;  // fastest first
    uint32_t type = 0;
    uint64_t offset = 0;
    std::string bytes;
  };
  nlohmann::json values = nlohmann::json::object();
  std::map<std::string, Tensor> tensors;
  std::vector<std::string> names;

  explicit GgufFile(std::string bytes) : bytes_(std::move(bytes)) {
    EXPECT_EQ(bytes_.substr(0, 4), "GGUF");
    at_ = 4;
    EXPECT_EQ(number<uint32_t>(), 3U);
    const auto tensor_count = number<uint64_t>(), value_count = number<uint64_t>();
    for (uint64_t i = 0; i < value_count; ++i) {
      const auto key = text();
      EXPECT_FALSE(values.contains(key)) << key;
      values[key] = value(number<uint32_t>());
    }
    for (uint64_t i = 0; i < tensor_count; ++i) {
      names.push_back(text());
      Tensor& tensor = tensors[names.back()];
      tensor.lengths.resize(number<uint32_t>());
      for (auto& length : tensor.lengths) length = number<uint64_t>();
      tensor.type = number<uint32_t>();
      tensor.offset = number<uint64_t>();
    }
    read_bytes((at_ + 31) / 32 * 32);
  }

 private:
  template <class Number>
  Number number() {
    Number number;
    std::memcpy(&number, bytes_.substr(at_, sizeof number).data(), sizeof number);
    at_ += sizeof number;
    EXPECT_LE(at_, bytes_.size());
    return number;
  }

  std::string text() {
    const auto length = number<uint64_t>();
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }

  nlohmann::json value(uint32_t type) {
    switch (type) {
      case 4:
        return number<uint32_t>();
      case 5:
        return number<int32_t>();
      case 6:
        return number<float>();
      case 7:
        return number<uint8_t>() != 0;
      case 8:
        return text();
      case 9: {
        const auto of = number<uint32_t>();
        nlohmann::json list = nlohmann::json::array();
        for (auto left = number<uint64_t>(); left > 0; --left) list.push_back(value(of));
        return list;
      }
      default:
        ADD_FAILURE() << "type " << type;
        return nullptr;
    }
  }

  void read_bytes(uint64_t begin) {
    uint64_t end = 0;
    for (const auto& name : names) {
      Tensor& tensor = tensors[name];
      EXPECT_EQ(tensor.offset, end) << name << " does not follow";
      uint64_t count = 1;
      for (const uint64_t length : tensor.lengths) count *= length;
      const std::map<uint32_t, uint64_t> bytes_of_32{{0, 128}, {1, 64}, {8, 34}, {30, 64}};
      const uint64_t size = count * bytes_of_32.at(tensor.type) / 32;
      tensor.bytes = bytes_.substr(begin + tensor.offset, size);
      end = (tensor.offset + size + 31) / 32 * 32;
    }
    EXPECT_EQ(bytes_.size(), begin + end);
  }

  std::string bytes_;
  size_t at_ = 0;
};

}  // namespace thinpipe::test
