#include "run/join.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/channel.h>

#include <algorithm>
#include <cstdlib>

#include "base/files.h"
#include "base/result.h"
#include "base/units.h"
#include "config/config_file.h"
#include "model/stage.h"
#include "model/threads.h"
#include "pipeline/seed_numbers.h"
#include "pipeline/stage_worker.h"
#include "plan/machine.h"
#include "plan/memory_plan.h"
#include "plan/placement.h"
#include "run/core/run_rules.h"

namespace thinpipe {
namespace {

constexpr auto kConnectPatience = std::chrono::seconds(15);
constexpr auto kCallPatience = std::chrono::seconds(30);
constexpr uint32_t kMeasureBytes = 128 << 10;
constexpr int kMeasureRepeats = 3;

// Sends the certificate request of an earlier enrolment, if there was one: then this machine needs no further use.
control::JoinRequest request_for(const Invite& invite) {
  control::JoinRequest request;
  request.set_protocol(kControlProtocol);
  request.set_run(invite.run);
  request.set_token(invite.token);
  if (const auto asked = read_file(join_folder(invite.run) / "identity" / "request.pem"); asked) {
    request.set_certificate_request(asked.value());
  }
  return request;
}

// Finds the first of the invite's addresses where its coordinator answers.
std::pair<std::string, std::shared_ptr<grpc::Channel>> reach(const Invite& invite) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (const auto& address : invite.addresses) {
    channels.push_back(strangers_channel(address, invite.ca_pem));
    channels.back()->GetState(true);
  }
  const auto deadline = std::chrono::system_clock::now() + kConnectPatience;
  for (size_t i = 0; i < channels.size(); ++i) {
    if (channels[i]->WaitForConnected(deadline)) return {invite.addresses[i], channels[i]};
  }
  throw UserError(fmt::format("nobody answers at {}: is the run's coordinator up, and may this machine reach it?",
                              fmt::join(invite.addresses, ", ")));
}

control::JoinReply call(control::Coordinator::Stub& stub, const control::JoinRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallPatience);
  control::JoinReply reply;
  const auto status = stub.Join(&context, request, &reply);
  if (!status.ok()) throw UserError(fmt::format("the run's coordinator says: {}", status.error_message()));
  return reply;
}

double unix_now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double rate_of(size_t bytes, double taken_s, double round_trip_s) {
  return 8.0 * static_cast<double>(bytes) / std::max(1e-4, taken_s - round_trip_s);
}

// Measures the seconds of one microbatch's forward and backward through these blocks; the best of a few. Only one
// sequence goes through, and counts for all: the run may be waiting for this machine.
double time_blocks(const RunConfig& config, int64_t vocab, BlockRange range) {
  auto model = config.model;
  model.table.clear();  // any table takes the same time
  Stage stage(model, vocab, range, config.train.precision, config.train.seed, device_of(config.train));
  const int64_t length = config.train.seq_len;
  const bool narrow = model.is_subspace() && range.first <= model.first_dense_block();
  const int64_t width = narrow ? model.subspace.rank : model.d;
  const auto stream = [&] { return at::full({length, width}, 0.01, stage.options()); };
  const TokenBatch batch{at::zeros({1, length + 1}, stage.options().dtype(at::kLong))};
  const SystemClock clock;
  double best = 0;
  for (int i = 0; i < kMeasureRepeats; ++i) {
    const auto begin = clock.now();
    auto pass = stage.forward(batch, range.has_embedding() ? at::Tensor() : stream(), 1.0);
    const auto grad = range.has_head() ? at::Tensor() : at::full_like(pass.output, 0.01);
    stage.backward(std::move(pass), grad);
    const double taken = seconds(clock.now() - begin);
    best = i == 0 ? taken : std::min(best, taken);
  }
  return best * static_cast<double>(config.train.microbatch);
}

// Runs a sequence through one block of the run's size, and one through the head, with the run's number of threads.
// Allocates memory for both, so check the memory first.
control::Machine measure_machine(const RunConfig& config, int64_t vocab) {
  control::Machine machine;
  machine.set_memory_bytes(available_memory_bytes());
  const int threads = at::get_num_threads();
  use_threads(threads_for(config));
  const int64_t total = config.model.blocks;
  // A block from the middle has neither the embedding nor the head.
  const int64_t middle = total >= 3 ? 1 : 0;
  machine.set_block_s(time_blocks(config, vocab, {middle, middle + 1, total + (total == 1 ? 1 : 0)}));
  const int64_t tail =
      config.model.is_subspace() ? std::min<int64_t>(total - 1, config.model.first_dense_block()) : total - 1;
  const double end = time_blocks(config, vocab, {tail, total, total});
  machine.set_ends_s(std::max(0.0, end - static_cast<double>(total - tail) * machine.block_s()));
  use_threads(threads);
  return machine;
}

JoinChecks check_stage(RunConfig config, int64_t vocab, int64_t stage, const std::filesystem::path& folder,
                       PreflightFacts facts) {
  JoinChecks result;
  const auto plan = memory_plan(config, vocab, stage);
  facts.protocol = kControlProtocol;
  facts.build = THINPIPE_VERSION;
  facts.memory_needed = plan.total();
  facts.memory_available = available_memory_bytes();
  // Two local copies of the stage's state, and one on its way.
  facts.disk_needed = 3 * state_bytes(config, vocab, blocks_of_stage(config, stage));
  facts.disk_free = free_disk_bytes(folder);
  result.machine.set_memory_bytes(facts.memory_available);
  if (facts.memory_available == 0 || facts.memory_available >= facts.memory_needed) {
    result.machine = measure_machine(config, vocab);
    const auto blocks = static_cast<double>(blocks_per_stage(config).at(static_cast<size_t>(stage)));
    const bool last = stage + 1 == config.pipeline.stages;
    facts.compute_s_per_step = static_cast<double>(config.train.microbatches) *
                               (blocks * result.machine.block_s() + (last ? result.machine.ends_s() : 0.0));
  }
  result.checks = preflight(facts);
  result.config = std::move(config);
  return result;
}

void cap(double& rate, uint64_t most) {
  if (most > 0) rate = std::min(rate, static_cast<double>(most));
}

}  // namespace

JoinLook look(const Invite& invite) {
  JoinLook seen;
  auto [address, channel] = reach(invite);
  seen.address = address;
  const auto stub = control::Coordinator::NewStub(channel);
  const SystemClock clock;
  const auto timed = [&](const control::JoinRequest& request, control::JoinReply* reply) {
    const auto begin = clock.now();
    auto answer = call(*stub, request);
    const double taken = seconds(clock.now() - begin);
    if (reply != nullptr) *reply = std::move(answer);
    return taken;
  };
  const auto request = request_for(invite);
  timed(request, nullptr);  // the first call includes the connection
  const double before = unix_now_s();
  auto& run = seen.run;
  run.round_trip_s = timed(request, &seen.reply);
  run.clock_offset_s = before + run.round_trip_s / 2 - static_cast<double>(seen.reply.unix_time_us()) / 1e6;
  run.protocol = seen.reply.protocol();
  run.build = seen.reply.run().build();
  run.download_bytes = seen.reply.state_bytes();
  run.others_s_per_step = seen.reply.step_s();
  auto up = request;
  up.set_padding(std::string(kMeasureBytes, '\0'));
  run.up_bits_per_s = rate_of(kMeasureBytes, timed(up, nullptr), run.round_trip_s);
  auto down = request;
  down.set_padding_wanted(kMeasureBytes);
  run.down_bits_per_s = rate_of(kMeasureBytes, timed(down, nullptr), run.round_trip_s);
  return seen;
}

JoinChecks check_machine(const JoinLook& look, const std::filesystem::path& folder, const GuestLimits& limits) {
  const auto& run = look.reply.run();
  auto config = parse_config(run.config_toml(), "the run's config");
  config.train.threads = threads_within(config.train.threads, limits.threads);
  // A machine that will wait may get any stage later: check the first.
  const int64_t stage = std::clamp<int64_t>(look.reply.seat().stage(), 0, config.pipeline.stages - 1);
  PreflightFacts facts;
  if (look.reply.has_seat()) facts.stage = stage;
  facts.run = look.run;
  const auto same = check_seed_numbers(config, run.vocab(), run.seed_numbers_sha256());
  if (!run.seed_numbers_sha256().empty()) facts.run->seed_numbers_fault = same ? "" : same.error().message;
  const auto traffic = step_traffic(config, run.vocab(), stage);
  facts.run->up_bytes_per_step = static_cast<double>(traffic.sent);
  facts.run->down_bytes_per_step = static_cast<double>(traffic.received);
  facts.memory_limit = limits.max_memory_bytes;
  cap(facts.run->up_bits_per_s, limits.max_upload_bits_per_s);
  cap(facts.run->down_bits_per_s, limits.max_download_bits_per_s);
  return check_stage(std::move(config), run.vocab(), stage, folder, facts);
}

control::Machine within(control::Machine machine, const GuestLimits& limits) {
  if (limits.max_memory_bytes == 0) return machine;
  // The coordinator lets a stage use this share of it.
  const auto most = static_cast<uint64_t>(static_cast<double>(limits.max_memory_bytes) / kMemoryShare) + 1;
  machine.set_memory_bytes(machine.memory_bytes() == 0 ? most : std::min(machine.memory_bytes(), most));
  return machine;
}

void refuse_if_no_stage_fits(const RunConfig& config, const GuestLimits& limits) {
  if (limits.max_memory_bytes == 0) return;
  auto here = config;
  here.train.threads = threads_within(config.train.threads, limits.threads);
  uint64_t least = UINT64_MAX;
  for (int64_t stage = 0; stage < config.pipeline.stages; ++stage) {
    least = std::min(least, memory_plan(here, config.data.vocab, stage).total());
  }
  if (least <= limits.max_memory_bytes) return;
  throw UserError(
      fmt::format("--max-memory {}: the smallest stage of this run needs up to {} MiB; allow more, or leave "
                  "the run to larger machines",
                  format_size(limits.max_memory_bytes), (least + (1 << 20) - 1) >> 20));
}

JoinChecks check_machine_alone(const RunConfig& config, int64_t vocab, const std::filesystem::path& folder) {
  return check_stage(config, vocab, 0, folder, {});
}

std::optional<CoordinatorAccess> earlier_access(const Invite& invite) {
  const auto folder = join_folder(invite.run) / "identity";
  const auto identity = load_identity(folder);
  if (!identity || identity.value().ca_pem != invite.ca_pem) return std::nullopt;
  return coordinator_access(invite.addresses, folder);
}

namespace {

struct AskedWith {
  std::string key_pem, request_pem;
};

// Returns the key and the certificate request of this machine; makes them once. If the answer is lost, the same request
// gets a certificate for the same worker without a further use of the invite.
AskedWith lasting_request(const std::filesystem::path& folder) {
  const auto key_path = folder / "request.key", request_path = folder / "request.pem";
  auto key = read_file(key_path), request = read_file(request_path);
  if (key && request) return {key.value(), request.value()};
  AskedWith made{new_key_pem(), ""};
  made.request_pem = certificate_request(made.key_pem).take();
  make_directories(folder).take();
  write_file_atomically(key_path, made.key_pem, FileMode::kPrivate).take();
  write_file_atomically(request_path, made.request_pem).take();
  return made;
}

}  // namespace

CoordinatorAccess enrol(const Invite& invite, const std::string& address, const std::string& name) {
  const auto folder = join_folder(invite.run) / "identity";
  const auto [key, request_pem] = lasting_request(folder);
  auto request = request_for(invite);
  request.set_enrol(true);
  request.set_name(name);
  request.set_certificate_request(request_pem);
  const auto stub = control::Coordinator::NewStub(strangers_channel(address, invite.ca_pem));
  const auto reply = call(*stub, request);
  const Identity identity{invite.ca_pem, reply.certificate(), key};
  check_identity(identity).take();
  save_identity(folder, identity).take();
  // The address that answered comes first.
  auto addresses = invite.addresses;
  std::stable_partition(addresses.begin(), addresses.end(), [&](const auto& one) { return one == address; });
  return coordinator_access(std::move(addresses), folder);
}

}  // namespace thinpipe
