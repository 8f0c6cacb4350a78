// What the user would have been told.
#pragma once

#include <string>

#include "base/result.h"

namespace thinpipe::test {

// The message of the UserError that `action` throws; "" if it throws none.
template <class Action>
std::string user_error(Action&& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace thinpipe::test
