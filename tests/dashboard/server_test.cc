// A real dashboard on loopback, asked by a real client. The run is made up: nobody serves it.
#include "dashboard/server.h"

#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/files.h"
#include "dashboard/made_up_run.h"

namespace thinpipe::test {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

class RunningDashboard {
 public:
  explicit RunningDashboard(const MadeUpRun& run, const std::string& host = "127.0.0.1") {
    std::promise<std::pair<std::string, int>> ready;
    auto place = ready.get_future();
    thread_ = std::thread([this, folder = run.folder(), host, promise = std::move(ready)]() mutable {
      DashboardOptions options;
      options.folder = folder;
      options.listen.host = host;
      options.on_ready = [&](const std::string& address, int port) { promise.set_value({address, port}); };
      options.over = [this] { return over_.load(); };
      serve_dashboard(options);
    });
    std::tie(address_, port_) = place.get();
    token_ = address_.substr(address_.find('#') + 1);
  }
  ~RunningDashboard() {
    over_ = true;
    thread_.join();
  }

  httplib::Client client() const {
    httplib::Client made("127.0.0.1", port_);
    made.set_read_timeout(kPatience);
    return made;
  }
  int port() const { return port_; }
  httplib::Headers with_token() const { return {{"Authorization", "Bearer " + token_}}; }

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
  std::string address_, token_;
  int port_ = 0;
};

int status_of(const httplib::Result& result) { return result ? result->status : -1; }
nlohmann::json json_of(const httplib::Result& result) {
  return result ? nlohmann::json::parse(result->body, nullptr, false) : nlohmann::json();
}

// Waits until the dashboard has read the files up to this step.
nlohmann::json status_at(const RunningDashboard& dashboard, int64_t step) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto wanted = "\"step\":" + std::to_string(step) + ",";
  std::string text;
  (void)dashboard.client().Get("/api/v1/stream", [&](const char* data, size_t size) {
    text.append(data, size);
    return text.find(wanted) == std::string::npos && std::chrono::steady_clock::now() < deadline;
  });
  return json_of(dashboard.client().Get("/api/v1/status"));
}

TEST(Dashboard, OfARunThatIsOver_ShowsIt) {
  const MadeUpRun run;
  run.add_steps(1, 40);
  run.write("outcome.json", R"({"failed":true,"complete":false,"reason":"the disk is full","step":40})");
  const RunningDashboard dashboard(run);
  const auto status = status_at(dashboard, 40);
  EXPECT_EQ(status["state"], "failed");
  EXPECT_EQ(status["why"], "the disk is full");
  EXPECT_EQ(status["traced_step"], 31);
  EXPECT_EQ(status["traced"][1]["passes"].size(), 2);
  auto client = dashboard.client();
  EXPECT_EQ(json_of(client.Get("/api/v1/run"))["d"], 64);
  EXPECT_EQ(json_of(client.Get("/api/v1/steps?points=4&from=5&to=12"))["step"], nlohmann::json({6, 8, 10, 12}));
  EXPECT_EQ(json_of(client.Get("/api/v1/events")), nlohmann::json::array());
  EXPECT_EQ(client.Get("/healthz")->body, "ok\n");
  EXPECT_NE(client.Get("/metrics")->body.find("\nthinpipe_step 40\n"), std::string::npos);
  EXPECT_NE(client.Get("/")->body.find("<!doctype html>"), std::string::npos);
  EXPECT_EQ(client.Get("/app.js")->get_header_value("Content-Type"), "text/javascript; charset=utf-8");
}

TEST(Dashboard, Stream_SendsTheStatusAtOnceAndAfterChanges) {
  const MadeUpRun run;
  run.add_steps(1, 3);
  const RunningDashboard dashboard(run);
  status_at(dashboard, 3);
  std::string text;
  bool grown = false;
  (void)dashboard.client().Get("/api/v1/stream", [&](const char* data, size_t size) {
    text.append(data, size);
    if (!grown && text.find("\"step\":3,") != std::string::npos) {
      run.add_steps(4, 4);
      grown = true;
    }
    return text.find("\"step\":4,") == std::string::npos;
  });
  EXPECT_TRUE(text.starts_with("event: status\ndata: {"));
  EXPECT_NE(text.find("\"step\":4,"), std::string::npos);
}

TEST(Dashboard, OfABadParameter_SaysWhatWouldBeRight) {
  const MadeUpRun run;
  const RunningDashboard dashboard(run);
  auto client = dashboard.client();
  for (const auto* query :
       {"points=0", "points=5001", "points=x", "from=-1", "to=1e3", "points=99999999999999999999"}) {
    const auto result = client.Get(std::string("/api/v1/steps?") + query);
    EXPECT_EQ(status_of(result), 400) << query;
    EXPECT_EQ(json_of(result)["error"], "from and to are steps, points is 1 to 5000");
  }
}

TEST(Dashboard, ForeignPages_AreRefused) {
  const MadeUpRun run;
  const RunningDashboard dashboard(run);
  auto client = dashboard.client();
  const auto own = "127.0.0.1:" + std::to_string(dashboard.port());
  EXPECT_EQ(status_of(client.Get("/api/v1/run", {{"Origin", "http://evil.example"}})), 403);
  EXPECT_EQ(status_of(client.Get("/api/v1/run", {{"Origin", "null"}})), 403);
  EXPECT_EQ(status_of(client.Get("/api/v1/run", {{"Host", "evil.example:" + std::to_string(dashboard.port())}})), 403);
  EXPECT_EQ(status_of(client.Get("/api/v1/run", {{"Host", own}, {"Origin", "http://" + own}})), 200);
  auto headers = dashboard.with_token();
  headers.emplace("Origin", "http://evil.example");
  EXPECT_EQ(status_of(client.Post("/api/v1/pause", headers, "", "text/plain")), 403);
}

TEST(Dashboard, PauseNeedsTheToken) {
  const MadeUpRun run;
  const RunningDashboard dashboard(run);
  auto client = dashboard.client();
  EXPECT_EQ(status_of(client.Post("/api/v1/pause", "", "text/plain")), 401);
  EXPECT_EQ(status_of(client.Get("/api/v1/run", {{"Authorization", "Bearer 0000"}})), 401);
  EXPECT_EQ(status_of(client.Post("/api/v1/pause", {{"Authorization", "Bearer 0000"}}, "", "text/plain")), 401);
  const auto result = client.Post("/api/v1/pause", dashboard.with_token(), "", "text/plain");
  EXPECT_EQ(status_of(result), 409);
  EXPECT_EQ(json_of(result)["error"], "this run is not being served");
}

TEST(Dashboard, OffLoopback_ShowsNothingWithoutTheToken) {
  const MadeUpRun run;
  const RunningDashboard dashboard(run, "0.0.0.0");
  auto client = dashboard.client();
  EXPECT_EQ(status_of(client.Get("/")), 200);
  EXPECT_EQ(status_of(client.Get("/healthz")), 200);
  for (const auto* path : {"/api/v1/run", "/api/v1/status", "/api/v1/steps", "/api/v1/events", "/api/v1/stream",
                           "/api/v1/workers", "/metrics"}) {
    EXPECT_EQ(status_of(client.Get(path)), 401) << path;
    EXPECT_EQ(status_of(client.Get(path, {{"Authorization", "Bearer"}})), 401) << path;
  }
  EXPECT_EQ(status_of(client.Get("/api/v1/run", dashboard.with_token())), 200);
}

TEST(Dashboard, Token_IsKeptWhereOnlyTheOwnerReadsIt) {
  const MadeUpRun run;
  const auto token = dashboard_token(run.folder());
  EXPECT_EQ(token.size(), 32);
  EXPECT_EQ(dashboard_token(run.folder()), token);
  struct stat facts {};
  ASSERT_EQ(::stat((run.folder() / "dashboard-token").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600);
}

TEST(Dashboard, OfOtherPaths_ServesNothing) {
  const MadeUpRun run;
  const RunningDashboard dashboard(run);
  auto client = dashboard.client();
  for (const auto* path : {"/../config.toml", "/config.toml", "/%2e%2e/dashboard-token", "//etc/passwd", "/api/v1/",
                           "/api/v1/../../dashboard-token", "/app.js/../../config.toml"}) {
    EXPECT_EQ(status_of(client.Get(path)), 404) << path;
  }
  EXPECT_EQ(status_of(client.Delete("/api/v1/run", dashboard.with_token(), "", "text/plain")), 404);
}

TEST(Dashboard, OfAMegabyteOfHeaders_RefusesAndGoesOn) {
  const MadeUpRun run;
  const RunningDashboard dashboard(run);
  httplib::Headers many;
  for (int i = 0; i < 1000; ++i) many.emplace("X-" + std::to_string(i), std::string(1000, 'x'));
  EXPECT_NE(status_of(dashboard.client().Get("/api/v1/run", many)), 200);
  EXPECT_NE(status_of(dashboard.client().Get("/api/v1/run", {{"X-Long", std::string(1 << 20, 'x')}})), 200);
  EXPECT_NE(status_of(dashboard.client().Post("/api/v1/pause", dashboard.with_token(), std::string(1 << 20, 'x'),
                                              "text/plain")),
            200);
  EXPECT_EQ(status_of(dashboard.client().Get("/api/v1/run")), 200);
}

TEST(Dashboard, OfIdleConnections_ClosesThemAndGoesOn) {
  const MadeUpRun run;
  const RunningDashboard dashboard(run);
  std::vector<Fd> idle;
  for (int i = 0; i < 300; ++i) {
    Fd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<uint16_t>(dashboard.port()));
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(connection.get(), reinterpret_cast<sockaddr*>(&place), sizeof place) == 0)
      idle.push_back(std::move(connection));
  }
  EXPECT_EQ(status_of(dashboard.client().Get("/healthz")), 200);
}

TEST(Dashboard, OfTooManyStreams_RefusesOne) {
  const MadeUpRun run;
  const RunningDashboard dashboard(run);
  constexpr int kStreams = 48;
  std::latch open(kStreams), done(1);
  std::vector<std::thread> watchers;
  watchers.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    watchers.emplace_back([&] {
      std::once_flag first;
      (void)dashboard.client().Get("/api/v1/stream", [&](const char*, size_t) {
        std::call_once(first, [&] { open.count_down(); });
        done.wait();
        return false;
      });
      std::call_once(first, [&] { open.count_down(); });  // refused
    });
  }
  open.wait();
  EXPECT_EQ(status_of(dashboard.client().Get("/api/v1/stream")), 503);
  EXPECT_EQ(status_of(dashboard.client().Get("/healthz")), 200);
  done.count_down();
  for (auto& watcher : watchers) watcher.join();
}

}  // namespace
}  // namespace thinpipe::test
