#include "run/coordinator/serve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/log.h"
#include "config/config_file.h"
#include "net/addresses.h"
#include "net/door.h"
#include "net/grpc_link.h"
#include "net/tls.h"
#include "pipeline/corpus_table.h"
#include "pipeline/run_corpus.h"
#include "pipeline/run_folder.h"
#include "pipeline/seed_numbers.h"
#include "pipeline/table_file.h"
#include "run/coordinator_line.h"
#include "run/kept_model.h"
#include "run/run_files.h"
#include "text/prepare.h"

namespace thinpipe {
namespace {

constexpr timespec kTick{0, 100'000'000};
constexpr auto kServeFarewell = std::chrono::seconds(10);
constexpr int kMostMessageBytes = 160 << 10;  // a part of a file has 128 KiB
constexpr size_t kMostHeldBytes = 128 << 20;
constexpr int kMostThreads = 1024;
constexpr int kMostStreamsPerConnection = 8;
constexpr int kReadAheadBytes = 128 << 10;  // of a call
constexpr int kHandshakeMs = 10'000;
constexpr int kIdleMs = 60'000;  // for connections without a call

// Returns the stored value of that name; stores `first` if there is none yet.
std::string lasting(RunStore& store, const std::string& name, const std::string& first) {
  const auto known = store.get(name).take();
  if (known) return *known;
  store.set(name, first).take();
  return first;
}

// A place without a port gets the port from last time, so that workers find a restarted coordinator.
std::vector<HostPort> listen_places(RunStore& store, const std::vector<std::string>& listen) {
  const auto port = store.get("port").take();
  std::vector<HostPort> places;
  for (const auto& text : listen) {
    places.push_back(parse_host_port(text).take());
    if (places.back().port == 0 && port) places.back().port = std::atoi(port->c_str());
  }
  return places;
}

// Takes its connections from the door.
std::unique_ptr<grpc::Server> start_server(CoordinatorService& service, const Identity& identity, Door& door) {
  prepare_grpc();
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  // Anybody may knock: bounds what callers can make this process hold.
  builder.SetMaxReceiveMessageSize(kMostMessageBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("door").Resize(kMostHeldBytes).SetMaxThreads(kMostThreads));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kReadAheadBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // else a fast sender is read further ahead
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  auto acceptor = std::shared_ptr(builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, tls_server(identity, false)));
  builder.RegisterService(&service);
  builder.RegisterService(&service.tunnels());
  auto server = builder.BuildAndStart();
  TP_CHECK(server != nullptr, "cannot start the server");
  door.open([acceptor](int listener, int descriptor) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = descriptor;
    acceptor->HandleNewConnection(&connection);
  });
  return server;
}

// Where a process on this machine reaches the coordinator.
std::string local_address(const std::vector<HostPort>& places) {
  const auto& first = places.front();
  if (is_wildcard(first)) return to_string({"127.0.0.1", first.port});
  return to_string(first);
}

Status write_json(const std::filesystem::path& path, const nlohmann::ordered_json& json) {
  return write_file_atomically(path, json.dump() + "\n");
}

// Reads and checks the run's own token table, if it has one, before anybody asks for it.
std::optional<CheckpointFile> checked_table(const std::filesystem::path& folder, const RunConfig& config,
                                            int64_t vocab) {
  if (!table_of_run(folder, config, vocab).take().defined()) return std::nullopt;
  const auto path = table_path(folder, config.model.table);
  return CheckpointFile{"", std::filesystem::file_size(path), sha256_of_file(path).take()};
}

// Writes the weights of the last checkpoint as one file.
Status write_model(const std::filesystem::path& folder, int64_t step) {
  const auto found = TRY(checkpoint_of_step(folder, step));
  return write_model_file(found.files, folder / "model.safetensors");
}

// Ticks until the run is over. A second signal ends the process: durable state is already on the disk.
Finish wait_for_end(CoordinatorService& service, const ServeOptions& options) {
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
      if (options.on_stop) options.on_stop();
      service.stop_after_checkpoint();
    }
    service.tick();
    if (options.on_tick) options.on_tick(service.status());
  }
}

Status write_outcome(const std::filesystem::path& folder, const Finish& end, bool complete,
                     const control::RunStatus& status) {
  return write_json(folder / "outcome.json", {{"failed", end.failed},
                                              {"complete", complete},
                                              {"reason", end.reason},
                                              {"step", status.step()},
                                              {"manifest_step", std::max<int64_t>(0, status.manifest_step())},
                                              {"loss", status.loss()},  // null when it is not finite
                                              {"validation_loss", status.validation_loss()},
                                              {"step_bytes", status.step_bytes()}});
}

// Waits for the end of the run and writes down how it ended.
Finish conclude(CoordinatorService& service, const ServeOptions& options, int64_t steps) {
  const auto& folder = options.folder;
  auto end = wait_for_end(service, options);
  bool complete = false;
  if (!end.failed && service.complete()) {
    if (const auto status = write_model(folder, steps); status.ok()) {
      complete = true;
    } else {
      end = {true, status.error().message + full_disk_advice(folder)};
    }
  }
  if (const auto written = write_outcome(folder, end, complete, service.status()); !written && !end.failed) {
    end = {true, written.error().message + full_disk_advice(folder)};
  }
  return end;
}

// What a member needs to use the model: all that `thinpipe generate` opens.
Result<std::vector<CheckpointFile>> files_of_model(const std::filesystem::path& folder, const RunConfig& config) {
  std::vector<CheckpointFile> files;
  for (const auto& name : kept_files(config)) {
    std::error_code code;
    const auto bytes = std::filesystem::file_size(folder / name, code);
    if (code) return Error{fmt::format("cannot read {}: {}", (folder / name).string(), code.message())};
    files.push_back({name, bytes, TRY(sha256_of_file(folder / name))});
  }
  return files;
}

// False: it cannot be read, which is no failure of the run.
bool give_model(CoordinatorService& service, const ServeOptions& options, const RunConfig& config) {
  auto files = files_of_model(options.folder, config);
  if (files) service.give_model(std::move(files).value());
  if (!files) log_warn("the model is not given to members: {}", files.error().message);
  return files.ok();
}

// Stays until the members that keep the model have fetched it, or stand still, or somebody ends this process.
void wait_for_keepers(CoordinatorService& service, const ServeOptions& options) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  size_t said = 0;
  do {
    const auto left = service.keepers();
    if (left != said && options.on_keepers) options.on_keepers(left);
    said = left;
  } while (said > 0 && ::sigtimedwait(&signals, nullptr, &kTick) <= 0);
}

// The run's corpus. Throws UserError if it is not the one that the run started with.
PreparedCorpus same_corpus(RunStore& store, const std::filesystem::path& folder, const DataConfig& data) {
  auto corpus = corpus_of_run(folder, data, data_dir());
  if (lasting(store, "corpus", corpus.id) == corpus.id) return corpus;
  throw UserError(fmt::format("data.corpus = \"{}\": is not the text that this run started with", data.corpus));
}

}  // namespace

Finish serve_run(const ServeOptions& options) {
  const auto wanted = load_config(options.folder / "config.toml");
  auto store = RunStore::open(options.folder / "run.sqlite").take();
  const auto run = lasting(store, "run", new_run_id());
  std::error_code ignored;
  std::filesystem::remove(options.folder / "outcome.json", ignored);

  const auto corpus = same_corpus(store, options.folder, wanted.data);
  const auto config = settle_table(options.folder, wanted, corpus).take();
  keep_corpus(options.folder, corpus).take();
  const TokenWindows windows(corpus, config.train);
  auto listen = options.listen;
  if (listen.empty()) listen = {any_address()};
  auto places = listen_places(store, listen);
  auto authority = CertificateAuthority::open_or_create(authority_folder(options.folder), run).take();
  const auto door_folder = authority_folder(options.folder) / "coordinator";
  make_identity(authority, kCoordinatorName, door_folder).take();
  make_identity(authority, kOperatorName, operator_folder(options.folder)).take();

  const SystemClock clock;
  CoordinatorService service(
      {.run = run,
       .config = config,
       .folder = options.folder,
       .corpus_id = corpus.id,
       .vocab = corpus.vocab,
       .seed_numbers_sha256 = seed_numbers_sha256(config, corpus.vocab),
       .table = checked_table(options.folder, config, corpus.vocab),
       .table_path = table_path(options.folder, config.model.table),
       .open = options.open,
       .validation_windows = windows.validation_windows()},
      {std::move(authority), load_identity(operator_folder(options.folder)).take().certificate_pem}, std::move(store),
      windows, clock);
  service.start().take();
  Door door(places, door_limits());
  service.on_member([&door](const std::string& address, const std::string& name) { door.prove(address, name); });
  const auto server = start_server(service, load_identity(door_folder).take(), door);
  service.remember_port(places.front().port).take();
  auto addresses = options.announce;
  for (const auto& place : places) {
    for (auto& address : reachable_addresses(place)) addresses.push_back(std::move(address));
  }
  service.announce(addresses);
  write_json(options.folder / "coordinator.json",
             {{"address", local_address(places)}, {"pid", ::getpid()}, {"run", run}})
      .take();
  log_info("run {} is served at {}", run, fmt::join(addresses, ", "));
  if (options.on_ready) options.on_ready(addresses);

  const auto end = conclude(service, options, config.train.steps);
  const bool gives =
      !end.failed && service.complete() && service.model_is_wanted() && give_model(service, options, config);
  service.wait_for_farewells(kServeFarewell);
  if (gives) wait_for_keepers(service, options);
  service.close_all();
  service.tunnels().shutdown("the run is over");
  door.close();
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  std::filesystem::remove(options.folder / "coordinator.json", ignored);
  return end;
}

}  // namespace thinpipe
