#include "dashboard/server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <set>
#include <thread>

#include "base/files.h"
#include "base/result.h"
#include "dashboard/built_page.h"
#include "dashboard/run_view.h"

namespace thinpipe {
namespace {

using Request = httplib::Request;
using Response = httplib::Response;
using Json = nlohmann::json;

// Bounds on what callers can make this process hold: a connection has a thread, and a stream keeps one.
constexpr size_t kThreads = 96;
constexpr int kMostStreams = 48;
constexpr time_t kIdleSeconds = 4;
constexpr size_t kMostBody = 4096;
constexpr size_t kMostHeaders = 100;
constexpr auto kRefresh = std::chrono::milliseconds(250);
constexpr auto kHeartbeat = std::chrono::seconds(15);
constexpr size_t kTokenBytes = 16;  // with them the address fits into 80 columns

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

bool same_secret(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// Answers are as short as possible to read over a slow line; a NaN becomes null.
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void answer(Response& response, const Json& json) { response.set_content(text_of(json), "application/json"); }

void fail(Response& response, int status, const std::string& why) {
  response.status = status;
  answer(response, {{"error", why}});
}

// A whole number from the query, in its range; `absent` if it is not there. nullopt: it is none.
std::optional<int64_t> number_of(const Request& request, const char* name, int64_t absent, int64_t low, int64_t high) {
  if (!request.has_param(name)) return absent;
  const auto text = request.get_param_value(name);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < low || number > high) return std::nullopt;
  return number;
}

class Dashboard {
 public:
  explicit Dashboard(const DashboardOptions& options)
      : options_(options),
        view_(options.folder),
        token_(dashboard_token(options.folder)),
        local_(is_loopback(options.listen.host)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_keep_alive_timeout(kIdleSeconds);
    server_.set_keep_alive_max_count(1000);
    server_.set_read_timeout(kIdleSeconds);
    server_.set_write_timeout(kIdleSeconds);
    server_.set_payload_max_length(kMostBody);
    server_.set_tcp_nodelay(true);
    server_.set_pre_routing_handler([this](const Request& request, Response& response) {
      return admit(request, response) ? httplib::Server::HandlerResponse::Unhandled
                                      : httplib::Server::HandlerResponse::Handled;
    });
    server_.set_exception_handler([](const Request&, Response& response, std::exception_ptr) {
      fail(response, 500, "the dashboard failed to answer");
    });
    server_.set_error_handler([](const Request&, Response& response) {
      if (response.body.empty())
        fail(response, response.status, response.status == 404 ? "no such page" : "bad request");
    });
    add_pages();
    add_answers();
  }

  void serve() {
    const auto& place = options_.listen;
    int port = -1;
    for (const int wanted : {place.port, place.port == 0 ? options_.last_port : 0}) {
      if (port < 0 && wanted > 0 && server_.bind_to_port(place.host, wanted)) port = wanted;
    }
    if (port < 0 && place.port == 0) port = server_.bind_to_any_port(place.host);
    if (port < 0) {
      throw UserError(
          fmt::format("the dashboard cannot listen on {}:{}: {}", place.host, place.port, std::strerror(errno)));
    }
    port_ = port;
    std::thread listening([this] { server_.listen_after_bind(); });
    const auto shown = place.host.find(':') != std::string::npos ? "[" + place.host + "]" : place.host;
    const auto address = fmt::format("http://{}:{}/", shown, port);
    if (options_.on_ready) options_.on_ready(address + "#" + token_, port);
    while (!options_.over()) {
      const bool more = view_.refresh();
      publish();
      if (!more) std::this_thread::sleep_for(kRefresh);
    }
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    server_.stop();
    listening.join();
  }

 private:
  // ---- who may ----

  // Whether the request may go on. Answers it otherwise.
  bool admit(const Request& request, Response& response) {
    response.set_header("Content-Security-Policy",
                        "default-src 'self'; base-uri 'none'; "
                        "form-action 'none'; frame-ancestors 'none'");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cache-Control", "no-store");
    if (request.headers.size() > kMostHeaders) return refuse(response, 431, "too many headers");
    if (!own_host(request)) return refuse(response, 403, "the Host is not this dashboard's");
    if (request.has_header("Origin") &&
        request.get_header_value("Origin") != "http://" + request.get_header_value("Host"))
      return refuse(response, 403, "the Origin is not this dashboard's");
    const bool wrong_token = request.has_header("Authorization") && !has_token(request);
    const bool page =
        built_page(request.path).has_value() || request.path == "/healthz" || request.path == "/favicon.ico";
    const bool changes = request.method != "GET" && request.method != "HEAD";
    if (!changes && (page || (local_ && !wrong_token))) return true;
    if (!has_token(request)) return refuse(response, 401, "needs the run's token (Authorization: Bearer TOKEN)");
    return true;
  }

  static bool refuse(Response& response, int status, const std::string& why) {
    fail(response, status, why);
    return false;
  }

  // On loopback a name that a foreign page has pointed at this machine would pass as its own origin.
  bool own_host(const Request& request) const {
    const auto host = request.get_header_value("Host");
    const auto colon = host.rfind(':');
    if (colon == std::string::npos || host.substr(colon + 1) != std::to_string(port_)) return !local_ && !host.empty();
    return !local_ || is_loopback(host.substr(0, colon));
  }

  bool has_token(const Request& request) const {
    return same_secret(request.get_header_value("Authorization"), "Bearer " + token_);
  }

  // ---- pages and answers ----

  void add_pages() {
    server_.Get("/healthz", [](const Request&, Response& response) { response.set_content("ok\n", "text/plain"); });
    server_.Get("/favicon.ico", [](const Request&, Response& response) { response.status = 204; });
    server_.Get("/metrics", [this](const Request&, Response& response) {
      response.set_content(view_.metrics(), "text/plain; version=0.0.4");
    });
    server_.Get(R"(/[a-z.]*)", [](const Request& request, Response& response) {
      const auto file = built_page(request.path);
      if (!file) return fail(response, 404, "no such page");
      response.set_content(file->bytes.data(), file->bytes.size(), file->type);
    });
  }

  void add_answers() {
    server_.Get("/api/v1/run", [this](const Request&, Response& response) { answer(response, view_.run()); });
    server_.Get("/api/v1/status", [this](const Request&, Response& response) { answer(response, view_.status()); });
    server_.Get("/api/v1/workers",
                [this](const Request&, Response& response) { answer(response, view_.status()["workers"]); });
    server_.Get("/api/v1/steps", [this](const Request& request, Response& response) {
      constexpr int64_t kLastStep = int64_t{1} << 40;
      const auto from = number_of(request, "from", 0, 0, kLastStep);
      const auto to = number_of(request, "to", kLastStep, 0, kLastStep);
      const auto points = number_of(request, "points", 500, 1, 5000);
      if (!from || !to || !points) return fail(response, 400, "from and to are steps, points is 1 to 5000");
      answer(response, view_.steps(*from, *to, *points));
    });
    server_.Get("/api/v1/events", [this](const Request& request, Response& response) {
      const auto after = number_of(request, "after", 0, 0, std::numeric_limits<int64_t>::max());
      if (!after) return fail(response, 400, "after is the number of an event");
      answer(response, view_.events(*after));
    });
    server_.Get("/api/v1/stream", [this](const Request&, Response& response) { stream(response); });
    const auto order = [this](control::ControlRequest::What what) {
      return [this, what](const Request&, Response& response) {
        const auto said = view_.control(what);
        if (!said) return fail(response, 409, said.error().message);
        answer(response, {{"said", said.value()}});
      };
    };
    server_.Post("/api/v1/pause", order(control::ControlRequest::PAUSE));
    server_.Post("/api/v1/resume", order(control::ControlRequest::RESUME));
  }

  // ---- streams ----

  // Makes the newest status known to the streams, if it differs in more than the seconds since workers were heard.
  void publish() {
    auto status = view_.status();
    auto bare = status;
    for (auto& worker : bare["workers"]) worker.erase("heard_s_ago");
    auto bare_text = text_of(bare);
    const auto events = view_.events(0);
    const int64_t newest = events.empty() ? 0 : events.back()["number"].get<int64_t>();
    const std::lock_guard lock(mutex_);
    if (bare_text == shown_ && newest == newest_event_) return;
    shown_ = std::move(bare_text);
    newest_event_ = newest;
    status_text_ = text_of(status);
    ++version_;
    changed_.notify_all();
  }

  void stream(Response& response) {
    if (++streams_ > kMostStreams) {
      --streams_;
      return fail(response, 503, fmt::format("{} streams are open, which is the most", kMostStreams));
    }
    struct Seen {
      uint64_t version = 0;
      int64_t event = 0;
    };
    const auto seen = std::make_shared<Seen>();
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, seen](size_t, httplib::DataSink& sink) {
          std::string text;
          {
            std::unique_lock lock(mutex_);
            changed_.wait_for(lock, kHeartbeat, [&] { return closing_ || version_ != seen->version; });
            if (closing_) return false;
            if (version_ == seen->version) {
              text = ": here\n\n";
            } else {
              seen->version = version_;
              text = "event: status\ndata: " + status_text_ + "\n\n";
            }
          }
          if (const auto news = view_.events(seen->event); !news.empty()) {
            seen->event = news.back()["number"];
            text += "event: events\ndata: " + text_of(news) + "\n\n";
          }
          return sink.write(text.data(), text.size());
        },
        [this](bool) { --streams_; });
  }

  const DashboardOptions& options_;
  RunView view_;
  const std::string token_;
  const bool local_;  // only this machine can reach it
  std::atomic<int> port_ = 0;
  httplib::Server server_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  uint64_t version_ = 0;
  std::string status_text_, shown_;
  int64_t newest_event_ = 0;
  std::atomic<int> streams_ = 0;
};

}  // namespace

std::string dashboard_token(const std::filesystem::path& run_folder) {
  const auto path = run_folder / "dashboard-token";
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    auto token = read_private_file(path).take();
    while (!token.empty() && token.back() == '\n') token.pop_back();
    if (token.size() == 2 * kTokenBytes) return token;
  }
  std::array<unsigned char, kTokenBytes> bytes{};
  TP_CHECK(RAND_bytes(bytes.data(), bytes.size()) == 1, "no random numbers");
  std::string token;
  for (const auto byte : bytes) token += fmt::format("{:02x}", byte);
  write_file_atomically(path, token + "\n", FileMode::kPrivate).take();
  return token;
}

void serve_dashboard(const DashboardOptions& options) { Dashboard(options).serve(); }

}  // namespace thinpipe
