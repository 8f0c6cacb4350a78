// How failures are reported. Result<T> is a value or one sentence about what went wrong, for everything that comes from
// outside: files, peers, packets. UserError is thrown for a person's mistake in a config or an argument. TP_CHECK stops
// the program on a bug of ours; input never triggers it.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace thinpipe {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

// Checked in every build.
#define TP_CHECK(condition, ...)                                                            \
  do {                                                                                      \
    if (!(condition)) [[unlikely]]                                                          \
      ::thinpipe::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)

// The program prints the message on one line and exits with 2. Only main() catches it.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
};

// Whether an exception means that memory ran out: std::bad_alloc, or libtorch's exception for it.
bool is_out_of_memory(const std::exception& error);

// Names the thing and what would be right: "x.bin: header is 12 bytes, needs 1024".
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
  T value() && {
    TP_CHECK(ok(), "value() of a failed Result: {}", error().message);
    return std::move(std::get<T>(state_));
  }
  // Must not be ok().
  const Error& error() const { return std::get<Error>(state_); }

  // Returns the value, or throws UserError with the message. For commands, which have nothing else to try.
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
  void value() const { TP_CHECK(ok(), "value() of a failed Status: {}", error().message); }
  const Error& error() const { return *error_; }
  void take() const {
    if (error_) throw UserError(error_->message);
  }

 private:
  std::optional<Error> error_;
};

// The value of a Result; on an error, the enclosing function returns that error. Use it only as a whole statement or a
// whole initialiser, `const auto file = TRY(MappedFile::open(path));`: g++ does not destroy the temporaries of a larger
// expression that the return interrupts.
#define TRY(...) TP_TRY_AS(TP_TRY_NAME(try_result_, __COUNTER__), __VA_ARGS__)
#define TP_TRY_AS(name, ...)                     \
  __extension__({                                \
    auto name = (__VA_ARGS__);                   \
    if (!name) [[unlikely]] return name.error(); \
    std::move(name).value();                     \
  })
#define TP_TRY_NAME(prefix, number) TP_TRY_JOIN(prefix, number)
#define TP_TRY_JOIN(prefix, number) prefix##number

}  // namespace thinpipe
