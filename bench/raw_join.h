// A stranger that begins calls to a coordinator and does not finish them: HTTP/2 over TLS by hand, because gRPC's
// client sends whole messages only. For `bench trust`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace thinpipe {

class RawJoin {
 public:
  // Connects to 127.0.0.1 and begins `calls` Joins that announce `bytes` bytes each. It sends all but the last byte of
  // each, as fast as pump() is called and the other side lets it.
  RawJoin(int port, size_t calls, size_t bytes);
  ~RawJoin();
  RawJoin(const RawJoin&) = delete;
  RawJoin& operator=(const RawJoin&) = delete;

  // Reads what there is and sends what may be sent. False: the other side has ended the connection.
  bool pump();

 private:
  struct Call {
    size_t left = 0;
    int64_t window = 0;
  };
  struct Tls;

  bool read_frames();
  bool send_data();
  bool send(const std::string& frame);

  std::unique_ptr<Tls> tls_;
  int socket_ = -1;
  int written_ = 0;  // the result of the last write
  std::string received_;
  int64_t window_ = 65535;
  std::map<uint32_t, Call> calls_;
};

}  // namespace thinpipe
