#include "export/hf_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "export/json_fields.h"

namespace thinpipe {
namespace {

using Json = nlohmann::json;

// A thousand blocks have an index of about a megabyte.
constexpr size_t kMaxIndexBytes = size_t{4} << 20;
constexpr size_t kMaxFiles = 10'000;

// Nothing that leaves the folder or hides in it.
bool is_plain_name(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return name.size() <= 200 && name.ends_with(".safetensors") && name.front() != '.' &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

}  // namespace

Result<HfWeightMap> parse_hf_index(std::string_view text, std::string_view name) {
  const auto refuse = [name](std::string_view message) { return Error{fmt::format("{}: {}", name, message)}; };
  if (text.size() > kMaxIndexBytes) {
    return refuse(fmt::format("has {} bytes, at most {} are read", text.size(), kMaxIndexBytes));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return refuse("is not valid JSON");
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return refuse("has no weight_map, needs an object of tensor names and file names");
  }
  HfWeightMap files;
  std::set<std::string_view> distinct;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>())) {
      return refuse(fmt::format("{} is in {}, needs a plain file name that ends in .safetensors", quoted_text(tensor),
                                shown_for_error(file)));
    }
    distinct.insert(file.get_ref<const std::string&>());
    files.emplace(tensor, file.get<std::string>());
  }
  if (distinct.size() > kMaxFiles) {
    return refuse(fmt::format("names {} files, at most {} are read", distinct.size(), kMaxFiles));
  }
  return files;
}

std::string hf_index_text(const HfWeightMap& files, uint64_t total_bytes) {
  const Json json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", files}};
  return json.dump(2) + '\n';
}

}  // namespace thinpipe
