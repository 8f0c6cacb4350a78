// Whole numbers out of JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace thinpipe {

// Throws nlohmann::json::exception unless the value is written as a whole number. get<int64_t>() would convert any
// number, which is undefined for one that does not fit.
inline int64_t whole_number(const nlohmann::json& value) {
  return value.get_ref<const nlohmann::json::number_integer_t&>();
}

}  // namespace thinpipe
