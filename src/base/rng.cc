#include "base/rng.h"

namespace thinpipe {

namespace {

constexpr uint64_t kMultiplier0 = 0xD2511F53;
constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9;
constexpr uint32_t kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

// Four consecutive blocks at once, word by word rather than block by block: with four lanes the compiler turns a round
// into vector instructions and keeps all sixteen words in registers.
constexpr size_t kLanes = 4;
void philox_lanes(uint64_t first_block, uint64_t stream, uint64_t seed, uint32_t* out) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const uint64_t number = first_block + lane;
    c0[lane] = static_cast<uint32_t>(number);
    c1[lane] = static_cast<uint32_t>(number >> 32);
    c2[lane] = static_cast<uint32_t>(stream);
    c3[lane] = static_cast<uint32_t>(stream >> 32);
  }
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t product0 = kMultiplier0 * c0[lane];
      const uint64_t product1 = kMultiplier1 * c2[lane];
      c0[lane] = static_cast<uint32_t>(product1 >> 32) ^ c1[lane] ^ key0;
      c1[lane] = static_cast<uint32_t>(product1);
      c2[lane] = static_cast<uint32_t>(product0 >> 32) ^ c3[lane] ^ key1;
      c3[lane] = static_cast<uint32_t>(product0);
    }
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    out[4 * lane] = c0[lane];
    out[4 * lane + 1] = c1[lane];
    out[4 * lane + 2] = c2[lane];
    out[4 * lane + 3] = c3[lane];
  }
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char character : name) {
    hash ^= static_cast<unsigned char>(character);
    hash *= 0x100000001b3;
  }
  return hash;
}

std::array<uint32_t, 4> CounterRng::block(uint64_t number) const {
  return philox4x32({static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), static_cast<uint32_t>(stream_),
                     static_cast<uint32_t>(stream_ >> 32)},
                    {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
}

uint32_t CounterRng::bits32(uint64_t index) const { return block(index / 4)[index % 4]; }

uint64_t CounterRng::bits64(uint64_t index) const {
  const auto words = block(index / 2);
  const size_t low = 2 * (index % 2);
  return words[low] | (static_cast<uint64_t>(words[low + 1]) << 32);
}

double CounterRng::unit_variance_of(uint32_t bits) {
  constexpr double kSqrt3 = 0x1.bb67ae8584caap+0;
  // (bits + 1/2) 2^-31 - 1 is exact in double; the product with sqrt 3 is the only rounding.
  const double symmetric = (static_cast<double>(bits) + 0.5) * 0x1p-31 - 1.0;
  return symmetric * kSqrt3;
}

void CounterRng::fill_bits32(uint64_t first, std::span<uint32_t> out) const {
  size_t filled = 0;
  const auto fill_one_block = [&] {
    const uint64_t index = first + filled;
    const auto words = block(index / 4);
    for (size_t lane = index % 4; lane < 4 && filled < out.size(); ++lane) out[filled++] = words[lane];
  };
  if (first % 4 != 0) fill_one_block();
  for (; out.size() - filled >= 4 * kLanes; filled += 4 * kLanes) {
    philox_lanes((first + filled) / 4, stream_, seed_, out.data() + filled);
  }
  while (filled < out.size()) fill_one_block();
}

void CounterRng::fill_unit_variance(uint64_t first, std::span<double> out) const {
  size_t filled = 0;
  while (filled < out.size()) {
    const uint64_t index = first + filled;
    const auto words = block(index / 4);
    for (size_t lane = index % 4; lane < 4 && filled < out.size(); ++lane)
      out[filled++] = unit_variance_of(words[lane]);
  }
}

}  // namespace thinpipe
