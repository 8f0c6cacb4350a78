#include "cluster/serve.h"

#include <fmt/format.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "base/files.h"
#include "base/log.h"
#include "config/config_file.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

constexpr timespec kTick{0, 100'000'000};
constexpr auto kFarewell = std::chrono::seconds(2);

std::string random_run_id() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", device());
  return id;
}

// The value of that name, made and kept when there is none yet.
std::string lasting(RunStore& store, const std::string& name, const std::string& first) {
  const auto known = store.get(name).take();
  if (known) return *known;
  store.set(name, first).take();
  return first;
}

// "127.0.0.1" or "127.0.0.1:7000"; without a port the one of last time, so that workers find a restarted coordinator.
std::string listen_address(RunStore& store, const std::string& listen) {
  const bool has_port = listen.rfind(':') != std::string::npos && listen.back() != ']';
  if (has_port) return listen;
  const auto port = store.get("port").take();
  return fmt::format("{}:{}", listen, port.value_or("0"));
}

std::unique_ptr<grpc::Server> start_server(CoordinatorService& service, const std::string& address, int* port) {
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), port);
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  if (!server || *port == 0) throw UserError(fmt::format("cannot listen on {}: is the port in use?", address));
  return server;
}

void write_json(const std::filesystem::path& path, const nlohmann::ordered_json& json) {
  write_file_atomically(path, json.dump() + "\n").take();
}

Result<nlohmann::json> read_json(const std::filesystem::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  auto json = nlohmann::json::parse(text.value(), nullptr, false);
  if (!json.is_object()) return Error{fmt::format("{} is not what thinpipe writes", path.string())};
  return json;
}

// Ticks until the run is over. A second signal ends the process: what is durable is durable.
RunEnd wait_for_end(CoordinatorService& service) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  bool asked = false;
  while (true) {
    if (const auto end = service.ended()) return *end;
    if (::sigtimedwait(&signals, nullptr, &kTick) > 0) {
      if (asked) ::_exit(130);
      asked = true;
      service.stop_after_checkpoint();
    }
    service.tick();
  }
}

}  // namespace

Result<CoordinatorPlace> read_coordinator_place(const std::filesystem::path& run_folder) {
  const auto json = read_json(run_folder / "coordinator.json");
  if (!json) return json.error();
  return CoordinatorPlace{json.value().value("address", ""), json.value().value("pid", int64_t{0})};
}

Result<RunOutcome> read_outcome(const std::filesystem::path& run_folder) {
  const auto json = read_json(run_folder / "outcome.json");
  if (!json) return json.error();
  const auto& found = json.value();
  return RunOutcome{.failed = found.value("failed", true),
                    .complete = found.value("complete", false),
                    .reason = found.value("reason", ""),
                    .step = found.value("step", int64_t{0}),
                    .manifest_step = found.value("manifest_step", int64_t{0}),
                    .loss = found.value("loss", 0.0),
                    .validation_loss = found.value("validation_loss", 0.0),
                    .step_bytes = found.value("step_bytes", uint64_t{0})};
}

RunEnd serve_run(const ServeOptions& options) {
  const auto config = load_config(options.folder / "config.toml");
  auto store = RunStore::open(options.folder / "run.sqlite").take();
  const auto run = lasting(store, "run", random_run_id());
  std::error_code ignored;
  std::filesystem::remove(options.folder / "outcome.json", ignored);

  const auto corpus = prepare_corpus(config.data, data_dir());
  if (lasting(store, "corpus", corpus.id) != corpus.id) {
    throw UserError(fmt::format("data.corpus = \"{}\": is not the text this run began with", config.data.corpus));
  }
  BatchSource batches(corpus, config.train);
  const auto address = listen_address(store, options.listen);
  const SystemClock clock;
  int port = 0;
  CoordinatorService service({run, config, options.folder, corpus.id, corpus.vocab}, std::move(store), batches, clock);
  service.start().take();
  const auto server = start_server(service, address, &port);
  service.remember_port(port).take();
  const auto host = address.substr(0, address.rfind(':'));
  write_json(options.folder / "coordinator.json", {{"address", fmt::format("{}:{}", host, port)}, {"pid", ::getpid()}});
  log_info("run {} is served at {}:{}", run, host, port);

  auto end = wait_for_end(service);
  bool complete = false;
  if (!end.failed && service.complete()) {
    if (const auto status = service.write_model(); status.ok()) {
      complete = true;
    } else {
      end = {true, status.error().message};
    }
  }
  const auto status = service.status();
  write_json(options.folder / "outcome.json",
             {{"failed", end.failed},
              {"complete", complete},
              {"reason", end.reason},
              {"step", status.step()},
              {"manifest_step", std::max<int64_t>(0, status.manifest_step())},
              {"loss", std::isfinite(status.loss()) ? status.loss() : 0.0},
              {"validation_loss", std::isfinite(status.validation_loss()) ? status.validation_loss() : 0.0},
              {"step_bytes", status.step_bytes()}});
  service.wait_for_farewells(kFarewell);
  service.close_all();
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  std::filesystem::remove(options.folder / "coordinator.json", ignored);
  return end;
}

}  // namespace thinpipe
