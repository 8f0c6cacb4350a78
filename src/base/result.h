// Result<T>: the value or one sentence about what went wrong. For everything that comes from outside - files, peers,
// packets - where failing is ordinary. Usage and config faults throw UserError instead (error.h); faults of our own
// stop the program (check.h).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"

namespace thinpipe {

// A complete sentence fragment that names the thing and what would be right: "x.bin: header is 12 bytes, needs 1024".
struct Error {
  std::string message;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor): `return value;` is the point
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }

  // Must be ok().
  T& value() & {
    TP_CHECK(ok(), "value() of a failed Result: {}", error().message);
    return std::get<T>(state_);
  }
  const T& value() const& {
    TP_CHECK(ok(), "value() of a failed Result: {}", error().message);
    return std::get<T>(state_);
  }
  // Must not be ok().
  const Error& error() const { return std::get<Error>(state_); }

  // The value, or UserError with the message: the bridge from library code to a command that has nothing left to try.
  T take() && {
    if (!ok()) throw UserError(error().message);
    return std::move(std::get<T>(state_));
  }

 private:
  std::variant<T, Error> state_;
};

// A Result without a value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }
  void take() const {
    if (error_) throw UserError(error_->message);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace thinpipe
